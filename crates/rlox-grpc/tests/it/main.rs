//! The integration tests of the crate in one binary.

mod actor;
mod closed;
mod env;
mod failover;
mod liars;
mod proto;
mod rollout;
mod session;
#[path = "../support/mod.rs"]
mod support;
mod worker;
