//! What a normaliser is told to do.

use crate::{Error, Result};

/// What a [`Normalizer`](super::Normalizer) does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormalizerOptions {
    /// Normalise observations.
    pub obs: bool,
    /// Normalise rewards.
    pub reward: bool,
    /// The discount of the running return whose variance scales the rewards, in [0, 1].
    pub gamma: f64,
    /// Normalised observations stay within this distance of 0.
    pub clip_obs: f64,
    /// Normalised rewards stay within this distance of 0.
    pub clip_reward: f64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl Default for NormalizerOptions {
    fn default() -> Self {
        Self { obs: true, reward: true, gamma: 0.99, clip_obs: 10.0, clip_reward: 10.0, epsilon: 1e-8 }
    }
}

impl NormalizerOptions {
    pub(super) fn validate(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.gamma) {
            return Err(Error::config("gamma", "a number in [0, 1]", self.gamma.to_string(), "correct it"));
        }
        for (name, value) in [("clip_obs", self.clip_obs), ("clip_reward", self.clip_reward), ("epsilon", self.epsilon)]
        {
            if value.is_nan() || value <= 0.0 {
                return Err(Error::config(name, "a positive number", value.to_string(), "correct it"));
            }
        }
        Ok(())
    }
}
