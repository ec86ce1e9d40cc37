//! Integration tests of the crate in one binary.

mod actor_critic;
mod checkpoint;
mod dueling;
mod evaluate;
mod extremes;
mod impala;
mod losses;
mod network;
mod off_policy_learning;
mod off_policy_settings;
mod off_policy_steps;
mod on_policy;
mod parity;
mod scores;
mod stopping;
#[path = "../support/mod.rs"]
mod support;
mod weights;
