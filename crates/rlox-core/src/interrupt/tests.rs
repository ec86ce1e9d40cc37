//! Tests with a simulated clock. Only readings advance the clock, so the speed of the machine has
//! no effect.

use std::cell::Cell;
use std::time::Duration;

use super::{InterruptCheck, PERIOD, set_interrupt_check};
use crate::envs::{CartPole, SoaVecEnv};
use crate::llm::{GroupOptions, KlEstimator, Overflow, Reduction, RewardScale};
use crate::llm::{
    combine_rewards, compute_batch_group_advantages, compute_group_advantages, pack, sequence_kl, sequence_ratios,
};
use crate::{
    AutoresetMode, Error, Pcg64, Result, VecEnv,
    advantage::{EpisodeEnds, compute_gae_time_major},
    compute_gae, compute_gae_batched,
    normalize::RunningMeanStd,
    pool::num_threads,
};

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Time by which a reading advances the clock. It is zero in other tests, so that they never
    /// poll the check function.
    static TICK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static ASKED: Cell<usize> = const { Cell::new(0) };
    static STOP_AT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// If true, the next poll panics.
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Instant(Duration);

impl Instant {
    pub(super) fn now() -> Self {
        NOW.set(NOW.get() + TICK.get());
        Self(NOW.get())
    }

