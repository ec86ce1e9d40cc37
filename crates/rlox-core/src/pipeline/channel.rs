//! Buffers and weights on their way between actors and learner. Nobody holds the lock while stepping or learning.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::RolloutScheduler;
use super::{Collect, RolloutTicket, StalenessPolicy, release, stop_timed_out};
use crate::{Error, InterruptCheck, Pcg64, Result};

/// How often the learner looks for interruptions while it waits.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What an actor begins a rollout with.
#[derive(Debug)]
pub struct RolloutJob<W, B> {
    /// Its place among the others.
    pub ticket: RolloutTicket,
    /// Of the version that the turn says.
    pub weights: Arc<W>,
    /// What is to be filled.
    pub buffer: B,
}

/// What has been counted and timed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PipelineStats {
    /// Rollouts handed to the learner.
    pub rollouts: u64,
    /// Of all their lags.
    pub total_staleness: u64,
    /// The largest one.
    pub max_staleness: u64,
    /// How long the learner waited for rollouts.
    pub learner_wait: Duration,
    /// How long actors waited for buffers and weights, all together.
    pub actor_wait: Duration,
}

/// An actor, whatever it is.
pub(super) type Boxed<W, B> = Box<dyn Collect<W, B>>;

struct State<W, B> {
    scheduler: RolloutScheduler,
    /// Those that are not in anybody's hands.
    buffers: Vec<Option<B>>,
    /// The newest last, that of the turns' version.
    weights: VecDeque<Arc<W>>,
    seeds: Pcg64,
    error: Option<Error>,
    /// Threads that have not ended.
    alive: usize,
    stats: PipelineStats,
    /// Actors whose threads have ended, with their numbers, where they are wanted back.
    idle_actors: Option<Vec<(usize, Boxed<W, B>)>>,
}

/// The bounded ring of buffers.
pub(super) struct Channel<W, B> {
    state: Mutex<State<W, B>>,
    /// Set with the lock held.
    stopped: AtomicBool,
    /// For actors, and for who waits for their end.
    slot_freed: Condvar,
    /// For the learner.
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

    /// An actor's next rollout, once there is a buffer; `None` where it is to end.
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

    /// An actor is through with a buffer.
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

    /// The first error ends everything.
    pub(super) fn fail(&self, error: Error) {
        self.record_error(&mut self.state(), error);
        self.rollout_ready.notify_all();
    }

    fn record_error(&self, state: &mut State<W, B>, error: Error) {
        state.error.get_or_insert(error);
        self.stopped.store(true, Ordering::Relaxed);
        self.slot_freed.notify_all();
    }

    /// The next rollout to learn from, and its lag; `None` where `stop` says so.
    ///
    /// # Errors
    /// The first one of an actor; [`Error::Interrupted`]; [`Error::Closed`] where everything has ended.
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

    /// The learner is through with a rollout and gives its buffer back, with new weights where it has learned.
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
        // They are the caller's: what their end takes, or waits for, is not waited for by actors.
        drop(oldest);
    }

    /// The stream after the rollouts that were begun, and those that are due.
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

    /// Ends the threads, whose actors are wanted back.
    ///
    /// # Errors
    /// The first one of an actor; [`Error::Closed`] where everything had ended before.
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

    /// The actors that were recalled, in order; what they collected and nobody took is lost.
    ///
    /// # Errors
    /// The first one of an actor; [`Error::Backend`] where one has not ended yet. All has ended then.
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

    /// What a thread is to drop of an actor that it no longer needs.
    pub(super) fn join_actors(&self, number: usize, actor: Boxed<W, B>) -> Option<Boxed<W, B>> {
        match &mut self.state().idle_actors {
            Some(idle_actors) => idle_actors.push((number, actor)),
            None => return Some(actor),
        }
        None
    }

    /// Has it begin after so many rollouts with other weights and another stream, while there are no threads.
    pub(super) fn restart_from(&self, rollouts: u64, weights: W, seeds: Pcg64) {
        let new = Arc::new(weights);
        let mut state = self.state();
        state.scheduler.restart(rollouts);
        state.seeds = seeds;
        let before = std::mem::replace(&mut state.weights, [new].into());
        drop(state);
        drop(before);
    }

    /// There will be threads.
    pub(super) fn wake(&self) {
        let _state = self.state();
        self.stopped.store(false, Ordering::Relaxed);
    }

    /// Whether all threads have ended within so long.
    pub(super) fn wait_all_ended(&self, timeout: Duration) -> bool {
        let waited = self.slot_freed.wait_timeout_while(self.state(), timeout, |state| state.alive > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.alive == 0
    }
}

fn closed_error() -> Error {
    Error::closed("collector", "one whose actors work", "one that was stopped, or has failed before", "make a new one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    /// Asks, when it is dropped, whether anybody has the lock.
    #[derive(Default)]
    struct Asks(Mutex<Weak<Channel<Arc<Asks>, u8>>>, Arc<AtomicBool>);

    impl Drop for Asks {
        fn drop(&mut self) {
            let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            self.1.store(ring.is_some_and(|ring| ring.state.try_lock().is_ok()), Ordering::Relaxed);
        }
    }

    #[test]
    fn weights_that_nobody_needs_are_dropped_without_the_lock() {
        let (first, staleness_policy) =
            (Arc::new(Asks::default()), StalenessPolicy { max_staleness: 0, deterministic: true });
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
