//! Checkpoints of all trainers.

mod async_on_policy;
mod kill;
mod off_policy;
mod on_policy;
mod python;
