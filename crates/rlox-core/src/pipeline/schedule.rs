//! Scheduler of rollouts: assigns buffers and versions of the weights to actors, and selects the
//! next rollout for the learner.
//!
//! The version of the weights is the number of rollouts that the learner had returned when it
//! published them. A slot is the index of a buffer.

use crate::{Error, Pcg64, Result};

/// Limit on the staleness of rollouts.
///
/// The staleness of a rollout is the number of updates between the policy that collected it and the
/// policy that learns from it. The learner makes one update per rollout. There is one buffer more
/// than `max_staleness`. With two buffers, an actor fills one buffer while the learner uses the
/// other.
///
/// ```
/// let staleness_policy = rlox_core::pipeline::StalenessPolicy::default();
/// assert_eq!((staleness_policy.max_staleness, staleness_policy.deterministic), (1, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalenessPolicy {
    /// Maximum staleness of a rollout.
    ///
    /// At the limit, actors wait for a free buffer, and the learner waits for a slow actor.
    pub max_staleness: usize,
    /// True if runs are repeatable, independent of the speed of actors and learner.
    ///
    /// Actors start rollouts in turn, and the learner receives the rollouts in that order. After
    /// the first rollouts, the weights are always `max_staleness` versions old. With
    /// `max_staleness` 0, actors and learner work alternately, otherwise concurrently.
    pub deterministic: bool,
}

impl Default for StalenessPolicy {
    fn default() -> Self {
        Self { max_staleness: 1, deterministic: false }
    }
}

impl StalenessPolicy {
    /// Checks that this policy lets each of `actors` actors collect rollouts.
    ///
    /// # Errors
    /// [`Error::Config`] if `actors` is 0, or if `max_staleness` is 0 or below `actors` without `deterministic`.
    pub fn check(self, actors: usize) -> Result<()> {
        if actors == 0 {
            return Err(Error::config("num_actors", "at least 1", "0", "pass a positive number"));
        }
        if self.deterministic {
            return Ok(());
        }
        if self.max_staleness == 0 {
            let hint = "pass 1 or more, or set deterministic to true";
            return Err(Error::config("max_staleness", "at least 1, unless deterministic is true", "0", hint));
        }
        if self.max_staleness < actors {
            let expected = format!("at least {actors}, the number of actors");
            let hint = "pass a larger max_staleness or fewer actors, so that no actor always waits";
            return Err(Error::config("max_staleness", expected, self.max_staleness.to_string(), hint));
        }
        Ok(())
    }
}

/// Identification of a rollout, assigned at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutTicket {
    /// Index of the buffer.
    pub slot: usize,
    /// Number of rollouts that were started before this rollout.
    pub number: u64,
    /// Index of the actor that fills the buffer.
    pub actor: usize,
    /// Version of the weights: the number of rollouts that had been returned when they were
    /// published.
    pub version: u64,
    /// Seed of the random streams of the rollout.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    Filling(RolloutTicket),
    /// A complete rollout and its position in the order of completion.
    Ready(RolloutTicket, u64),
    Learning,
}

/// State of all buffers, and counters of rollouts.
#[derive(Debug)]
pub(super) struct RolloutScheduler {
    staleness_policy: StalenessPolicy,
    actors: usize,
    slots: Vec<Slot>,
    /// Number of started rollouts. The next fields count complete, received and returned rollouts.
    num_started: u64,
    num_ready: u64,
    num_received: u64,
    version: u64,
    /// Number of rollouts that the learner has requested.
    num_requested: u64,
    /// Initial value of the counters after `new` or `restart`.
    first: u64,
    /// Memory for the versions of rollouts that wait for the learner, reused between calls.
    waiting: Vec<u64>,
}

impl RolloutScheduler {
    pub(super) fn new(actors: usize, staleness_policy: StalenessPolicy) -> Result<Self> {
        staleness_policy.check(actors)?;
        let buffers = staleness_policy.max_staleness.saturating_add(1);
        let slots = crate::alloc::with_capacity("max_staleness", buffers)?;
        let waiting = crate::alloc::with_capacity("max_staleness", buffers)?;
        let (num_started, num_ready, num_received, version, num_requested, first) = (0, 0, 0, 0, 0, 0);
        let mut scheduler = Self {
            staleness_policy,
            actors,
            slots,
            num_started,
            num_ready,
            num_received,
            version,
            num_requested,
            first,
            waiting,
        };
        scheduler.slots.resize(buffers, Slot::Free);
        Ok(scheduler)
    }

    /// Marks all buffers as free and sets all counters to `rollouts`.
    pub(super) fn restart(&mut self, rollouts: u64) {
        self.slots.fill(Slot::Free);
        (self.num_started, self.num_ready, self.num_received) = (rollouts, rollouts, rollouts);
        (self.version, self.num_requested, self.first) = (rollouts, rollouts, rollouts);
    }

