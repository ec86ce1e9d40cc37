//! The threads that share large work.
//!
//! One pool per process, made at the first use, with one job at a time: a second one that comes meanwhile, or from inside
//! a job, runs on its own thread alone. Workers spin for a moment after a job and then sleep; a worker that wakes too late
//! finds the job closed and is not waited for. A forked child, which has none of its parent's threads, makes a pool of
//! its own. What a job computes never depends on which thread runs which part: they round floats as the caller does.

#![expect(unsafe_code, reason = "a job is lent to threads that outlive it")]

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

/// How long a worker looks for the next job before it sleeps, and a caller for the last worker's end.
const SPIN: Duration = Duration::from_micros(30);

/// How many threads share large work: the CPUs this process may use (affinity and control groups counted), or what the
/// environment variable `RLOX_NUM_THREADS` says at the first use.
///
/// ```
/// assert!(rlox_core::num_threads() >= 1);
/// ```
pub fn num_threads() -> usize {
    // Not a `OnceLock`, which a fork could leave held for good; threads that meet here find the same.
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

/// Checks that the environment variable `RLOX_NUM_THREADS` is unset, empty or a number from 1 to 1024. Until it is
/// corrected, one thread does all the work.
///
/// # Errors
/// [`Error::Config`] naming the value.
///
/// ```
/// assert!(rlox_core::check_num_threads().is_ok());
/// ```
pub fn check_num_threads() -> Result<()> {
    match setting() {
        Some(text) if parsed(&text).is_none() => Err(Error::config(
            VARIABLE,
            "a number from 1 to 1024",
            format!("{text:?}"),
            "correct or unset the environment variable; until then one thread does all the work",
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

/// Calls `work` with each number below `parts`, on all threads, in any order. One part is simply called.
///
/// Parts should take 20 us at least. Those that take more than some milliseconds are to call the [`PollFn`] they are given
/// and to end when it says so.
///
/// # Errors
/// The first one of a part, or [`Error::Interrupted`]; parts that had begun are then done or ended early, others not.
pub(crate) fn run(parts: usize, work: Work<'_>) -> Result<()> {
    if parts == 1 {
        let mut interrupt = InterruptCheck::default();
        return work(0, &mut || interrupt.check());
    }
    finish(&Job::new(parts, work))
}

/// As [`run`], for work that is never to be left half done: no interruption ends it.
pub(crate) fn run_uninterrupted(parts: usize, work: Work<'_>) -> Result<()> {
    finish(&Job { uninterruptible: true, ..Job::new(parts, work) })
}

fn finish(job: &Job<'_>) -> Result<()> {
    let pool = if job.parts > 1 && num_threads() > 1 { Pool::get_or_start() } else { None };
    pool.and_then(|pool| pool.run_shared(job)).unwrap_or_else(|| job.lead())
}

/// What is done with a part, given its number.
type Work<'a> = &'a (dyn Fn(usize, PollFn<'_>) -> Result<()> + Sync);

/// A job that several threads take parts of.
struct Job<'a> {
    /// The part that is taken next.
    next: AtomicUsize,
    parts: usize,
    work: Work<'a>,
    stop: AtomicBool,
    /// Whether interruptions do not matter.
    uninterruptible: bool,
    /// Its caller's.
    mode: FloatMode,
}

impl<'a> Job<'a> {
    fn new(parts: usize, work: Work<'a>) -> Self {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { next, parts, work, stop, uninterruptible: false, mode: FloatMode::current() }
    }

    /// The next part, if there is one.
    fn take(&self) -> Option<usize> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.parts && !self.stop.load(Ordering::Relaxed)).then_some(part)
    }

    /// Does parts, as many as there are, and asks in between whether to stop.
    fn help(&self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        // Where a part fails or panics, no others are begun.
        let stop = StopOnDrop(&self.stop);
        let mut poll = || if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { check() };
        while let Some(part) = self.take() {
            (self.work)(part, &mut poll).and_then(|()| poll())?;
        }
        std::mem::forget(stop);
        Ok(())
    }

    /// As `help`, and looks for interruptions.
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

/// How a thread's parts ended: with an error, or a panic.
type JobResult = std::thread::Result<Result<()>>;

/// The outcome that explains more: a part that was stopped says nothing of why.
fn more_severe(first: JobResult, second: JobResult) -> JobResult {
    let severity = |result: &JobResult| match result {
        Ok(Ok(())) => 0,
        Ok(Err(Error::Interrupted)) => 1,
        Ok(Err(_)) => 2,
        Err(_) => 3,
    };
    let (worse, discarded) = if severity(&second) > severity(&first) { (second, first) } else { (first, second) };
    if let Err(panic) = discarded {
        // What a panic carries may panic when it is dropped.
        std::mem::forget(panic);
    }
    worse
}

/// What the threads of a pool agree on.
struct PoolState {
    /// Set while there is a job to join.
    job: Option<&'static Job<'static>>,
    /// How many workers are inside.
    active: usize,
    asleep: usize,
    /// The workers' so far.
    result: JobResult,
}

struct Pool {
    process: u32,
    busy: AtomicBool,
    /// How many jobs there were: workers spin on it.
    jobs: AtomicUsize,
    state: Mutex<PoolState>,
    job_posted: Condvar,
    workers_done: Condvar,
}

impl Pool {
    /// This process's pool, made if there is none; none while another thread makes it.
    fn get_or_start() -> Option<&'static Self> {
        // A pointer, not a lock, which a fork could leave held for good. What it points to is never freed.
        static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
        let process = std::process::id();
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: null, or put there below and never freed.
        let pool: Option<&'static Self> = unsafe { current.as_ref() };
        if pool.is_some_and(|pool| pool.process == process) {
            return pool;
        }
        let raw = Box::into_raw(Box::new(Self::new(process)));
        if POOL.compare_exchange(current, raw, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was faster.
            // SAFETY: made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(raw) });
            return None;
        }
        // SAFETY: made above, and never freed from here on.
        let pool: &'static Self = unsafe { &*raw };
        pool.spawn_workers(num_threads() - 1);
        Some(pool)
    }

    /// Starts as many workers as the system has threads for.
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

    /// A worker's life.
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

    /// Does a job with the workers, unless there is one already.
    fn run_shared(&self, job: &Job<'_>) -> Option<Result<()>> {
        self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: workers reach the job through the gate only. Before this function returns, the gate is closed and those
        // inside have left; nothing in between unwinds.
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
            // A signal handler has forked, and the workers are not here; nor is what they were to do.
            let got = "a child that was forked while other threads were at it";
            return Some(Err(Error::closed("call", "the process that began it", got, "make the call again")));
        }
        let result = more_severe(led, self.finish_job());
        self.busy.store(false, Ordering::Release);
        Some(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Lets no more workers in and waits for those inside; how they ended.
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
