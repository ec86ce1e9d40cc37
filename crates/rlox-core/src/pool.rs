//! Thread pool that distributes large computations over threads.
//!
//! A job is a function that is called once for each of a number of parts, in any order. A process
//! has one pool, which is created at the first use and runs one job at a time. A job that is
//! started while another job runs, or from inside a job, uses only the thread of its caller. The
//! other threads of the pool are its workers. Workers spin briefly after a job and then sleep. A
//! worker that wakes up after the caller has run out of parts does nothing, and the caller does not
//! wait for it. A forked child process has none of its parent's threads and creates another pool.
//! Results never depend on the thread that runs a part, because workers use the floating-point
//! settings of the caller.

#![expect(unsafe_code, reason = "threads that outlive a job borrow it")]

mod fp_env;
mod join;
mod slices;
#[cfg(test)]
mod tests;

use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fp_env::FloatMode;
pub use join::join;

pub(crate) use slices::{CHUNK_ELEMENTS, ColumnsMut, run_chunks, run_chunks_uninterrupted, run_columns, run_rows};

use crate::interrupt::{InterruptCheck, PollFn};
use crate::{Error, Result};

const VARIABLE: &str = "RLOX_NUM_THREADS";

/// Time for which a worker spins before it sleeps, and for which a caller spins while it waits for
/// the last worker.
const SPIN: Duration = Duration::from_micros(30);