    /// Returns true if several actors start rollouts in turn, so that they wait for each other.
    pub(super) fn is_round_robin(&self) -> bool {
        self.staleness_policy.deterministic && self.actors > 1
    }

    /// Returns the number of returned rollouts, which is the version of the newest weights.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Starts the next rollout for an actor with the next seed, or returns `None` if the actor must
    /// wait.
    pub(super) fn begin(&mut self, actor: usize, seeds: &mut Pcg64) -> Option<RolloutTicket> {
        let (number, max_staleness) = (self.num_started, self.staleness_policy.max_staleness as u64);
        let version = if self.staleness_policy.deterministic {
            // At most `max_staleness` rollouts that were not requested start, so that the learner
            // can stop between two rollouts.
            let is_next = number % self.actors as u64 == actor as u64 && number < self.num_requested + max_staleness;
            if !is_next {
                return None;
            }
            number.saturating_sub(max_staleness).max(self.first)
        } else {
            self.version
        };
        let slot = self.slots.iter().position(|slot| matches!(slot, Slot::Free))?;
        let seed = Self::seed(seeds);
        let ticket = RolloutTicket { slot, number, actor, version, seed };
        self.slots[slot] = Slot::Filling(ticket);
        self.num_started += 1;
        Some(ticket)
    }

    fn seed(seeds: &mut Pcg64) -> u64 {
        seeds.integers_inclusive(0, i64::MAX).cast_unsigned()
    }

    /// Draws the seeds of pending rollouts, if `deterministic` is true.
    ///
    /// A pending rollout has not started, but may start without a further request of the learner.
    pub(super) fn draw_pending(&self, seeds: &mut Pcg64) {
        if self.staleness_policy.deterministic {
            for _ in self.num_started..self.num_requested + self.staleness_policy.max_staleness as u64 {
                Self::seed(seeds);
            }
        }
    }

    /// Marks the rollout in buffer `slot` as complete.
    pub(super) fn mark_ready(&mut self, slot: usize) {
        if let Slot::Filling(ticket) = self.slots[slot] {
            self.slots[slot] = Slot::Ready(ticket, self.num_ready);
            self.num_ready += 1;
        }
    }

    /// Requests one more rollout for the learner.
    pub(super) fn request(&mut self) {
        self.num_requested = self.num_received + 1;
    }

    /// Returns the next rollout for the learner and its staleness, or `None` if it is not complete.
    pub(super) fn take(&mut self) -> Option<(RolloutTicket, u64)> {
        let ready = |slot: &Slot| if let Slot::Ready(ticket, order) = *slot { Some((order, ticket)) } else { None };
        let next = if self.staleness_policy.deterministic {
            self.slots.iter().filter_map(ready).map(|(_, ticket)| ticket).find(|turn| turn.number == self.num_received)
        } else {
            let first = self.slots.iter().filter_map(ready).min_by_key(|(order, _)| *order);
            let first = first.map(|(_, ticket)| ticket)?;
            if self.others_can_wait(first.slot) {
                Some(first)
            } else {
                self.oldest().filter(|oldest| ready(&self.slots[oldest.slot]).is_some())
            }
        };
        let ticket = next?;
        self.slots[ticket.slot] = Slot::Learning;
        self.num_received += 1;
        Some((ticket, self.num_received - 1 - ticket.version))
    }

