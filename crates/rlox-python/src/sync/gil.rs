//! Calls without the GIL, calls into Python, and counts of both.
#![expect(unsafe_code, reason = "calls into Python that may never come back")]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static TIMES: AtomicUsize = AtomicUsize::new(0);
/// How many forks led from the process that imported us to this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The thread that runs signal handlers; 0 where it is not known.
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How many of these calls this thread is in: one may run a signal handler, which makes another.
    static CALL_DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A number that no other living thread has.
pub(crate) fn this_thread() -> usize {
    CALL_DEPTH.with(|depth| std::ptr::from_ref(depth).addr())
}

/// Notes which thread runs signal handlers, if it is this one.
pub(crate) fn find_main(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    if main.eq(threading.call_method0("get_ident")?)? {
        MAIN_THREAD.store(this_thread(), Ordering::Relaxed);
    }
    Ok(())
}

/// Whether signal handlers may run in this thread: of Python's threads only the main one runs them.
pub(crate) fn may_handle_signals() -> bool {
    let main = MAIN_THREAD.load(Ordering::Relaxed);
    main == 0 || main == this_thread()
}

/// Counts a call while it lives.
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

/// Calls `f` in a thread that does not have the GIL.
pub(crate) fn without_gil<R>(f: impl FnOnce() -> R) -> R {
    let _running = Running::new();
    f()
}

/// Whether no call runs without the GIL. Asked with the GIL held, the answer stays true until the GIL is let go.
pub(crate) fn is_alone(_py: Python<'_>) -> bool {
    RUNNING.load(Ordering::SeqCst) == 0
}

/// Whether this thread is in such a call, so that it may wait for others.
pub(crate) fn may_wait() -> bool {
    CALL_DEPTH.get() > 0
}

/// In a forked child, the calls of its parent's other threads do not run; those of this thread do, where a signal handler
/// inside of one of them has forked.
pub(crate) fn after_fork() {
    RUNNING.store(CALL_DEPTH.get(), Ordering::SeqCst);
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Whichever thread has forked is the child's main one.
    MAIN_THREAD.store(this_thread(), Ordering::Relaxed);
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

thread_local! {
    static IN_SHORT_CALL: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, a call has a lock and the GIL: it must not let the GIL go, as whoever gets it may want the lock.
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

/// Whether this thread may look for signals, whose handlers let others run.
pub(crate) fn may_poll() -> bool {
    !IN_SHORT_CALL.get()
}

type Call = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;
type CheckSignals = unsafe extern "C-unwind" fn() -> c_int;

// PyO3 declares these as functions that never unwind, and the compiler would leave out what cleans up after them as soon
// as it knew which functions are called. It may assume nothing of what a volatile read gives.
// SAFETY: the same functions, of which no more is assumed.
static CALL: Call = unsafe { std::mem::transmute::<*const (), Call>(ffi::PyObject_Call as *const ()) };
// SAFETY: as above.
static CHECK_SIGNALS: CheckSignals =
    unsafe { std::mem::transmute::<*const (), CheckSignals>(ffi::PyErr_CheckSignals as *const ()) };

/// Keeps a thread that the interpreter's end unwinds from meeting Rust code that cannot unwind.
struct Hang;

impl Drop for Hang {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls Python code, as every call must that may run bytecode or let the GIL go: before CPython 3.14, a daemon thread
/// that asks for the GIL while the interpreter ends is unwound where it stands, which would abort the process. Here it
/// stays where it is, until the process ends.
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

/// Lets Ctrl-C and other signals take effect, which runs Python code as [`call`] does.
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
