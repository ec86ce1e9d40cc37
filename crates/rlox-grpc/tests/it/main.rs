//! The integration tests of the crate in one binary.

mod closed;
mod ending;
mod faults;
mod generated;
mod liars;
mod refused;
mod rollouts;
#[path = "../support/mod.rs"]
mod support;
mod trajectories;
mod unusual;
