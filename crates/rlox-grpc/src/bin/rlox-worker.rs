//! `rlox-worker`: environments and rollouts for clients elsewhere.
fn main() {}
