//! Transfer of buffers and weights between actors and learner.
//!
//! No thread holds the lock of the state while it steps environments or learns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::RolloutScheduler;
use super::{Collect, RolloutTicket, StalenessPolicy, release, stop_timed_out};
use crate::{Error, Pcg64, Result, interrupt::InterruptCheck};

/// Interval at which the waiting learner checks for interruptions.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Job of an actor: to fill a buffer with a rollout.
#[derive(Debug)]
pub struct RolloutJob<W, B> {
    /// Identification of the rollout.
    pub ticket: RolloutTicket,
    /// Weights of version `ticket.version`.
    pub weights: Arc<W>,
    /// Buffer to fill.
    pub buffer: B,
}

/// Counters and timings of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PipelineStats {
    /// Number of rollouts that the learner received.
    pub rollouts: u64,
    /// Sum of the staleness of all rollouts.
    pub total_staleness: u64,
    /// Largest staleness of a rollout.
    pub max_staleness: u64,
    /// Time for which the learner waited for rollouts.
    pub learner_wait: Duration,
    /// Time for which actors waited for buffers and weights, summed over all actors.
    pub actor_wait: Duration,
}

/// An actor of any type.
pub(super) type Boxed<W, B> = Box<dyn Collect<W, B>>;

struct State<W, B> {
    scheduler: RolloutScheduler,
    /// Buffers by index. `None` if an actor or the learner has the buffer.
    buffers: Vec<Option<B>>,
    /// Weights of the newest versions, oldest version first. The last weights have the version of
    /// the scheduler.
    weights: VecDeque<Arc<W>>,
    seeds: Pcg64,
    error: Option<Error>,
    /// Number of threads that have not ended.
    alive: usize,
    stats: PipelineStats,
    /// Actors of ended threads, with their numbers. `None` if ended threads drop their actors.
    idle_actors: Option<Vec<(usize, Boxed<W, B>)>>,
}

/// Shared state of actors and learner: a bounded ring of buffers, the weights and the schedule.
pub(super) struct Channel<W, B> {
    state: Mutex<State<W, B>>,
    /// True after `stop` or an error. The flag changes only while the lock is held.
    stopped: AtomicBool,
    /// Notified when an actor may be able to start a rollout, and when a thread has ended.
    slot_freed: Condvar,
    /// Notified when the learner may be able to receive a rollout.
    rollout_ready: Condvar,
}