    fn in_flight(&self) -> impl Iterator<Item = RolloutTicket> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Filling(ticket) | Slot::Ready(ticket, _) => Some(*ticket),
            Slot::Free | Slot::Learning => None,
        })
    }

    /// Returns the rollout with the oldest weights among those that the learner has not received.
    fn oldest(&self) -> Option<RolloutTicket> {
        self.in_flight().min_by_key(|ticket| (ticket.version, ticket.number))
    }

    /// Returns true if the rollout in buffer `slot` can be received next.
    ///
    /// The condition is that all other started rollouts stay within the staleness limit when they
    /// are received later.
    fn others_can_wait(&mut self, slot: usize) -> bool {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.clear();
        waiting.extend(self.in_flight().filter(|ticket| ticket.slot != slot).map(|turn| turn.version));
        waiting.sort_unstable();
        let max_staleness = self.staleness_policy.max_staleness as u64;
        let fit = waiting.iter().zip(self.num_received + 1..).all(|(version, index)| index <= version + max_staleness);
        self.waiting = waiting;
        fit
    }

    /// Frees the buffer `slot` of a rollout that the learner has returned.
    pub(super) fn release(&mut self, slot: usize) {
        if matches!(self.slots[slot], Slot::Learning) {
            self.slots[slot] = Slot::Free;
            self.version += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turns(actors: usize, max_staleness: usize, deterministic: bool) -> RolloutScheduler {
        RolloutScheduler::new(actors, StalenessPolicy { max_staleness, deterministic }).unwrap()
    }

    #[test]
    fn one_buffer_is_filled_while_the_learner_uses_the_other() {
        let mut turns = turns(1, 1, false);
        let first = turns.begin(0, &mut Pcg64::seed_from(0)).unwrap();
        turns.mark_ready(first.slot);
        let second = turns.begin(0, &mut Pcg64::seed_from(0)).unwrap();
        assert_eq!(turns.begin(0, &mut Pcg64::seed_from(0)), None, "both buffers are in use");
        assert_eq!(turns.take(), Some((first, 0)));
        assert_eq!(turns.begin(0, &mut Pcg64::seed_from(0)), None);
        turns.release(first.slot);
        assert_eq!((turns.version(), turns.take()), (1, None));
        turns.mark_ready(second.slot);
        assert_eq!(turns.take(), Some((second, 1)));
    }

    #[test]
    fn the_learner_waits_for_a_slow_actor_at_the_limit() {
        let mut turns = turns(2, 2, false);
        let slow = turns.begin(1, &mut Pcg64::seed_from(0)).unwrap();
        for lag in 0..3 {
            let fast = turns.begin(0, &mut Pcg64::seed_from(0)).unwrap();
            turns.mark_ready(fast.slot);
            if lag < 2 {
                assert_eq!(turns.take(), Some((fast, 0)));
                turns.release(fast.slot);
            } else {
                assert_eq!(turns.take(), None, "the slow actor's policy would be 3 updates old");
            }
        }
        turns.mark_ready(slow.slot);
        assert_eq!(turns.take(), Some((slow, 2)));
    }

    #[test]
    fn deterministic_actors_start_only_requested_rollouts_within_the_bound() {
        let mut alone = turns(1, 0, true);
        assert_eq!(alone.begin(0, &mut Pcg64::seed_from(0)), None);
        alone.request();
        let first = alone.begin(0, &mut Pcg64::seed_from(0)).unwrap();
        assert_eq!((first.number, first.version, alone.begin(0, &mut Pcg64::seed_from(0))), (0, 0, None));
        let mut both = turns(2, 2, true);
        let started = [
            both.begin(1, &mut Pcg64::seed_from(0)),
            both.begin(0, &mut Pcg64::seed_from(0)),
            both.begin(0, &mut Pcg64::seed_from(0)),
            both.begin(1, &mut Pcg64::seed_from(0)),
        ]
        .map(|turn| turn.map(|t| (t.number, t.version)));
        assert_eq!(started, [None, Some((0, 0)), None, Some((1, 0))]);
        both.request();
        assert_eq!(both.begin(0, &mut Pcg64::seed_from(0)).map(|turn| (turn.number, turn.version)), Some((2, 0)));
    }

    #[test]
    fn limits_that_starve_an_actor_are_rejected() {
        for (actors, max_staleness, deterministic) in [(0, 1, false), (1, 0, false), (3, 2, false), (0, 1, true)] {
            assert!(RolloutScheduler::new(actors, StalenessPolicy { max_staleness, deterministic }).is_err());
        }
        assert!(RolloutScheduler::new(3, StalenessPolicy { max_staleness: 0, deterministic: true }).is_ok());
    }

    proptest! {
        /// Checks random orders of events: no rollout is lost or duplicated, and there is always progress.
        #[test]
        fn every_rollout_is_received_once_within_the_limit(
            actors in 1..5_usize,
            more in 0..4_usize,
            deterministic: bool,
            choices in proptest::collection::vec(0..6_usize, 1..300),
        ) {
            let max_staleness = if deterministic { more } else { actors + more };
            let mut turns = turns(actors, max_staleness, deterministic);
            let (mut filling, mut learning, mut asked) = (vec![None; actors], None, false);
            let mut learned = std::collections::BTreeSet::new();
            for (i, choice) in choices.iter().enumerate() {
                let mut moved = false;
                // Actors and learner are tried in an order that differs per round. The first that
                // can act does.
                for who in (0..=actors).map(|k| (k + choice + i) % (actors + 1)) {
                    if let Some(actor) = who.checked_sub(1) {
                        if let Some(turn) = filling[actor].take() {
                            let turn: RolloutTicket = turn;
                            turns.mark_ready(turn.slot);
                            moved = true;
                        } else {
                            filling[actor] = turns.begin(actor, &mut Pcg64::seed_from(0));
                            moved = filling[actor].is_some();
                        }
                    } else if let Some(turn) = learning.take() {
                        let turn: RolloutTicket = turn;
                        turns.release(turn.slot);
                        asked = false;
                        moved = true;
                    } else {
                        if !std::mem::replace(&mut asked, true) {
                            turns.request();
                            moved = true;
                        }
                        if let Some((turn, lag)) = turns.take() {
                            prop_assert!(lag <= max_staleness as u64);
                            prop_assert!(!deterministic || lag == max_staleness.min(turn.number as usize) as u64);
                            prop_assert!(learned.insert(turn.number), "received twice");
                            learning = Some(turn);
                            moved = true;
                        }
                    }
                    if moved {
                        break;
                    }
                }
                prop_assert!(moved, "no party can act");
            }
        }
    }
}
