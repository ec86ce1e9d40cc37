//! Profile of training: the time that a thread spends in each [`Phase`].
//!
//! Each thread has a clock, which is in exactly one phase at any time. Therefore the times of the
//! phases add up to the elapsed time.
//!
//! A clock runs from [`start`] to [`stop`]. While no clock runs, [`enter`] and [`StepTimer`] have
//! no effect and no measurable cost. The clock measures elapsed time, so the time in which its
//! thread waits for other threads counts as well. [`crate::collect`] and the trainers of `rlox-nn`
//! enter the phases automatically.
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
    /// Stepping the environments.
    EnvStep,
    /// Computing actions and values with the policy.
    Inference,
    /// Computing advantages.
    GaeCompute,
    /// Computing losses and gradients, and updating weights.
    GradientUpdate,
    /// Storing and reading transitions and minibatches.
    Buffer,
    /// All other work.
    Other,
}

impl Phase {
    /// All phases with their names, in the order of the result of [`read`].
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

/// Number of environment steps per timed vector step, once the timing has reached its lowest rate.
/// A vector step of N environments is N environment steps.
///
/// Not every step is timed, because reading the clock takes about as long as a step of a small
/// environment.
const SAMPLE_EVERY_STEPS: usize = 64;

/// Factor by which each timed step reduces the weight of the earlier ones. The mean thus covers
/// about the last fifty timed steps.
const DECAY: f64 = 0.98;

/// State of the timing of sampled vector steps, and the mean over these steps.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    /// Duration of one clock reading. It is subtracted from each measured duration of a phase.
    reading: Duration,
    /// Decayed sum over the sampled steps of the fraction of a step that each phase took.
    shares: [f64; 6],
    /// Number of steps to skip before the next sample. `stride` is the number of steps from that
    /// sample to the one after it.
    remaining: usize,
    stride: usize,
}

struct Clock {
    /// Number of calls of `start` without a matching call of `stop`.
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

    /// Returns the seconds since the last call, or since the start of the clock.
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

/// Starts the clock of this thread in [`Phase::Other`].
///
/// If the clock already runs, it continues in its phase. It then stops after as many calls of
/// [`stop`] as of `start`.
///
/// ```
/// rlox_core::__private::profile::start();
/// # rlox_core::__private::profile::stop();
/// ```
pub fn start() {
    CLOCK.with_borrow_mut(|clock| clock.get_or_insert_with(Clock::new).users += 1);
}

/// Stops the clock of this thread once `stop` has been called as often as [`start`]. Does nothing
/// if no clock runs.
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

/// Ends the current phase of the clock of this thread and enters `phase`.
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
/// All numbers are 0 if no clock runs.
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

/// Timer for a sequence of vector steps. A vector step is too short for timing its phases each
/// time.
///
/// The timer measures the total time of the sequence, until the timer is dropped. It measures the
/// phases of sampled steps only, and divides the total time in the proportions of these phases.
/// About one in 64 environment steps is sampled, and more at the start.
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
    /// State of the sampling, or `None` if no clock runs.
    sampling: Option<Sampling>,
    /// Maximum number of vector steps between two samples. The number is odd, so that samples do
    /// not coincide with events that happen every 2^k steps.
    most: usize,
    /// Durations of the phases of the sampled step that is in progress. `now` is its current phase
    /// and the start of that phase.
    spans: [Duration; 6],
    now: Option<(Phase, Instant)>,
}

impl StepTimer {
    /// Starts a sequence of vector steps of `num_envs` environments.
    pub fn new(num_envs: usize) -> Self {
        let sampling = CLOCK.with_borrow_mut(|clock| {
            clock.as_mut().map(|clock| {
                clock.enter(clock.phase);
                clock.sampling
            })
        });
        Self { sampling, most: (SAMPLE_EVERY_STEPS / num_envs.max(1)) | 1, spans: [Duration::ZERO; 6], now: None }
    }

    /// Starts a vector step in the phase `phase`.
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

    /// Ends the current phase of the step and enters `phase`.
    pub fn enter(&mut self, phase: Phase) {
        if let (Some((was, since)), Some(sampling)) = (self.now, &self.sampling) {
            let now = Instant::now();
            self.spans[was as usize] += (now - since).saturating_sub(sampling.reading);
            self.now = Some((phase, now));
        }
    }

    /// Ends the current step, and adds its durations to the mean if the step is sampled.
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
