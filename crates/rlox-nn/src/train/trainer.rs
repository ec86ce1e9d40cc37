//! The trainers: environments, a method, and the loop over them.

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

/// The steps that a call of `train` was to make.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) target: u64,
}

impl Run {
    /// So many steps more, one at least.
    pub(super) fn new(timesteps: u64, additional: u64) -> Self {
        Self { start: timesteps, target: timesteps.saturating_add(additional.max(1)) }
    }

    /// The share that is done.
    ///
    /// # Errors
    /// [`Error::Config`] if that is all of it.
    pub(super) fn progress(self, timesteps: u64) -> Result<f64> {
        if timesteps >= self.target {
            let got = format!("{timesteps} steps of {}", self.target);
            return Err(Error::config("resume", "a run that has not ended", got, "call train"));
        }
        Ok(timesteps.saturating_sub(self.start) as f64 / (self.target - self.start) as f64)
    }

    /// The share that one step is.
    pub(super) fn progress_per_step(self) -> f64 {
        1.0 / (self.target - self.start).max(1) as f64
    }
}
