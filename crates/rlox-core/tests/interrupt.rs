//! Long calls ask whether to stop. In a process of its own, because what they ask is set once for all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rlox_core::{Ends, Error, compute_gae, compute_gae_batched, compute_gae_time_major, set_interrupt_check};

static STOP: AtomicBool = AtomicBool::new(false);

type Call<'a> = &'a mut dyn FnMut(&mut [f32], &mut [f32]) -> Result<(), Error>;

/// Advantages of `len` steps, as one trajectory, as columns and as trajectories end to end.
fn calls(len: usize) -> [(&'static str, Result<(), Error>, Duration); 3] {
    let (rewards, flags, last) = (vec![1.0_f32; len], vec![false; len], vec![0.0; 1 << 10]);
    let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
    let ends = || Ends::dones(&flags);
    let mut timed = |name, call: Call<'_>| {
        let began = Instant::now();
        let result = call(&mut a, &mut r);
        (name, result, began.elapsed())
    };
    [
        timed("one", &mut |a, r| compute_gae(&rewards, &rewards, ends(), 0.0, 0.99, 0.95, a, r)),
        timed("columns", &mut |a, r| {
            compute_gae_time_major(&rewards, &rewards, ends(), 1 << 10, &last, 0.99, 0.95, a, r)
        }),
        timed("batched", &mut |a, r| {
            compute_gae_batched(&rewards, &rewards, ends(), &last, len >> 10, 0.99, 0.95, a, r)
        }),
    ]
}

#[test]
fn calls_stop_when_they_are_told_to_and_only_then() {
    set_interrupt_check(|| STOP.load(Ordering::Relaxed));
    set_interrupt_check(|| panic!("the first check stays"));
    // As large as makes each of them take long on this machine.
    let mut len = 1 << 20;
    while calls(len).iter().any(|(_, result, time)| {
        assert!(result.is_ok());
        *time < Duration::from_millis(150)
    }) {
        len *= 2;
    }
    STOP.store(true, Ordering::Relaxed);
    for (name, result, time) in calls(len) {
        assert!(matches!(result, Err(Error::Interrupted)), "{name} took {time:?}");
    }
}
