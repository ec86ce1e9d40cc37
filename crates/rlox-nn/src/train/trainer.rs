//! Trainers, which run the training loop of an algorithm in environments.

mod async_on_policy;
mod off_policy;
mod on_policy;

pub use async_on_policy::{ActorPlan, AsyncOnPolicy};
pub use off_policy::{OffPolicy, OffPolicyMetrics};
pub(super) use on_policy::Collector;
pub use on_policy::{
    Algorithm as OnPolicyAlgorithm, CollectConfig, OnPolicy, collect_transitions, estimate_advantages,
};

use rlox_core::{Error, Result};

/// Range of timesteps of one call of `train`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) target: u64,
}

impl Run {
    /// Creates a run of `additional` steps after `timesteps`, or of one step if `additional` is 0.
    pub(super) fn new(timesteps: u64, additional: u64) -> Self {
        Self { start: timesteps, target: timesteps.saturating_add(additional.max(1)) }
    }

    /// Returns the fraction of the run that is finished after `timesteps`.
    ///
    /// # Errors
    /// [`Error::Config`] if the run has ended.
    pub(super) fn progress(self, timesteps: u64) -> Result<f64> {
        if timesteps >= self.target {
            let got = format!("a run with {timesteps} of {} steps finished", self.target);
            return Err(Error::config("resume", "an unfinished run", got, "call train to start a new run"));
        }
        Ok(timesteps.saturating_sub(self.start) as f64 / (self.target - self.start) as f64)
    }

    /// Returns the fraction of the run that one step finishes.
    pub(super) fn progress_per_step(self) -> f64 {
        1.0 / (self.target - self.start).max(1) as f64
    }
}
