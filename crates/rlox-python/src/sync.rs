//! Locks, the GIL, borrows of NumPy's memory, and signals.

pub(crate) mod borrow;
pub(crate) mod cell;
pub(crate) mod gil;
pub(crate) mod interrupt;
pub(crate) mod rwlock;

use pyo3::prelude::*;

/// Drops, in a forked child, the counts and borrows of calls in the parent's other threads.
#[pyfunction]
pub(crate) fn after_fork() {
    gil::after_fork();
    borrow::release_other_threads();
}
