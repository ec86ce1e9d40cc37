//! Tests that load workers with hostile clients, in a binary apart from tests that measure time.

mod budget;
mod hostile;
#[path = "../support/mod.rs"]
mod support;
