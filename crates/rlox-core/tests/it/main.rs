//! The integration tests of the crate in one binary.

mod gae;
mod hindsight;
mod masks;
mod mmap_replay;
mod normalize;
mod plugin;
mod prioritized;
mod replay;
mod returns;
mod rng;
mod rollout;
mod support;
mod vector;
mod vtrace;
