//! Calls without the GIL, and how to tell whether there were any.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::array::forget_other_threads;

/// Below zero in a child that was forked inside of such a call, once it has ended there.
static RUNNING: AtomicIsize = AtomicIsize::new(0);
static TIMES: AtomicUsize = AtomicUsize::new(0);

/// A number that no other living thread has.
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

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
    others_may_run();
    let _running = Running;
    py.detach(f)
}

/// Whether no call runs without the GIL. Asked with the GIL held, the answer stays true until the GIL is let go.
pub(crate) fn alone(_py: Python<'_>) -> bool {
    RUNNING.load(Ordering::SeqCst) <= 0
}

/// In a forked child, the calls of its parent's other threads do not run.
#[pyfunction]
pub(crate) fn after_fork() {
    RUNNING.store(0, Ordering::SeqCst);
    forget_other_threads();
}

/// Notes that Python code is about to run, of this thread or of others.
pub(crate) fn others_may_run() {
    TIMES.fetch_add(1, Ordering::Relaxed);
}

/// How often Python code may have run so far: as long as it stays the same, no array has changed its dtype or shape.
pub(crate) fn times_others_ran() -> usize {
    TIMES.load(Ordering::Relaxed)
}
