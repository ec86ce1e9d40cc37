//! Profile of training: a clock of each thread that is in one phase at a time, so that phases add up to the time that
//! went by.
//!
//! A clock runs from [`start`] to [`stop`]; before and after, [`enter`] and [`StepTimer`] count nothing and cost nothing
//! that can be measured. What other threads do counts as what the thread with the clock does meanwhile.
//! [`crate::collect`] enters the phases by itself, and so do the trainers of `rlox-nn`.
//!
//! ```
//! use rlox_core::profile::{self, Phase};
//!
//! profile::start();
//! profile::enter(Phase::GaeCompute);
//! profile::enter(Phase::Other);
//! let seconds = profile::read();
//! profile::stop();
//! assert!(seconds[Phase::EnvStep as usize] == 0.0 && seconds[Phase::GaeCompute as usize] > 0.0);
//! ```

use std::cell::RefCell;
use std::time::Duration;
#[cfg(not(test))]
use std::time::Instant;

#[cfg(test)]
use self::tests::Instant;

/// What time is told apart into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Environments.
    EnvStep,
    /// The policy's actions and values.
    Inference,
    /// Advantages.
    GaeCompute,
    /// Losses, gradients and weights.
    GradientUpdate,
    /// Storing and fetching transitions and minibatches.
    Buffer,
    /// Everything else.
    Other,
}

impl Phase {
    /// All of them, in the order of [`read`], with their names.
    ///
    /// ```
    /// assert_eq!(rlox_core::profile::Phase::ALL[0].1, "env_step");
    /// ```
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::EnvStep, "env_step"),
        (Self::Inference, "inference"),
        (Self::GaeCompute, "gae_compute"),
        (Self::GradientUpdate, "gradient_update"),
        (Self::Buffer, "buffer"),
        (Self::Other, "other"),
    ];
}

/// Steps of single environments for each vector step that is looked into, once there were some. Reading a clock takes
/// about as long as a step of a small environment.
const SAMPLE_EVERY_STEPS: usize = 64;

/// What the mean over the steps that are looked into keeps with each: it forgets those that are some fifty back.
const DECAY: f64 = 0.98;

/// Which steps are looked into, and what was seen in them.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    /// What reading the clock takes: each span of a step has that in it once.
    reading: Duration,
    /// How steps divide into phases, not normalised.
    shares: [f64; 6],
    /// How many more come before the next that is looked into, and after how many the one after that.
    remaining: usize,
    stride: usize,
}

struct Clock {
    /// How many started it.
    users: usize,
    phase: Phase,
    since: Instant,
    seconds: [f64; 6],
    sampling: Sampling,
}

thread_local! {
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

impl Clock {
    fn new() -> Self {
        let reading = (0..64).map(|_| Instant::now().elapsed()).min().unwrap_or_default();
        let sampling = Sampling { reading, shares: [0.0; 6], remaining: 0, stride: 1 };
        Self { users: 0, phase: Phase::Other, since: Instant::now(), seconds: [0.0; 6], sampling }
    }

    /// What went by since the last call.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = (now - self.since).as_secs_f64();
        self.since = now;
        seconds
    }

    fn enter(&mut self, phase: Phase) {
        self.seconds[self.phase as usize] += self.lap();
        self.phase = phase;
    }
}

/// Starts this thread's clock, in [`Phase::Other`]. Where it runs already it goes on, until it was stopped as often.
///
/// ```
/// rlox_core::profile::start();
/// # rlox_core::profile::stop();
/// ```
pub fn start() {
    CLOCK.with_borrow_mut(|clock| clock.get_or_insert_with(Clock::new).users += 1);
}

/// Stops it; without a [`start`] before, does nothing.
///
/// ```
/// rlox_core::profile::stop();
/// ```
pub fn stop() {
    CLOCK.with_borrow_mut(|clock| {
        if let Some(running) = clock {
            running.users -= 1;
            if running.users == 0 {
                *clock = None;
            }
        }
    });
}

