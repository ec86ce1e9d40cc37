//! A lock with many readers or one writer, otherwise like [`super::cell::GuardedCell`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use pyo3::prelude::*;
use rlox_core::Result;

use crate::error::to_py;
use crate::sync::cell::{LockState, run_locked_with, try_guard};
use crate::sync::gil::{detach, this_thread};

pub(crate) struct FairRwLock<T> {
    value: RwLock<Option<T>>,
    lock_state: LockState,
    queue: Queue,
}

thread_local! {
    /// Addresses of the locks that this thread holds for reading.
    ///
    /// A signal handler that runs in a reading call must not wait for the lock of that call.
    static READING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Record that this thread holds a lock for reading, until dropped.
struct Reading;

impl Reading {
    fn new(lock_state: &LockState) -> Self {
        READING.with_borrow_mut(|all| all.push(std::ptr::from_ref(lock_state).addr()));
        Self
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.with_borrow_mut(Vec::pop);
    }
}

/// Queue of waiting threads in order of arrival, so that neither readers nor writers starve.
#[derive(Default)]
struct Queue {
    waiting: AtomicUsize,
    threads: Mutex<VecDeque<Waiting>>,
}

struct Waiting {
    thread: usize,
    /// True while a signal handler may run in this thread.
    ///
    /// Threads behind this one then go first, because the handler may wait for them.
    is_away: bool,
}

/// Place of a thread in a queue, until dropped.
struct QueuePlace<'a> {
    queue: &'a Queue,
    lock_state: &'a LockState,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    fn threads(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends this thread to the queue.
    ///
    /// Returns `None` if this thread already waits, which happens if a signal handler calls again.
    /// Also returns `None` in a forked process, whose queue contains threads that do not exist.
    fn join<'a>(&'a self, lock_state: &'a LockState) -> Option<QueuePlace<'a>> {
        if lock_state.is_forked() {
            return None;
        }
        let mut threads = self.threads();
        if threads.iter().any(|waiting| waiting.thread == this_thread()) {
            return None;
        }
        threads.push_back(Waiting { thread: this_thread(), is_away: false });
        self.waiting.store(threads.len(), Ordering::Relaxed);
        Some(QueuePlace { queue: self, lock_state })
    }
}

impl QueuePlace<'_> {
    fn is_first(&self) -> bool {
        // `try_lock` does not wait: after a fork, the thread that holds the lock may not exist.
        let Some(threads) = try_guard(self.queue.threads.try_lock()) else { return false };
        threads.iter().find(|waiting| !waiting.is_away).is_some_and(|waiting| waiting.thread == this_thread())
    }

    fn set_away(&self, is_away: bool) {
        // A signal handler may have forked, and the fork may have left `threads` locked forever.
        if self.lock_state.is_forked() {
            return;
        }
        if let Some(own) = self.queue.threads().iter_mut().find(|waiting| waiting.thread == this_thread()) {
            own.is_away = is_away;
        }
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        if !self.lock_state.is_forked() {
            let mut threads = self.queue.threads();
            threads.retain(|waiting| waiting.thread != this_thread());
            self.queue.waiting.store(threads.len(), Ordering::Relaxed);
        }
    }
}

impl<T: Send + Sync> FairRwLock<T> {
    /// Creates the lock; `reopen` is the hint of the error after the value was closed.
    pub(crate) fn new(name: &'static str, reopen: &'static str, value: T) -> Self {
        Self { value: RwLock::new(Some(value)), lock_state: LockState::new(name, reopen), queue: Queue::default() }
    }

    /// Calls `f` with the value, shared with other readers.
    ///
    /// `long` is as for [`super::cell::GuardedCell::with`].
    pub(crate) fn read<R: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        f: impl FnOnce(&T) -> Result<R> + Send,
    ) -> PyResult<R> {
        run_locked_with(py, long, |is_detached| {
            let guard = self.lock(|| try_guard(self.value.try_read()))?;
            self.check_not_poisoned()?;
            let _reading = is_detached.then(|| Reading::new(&self.lock_state));
            f(guard.as_ref().ok_or_else(|| self.lock_state.closed())?)
        })
    }

    /// Calls `f` with exclusive access to the value.
    pub(crate) fn write<R: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        f: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        run_locked_with(py, long, |is_detached| {
            let mut guard = self.lock(|| try_guard(self.value.try_write()))?;
            self.check_not_poisoned()?;
            let _owned = is_detached.then(|| self.lock_state.set_owner());
            f(guard.as_mut().ok_or_else(|| self.lock_state.closed())?)
        })
    }

    /// Calls `last` with the value and drops the value; every later call raises `ClosedError`.
    ///
    /// If `last` fails, the value stays open. Closing again, even at the same time, does nothing.
    pub(crate) fn close(&self, py: Python<'_>, last: impl FnOnce(&mut T) -> Result<()> + Send) -> PyResult<()> {
        let drop_it = || {
            let mut guard = self.lock(|| try_guard(self.value.try_write()))?;
            let _owned = self.lock_state.set_owner();
            guard.as_mut().map_or(Ok(()), last)?;
            drop(guard.take());
            Ok(())
        };
        detach(py, drop_it).map_err(to_py)
    }

    pub(crate) fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        detach(py, || Ok(self.lock(|| try_guard(self.value.try_read()))?.is_none())).map_err(to_py)
    }

    /// Returns an error if a change panicked, because the value may be half changed.
    fn check_not_poisoned(&self) -> Result<()> {
        if self.value.is_poisoned() { Err(self.lock_state.broken()) } else { Ok(()) }
    }

    fn lock<G>(&self, try_lock: impl Fn() -> Option<G>) -> Result<G> {
        // A first attempt without `wait`, which reads the clock and is therefore slower.
        if self.queue.is_empty()
            && let Some(guard) = try_lock()
        {
            return Ok(guard);
        }
        let is_reading = || READING.with_borrow(|all| all.contains(&std::ptr::from_ref(&self.lock_state).addr()));
        // A call in a signal handler of a reading call does not queue. A writer before it in the
        // queue would wait for the reading call, which waits for its handler.
        let queue_place = if is_reading() { None } else { self.queue.join(&self.lock_state) };
        let try_enter = || if queue_place.as_ref().is_none_or(QueuePlace::is_first) { try_lock() } else { None };
        let set_away = |away| queue_place.iter().for_each(|place| place.set_away(away));
        self.lock_state.wait(try_enter, || self.lock_state.is_own_thread() || is_reading(), set_away)
    }
}
