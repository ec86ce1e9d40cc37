//! Profile of training: a clock per thread that is in one phase at a time, so that phases add up to the elapsed time.
//!
//! A clock runs from [`start`] to [`stop`]. While no clock runs, [`enter`] and [`StepTimer`] have no effect and no
//! measurable cost. Work of other threads counts towards the current phase of the thread with the clock.
//! [`crate::collect`] and the trainers of `rlox-nn` enter the phases automatically.
//!
//! ```
//! use rlox_core::__private::profile::{self, Phase};
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

/// Phase of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Steps of environments.
    EnvStep,
    /// Actions and values of the policy.
    Inference,
    /// Advantages.
    GaeCompute,
    /// Losses, gradients and weight updates.
    GradientUpdate,
    /// Storing and reading transitions and minibatches.
    Buffer,
    /// All other work.
    Other,
}

impl Phase {
    /// All phases with their names, in the order of [`read`].
    ///
    /// ```
    /// assert_eq!(rlox_core::__private::profile::Phase::ALL[0].1, "env_step");
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

/// Steps of single environments per sampled vector step, after the first ones.
///
/// Reading a clock takes about as long as a step of a small environment.
const SAMPLE_EVERY_STEPS: usize = 64;

/// Decay per sample of the mean over sampled steps, a memory of about fifty samples.
const DECAY: f64 = 0.98;

/// Sampling of steps, and the mean over the samples.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    /// Duration of one clock reading, which is subtracted from each span of a step.
    reading: Duration,
    /// Division of steps into phases, not normalised.
    shares: [f64; 6],
    /// Steps before the next sample, and the distance between later samples.
    remaining: usize,
    stride: usize,
}

struct Clock {
    /// Number of calls of `start` without `stop`.
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

    /// Returns the seconds since the last call.
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

/// Starts this thread's clock in [`Phase::Other`].
///
/// A running clock continues, and stops after as many calls of [`stop`].
///
/// ```
/// rlox_core::__private::profile::start();
/// # rlox_core::__private::profile::stop();
/// ```
pub fn start() {
    CLOCK.with_borrow_mut(|clock| clock.get_or_insert_with(Clock::new).users += 1);
}

/// Stops the clock if this is the last of as many calls as of [`start`]. Without a clock, does nothing.
///
/// ```
/// rlox_core::__private::profile::stop();
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

/// Ends the current phase and enters another one or the same again.
///
/// ```
/// use rlox_core::__private::profile::{Phase, enter};
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

/// Returns the seconds in each phase since the clock started, in the order of [`Phase::ALL`].
///
/// All are 0 if no clock runs.
///
/// ```
/// assert_eq!(rlox_core::__private::profile::read(), [0.0; 6]);
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

/// Timer for a sequence of vector steps, which are too short to time each of their phases.
///
/// The sequence is timed as a unit, until the timer is dropped. Its time is divided into phases in the proportions of
/// sampled steps: one in about 64 steps of single environments, and more at the start.
///
/// ```
/// use rlox_core::__private::profile::{Phase, StepTimer};
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
#[must_use = "the sequence ends when the timer is dropped"]
pub struct StepTimer {
    /// `None` if no clock runs.
    sampling: Option<Sampling>,
    /// Maximum distance between samples; odd, to avoid resonance with periods of training.
    most: usize,
    /// Sampled step: durations of its phases, and its current phase.
    spans: [Duration; 6],
    now: Option<(Phase, Instant)>,
}

impl StepTimer {
    /// Starts a sequence of steps of `num_envs` environments.
    pub fn new(num_envs: usize) -> Self {
        let sampling = CLOCK.with_borrow_mut(|clock| {
            clock.as_mut().map(|clock| {
                clock.enter(clock.phase);
                clock.sampling
            })
        });
        Self { sampling, most: (SAMPLE_EVERY_STEPS / num_envs.max(1)) | 1, spans: [Duration::ZERO; 6], now: None }
    }

    /// Starts a step in a phase.
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

    /// Ends the step's current phase and enters another one.
    pub fn enter(&mut self, phase: Phase) {
        if let (Some((was, since)), Some(sampling)) = (self.now, &self.sampling) {
            let now = Instant::now();
            self.spans[was as usize] += (now - since).saturating_sub(sampling.reading);
            self.now = Some((phase, now));
        }
    }

    /// Ends the step, if it is sampled.
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
