//! The data plane of rlox: vectorised environments, rollout buffers and advantage kernels.
//!
//! The crate depends neither on Python nor on a tensor framework. Environments write into the caller's slices. Kernels
//! are free functions on slices. After the first pass, the loops do not allocate.
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

mod advantage;
mod alloc;
mod checkpoint;
mod env;
pub mod envs;
mod error;
mod field;
mod interrupt;
pub mod llm;
mod normalize;
mod pipeline;
mod plugin;
mod policy;
mod pool;
pub mod profile;
pub mod replay;
mod rng;
mod rollout;
pub mod simd;
mod space;
#[doc(hidden)]
pub mod testing;
mod vector;

pub use advantage::{
    EpisodeEnds, Float, VtraceConfig, compute_gae, compute_gae_batched, compute_gae_time_major, compute_lambda_returns,
    compute_lambda_returns_time_major, compute_returns, compute_returns_time_major, compute_vtrace,
    compute_vtrace_time_major, flags_from_numbers,
};
pub use alloc::available_memory;
pub use checkpoint::Checkpoint;
pub use env::{Action, Actions, ActionsMut, Env, EnvSpec, EpisodeLog, ResetOptions, Step};
pub use error::{Error, Location, Mismatch, Result, check_len};
pub use field::{DType, Field, FieldData, FieldMut};
pub use interrupt::{InterruptCheck, set_interrupt_check};
pub use normalize::{Normalizer, NormalizerOptions, RunningMeanStd};
pub use pipeline::{
    Actor, ActorParts, AsyncCollector, Collect, Collected, LearnedPolicy, PipelineStats, Rollout, RolloutJob,
    RolloutOptions, RolloutTicket, StalenessPolicy,
};
pub use plugin::EnvPlugin;
pub use policy::{Policy, PolicyOut, RandomPolicy};
pub use pool::{check_num_threads, join, num_threads};
pub use rng::{Pcg64, Pcg64State, SeedSequence};
pub use rollout::{PolicyStep, RolloutBuffer, Transition, collect};
pub use space::Space;
pub use vector::{
    AutoresetMode, EnvSnapshot, EpisodeProgress, Seeds, StepOut, VecEnv, VectorEnv, masked_actions, streams_from_array,
    streams_to_array,
};
