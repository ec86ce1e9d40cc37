//! The client: environments and rollouts on workers, and recovery from the loss of a worker.

mod actor;
mod context;
mod env;
mod failover;
mod options;
mod session;
mod snapshot;

pub use actor::{RemoteActor, RemoteRolloutConfig, build_async_on_policy};
pub use context::{FaultCounts, Faults};
pub use env::RemoteVecEnv;
pub use options::{ClientOptions, EnvOptions, StopFn};
