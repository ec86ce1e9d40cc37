//! Kernels of language-model post-training: group advantages, divergences, ratios and packing.
//!
//! Free functions on the caller's slices. Log-probabilities are those of the tokens that were sampled, in nats, row by
//! row: token t of sequence b is element `b * seq_len + t`.

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
