//! Calls without the GIL, and how to tell whether there were any.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::array::forget_other_threads;

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static TIMES: AtomicUsize = AtomicUsize::new(0);
/// How many forks led from the process that imported us to this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The thread that runs signal handlers; 0 where it is not known.
static MAIN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How many of these calls this thread is in: one may run a signal handler, which makes another.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// A number that no other living thread has.
pub(crate) fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Notes which thread runs signal handlers, if it is this one.
pub(crate) fn find_main(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    if main.eq(threading.call_method0("get_ident")?)? {
        MAIN.store(this_thread(), Ordering::Relaxed);
    }
    Ok(())
}

/// Whether signal handlers may run in this thread: of Python's threads only the main one runs them.
pub(crate) fn may_handle_signals() -> bool {
    let main = MAIN.load(Ordering::Relaxed);
    main == 0 || main == this_thread()
}

/// Counts a call while it lives.
struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        HERE.set(HERE.get() + 1);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        HERE.set(HERE.get() - 1);
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls `f` without the GIL.
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    let _running = Running::new();
    others_may_run();
    py.detach(f)
}

/// Calls `f` in a thread that does not have the GIL.
pub(crate) fn without_gil<R>(f: impl FnOnce() -> R) -> R {
    let _running = Running::new();
    f()
}

/// Whether no call runs without the GIL. Asked with the GIL held, the answer stays true until the GIL is let go.
pub(crate) fn alone(_py: Python<'_>) -> bool {
    RUNNING.load(Ordering::SeqCst) == 0
}

/// Whether this thread is in such a call, so that it may wait for others.
pub(crate) fn may_wait() -> bool {
    HERE.get() > 0
}

/// In a forked child, the calls of its parent's other threads do not run; those of this thread do, where a signal handler
/// inside of one of them has forked.
#[pyfunction]
pub(crate) fn after_fork() {
    RUNNING.store(HERE.get(), Ordering::SeqCst);
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Whichever thread has forked is the child's main one.
    MAIN.store(this_thread(), Ordering::Relaxed);
    forget_other_threads();
}

/// A number that tells this process from those that it was forked from, as Python forks.
pub(crate) fn this_process() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// Notes that Python code is about to run, of this thread or of others.
pub(crate) fn others_may_run() {
    TIMES.fetch_add(1, Ordering::Relaxed);
}

/// How often Python code may have run so far: as long as it stays the same, no array has changed its dtype or shape.
pub(crate) fn times_others_ran() -> usize {
    TIMES.load(Ordering::Relaxed)
}
