//! Tests that load workers with hostile or greedy clients, apart from tests that measure time.

mod hostile;
mod memory;
#[path = "../support/mod.rs"]
mod support;