/// Ends the phase that was, and begins another, or the same again.
///
/// ```
/// use rlox_core::profile::{Phase, enter};
///
/// enter(Phase::Inference);
/// ```
pub fn enter(phase: Phase) {
    CLOCK.with_borrow_mut(|clock| {
        if let Some(clock) = clock {
            clock.enter(phase);
        }
    });
}

/// Seconds of this thread in each phase since its clock started, in the order of [`Phase::ALL`]; 0 where none runs.
///
/// ```
/// assert_eq!(rlox_core::profile::read(), [0.0; 6]);
/// ```
#[must_use]
pub fn read() -> [f64; 6] {
    CLOCK.with_borrow_mut(|clock| {
        clock.as_mut().map_or([0.0; 6], |clock| {
            clock.enter(clock.phase);
            clock.seconds
        })
    })
}

/// A stretch of vector steps, which are too short to time each of their phases.
///
/// The stretch is timed as a whole, until it is dropped. It divides into phases as those steps did that were looked into:
/// one in about 64 steps of single environments, more in the beginning.
///
/// ```
/// use rlox_core::profile::{Phase, StepTimer};
///
/// let mut steps = StepTimer::new(8);
/// for _ in 0..128 {
///     steps.begin(Phase::Inference);
///     // The policy acts.
///     steps.enter(Phase::EnvStep);
///     // The environments step.
/// }
/// ```
#[derive(Debug)]
#[must_use = "the stretch ends when it is dropped"]
pub struct StepTimer {
    /// None where no clock runs.
    sampling: Option<Sampling>,
    /// The most there are between two that are looked into; odd, so that no rhythm of training is met in step.
    most: usize,
    /// The step that is looked into: its phases, and the one that it is in.
    spans: [Duration; 6],
    now: Option<(Phase, Instant)>,
}

impl StepTimer {
    /// Begins a stretch of steps of so many environments.
    pub fn new(num_envs: usize) -> Self {
        let sampling = CLOCK.with_borrow_mut(|clock| {
            clock.as_mut().map(|clock| {
                clock.enter(clock.phase);
                clock.sampling
            })
        });
        Self { sampling, most: (SAMPLE_EVERY_STEPS / num_envs.max(1)) | 1, spans: [Duration::ZERO; 6], now: None }
    }

    /// Begins a step, in a phase.
    pub fn begin(&mut self, phase: Phase) {
        self.end();
        let Some(sampling) = &mut self.sampling else { return };
        if sampling.remaining > 0 {
            sampling.remaining -= 1;
            return;
        }
        sampling.remaining = sampling.stride - 1;
        sampling.stride = (2 * sampling.stride).min(self.most);
        self.now = Some((phase, Instant::now()));
    }

    /// Ends the phase that the step was in, and begins another.
    pub fn enter(&mut self, phase: Phase) {
        if let (Some((was, since)), Some(sampling)) = (self.now, &self.sampling) {
            let now = Instant::now();
            self.spans[was as usize] += (now - since).saturating_sub(sampling.reading);
            self.now = Some((phase, now));
        }
    }

    /// Ends the step, if it was looked into.
    fn end(&mut self) {
        let Some((phase, _)) = self.now else { return };
        self.enter(phase);
        self.now = None;
        let spans = std::mem::take(&mut self.spans).map(|span| span.as_secs_f64());
        let total: f64 = spans.iter().sum();
        if let (Some(sampling), true) = (&mut self.sampling, total > 0.0) {
            sampling.shares.iter_mut().zip(spans).for_each(|(share, span)| *share = DECAY * *share + span / total);
        }
    }
}

impl Drop for StepTimer {
    fn drop(&mut self) {
        self.end();
        let Some(sampling) = self.sampling else { return };
        CLOCK.with_borrow_mut(|clock| {
            let Some(clock) = clock else { return };
            clock.sampling = sampling;
            let total: f64 = sampling.shares.iter().sum();
            if total > 0.0 {
                let seconds = clock.lap();
                clock.seconds.iter_mut().zip(sampling.shares).for_each(|(sum, share)| *sum += seconds * share / total);
            }
        });
    }
}

#[cfg(test)]
mod tests;
