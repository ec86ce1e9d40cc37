//! Long calls ask whether to stop. In a process of its own, because what they ask is set once for all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rlox_core::envs::CartPole;
use rlox_core::llm::{GroupOptions, KlEstimator, Overflow, Reduction, RewardScale};
use rlox_core::llm::{compute_batch_group_advantages, compute_group_advantages, pack, sequence_kl, sequence_ratios};
use rlox_core::{
    AutoresetMode, Ends, Error, compute_gae, compute_gae_batched, compute_gae_time_major, envs::SoaVecEnv,
    set_interrupt_check,
};

static STOP: AtomicBool = AtomicBool::new(false);

type Call = fn(usize) -> (Result<(), Error>, Duration);

fn timed(call: impl FnOnce() -> Result<(), Error>) -> (Result<(), Error>, Duration) {
    let began = Instant::now();
    let result = call();
    (result, began.elapsed())
}

/// Advantages of `len` steps, as columns of 1024 or end to end.
fn gae(len: usize, columns: bool) -> (Result<(), Error>, Duration) {
    let (rewards, flags, last) = (vec![1.0_f32; len], vec![false; len], vec![0.0; 1 << 10]);
    let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
    let ends = Ends::dones(&flags);
    timed(|| {
        if columns {
            compute_gae_time_major(&rewards, &rewards, ends, 1 << 10, &last, 0.99, 0.95, &mut a, &mut r)
        } else {
            compute_gae_batched(&rewards, &rewards, ends, &last, len >> 10, 0.99, 0.95, &mut a, &mut r)
        }
    })
}

/// Advantages of `len` rewards, of which the first one may be missing.
fn groups(len: usize, group_size: usize, first: f32, scale: RewardScale) -> (Result<(), Error>, Duration) {
    let (mut rewards, mut out) = (vec![1.0_f32; len], vec![0.0; len]);
    (rewards[0], rewards[1]) = (first, 2.0);
    let options = GroupOptions { scale, ..Default::default() };
    timed(|| {
        if group_size == len {
            compute_group_advantages(&rewards, &options, &mut out)
        } else {
            compute_batch_group_advantages(&rewards, group_size, &options, &mut out)
        }
    })
}

const CALLS: [(&str, Call); 10] = [
    ("one trajectory", |len| {
        let (rewards, flags) = (vec![1.0_f32; len], vec![false; len]);
        let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
        timed(|| compute_gae(&rewards, &rewards, Ends::dones(&flags), 0.0, 0.99, 0.95, &mut a, &mut r))
    }),
    ("columns", |len| gae(len, true)),
    ("batched", |len| gae(len, false)),
    ("one row's divergence", |len| {
        let (x, mask) = (vec![-1.0_f32; len], vec![true; len]);
        let mut kl = [0.0];
        timed(|| sequence_kl(&x, &x, Some(&mask), KlEstimator::Full, Reduction::Mean, &mut kl))
    }),
    ("one row's ratio", |len| {
        let x = vec![-1.0_f32; len];
        timed(|| sequence_ratios(&x, &x, None, &mut [0.0]))
    }),
    ("one group", |len| groups(len, len, 0.0, RewardScale::Group)),
    ("one group with a gap", |len| groups(len, len, f32::NAN, RewardScale::Group)),
    ("many groups", |len| groups(len, 8, 0.0, RewardScale::Batch)),
    ("packing", |len| {
        let lengths: Vec<_> = (0..len / 8).map(|i| i * 7919 % 997).collect();
        timed(|| pack(&lengths, 1000, Overflow::Error).map(drop))
    }),
    ("environments", |len| {
        let env = CartPole::default();
        timed(|| SoaVecEnv::new(len / 8, Some(0), AutoresetMode::SameStep, env).map(drop))
    }),
];

#[test]
fn calls_stop_when_they_are_told_to_and_only_then() {
    set_interrupt_check(|| STOP.load(Ordering::Relaxed));
    set_interrupt_check(|| panic!("the first check stays"));
    for (name, call) in CALLS {
        STOP.store(false, Ordering::Relaxed);
        // As large as makes it take long on this machine.
        let mut len = 1 << 20;
        let full = loop {
            let (result, time) = call(len);
            assert!(result.is_ok(), "{name}: {result:?}");
            if time > Duration::from_millis(200) {
                break time;
            }
            len *= 2;
        };
        STOP.store(true, Ordering::Relaxed);
        let (result, time) = call(len);
        assert!(matches!(result, Err(Error::Interrupted)), "{name} took {time:?} of {full:?}");
        // It asks after 50 ms; the rest is for the machine, which others use too.
        assert!(time < Duration::from_millis(150).max(full * 3 / 4), "{name} took {time:?} of {full:?}");
    }
}
