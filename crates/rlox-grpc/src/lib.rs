//! Environments and rollouts of rlox on other machines, over gRPC.
//!
//! A [`Worker`] is a server that runs sessions of clients. A session either steps environments for
//! a [`RemoteVecEnv`], or collects rollouts with a learner's policy for a [`RemoteActor`]. The same
//! seeds give the same trajectories as in one process. This also holds if workers fail, because
//! other workers repeat their work.
//!
//! ```
//! use rlox_core::{Actions, ResetOptions, Seeds, StepOut, VectorEnv};
//! use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};
//!
//! let worker = Worker::start(WorkerOptions::default())?;
//! let addresses = [worker.address()];
//! let mut env = RemoteVecEnv::new(&addresses, &EnvOptions::new("CartPole-v1", 2, 7), &ClientOptions::default())?;
//! let mut obs = [0.0; 8];
//! env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs)?;
//! let (mut reward, mut terminated, mut truncated) = ([0.0; 2], [false; 2], [false; 2]);
//! let out = StepOut {
//!     obs: &mut obs,
//!     reward: &mut reward,
//!     terminated: &mut terminated,
//!     truncated: &mut truncated,
//!     final_obs: &mut [],
//! };
//! env.step(Actions::Discrete(&[0, 1]), out)?;
//! assert_eq!(reward, [1.0, 1.0]);
//! worker.stop()?;
//! # Ok::<(), rlox_core::Error>(())
//! ```
//!
//! | item | contents |
//! |---|---|
//! | [`Worker`], [`WorkerOptions`], [`Limits`] | server of environments and rollouts |
//! | [`RemoteVecEnv`], [`EnvOptions`] | vectorised environment whose steps run on workers |
//! | [`RemoteActor`], [`build_async_on_policy`] | actors that collect rollouts on workers |
//! | [`ClientOptions`] | token, TLS and timeouts of connections |
//! | [`Faults`], [`FaultCounts`] | lost and replaced workers |

mod cli;
mod client;
mod codec;
mod worker;

/// Messages of the protocol, from `proto/rlox/v1/worker.proto`.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
#[doc(hidden)]
pub mod proto {
    include!("generated/rlox.v1.rs");
}

pub use cli::run;
pub use client::{
    ClientOptions, EnvOptions, FaultCounts, Faults, RemoteActor, RemoteRolloutConfig, RemoteVecEnv, StopFn,
    build_async_on_policy,
};
pub use worker::{Counters, Identity, Limits, MakeEnv, Worker, WorkerOptions};

/// Protocol version of this crate.
pub const PROTOCOL: u32 = 2;
