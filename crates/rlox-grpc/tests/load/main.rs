//! Tests that load workers with hostile clients.
//!
//! The tests have their own binary, because other tests measure time.

mod budget;
mod hostile;
#[path = "../support/mod.rs"]
mod support;
