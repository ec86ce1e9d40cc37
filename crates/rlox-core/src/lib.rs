//! The data plane of rlox: vectorised environments, buffers of training data and advantage
//! estimators.
//!
//! The crate depends neither on Python nor on a tensor framework. Environments write into slices
//! that the caller allocates. Numerical kernels are free functions on slices. Stepping, collecting
//! and sampling do not allocate memory after their first iterations.
//!
//! ```
//! use rlox_core::{AutoresetMode, Pcg64, RandomPolicy, RolloutBuffer, VecEnv, VectorEnv, collect, envs::CartPole};
//!
//! let mut env = VecEnv::new(8, Some(42), AutoresetMode::SameStep, CartPole::default)?;
//! let mut policy = RandomPolicy::new(&env.spec().action)?;
//! let mut buffer = RolloutBuffer::for_env(128, &env)?;
//! let mut rngs: Vec<_> = (0..8).map(Pcg64::seed_from).collect();
//! collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.99, 0.95)?;
//! # Ok::<(), rlox_core::Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`advantage`] | generalized advantage estimation, V-trace, discounted and lambda returns |
//! | [`checkpoint`] | checkpoints: folders with a manifest and safetensors files, written atomically |
//! | [`envs`] | Gymnasium's classic control environments, and the registry of environments |
//! | [`error`] | errors that name the argument, the expected and the received value |
//! | [`field`] | named arrays, the columns of buffers |
//! | [`interrupt`] | interruption of long calls |
//! | [`llm`] | group advantages, token KL, policy ratios and sequence packing for language models |
//! | [`normalize`] | running mean and variance of observations and rewards |
//! | [`pipeline`] | actor threads that collect rollouts while a learner trains |
//! | [`plugin`] | environments from dynamic libraries |
//! | [`replay`] | replay buffers: uniform, prioritized, memory-mapped, sequences, hindsight |
//! | [`rng`] | NumPy's PCG64 and `SeedSequence` |
//! | [`rollout`] | rollout buffers and collection |
//! | [`vector`] | vectorised environments: autoreset modes, seeds, snapshots, masks |

pub mod advantage;
mod alloc;
pub mod checkpoint;
mod env;
pub mod envs;
pub mod error;
pub mod field;
pub mod interrupt;
pub mod llm;
pub mod normalize;
pub mod pipeline;
pub mod plugin;
mod policy;
mod pool;
#[doc(hidden)]
pub mod profile;
pub mod replay;
pub mod rng;
pub mod rollout;
#[doc(hidden)]
pub mod simd;
mod space;
#[doc(hidden)]
pub mod testing;
pub mod vector;

pub use advantage::{compute_gae, compute_gae_batched};
pub use env::{Action, Actions, ActionsMut, Env, EnvSpec, EpisodeLog, ResetOptions, Step};
pub use error::{Error, Result};
pub use normalize::Normalizer;
pub use pipeline::AsyncCollector;
pub use policy::{Policy, PolicyOut, RandomPolicy};
pub use rng::{Pcg64, SeedSequence};
pub use rollout::{RolloutBuffer, collect};
pub use space::Space;
pub use vector::{AutoresetMode, Seeds, StepOut, VecEnv, VectorEnv};

/// Items that other crates of rlox use; they may change in any version.
#[doc(hidden)]
pub mod __private {
    pub use crate::alloc::available_memory;
    pub use crate::pool::{check_num_threads, join, num_threads};
    pub use crate::{profile, simd, testing};
}
