//! Kernels for the post-training of language models: group advantages, KL divergences, importance
//! ratios and packing of sequences.
//!
//! All kernels are free functions on slices of the caller. Log-probabilities are natural logarithms
//! of the probabilities of the sampled tokens. They are stored row-major: token t of sequence b is
//! element `b * seq_len + t`.

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
