//! Losses of all algorithms.

mod off_policy;
mod on_policy;