    pub(super) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// Returns the result of `call` and the number of polls of the check function.
///
/// Each reading advances the clock by `tick`. The check function reports an interruption from poll
/// number `stop_at` on.
pub(crate) fn run_with_checks<R>(tick: Duration, stop_at: usize, call: impl FnOnce() -> R) -> (R, usize) {
    set_interrupt_check(|| {
        assert!(!PANICS.replace(false), "the check panics on purpose");
        ASKED.set(ASKED.get() + 1);
        ASKED.get() >= STOP_AT.get()
    });
    ASKED.set(0);
    STOP_AT.set(stop_at);
    TICK.set(tick);
    let result = call();
    TICK.set(Duration::ZERO);
    (result, ASKED.get())
}

/// Runs `call`, whose first poll panics. Each reading advances the clock by `tick`.
pub(crate) fn asked_to_panic<R>(tick: Duration, call: impl FnOnce() -> R) -> R {
    PANICS.set(true);
    run_with_checks(tick, usize::MAX, call).0
}

#[test]
fn interrupt_check_polls_once_per_period() {
    let tick = PERIOD / 10;
    let ((), count) = run_with_checks(tick, usize::MAX, || {
        let mut watch = InterruptCheck::default();
        // Every tenth check polls, because each check advances the clock by a tenth of the period.
        for _ in 0..10 + 4 * 11 {
            watch.check().unwrap();
        }
    });
    assert_eq!(count, 5);
    let (checks, count) = run_with_checks(tick, 3, || {
        let mut watch = InterruptCheck::default();
        (0..1000).take_while(|_| watch.check().is_ok()).count()
    });
    assert_eq!((checks, count), (9 + 2 * 10, 3));
}

/// Computes advantages of `len` steps: 1024 columns of a grid, or 1024 trajectories stored one
/// after the other.
fn gae(len: usize, columns: bool) -> Result<()> {
    let (rewards, flags, last) = (vec![1.0_f32; len], vec![false; len], vec![0.0; 1 << 10]);
    let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
    let ends = EpisodeEnds::dones(&flags);
    if columns {
        compute_gae_time_major(&rewards, &rewards, ends, 1 << 10, &last, 0.99, 0.95, &mut a, &mut r)
    } else {
        compute_gae_batched(&rewards, &rewards, ends, &last, len >> 10, 0.99, 0.95, &mut a, &mut r)
    }
}

/// Computes group advantages of `len` rewards. The first reward is `first`, which may be NaN.
fn groups(len: usize, group_size: usize, first: f32, scale: RewardScale) -> Result<()> {
    let (mut rewards, mut out) = (vec![1.0_f32; len], vec![0.0; len]);
    (rewards[0], rewards[1]) = (first, 2.0);
    let options = GroupOptions { scale, ..Default::default() };
    if group_size == len {
        compute_group_advantages(&rewards, &options, &mut out)
    } else {
        compute_batch_group_advantages(&rewards, group_size, &options, &mut out)
    }
}

type Call = fn(usize) -> Result<()>;

const CALLS: [(&str, Call); 18] = [
    ("one trajectory", |len| {
        let (rewards, flags) = (vec![1.0_f32; len], vec![false; len]);
        let (mut a, mut r) = (vec![0.0; len], vec![0.0; len]);
        compute_gae(&rewards, &rewards, EpisodeEnds::dones(&flags), 0.0, 0.99, 0.95, &mut a, &mut r)
    }),
    ("columns", |len| gae(len, true)),
    ("batched", |len| gae(len, false)),
    ("one row's divergence", |len| {
        let (x, mask) = (vec![-1.0_f32; len], vec![true; len]);
        sequence_kl(&x, &x, Some(&mask), KlEstimator::Full, Reduction::Mean, &mut [0.0])
    }),
    ("one row's ratio", |len| {
        let x = vec![-1.0_f32; len];
        sequence_ratios(&x, &x, None, &mut [0.0])
    }),
    ("one group", |len| groups(len, len, 0.0, RewardScale::Group)),
    ("one group with a gap", |len| groups(len, len, f32::NAN, RewardScale::Group)),
    ("many groups", |len| groups(len, 8, 0.0, RewardScale::Batch)),
    ("packing", |len| {
        let lengths: Vec<_> = (0..len / 8).map(|i| i * 7919 % 997).collect();
        pack(&lengths, 1000, Overflow::Error).map(drop)
    }),
    ("packing into one long row", |len| pack(&[len], len, Overflow::Error).map(drop)),
    ("statistics of numbers", |len| RunningMeanStd::try_new(1)?.update(&vec![1.0_f32; len])),
    ("statistics of a long row", |len| RunningMeanStd::try_new(len / 4)?.update(&vec![1.0_f32; len / 4])),
    ("rewards of two functions", |len| combine_rewards(&vec![1.0_f32; len], &[1.0; 2], &mut vec![0.0; len / 2])),
    ("rewards of many functions", |len| combine_rewards(&vec![1.0_f32; len], &vec![1.0; len], &mut [0.0])),
    ("rows of nothing", |len| {
        sequence_kl::<f32>(&[], &[], None, KlEstimator::Full, Reduction::Sum, &mut vec![0.0; 4 * len])
    }),
    ("a long seed", |len| Pcg64::from_entropy(&vec![1; len / 32], &mut InterruptCheck::default()).map(drop)),
    ("environments", |len| {
        let env = CartPole::default();
        SoaVecEnv::new(len / 64, Some(0), AutoresetMode::SameStep, env).map(drop)
    }),
    ("copies of environments", |len| {
        VecEnv::new(len / 64, Some(0), AutoresetMode::SameStep, CartPole::default).map(drop)
    }),
];

#[test]
fn calls_stop_at_the_poll_that_reports_an_interruption() {
    for (name, call) in CALLS {
        // Work on other threads reduces the number of polls on this thread, so longer calls are
        // tried until they poll more than twice.
        let questions = |len| {
            let (result, count) = run_with_checks(PERIOD, usize::MAX, || call(len));
            assert!(result.is_ok(), "{name}: {result:?}");
            count
        };
        let lens = (22..27).map(|power| 1 << power);
        let len = lens.clone().find(|len| questions(*len) > 2);
        let len = len.unwrap_or_else(|| panic!("{name} never polls with {} threads", num_threads()));
        for stop_at in [1, 2] {
            let stopped = (0..100).any(|_| {
                let (result, count) = run_with_checks(PERIOD, stop_at, || call(len));
                assert!(count <= stop_at, "{name} continued after poll {stop_at}, up to {count}");
                assert_eq!(matches!(result, Err(Error::Interrupted)), count == stop_at, "{name}: {result:?}");
                count == stop_at
            });
            assert!(stopped, "{name} never reached poll {stop_at}");
        }
    }
}

#[test]
fn interrupted_updates_leave_the_statistics_unchanged() {
    let rows: Vec<f64> = (0..1 << 23).map(f64::from).collect();
    for dim in [1, 1 << 22] {
        let (mut statistics, mut interrupted) = (RunningMeanStd::new(dim), 0);
        statistics.update(&vec![3.0; 2 * dim]).unwrap();
        let before = format!("{:?}", (&statistics.mean()[..1], &statistics.var()[..1], statistics.count()));
        for stop_at in 1.. {
            let (result, _) = run_with_checks(PERIOD, stop_at, || statistics.update(&rows));
            if result.is_ok() {
                break;
            }
            interrupted += 1;
            let after = format!("{:?}", (&statistics.mean()[..1], &statistics.var()[..1], statistics.count()));
            assert_eq!(before, after, "poll {stop_at}, rows of {dim}");
        }
        assert!(interrupted > 8, "{interrupted} polls");
        assert_eq!(statistics.count(), (2 + rows.len() / dim) as f64 + 1e-4);
    }
}
