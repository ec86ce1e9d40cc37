//! Losses of all algorithms and their gradients with respect to network outputs, on slices.

pub(crate) mod off_policy;
mod on_policy;

pub use off_policy::{sac_actor_loss, soft_values, td_loss, td_targets, td3_actor_loss, temperature_loss};
pub use on_policy::{
    ClippedLoss, clipped_policy_loss, explained_variance, normalize_advantages, policy_gradient_loss, value_loss,
};
