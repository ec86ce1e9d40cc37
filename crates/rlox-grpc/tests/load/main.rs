//! Tests that load workers with hostile or greedy clients, apart from tests that measure time.

mod budget;
mod hostile;
#[path = "../support/mod.rs"]
mod support;
