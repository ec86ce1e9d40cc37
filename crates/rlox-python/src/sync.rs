//! Locks, the GIL, borrows of NumPy's memory and signals.

pub(crate) mod borrow;
pub(crate) mod cell;
pub(crate) mod gil;
pub(crate) mod interrupt;
pub(crate) mod rwlock;

use pyo3::prelude::*;

/// Notes, in a forked child, that the calls of its parent's other threads do not run, and lets go of what they used.
#[pyfunction]
pub(crate) fn after_fork() {
    gil::after_fork();
    borrow::release_other_threads();
}