impl<W, B> Channel<W, B> {
    pub(super) fn new(
        actors: usize,
        staleness_policy: StalenessPolicy,
        weights: W,
        seeds: Pcg64,
        mut buffer: impl FnMut() -> Result<B>,
    ) -> Result<Self> {
        let scheduler = RolloutScheduler::new(actors, staleness_policy)?;
        let buffers = (0..=staleness_policy.max_staleness).map(|_| buffer().map(Some)).collect::<Result<_>>()?;
        let mut history = VecDeque::with_capacity(staleness_policy.max_staleness + 1);
        history.push_back(Arc::new(weights));
        let (error, alive, stats, idle_actors) = (None, 0, PipelineStats::default(), None);
        let state = Mutex::new(State { scheduler, buffers, weights: history, seeds, error, alive, stats, idle_actors });
        Ok(Self { state, stopped: AtomicBool::new(false), slot_freed: Condvar::new(), rollout_ready: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State<W, B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a buffer and returns the next job of an actor, or `None` if the actor must end.
    pub(super) fn begin(&self, actor: usize) -> Option<RolloutJob<W, B>> {
        let (mut state, start) = (self.state(), Instant::now());
        loop {
            if self.is_stopped() {
                return None;
            }
            let State { scheduler, buffers, weights, seeds, stats, .. } = &mut *state;
            if let Some(ticket) = scheduler.begin(actor, seeds) {
                stats.actor_wait += start.elapsed();
                let staleness = (scheduler.version() - ticket.version) as usize;
                let weights = weights[weights.len() - 1 - staleness].clone();
                let buffer = buffers[ticket.slot].take()?;
                if scheduler.is_round_robin() {
                    self.slot_freed.notify_all();
                }
                return Some(RolloutJob { ticket, weights, buffer });
            }
            state = self.slot_freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes back the buffer of a job, and marks the rollout as complete or records the job's
    /// error.
    pub(super) fn end(&self, ticket: RolloutTicket, buffer: B, done: Result<()>) {
        let mut state = self.state();
        state.buffers[ticket.slot] = Some(buffer);
        match done {
            Ok(()) => state.scheduler.mark_ready(ticket.slot),
            Err(Error::Interrupted) if self.is_stopped() => {}
            Err(error) => self.record_error(&mut state, error),
        }
        self.rollout_ready.notify_all();
    }

    /// Records an error and ends the pipeline. Only the first error is recorded.
    pub(super) fn fail(&self, error: Error) {
        self.record_error(&mut self.state(), error);
        self.rollout_ready.notify_all();
    }

    fn record_error(&self, state: &mut State<W, B>, error: Error) {
        state.error.get_or_insert(error);
        self.stopped.store(true, Ordering::Relaxed);
        self.slot_freed.notify_all();
    }

    /// Waits for the next rollout and returns its ticket, its staleness and its buffer.
    ///
    /// Returns `None` if `stop` returns true.
    ///
    /// # Errors
    /// The first error of an actor. [`Error::Interrupted`] if the interrupt check returns true.
    /// [`Error::Closed`] if the pipeline has ended.
    pub(super) fn take(&self, stop: &mut dyn FnMut() -> bool) -> Result<Option<(RolloutTicket, u64, B)>> {
        let (mut state, start, mut interrupt) = (self.state(), Instant::now(), InterruptCheck::default());
        state.scheduler.request();
        self.slot_freed.notify_all();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if self.is_stopped() || state.alive == 0 {
                return Err(closed_error());
            }
            if let Some((ticket, staleness)) = state.scheduler.take() {
                let stats = &mut state.stats;
                stats.learner_wait += start.elapsed();
                stats.rollouts += 1;
                stats.total_staleness += staleness;
                stats.max_staleness = stats.max_staleness.max(staleness);
                return state.buffers[ticket.slot]
                    .take()
                    .map(|buffer| Some((ticket, staleness, buffer)))
                    .ok_or_else(closed_error);
            }
            state = self.rollout_ready.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            if interrupt.is_due() {
                drop(state);
                interrupt.check()?;
                if stop() {
                    return Ok(None);
                }
                state = self.state();
            }
        }
    }

    /// Takes back the buffer of a rollout from the learner and adds a version of the weights.
    ///
    /// Without `weights`, the new version equals the newest version.
    pub(super) fn release(&self, ticket: RolloutTicket, buffer: B, weights: Option<W>) {
        let new = weights.map(Arc::new);
        let mut state = self.state();
        state.buffers[ticket.slot] = Some(buffer);
        state.scheduler.release(ticket.slot);
        let mut oldest = None;
        if let Some(new) = new.or_else(|| state.weights.back().cloned()) {
            if state.weights.len() == state.buffers.len() {
                oldest = state.weights.pop_front();
            }
            state.weights.push_back(new);
        }
        self.slot_freed.notify_all();
        drop(state);
        // Dropping weights runs the caller's code, which must not block the actors.
        drop(oldest);
    }

    /// Returns a copy of the stream of seeds, with the seeds of started and pending rollouts drawn.
    pub(super) fn seeds(&self) -> Pcg64 {
        let state = self.state();
        let mut seeds = state.seeds.clone();
        if !self.is_stopped() {
            state.scheduler.draw_pending(&mut seeds);
        }
        seeds
    }

    pub(super) fn version(&self) -> u64 {
        self.state().scheduler.version()
    }

    pub(super) fn stats(&self) -> PipelineStats {
        self.state().stats
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        let state = self.state();
        self.stopped.store(true, Ordering::Relaxed);
        drop(state);
        self.slot_freed.notify_all();
        self.rollout_ready.notify_all();
    }

    pub(super) fn actor_started(&self) {
        self.state().alive += 1;
    }

    pub(super) fn actor_ended(&self) {
        self.state().alive -= 1;
        self.slot_freed.notify_all();
        self.rollout_ready.notify_all();
    }

    /// Requests the end of all threads, which then store their actors for [`Channel::gather`].
    ///
    /// # Errors
    /// The first error of an actor. [`Error::Closed`] if the pipeline had already ended.
    pub(super) fn cancel(&self) -> Result<()> {
        let mut state = self.state();
        if self.is_stopped() || state.alive == 0 {
            return Err(state.error.take().unwrap_or_else(closed_error));
        }
        state.idle_actors = Some(Vec::with_capacity(state.alive));
        drop(state);
        self.stop();
        Ok(())
    }

    /// Returns the actors that the ended threads have stored, in the order of their numbers.
    ///
    /// Rollouts that were not received are lost.
    ///
    /// # Errors
    /// The first error of an actor. [`Error::Backend`] if an actor has not ended. The pipeline has
    /// ended after these errors.
    pub(super) fn gather(&self) -> Result<Vec<Boxed<W, B>>> {
        let mut state = self.state();
        let mut idle_actors = state.idle_actors.take().unwrap_or_default();
        if state.alive > 0 || state.error.is_some() {
            let error = state.error.take().unwrap_or_else(stop_timed_out);
            drop(state);
            for (_, actor) in idle_actors {
                release(actor);
            }
            return Err(error);
        }
        let State { scheduler, seeds, weights, .. } = &mut *state;
        scheduler.draw_pending(seeds);
        scheduler.restart(scheduler.version());
        let newest = weights.pop_back();
        let older = std::mem::replace(weights, newest.into_iter().collect());
        drop(state);
        drop(older);
        idle_actors.sort_unstable_by_key(|(number, _)| *number);
        Ok(idle_actors.into_iter().map(|(_, actor)| actor).collect())
    }

    /// Stores an actor for [`Channel::gather`] after [`Channel::cancel`].
    ///
    /// Otherwise returns the actor, so that its thread drops the actor.
    pub(super) fn join_actors(&self, number: usize, actor: Boxed<W, B>) -> Option<Boxed<W, B>> {
        match &mut self.state().idle_actors {
            Some(idle_actors) => idle_actors.push((number, actor)),
            None => return Some(actor),
        }
        None
    }

    /// Sets the number of rollouts, the weights and the stream of seeds. No threads may be running.
    pub(super) fn restart_from(&self, rollouts: u64, weights: W, seeds: Pcg64) {
        let new = Arc::new(weights);
        let mut state = self.state();
        state.scheduler.restart(rollouts);
        state.seeds = seeds;
        let before = std::mem::replace(&mut state.weights, [new].into());
        drop(state);
        drop(before);
    }

    /// Clears the stop flag before new threads start.
    pub(super) fn wake(&self) {
        let _state = self.state();
        self.stopped.store(false, Ordering::Relaxed);
    }

    /// Waits until all threads have ended. Returns false if they have not ended after the timeout.
    pub(super) fn wait_all_ended(&self, timeout: Duration) -> bool {
        let waited = self.slot_freed.wait_timeout_while(self.state(), timeout, |state| state.alive > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.alive == 0
    }
}

fn closed_error() -> Error {
    Error::closed("collector", "", "is stopped or has failed", "create a new one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    /// Checks, when dropped, that the lock is free.
    #[derive(Default)]
    struct LockProbe(Mutex<Weak<Channel<Arc<LockProbe>, u8>>>, Arc<AtomicBool>);

    impl Drop for LockProbe {
        fn drop(&mut self) {
            let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            self.1.store(ring.is_some_and(|ring| ring.state.try_lock().is_ok()), Ordering::Relaxed);
        }
    }

    #[test]
    fn unneeded_weights_are_dropped_without_the_lock() {
        let (first, staleness_policy) =
            (Arc::new(LockProbe::default()), StalenessPolicy { max_staleness: 0, deterministic: true });
        let free = Arc::clone(&first.1);
        let ring = Channel::new(1, staleness_policy, Arc::clone(&first), Pcg64::seed_from(0), || Ok(0)).unwrap();
        let ring = Arc::new(ring);
        *first.0.lock().unwrap() = Arc::downgrade(&ring);
        drop(first);
        ring.actor_started();
        ring.state().scheduler.request();
        let job = ring.begin(0).unwrap();
        let RolloutJob { ticket: turn, weights, buffer } = job;
        drop(weights);
        ring.end(turn, buffer, Ok(()));
        let (turn, _, buffer) = ring.take(&mut || false).unwrap().unwrap();
        ring.release(turn, buffer, Some(Arc::default()));
        assert!(free.load(Ordering::Relaxed));
    }
}
