//! The integration tests of the crate in one binary.

mod actor_critic;
mod async_checkpoint;
mod checkpoint;
mod checkpoint_kill;
mod checkpoint_python;
mod dueling;
mod extremes;
mod impala;
mod network;
mod off_policy_checkpoint;
mod off_policy_learning;
mod off_policy_losses;
mod off_policy_settings;
mod off_policy_steps;
mod on_policy;
mod on_policy_losses;
mod parity;
mod predict;
mod scores;
mod stopping;
#[path = "../support/mod.rs"]
mod support;
mod weights;
