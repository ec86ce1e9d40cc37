//! Networks of rlox-nn that act and learn without Python: `NativePolicy` of on-policy methods, `NativeAgent` of others.

pub(crate) mod actors;
mod agent;
mod configs;
mod policy;

pub(crate) use actors::NativeActors;
pub(crate) use agent::NativeAgent;
pub(crate) use policy::{NativePolicy, network_backends};
