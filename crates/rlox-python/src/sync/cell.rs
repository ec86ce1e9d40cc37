//! One value shared by Python threads: locked per call, closable, and safe to inherit through a fork.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rlox_core::{Error, InterruptCheck, Result};

use crate::error::to_py;
use crate::sync::gil::{ShortCall, detach, is_alone, may_handle_signals, may_wait, this_process, this_thread};

/// How long a forked child waits for a lock that a thread of its parent may have held at the fork, where that is not known.
const MAX_WAIT_AFTER_FORK: Duration = Duration::from_millis(500);
/// How often a call that waits asks at once again before it sleeps: many calls are over that soon.
const SPIN_ROUNDS: usize = 16;
/// How long it sleeps.
const SLEEP_INTERVAL: Duration = Duration::from_micros(20);

/// What to do when something was closed that has nothing outside of memory.
pub(crate) const RECREATE_HINT: &str = "make a new one";

pub(crate) struct GuardedCell<T> {
    value: Mutex<Option<T>>,
    lock_state: LockState,
}

/// Calls `f`, which enters something shared, as [`Shared::with`] would.
pub(crate) fn run_locked<R: Send>(py: Python<'_>, long: bool, f: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    run_locked_with(py, long, |_| f())
}

/// The same; `f` is told whether signal handlers may run meanwhile, which they do in no short call.
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

/// What is known of a lock beside the lock itself.
pub(crate) struct LockState {
    /// The thread that alone has it, or 0.
    owner: AtomicUsize,
    /// Where that thread is.
    owner_process: AtomicUsize,
    process: u32,
    /// What the lock is of.
    name: &'static str,
    /// What to do when it was closed.
    reopen: &'static str,
}

/// Cleared before the lock is let go.
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

    /// Notes that this thread alone has the lock.
    pub(crate) fn set_owner(&self) -> OwnerGuard<'_> {
        self.owner_process.store(this_process(), Ordering::Relaxed);
        self.owner.store(this_thread(), Ordering::Relaxed);
        OwnerGuard(&self.owner)
    }

    /// Whether this thread alone has the lock.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// Whether this process was forked from the one that made it.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Whether a thread of the parent process alone had the lock at the fork: nobody lets it go here.
    fn is_orphaned(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != 0 && self.owner_process.load(Ordering::Relaxed) != this_process()
    }

    pub(crate) fn closed(&self) -> Error {
        Error::closed(self.name, "an open object", "a closed one", self.reopen)
    }

    #[cold]
    pub(crate) fn broken(&self) -> Error {
        Error::closed(self.name, "an open object", "one whose last change failed half-way", "make a new one")
    }

    /// Waits for other threads' calls until `enter` gives something, looking for Ctrl-C meanwhile; with the GIL held, for
    /// nobody. `inside` says whether this thread itself has the lock. `looking` is told before a signal's handler may run,
    /// and after it.
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
                return fail("one in the middle of this thread's own call", "let the call end first");
            }
            let may_keep_waiting = || start.elapsed() <= MAX_WAIT_AFTER_FORK && may_wait() && !self.is_orphaned();
            if self.is_forked() && !may_keep_waiting() {
                let got = "one that a thread of the parent process was using at the fork";
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
        fail("one that another call uses", "let the call end first")
    }
}

/// A lock that is free now, whatever a call that panicked has left.
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

    /// Calls `f` on the value, without the GIL if `long` - if the call may take more than about 5 us - or if another call
    /// runs without it, which may hold a lock that this one waits for.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        f: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        run_locked(py, long, || self.enter(f))
    }

    /// Calls `f` on the value: inside [`Shared::with`] of another object, in the order environment, buffer,
    /// normaliser, policy.
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
        // Waiting takes the time first, which takes long.
        let try_lock = || try_guard(self.value.try_lock());
        try_lock().map_or_else(|| self.lock_state.wait(try_lock, || self.lock_state.is_own_thread(), |_| ()), Ok)
    }
}
