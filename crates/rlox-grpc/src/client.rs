//! The other end: environments and rollouts of workers, and what happens when one is lost.

mod actor;
mod env;
mod fleet;
mod link;
mod options;
mod shard;

pub use actor::{RemoteActor, RolloutSettings, asynchronous};
pub use env::RemoteVecEnv;
pub use fleet::{FaultCounts, Faults};
pub use options::{ClientOptions, EnvOptions, Stop};
