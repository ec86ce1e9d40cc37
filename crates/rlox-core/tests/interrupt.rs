//! Long calls ask whether to stop, by the machine's clock. In a process of its own, because what they ask is set once
//! for all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rlox_core::{EpisodeEnds, Error, InterruptCheck, compute_gae, set_interrupt_check};

const PERIOD: Duration = Duration::from_millis(50);

static ASKED: AtomicUsize = AtomicUsize::new(0);
/// At which question to stop.
const LAST: usize = 3;

fn stop() -> bool {
    ASKED.fetch_add(1, Ordering::Relaxed) + 1 >= LAST
}

/// Whether it was told to stop; if so it asked nothing after that, and never more often than it may.
fn stopped(call: impl FnOnce() -> Result<(), Error>) -> bool {
    ASKED.store(0, Ordering::Relaxed);
    let began = Instant::now();
    let result = call();
    let (asked, took) = (ASKED.load(Ordering::Relaxed), began.elapsed());
    assert!(asked <= LAST && PERIOD * asked as u32 <= took, "{asked} questions in {took:?}");
    assert_eq!(matches!(result, Err(Error::Interrupted)), asked == LAST, "{result:?} after {asked} questions");
    asked == LAST
}

#[test]
fn calls_stop_when_they_are_told_to_and_only_then() {
    set_interrupt_check(stop);
    set_interrupt_check(|| panic!("the first check stays"));
    assert!(stopped(|| {
        let mut watch = InterruptCheck::default();
        loop {
            watch.check()?;
        }
    }));
    // As large as makes it take long enough on this machine.
    let gae = |len: usize| {
        let (rewards, flags) = (vec![1.0_f32; len], vec![false; len]);
        let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
        stopped(|| compute_gae(&rewards, &rewards, EpisodeEnds::dones(&flags), 0.0, 0.99, 0.95, &mut a, &mut r))
    };
    assert!((20..28).any(|power| gae(1 << power)), "no call took long enough");
}
