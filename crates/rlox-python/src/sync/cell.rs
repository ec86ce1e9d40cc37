//! Locks of values that Python threads share. A value can be closed, and locks work after a fork.
//!
//! In a forked process, a lock that a thread of the parent holds is an error instead of a deadlock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rlox_core::{Error, Result, interrupt::InterruptCheck};

use crate::error::to_py;
use crate::sync::gil::{ShortCall, detach, is_alone, may_handle_signals, may_wait, this_process, this_thread};

/// Time that a forked child waits for a lock whose holder may be a thread of its parent.
const MAX_WAIT_AFTER_FORK: Duration = Duration::from_millis(500);
/// Number of immediate retries before a waiting call sleeps, because many calls end that soon.
const SPIN_ROUNDS: usize = 16;
/// Duration of one sleep between two attempts to lock.
const SLEEP_INTERVAL: Duration = Duration::from_micros(20);

/// Hint of the error for a closed object that no file can restore.
pub(crate) const RECREATE_HINT: &str = "make a new one";

/// Value that one call at a time uses; `None` inside the lock after it was closed.
pub(crate) struct GuardedCell<T> {
    value: Mutex<Option<T>>,
    lock_state: LockState,
}

/// Calls `f`, which locks shared values; releases the GIL as [`GuardedCell::with`] does.
pub(crate) fn run_locked<R: Send>(py: Python<'_>, long: bool, f: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    run_locked_with(py, long, |_| f())
}

/// Calls `f` as [`run_locked`] does; `f` receives true if the GIL is released.
pub(crate) fn run_locked_with<R: Send>(
    py: Python<'_>,
    long: bool,
    f: impl FnOnce(bool) -> Result<R> + Send,
) -> PyResult<R> {
    if long || !is_alone(py) {
        return detach(py, || f(true)).map_err(to_py);
    }
    let _short = ShortCall::new();
    f(false).map_err(to_py)
}

/// Holder and name of a lock.
pub(crate) struct LockState {
    /// Thread that holds the lock exclusively, or 0.
    owner: AtomicUsize,
    /// Process of the owner; see [`this_process`].
    owner_process: AtomicUsize,
    process: u32,
    /// Name of the locked object, for errors.
    name: &'static str,
    /// Hint of the error after the object was closed.
    reopen: &'static str,
}

/// Record that a thread holds a lock exclusively. It is dropped before the lock is released.
pub(crate) struct OwnerGuard<'a>(&'a AtomicUsize);

impl Drop for OwnerGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl LockState {
    pub(crate) fn new(name: &'static str, reopen: &'static str) -> Self {
        Self {
            owner: AtomicUsize::new(0),
            owner_process: AtomicUsize::new(0),
            process: std::process::id(),
            name,
            reopen,
        }
    }

    /// Records that this thread holds the lock exclusively.
    pub(crate) fn set_owner(&self) -> OwnerGuard<'_> {
        self.owner_process.store(this_process(), Ordering::Relaxed);
        self.owner.store(this_thread(), Ordering::Relaxed);
        OwnerGuard(&self.owner)
    }

    /// Returns true if this thread holds the lock exclusively.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// Returns true if this process is a fork of the process that created the lock.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Returns true if a thread of the parent process held the lock at the fork.
    ///
    /// Such a lock is never released in this process.
    fn is_orphaned(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != 0 && self.owner_process.load(Ordering::Relaxed) != this_process()
    }

    pub(crate) fn closed(&self) -> Error {
        Error::closed(self.name, "an open object", "a closed one", self.reopen)
    }

    #[cold]
    pub(crate) fn broken(&self) -> Error {
        Error::closed(self.name, "an open object", "an object whose last change failed part-way", "make a new one")
    }

    /// Calls `enter` until it returns a value, and polls for Ctrl-C in between.
    ///
    /// A call that holds the GIL returns an error instead of waiting, because the call that it
    /// waits for may need the GIL.
    ///
    /// `is_reentrant` returns true if this thread itself holds the lock. `before_poll` is called
    /// with true before a signal handler may run, and with false afterwards.
    pub(crate) fn wait<G>(
        &self,
        enter: impl Fn() -> Option<G>,
        is_reentrant: impl Fn() -> bool,
        before_poll: impl Fn(bool),
    ) -> Result<G> {
        let (start, mut interrupt) = (Instant::now(), InterruptCheck::default());
        let fail = |got, fix| Err(Error::closed(self.name, "an object free to use", got, fix));
        for round in 0.. {
            if let Some(entered) = enter() {
                return Ok(entered);
            }
            if is_reentrant() {
                return fail("an object that this thread's own call is using", "wait until the call has ended");
            }
            let may_keep_waiting = || start.elapsed() <= MAX_WAIT_AFTER_FORK && may_wait() && !self.is_orphaned();
            if self.is_forked() && !may_keep_waiting() {
                let got = "an object that a thread of the parent process was using at the fork";
                return fail(got, "make a new one in this process");
            }
            if !may_wait() {
                break;
            }
            if interrupt.is_due() && may_handle_signals() {
                before_poll(true);
                interrupt.check()?;
                before_poll(false);
            }
            if round < SPIN_ROUNDS { std::thread::yield_now() } else { std::thread::sleep(SLEEP_INTERVAL) }
        }
        fail("an object that another call is using", "wait until the call has ended")
    }
}

/// Returns the guard of a lock that was free, even if a panic poisoned it; otherwise `None`.
pub(crate) fn try_guard<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<T: Send> GuardedCell<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self { value: Mutex::new(Some(value)), lock_state: LockState::new(name, RECREATE_HINT) }
    }

    /// Calls `f` with the value.
    ///
    /// The GIL is released if `long` is true, which callers pass for calls of more than about 5 us.
    /// The GIL is also released if another call runs without the GIL. That call may hold the lock,
    /// and it may need the GIL to end.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        f: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        run_locked(py, long, || self.enter(f))
    }

    /// Calls `f` with the value, inside [`GuardedCell::with`] of another object.
    ///
    /// Locks are taken in the order environment, buffer, normaliser, policy, to exclude deadlocks.
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let mut guard = self.lock()?;
        let _owned = self.lock_state.set_owner();
        f(guard.as_mut().ok_or_else(|| self.lock_state.closed())?)
    }

    /// Drops the value; every later call raises `ClosedError`. Closing twice does nothing.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let drop_it = || {
            drop(self.lock()?.take());
            Ok(())
        };
        detach(py, drop_it).map_err(to_py)
    }

    pub(crate) fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        detach(py, || Ok(self.lock()?.is_none())).map_err(to_py)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<T>>> {
        // A first attempt without `wait`, which reads the clock and is therefore slower.
        let try_lock = || try_guard(self.value.try_lock());
        try_lock().map_or_else(|| self.lock_state.wait(try_lock, || self.lock_state.is_own_thread(), |_| ()), Ok)
    }
}
