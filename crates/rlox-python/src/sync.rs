//! Access to shared data: locks, the GIL, borrows of NumPy's memory, and signals.

pub(crate) mod borrow;
pub(crate) mod cell;
pub(crate) mod gil;
pub(crate) mod rwlock;

use pyo3::prelude::*;

/// Discard the records of calls that ran in the parent's other threads at the fork.
///
/// Python calls this function in the child process, where these threads do not exist.
#[pyfunction]
pub(crate) fn after_fork() {
    gil::after_fork();
    borrow::release_other_threads();
}

/// Interruption of long calls by Ctrl-C.
///
/// The core polls [`interrupt::interrupted`], which runs Python's signal handlers.
pub(crate) mod interrupt {
    use std::cell::RefCell;

    use pyo3::exceptions::PyKeyboardInterrupt;
    use pyo3::prelude::*;
    use rlox_core::interrupt::InterruptCheck;

    use crate::sync::gil::{check_signals, may_handle_signals, may_poll};

    thread_local! {
        /// Exception that a signal handler raised in this thread's call.
        static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    }

    /// Runs pending signal handlers, and returns true if one of them raised an exception.
    ///
    /// Only the thread that runs signal handlers takes the GIL; other threads return false.
    pub(crate) fn interrupted() -> bool {
        if !may_poll() || !may_handle_signals() {
            return false;
        }
        // `None` after the interpreter has ended, when no handler can run.
        let raised = Python::try_attach(check_signals).and_then(Result::err);
        let stop = raised.is_some();
        RAISED.set(raised);
        stop
    }

    /// Polls for interruptions at every 1024th item of a loop.
    pub(crate) fn poll_interrupt(interrupt: &mut InterruptCheck, index: usize) -> rlox_core::Result<()> {
        if index.is_multiple_of(1024) { interrupt.check() } else { Ok(()) }
    }

    /// Copies elements, and polls for interruptions.
    pub(crate) fn copy<T: Copy>(to: &mut [T], from: &[T], interrupt: &mut InterruptCheck) -> rlox_core::Result<()> {
        for (to, from) in to.chunks_mut(InterruptCheck::POLL_ELEMENTS).zip(from.chunks(InterruptCheck::POLL_ELEMENTS)) {
            to.copy_from_slice(from);
            interrupt.check()?;
        }
        Ok(())
    }

    /// Returns the exception that interrupted the call.
    pub(crate) fn take_raised() -> PyErr {
        RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
    }
}
