//! Test, with the real clock, that long calls poll the interrupt check. The test has a process of
//! its own, because the check function can be set only once per process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rlox_core::{
    Error,
    advantage::EpisodeEnds,
    compute_gae,
    interrupt::{InterruptCheck, set_interrupt_check},
};

const PERIOD: Duration = Duration::from_millis(50);

static POLLS: AtomicUsize = AtomicUsize::new(0);
/// Number of the poll that reports an interruption.
const LAST: usize = 3;

fn stop() -> bool {
    POLLS.fetch_add(1, Ordering::Relaxed) + 1 >= LAST
}

/// Returns true if `call` was interrupted. Checks that the call did not poll after the
/// interruption, nor more often than every 50 ms.
fn stopped(call: impl FnOnce() -> Result<(), Error>) -> bool {
    POLLS.store(0, Ordering::Relaxed);
    let began = Instant::now();
    let result = call();
    let (polls, elapsed) = (POLLS.load(Ordering::Relaxed), began.elapsed());
    assert!(polls <= LAST && PERIOD * polls as u32 <= elapsed, "{polls} polls in {elapsed:?}");
    assert_eq!(matches!(result, Err(Error::Interrupted)), polls == LAST, "{result:?} after {polls} polls");
    polls == LAST
}

#[test]
fn calls_stop_if_and_only_if_the_check_reports_an_interruption() {
    set_interrupt_check(stop);
    set_interrupt_check(|| panic!("the first check stays"));
    assert!(stopped(|| {
        let mut watch = InterruptCheck::default();
        loop {
            watch.check()?;
        }
    }));
    // The length increases until the call takes so long on this machine that it is interrupted.
    let gae = |len: usize| {
        let (rewards, flags) = (vec![1.0_f32; len], vec![false; len]);
        let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
        stopped(|| compute_gae(&rewards, &rewards, EpisodeEnds::dones(&flags), 0.0, 0.99, 0.95, &mut a, &mut r))
    };
    assert!((20..28).any(|power| gae(1 << power)), "no call took long enough");
}
