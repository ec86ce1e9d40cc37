//! What critics learn from.

use rlox_core::{Result, check_len};

use crate::rows;

/// A minibatch of B state-action pairs for critics. All but the observations and actions are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct ValuedActions<'a> {
    /// `[B, d]`.
    pub obs: &'a [f32],
    /// `[B, a]`, between -1 and 1.
    pub actions: &'a [f32],
    /// What values are to be ([`crate::losses::td_targets`]).
    pub targets: &'a [f32],
    /// Importance weights of prioritized replay.
    pub weights: Option<&'a [f32]>,
}

impl ValuedActions<'_> {
    /// Checks the lengths, and that all numbers are finite.
    pub(super) fn check(&self, obs_dim: usize, action_dim: usize) -> Result<()> {
        let rows = rows::count("actions", self.actions, action_dim)?;
        let weights = self.weights.unwrap_or(&[]);
        check_len("obs", self.obs.len(), rows.saturating_mul(obs_dim))?;
        check_len("targets", self.targets.len(), rows)?;
        check_len("weights", weights.len(), self.weights.map_or(0, |_| rows))?;
        for (name, numbers, dim) in [
            ("obs", self.obs, obs_dim),
            ("actions", self.actions, action_dim),
            ("targets", self.targets, 1),
            ("weights", weights, 1),
        ] {
            rows::check_finite(name, numbers, dim)?;
        }
        Ok(())
    }
}
