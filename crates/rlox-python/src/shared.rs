//! One value shared by Python threads: locked per call, closable, and safe to inherit through a fork.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rlox_core::{Error, Result, Watch};

use crate::detach::{alone, detached, may_wait, this_thread};
use crate::error::to_py;

/// How long a forked child waits for a lock that a thread of its parent may have held at the fork.
const PATIENCE_AFTER_FORK: Duration = Duration::from_millis(500);

pub(crate) struct Shared<T> {
    value: Mutex<Option<T>>,
    /// The thread that has the lock, or 0.
    owner: AtomicUsize,
    process: u32,
    name: &'static str,
}

/// Calls `f`, which enters something shared, as [`Shared::with`] would.
pub(crate) fn locked<R: Send>(py: Python<'_>, long: bool, f: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    if long || !alone(py) {
        return detached(py, f).map_err(to_py);
    }
    let _short = Short::new();
    f().map_err(to_py)
}

thread_local! {
    static SHORT: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, a call has a lock and the GIL: it must not let the GIL go, as whoever gets it may want the lock.
struct Short;

impl Short {
    fn new() -> Self {
        SHORT.set(true);
        Self
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        SHORT.set(false);
    }
}

/// Whether this thread may look for signals, whose handlers let others run.
pub(crate) fn may_look() -> bool {
    !SHORT.get()
}

/// Cleared before the lock is let go.
struct Owned<'a>(&'a AtomicUsize);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl<T: Send> Shared<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self { value: Mutex::new(Some(value)), owner: AtomicUsize::new(0), process: std::process::id(), name }
    }

    /// Calls `f` on the value, without the GIL if `long` - if the call may take more than about 5 us - or if another call
    /// runs without it, which may hold a lock that this one waits for.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        f: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        locked(py, long, || self.enter(f))
    }

    /// Calls `f` on the value: inside [`Shared::with`] of another object, in the order environment, buffer,
    /// normaliser, policy.
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let mut guard = self.lock()?;
        self.owner.store(this_thread(), Ordering::Relaxed);
        let _owned = Owned(&self.owner);
        let name = self.name;
        f(guard.as_mut().ok_or_else(|| Error::closed(name, "an open object", "a closed one", "make a new one"))?)
    }

    /// Drops the value; every later call raises `ClosedError`. Closing twice does nothing.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let drop_it = || {
            drop(self.lock()?.take());
            Ok(())
        };
        detached(py, drop_it).map_err(to_py)
    }

    pub(crate) fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || Ok(self.lock()?.is_none())).map_err(to_py)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<T>>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for other threads' calls, looking for Ctrl-C meanwhile; with the GIL held, for nobody.
    fn lock(&self) -> Result<MutexGuard<'_, Option<T>>> {
        // Waiting takes the time first, which takes long.
        if let Some(guard) = self.try_lock() {
            return Ok(guard);
        }
        let (start, mut watch) = (Instant::now(), Watch::default());
        let refused = |got, fix| Err(Error::closed(self.name, "an object free to use", got, fix));
        loop {
            if let Some(guard) = self.try_lock() {
                return Ok(guard);
            }
            if self.owner.load(Ordering::Relaxed) == this_thread() {
                return refused("one in the middle of this thread's own call", "let the call end first");
            }
            if std::process::id() != self.process && (start.elapsed() > PATIENCE_AFTER_FORK || !may_wait()) {
                let got = "one that a thread of the parent process was using at the fork";
                return refused(got, "make a new one in this process");
            }
            if !may_wait() {
                return refused("one that another call uses", "let the call end first");
            }
            watch.check()?;
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
