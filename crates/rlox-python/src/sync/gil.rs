//! Calls without the GIL, calls of Python code, and counts of both.
#![expect(unsafe_code, reason = "calls into Python that may never come back")]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Number of calls of this module that run without the GIL.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Number of times that Python code may have run; see [`times_others_ran`].
static TIMES: AtomicUsize = AtomicUsize::new(0);
/// Number of forks between the process that imported this module and the current process.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// Thread that runs signal handlers; 0 if unknown.
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Number of this thread's calls without the GIL; a signal handler in one may start another.
    static CALL_DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Returns a number that no other living thread has.
pub(crate) fn this_thread() -> usize {
    CALL_DEPTH.with(|depth| std::ptr::from_ref(depth).addr())
}

/// Records this thread as the one that runs signal handlers, if it is the main thread.
pub(crate) fn find_main(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    if main.eq(threading.call_method0("get_ident")?)? {
        MAIN_THREAD.store(this_thread(), Ordering::Relaxed);
    }
    Ok(())
}

/// Returns true if signal handlers may run in this thread: Python runs them in the main thread.
pub(crate) fn may_handle_signals() -> bool {
    let main = MAIN_THREAD.load(Ordering::Relaxed);
    main == 0 || main == this_thread()
}

/// Entry of a call in the counts of running calls, until dropped.
struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        CALL_DEPTH.set(CALL_DEPTH.get() + 1);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CALL_DEPTH.set(CALL_DEPTH.get() - 1);
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls `f` without the GIL.
pub(crate) fn detach<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    let _running = Running::new();
    others_may_run();
    py.detach(f)
}

/// Calls `f` and counts it as a running call. The thread must not hold the GIL.
pub(crate) fn without_gil<R>(f: impl FnOnce() -> R) -> R {
    let _running = Running::new();
    f()
}

/// Returns true if no call runs without the GIL. This holds until the caller releases the GIL.
pub(crate) fn is_alone(_py: Python<'_>) -> bool {
    RUNNING.load(Ordering::SeqCst) == 0
}

/// Returns true if this thread is in a call without the GIL, and may wait for other calls.
pub(crate) fn may_wait() -> bool {
    CALL_DEPTH.get() > 0
}

/// Resets the counts in a forked child process, which has only the thread that forked.
///
/// Its calls continue in the child if a signal handler inside one of them forked.
pub(crate) fn after_fork() {
    RUNNING.store(CALL_DEPTH.get(), Ordering::SeqCst);
    FORKS.fetch_add(1, Ordering::Relaxed);
    // The thread that forked is the child's main thread.
    MAIN_THREAD.store(this_thread(), Ordering::Relaxed);
}

/// Returns a number that differs between this process and the processes it was forked from.
pub(crate) fn this_process() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// Records that Python code is about to run, in this thread or others.
pub(crate) fn others_may_run() {
    TIMES.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of times that Python code may have run.
///
/// While the number is unchanged, no array has changed its dtype or shape.
pub(crate) fn times_others_ran() -> usize {
    TIMES.load(Ordering::Relaxed)
}

thread_local! {
    static IN_SHORT_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Marker that a call holds both a lock and the GIL, until dropped.
///
/// Such a call must not release the GIL, because a thread that takes the GIL may wait for the lock.
pub(crate) struct ShortCall;

impl ShortCall {
    pub(crate) fn new() -> Self {
        IN_SHORT_CALL.set(true);
        Self
    }
}

impl Drop for ShortCall {
    fn drop(&mut self) {
        IN_SHORT_CALL.set(false);
    }
}

/// Returns true if this thread may run signal handlers, during which other threads may run.
pub(crate) fn may_poll() -> bool {
    !IN_SHORT_CALL.get()
}

type Call = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;
type CheckSignals = unsafe extern "C-unwind" fn() -> c_int;

// PyO3 declares that these functions never unwind, so the compiler may remove the drop of local
// variables in an unwind. A volatile read of a function pointer hides the declaration.
// SAFETY: the same function, with a declaration that allows unwinding.
static CALL: Call = unsafe { std::mem::transmute::<*const (), Call>(ffi::PyObject_Call as *const ()) };
// SAFETY: as above.
static CHECK_SIGNALS: CheckSignals =
    unsafe { std::mem::transmute::<*const (), CheckSignals>(ffi::PyErr_CheckSignals as *const ()) };

/// Guard that parks its thread forever if an unwind drops it; see [`call`].
struct Hang;

impl Drop for Hang {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls a Python object.
///
/// All calls that may run Python code or release the GIL must use this function.
///
/// Before CPython 3.14, a daemon thread that requests the GIL while the interpreter ends is
/// unwound. The unwind would abort the process in Rust code. This function parks such a thread
/// until the process ends.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: a static.
    let run = unsafe { std::ptr::read_volatile(&raw const CALL) };
    others_may_run();
    let hang = Hang;
    // SAFETY: the objects live, the GIL is held, and null stands for no keywords.
    let result = unsafe { run(callable.as_ptr(), args.as_ptr(), kwargs.map_or(std::ptr::null_mut(), Bound::as_ptr)) };
    std::mem::forget(hang);
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), result) }
}

/// Runs pending signal handlers, such as Python's handler of Ctrl-C; see [`call`].
pub(crate) fn check_signals(py: Python<'_>) -> PyResult<()> {
    // SAFETY: a static.
    let check = unsafe { std::ptr::read_volatile(&raw const CHECK_SIGNALS) };
    others_may_run();
    let hang = Hang;
    // SAFETY: the GIL is held.
    let result = unsafe { check() };
    std::mem::forget(hang);
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
}
