//! Calls without the GIL.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Counts a call while it lives.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls `f` without the GIL.
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let _running = Running;
    py.detach(f)
}

/// Whether no call runs without the GIL. Asked with the GIL held, the answer stays true until the GIL is let go.
pub(crate) fn alone(_py: Python<'_>) -> bool {
    RUNNING.load(Ordering::SeqCst) == 0
}
