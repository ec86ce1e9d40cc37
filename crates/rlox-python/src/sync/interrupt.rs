//! Ctrl-C in long calls: the core asks from time to time, and Python's signal handlers run then.

use std::cell::RefCell;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use rlox_core::InterruptCheck;

use crate::sync::gil::{check_signals, may_handle_signals, may_poll};

thread_local! {
    /// What a signal handler raised in this thread's call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal handler raised something. Threads that run none do not take the GIL to ask.
pub(crate) fn interrupted() -> bool {
    if !may_poll() || !may_handle_signals() {
        return false;
    }
    // Where the interpreter has ended there is nobody to ask.
    let raised = Python::try_attach(check_signals).and_then(Result::err);
    let stop = raised.is_some();
    RAISED.set(raised);
    stop
}

/// Looks for interruptions before every so many items of a loop.
pub(crate) fn poll_interrupt(interrupt: &mut InterruptCheck, index: usize) -> rlox_core::Result<()> {
    if index.is_multiple_of(1024) { interrupt.check() } else { Ok(()) }
}

/// Copies elements, looking for interruptions.
pub(crate) fn copy<T: Copy>(to: &mut [T], from: &[T], interrupt: &mut InterruptCheck) -> rlox_core::Result<()> {
    for (to, from) in to.chunks_mut(InterruptCheck::POLL_ELEMENTS).zip(from.chunks(InterruptCheck::POLL_ELEMENTS)) {
        to.copy_from_slice(from);
        interrupt.check()?;
    }
    Ok(())
}

/// What ended the call.
pub(crate) fn take_raised() -> PyErr {
    RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}
