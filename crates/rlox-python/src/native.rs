//! Networks that act and learn without Python: `NativePolicy` (on-policy), `NativeAgent` (off-policy).

pub(crate) mod actors;
mod agent;
mod configs;
mod policy;

pub(crate) use actors::NativeActors;
pub(crate) use agent::NativeAgent;
pub(crate) use policy::{NativePolicy, network_backends};
