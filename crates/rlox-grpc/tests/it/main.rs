//! Integration tests of rlox-grpc.

mod actor;
mod env;
mod failover;
mod invalid_replies;
mod proto;
mod rollout;
mod security;
mod session;
#[path = "../support/mod.rs"]
mod support;
mod worker;
