//! Kernels for post-training language models: group advantages, divergences, ratios and packing.
//!
//! All are free functions on the caller's slices. Log-probabilities belong to the sampled tokens, in nats, row-major:
//! token t of sequence b is element `b * seq_len + t`.

mod group_advantage;
mod kl;
mod packing;
mod ratio;
mod rewards;

pub use group_advantage::{GroupOptions, RewardScale, compute_batch_group_advantages, compute_group_advantages};
pub use kl::{KlEstimator, Reduction, sequence_kl, token_kl};
pub use packing::{Overflow, Packing, pack};
pub use ratio::{RatioStats, policy_ratios, ratio_stats, sequence_ratios};
pub use rewards::combine_rewards;