/// Returns the number of threads that large computations use, including the thread of the caller.
///
/// The number is the value of the environment variable `RLOX_NUM_THREADS` at the first call. If the
/// variable is not set, it is the number of CPUs that CPU affinity and control groups allow the
/// process to use.
///
/// ```
/// assert!(rlox_core::__private::num_threads() >= 1);
/// ```
pub fn num_threads() -> usize {
    // Not a `OnceLock`, which a fork could leave locked. Concurrent threads compute the same number.
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let known = THREADS.load(Ordering::Relaxed);
    if known > 0 {
        return known;
    }
    let threads = match setting() {
        Some(text) => parsed(&text).unwrap_or(1),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    THREADS.store(threads, Ordering::Relaxed);
    threads
}

/// Checks that the environment variable `RLOX_NUM_THREADS` is unset, empty or a number from 1 to 1024.
///
/// If the value is invalid, one thread does all work.
///
/// # Errors
/// [`Error::Config`] that names the value.
///
/// ```
/// assert!(rlox_core::__private::check_num_threads().is_ok());
/// ```
pub fn check_num_threads() -> Result<()> {
    match setting() {
        Some(text) if parsed(&text).is_none() => Err(Error::config(
            VARIABLE,
            "a number from 1 to 1024",
            format!("{text:?}"),
            "correct or unset the environment variable; one thread does all work until then",
        )),
        _ => Ok(()),
    }
}

fn setting() -> Option<String> {
    let text = std::env::var_os(VARIABLE)?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn parsed(text: &str) -> Option<usize> {
    text.parse().ok().filter(|threads| (1..=1024).contains(threads))
}

/// Calls `work(part, poll)` for each part in `0..parts`, on all threads and in any order.
///
/// A single part runs on the thread of the caller. Parts should take at least 20 us. A part that
/// takes more than some milliseconds must call `poll`, and must stop with the error that `poll`
/// returns.
///
/// # Errors
/// The first error of a part, or [`Error::Interrupted`]. After an error, no further parts are
/// started. Parts that had started are either complete or stopped early.
pub(crate) fn run(parts: usize, work: Work<'_>) -> Result<()> {
    if parts == 1 {
        let mut interrupt = InterruptCheck::default();
        return work(0, &mut || interrupt.check());
    }
    finish(&Job::new(parts, work))
}

/// Calls `work` as [`run`] does, without checks for interruptions.
pub(crate) fn run_uninterrupted(parts: usize, work: Work<'_>) -> Result<()> {
    finish(&Job { uninterruptible: true, ..Job::new(parts, work) })
}

fn finish(job: &Job<'_>) -> Result<()> {
    let pool = if job.parts > 1 && num_threads() > 1 { Pool::get_or_start() } else { None };
    pool.and_then(|pool| pool.run_shared(job)).unwrap_or_else(|| job.lead())
}

/// Function that computes a part of a job, given the number of the part.
type Work<'a> = &'a (dyn Fn(usize, PollFn<'_>) -> Result<()> + Sync);

/// Job whose parts are distributed over threads.
struct Job<'a> {
    /// Number of the next part to start.
    next: AtomicUsize,
    parts: usize,
    work: Work<'a>,
    stop: AtomicBool,
    /// True if interruptions are ignored.
    uninterruptible: bool,
    /// Floating-point settings of the caller.
    mode: FloatMode,
}

impl<'a> Job<'a> {
    fn new(parts: usize, work: Work<'a>) -> Self {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { next, parts, work, stop, uninterruptible: false, mode: FloatMode::current() }
    }

    /// Returns the number of the next part, or `None` if no part remains or the job is stopped.
    fn take(&self) -> Option<usize> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.parts && !self.stop.load(Ordering::Relaxed)).then_some(part)
    }

    /// Runs parts until none remain. Returns early if a part or `check` returns an error, or if
    /// another thread has stopped the job.
    fn help(&self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        // After an error or a panic, no further parts are started.
        let stop = StopOnDrop(&self.stop);
        let mut poll = || if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { check() };
        while let Some(part) = self.take() {
            (self.work)(part, &mut poll).and_then(|()| poll())?;
        }
        std::mem::forget(stop);
        Ok(())
    }

    /// Runs parts on the thread of the caller as `help` does, and checks for interruptions.
    fn lead(&self) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        self.help(|| if self.uninterruptible { Ok(()) } else { interrupt.check() })
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Result of a thread's parts: success, an error or a panic.
type JobResult = std::thread::Result<Result<()>>;

/// Returns the more severe result. `Interrupted` is less severe than other errors, because stopped
/// parts return it whatever the reason for the stop is.
fn more_severe(first: JobResult, second: JobResult) -> JobResult {
    let severity = |result: &JobResult| match result {
        Ok(Ok(())) => 0,
        Ok(Err(Error::Interrupted)) => 1,
        Ok(Err(_)) => 2,
        Err(_) => 3,
    };
    let (worse, discarded) = if severity(&second) > severity(&first) { (second, first) } else { (first, second) };
    if let Err(panic) = discarded {
        // The payload of a panic may panic when dropped.
        std::mem::forget(panic);
    }
    worse
}

/// State that the threads of a pool share.
struct PoolState {
    /// Current job, or `None` if workers must not start to work on it.
    job: Option<&'static Job<'static>>,
    /// Number of workers that run the job.
    active: usize,
    asleep: usize,
    /// Combined result of the workers so far.
    result: JobResult,
}

struct Pool {
    process: u32,
    busy: AtomicBool,
    /// Number of jobs so far. Spinning workers wait until this number changes.
    jobs: AtomicUsize,
    state: Mutex<PoolState>,
    job_posted: Condvar,
    workers_done: Condvar,
}

impl Pool {
    /// Returns the pool of this process, which the first call creates. Returns `None` if another
    /// thread creates the pool at the same time.
    fn get_or_start() -> Option<&'static Self> {
        // A pointer instead of a lock, which a fork could leave locked. The pool is never freed.
        static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
        let process = std::process::id();
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or was stored below and its target is never freed.
        let pool: Option<&'static Self> = unsafe { current.as_ref() };
        if pool.is_some_and(|pool| pool.process == process) {
            return pool;
        }
        let raw = Box::into_raw(Box::new(Self::new(process)));
        if POOL.compare_exchange(current, raw, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was faster, so `raw` was created above and never shared.
            drop(unsafe { Box::from_raw(raw) });
            return None;
        }
        // SAFETY: `raw` was created above and is never freed after it was stored.
        let pool: &'static Self = unsafe { &*raw };
        pool.spawn_workers(num_threads() - 1);
        Some(pool)
    }

    /// Starts `workers` threads, or as many as the system allows.
    fn spawn_workers(&'static self, workers: usize) {
        for i in 1..=workers {
            if std::thread::Builder::new().name(format!("rlox-{i}")).spawn(|| self.worker_loop()).is_err() {
                return;
            }
        }
    }

    fn new(process: u32) -> Self {
        Self {
            process,
            busy: AtomicBool::new(false),
            jobs: AtomicUsize::new(0),
            state: Mutex::new(PoolState { job: None, active: 0, asleep: 0, result: Ok(Ok(())) }),
            job_posted: Condvar::new(),
            workers_done: Condvar::new(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for jobs and runs their parts, on the thread of a worker. Never returns.
    fn worker_loop(&self) {
        let mut last_job = 0;
        loop {
            let began = Instant::now();
            while self.jobs.load(Ordering::Acquire) == last_job && began.elapsed() < SPIN {
                spin_loop();
            }
            let mut state = self.lock_state();
            while self.jobs.load(Ordering::Acquire) == last_job {
                state.asleep += 1;
                state = self.job_posted.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep -= 1;
            }
            last_job = self.jobs.load(Ordering::Acquire);
            let Some(job) = state.job else { continue };
            state.active += 1;
            drop(state);
            let result = catch_unwind(AssertUnwindSafe(|| job.mode.scoped(|| job.help(|| Ok(())))));
            let mut state = self.lock_state();
            let others = std::mem::replace(&mut state.result, Ok(Ok(())));
            state.result = more_severe(others, result);
            state.active -= 1;
            if state.active == 0 {
                self.workers_done.notify_one();
            }
        }
    }

    /// Runs a job with the workers, or returns `None` if another job is running.
    fn run_shared(&self, job: &Job<'_>) -> Option<Result<()>> {
        self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: workers reach the job only through `state.job`. Before this function returns, `state.job` is `None`
        // and all workers have left the job; nothing in between unwinds. A forked child has no workers.
        let shared_job = unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) };
        let mut state = self.lock_state();
        state.job = Some(shared_job);
        self.jobs.fetch_add(1, Ordering::Release);
        if state.asleep > 0 {
            self.job_posted.notify_all();
        }
        drop(state);
        let led = catch_unwind(AssertUnwindSafe(|| job.lead()));
        if std::process::id() != self.process {
            // A signal handler has forked: the workers and their parts do not exist in this process.
            let (expected, got) = ("the process that started the call", "a process that was forked during the call");
            return Some(Err(Error::closed("call", expected, got, "repeat the call")));
        }
        let result = more_severe(led, self.finish_job());
        self.busy.store(false, Ordering::Release);
        Some(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Closes the job, waits for its workers and returns their result.
    fn finish_job(&self) -> JobResult {
        let began = Instant::now();
        let mut state = self.lock_state();
        state.job = None;
        while state.active > 0 {
            if began.elapsed() < SPIN {
                drop(state);
                spin_loop();
                state = self.lock_state();
            } else {
                state = self.workers_done.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        std::mem::replace(&mut state.result, Ok(Ok(())))
    }
}
