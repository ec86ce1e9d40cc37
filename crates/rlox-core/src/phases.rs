//! Where the time of training goes: a clock of each thread, which costs next to nothing.

use std::cell::Cell;
use std::time::Instant;

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
}

/// Steps of single environments between two vector steps that are timed. Reading a clock takes about as long as a step of
/// a small environment; one in so many keeps that below a hundredth of a run.
const EVERY: usize = 64;

/// The clock of this thread: seconds by phase, and the phase that it is in.
///
/// Vector steps of few environments are timed now and then, and what is timed then stands for the steps between.
///
/// ```
/// use rlox_core::{Clock, Phase};
///
/// Clock::read();
/// Clock::enter(Phase::GaeCompute);
/// Clock::leave();
/// let [env_step, _, gae_compute, ..] = Clock::read();
/// assert!(env_step == 0.0 && gae_compute > 0.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    seconds: [f64; 5],
    now: Option<(Phase, Instant)>,
    /// For how many steps that which is timed stands; 0 where nothing is timed.
    weight: f64,
    /// Steps of single environments since the last that were timed.
    untimed: usize,
}

thread_local! {
    static CLOCK: Cell<Clock> = const { Cell::new(Clock { seconds: [0.0; 5], now: None, weight: 1.0, untimed: 0 }) };
}

impl Clock {
    /// Ends the phase that was, and begins another.
    pub fn enter(phase: Phase) {
        Self::turn(Some(phase));
    }

    /// Ends the phase that was; what follows is in none.
    pub fn leave() {
        Self::turn(None);
    }

    /// Begins a step of `num_envs` environments, which is timed now and then, in a phase.
    pub fn step(num_envs: usize, phase: Phase) {
        Self::leave();
        let mut clock = CLOCK.get();
        clock.untimed += num_envs;
        clock.weight = 0.0;
        if clock.untimed >= EVERY {
            clock.weight = clock.untimed as f64 / num_envs.max(1) as f64;
            clock.untimed = 0;
        }
        CLOCK.set(clock);
        Self::enter(phase);
    }

    /// Ends such steps: what follows is timed wholly.
    pub fn steps_done() {
        Self::leave();
        let clock = CLOCK.get();
        CLOCK.set(Clock { weight: 1.0, ..clock });
    }

    /// Seconds of this thread in each phase, in the order of [`Phase`], since they were read last; the clock is in no
    /// phase then.
    pub fn read() -> [f64; 5] {
        Self::leave();
        let clock = CLOCK.get();
        CLOCK.set(Clock { seconds: [0.0; 5], weight: 1.0, ..clock });
        clock.seconds
    }

    fn turn(phase: Option<Phase>) {
        let mut clock = CLOCK.get();
        if clock.weight == 0.0 || (phase.is_none() && clock.now.is_none()) {
            return;
        }
        let now = Instant::now();
        if let Some((was, since)) = clock.now {
            clock.seconds[was as usize] += (now - since).as_secs_f64() * clock.weight;
        }
        clock.now = phase.map(|phase| (phase, now));
        CLOCK.set(clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_steps_stand_for_all() {
        Clock::read();
        let mut timed = 0.0;
        for _ in 0..256 {
            Clock::step(1, Phase::EnvStep);
            timed += CLOCK.get().weight;
        }
        Clock::steps_done();
        assert_eq!((timed, CLOCK.get().weight), (256.0, 1.0));
        Clock::step(1000, Phase::EnvStep);
        assert_eq!(CLOCK.get().weight, 1.0);
        Clock::steps_done();
    }

    #[test]
    fn a_phase_is_what_went_by_in_it() {
        Clock::read();
        Clock::enter(Phase::Buffer);
        std::thread::sleep(std::time::Duration::from_millis(20));
        Clock::leave();
        let seconds = Clock::read();
        assert!(seconds[Phase::Buffer as usize] >= 0.02, "{seconds:?}");
        assert_eq!(seconds[..4], [0.0; 4]);
        assert_eq!(Clock::read(), [0.0; 5]);
    }
}
