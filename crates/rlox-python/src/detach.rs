//! Calls without the GIL, and an orderly end of the process while other threads are in one.
//!
//! A daemon thread that asks for the GIL back after the interpreter has begun to end is killed by an unwinding exit
//! (before CPython 3.14), which aborts the process when it meets Rust. So the end waits for calls that are running, and
//! a thread that comes too late stays where it is.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the end of the process waits at most.
const PATIENCE: Duration = Duration::from_secs(10);

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);
static ENDED_BY: Mutex<Option<ThreadId>> = Mutex::new(None);
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Counts a call while it lives.
struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls `f` without the GIL.
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    let running = Running::new();
    let (result, running) = py.detach(|| {
        let result = f();
        if ENDING.load(Ordering::SeqCst) && !is_ending_thread() {
            drop(running);
            loop {
                std::thread::park();
            }
        }
        (result, running)
    });
    drop(running);
    result
}

fn is_ending_thread() -> bool {
    let ended_by = ENDED_BY.lock().unwrap_or_else(PoisonError::into_inner);
    *ended_by == Some(std::thread::current().id())
}

/// Called once by the thread that ends the interpreter: lets running calls come back, and no later ones.
#[pyfunction]
fn end(py: Python<'_>) {
    if std::process::id() != PROCESS.load(Ordering::SeqCst) {
        return; // a forked child, in which the threads of the parent do not exist
    }
    py.detach(|| {
        *ENDED_BY.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current().id());
        ENDING.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while RUNNING.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(100));
        }
    });
}

/// Has [`end`] called when the interpreter ends.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    PROCESS.store(std::process::id(), Ordering::SeqCst);
    let callback = wrap_pyfunction!(end, module)?;
    module.py().import("atexit")?.call_method1("register", (callback,))?;
    Ok(())
}
