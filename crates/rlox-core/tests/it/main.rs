//! The integration tests of the crate in one binary.

mod advantage;
mod masks;
mod normalize;
mod plugin;
mod replay;
mod rng;
mod rollout;
mod support;
mod vector;
