//! Networks that act and learn without Python code.
//!
//! `NativePolicy` has the networks of on-policy algorithms, `NativeAgent` those of off-policy
//! algorithms.

pub(crate) mod actors;
mod agent;
mod configs;
mod policy;

pub(crate) use actors::NativeActors;
pub(crate) use agent::NativeAgent;
pub(crate) use policy::{NativePolicy, network_backends};
