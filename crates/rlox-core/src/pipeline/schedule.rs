//! Schedules actors: assigns free buffers and weight versions, and picks the next rollout to learn from.

use crate::{Error, Pcg64, Result};

/// How far actors may run ahead of the learner.
///
/// A rollout's lag is how many others were learned from between its first step and its own turn: that many updates its
/// policy is behind. With a bound of `max_staleness` there are `max_staleness + 1` buffers; two of them are one that is filled while
/// the other one is learned from.
///
/// ```
/// let staleness_policy = rlox_core::StalenessPolicy::default();
/// assert_eq!((staleness_policy.max_staleness, staleness_policy.deterministic), (1, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalenessPolicy {
    /// The bound of every rollout's lag. Actors wait where it would be passed; so does the learner, for a slow actor.
    pub max_staleness: usize,
    /// Rollouts are learned from in the order in which they were begun, by the actors in turn, with weights that are as
    /// old as the bound says, however fast anybody is: runs are repeatable. With a bound of 0 actors and learner take
    /// turns, else they work at the same time.
    pub deterministic: bool,
}

impl Default for StalenessPolicy {
    fn default() -> Self {
        Self { max_staleness: 1, deterministic: false }
    }
}

impl StalenessPolicy {
    /// Checks that so many actors can work.
    ///
    /// # Errors
    /// [`Error::Config`] for no actors, a bound of 0 without deterministic, or one below the number of actors.
    pub fn check(self, actors: usize) -> Result<()> {
        if actors == 0 {
            return Err(Error::config("num_actors", "at least 1", "0", "pass a positive number"));
        }
        if self.deterministic {
            return Ok(());
        }
        if self.max_staleness == 0 {
            let hint = "pass 1 or more, or deterministic, in which actors and learner may take turns";
            return Err(Error::config(
                "max_staleness",
                "at least 1 where actors do not wait for the learner",
                "0",
                hint,
            ));
        }
        if self.max_staleness < actors {
            let expected = format!("at least {actors}, as there are so many actors");
            let hint = "pass a larger one or fewer actors: each is one rollout ahead, else some would always wait";
            return Err(Error::config("max_staleness", expected, self.max_staleness.to_string(), hint));
        }
        Ok(())
    }
}

/// A rollout's place among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutTicket {
    /// Its buffer.
    pub slot: usize,
    /// How many rollouts were begun before.
    pub number: u64,
    /// Who fills it.
    pub actor: usize,
    /// How many rollouts were learned from when its weights were published.
    pub version: u64,
    /// Decides what is random in it.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    Filling(RolloutTicket),
    /// The count says when it came.
    Ready(RolloutTicket, u64),
    Learning,
}

/// Which buffer is in whose hands.
#[derive(Debug)]
pub(super) struct RolloutScheduler {
    staleness_policy: StalenessPolicy,
    actors: usize,
    slots: Vec<Slot>,
    /// How many rollouts were begun, have come, were taken by the learner, and were learned from.
    num_started: u64,
    num_ready: u64,
    num_received: u64,
    version: u64,
    /// How many the learner has asked for.
    num_requested: u64,
    /// What all of them were when it began, or began again.
    first: u64,
    /// The versions of rollouts under way, to be sorted.
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

    /// Begins again after so many rollouts, where nobody has a buffer.
    pub(super) fn restart(&mut self, rollouts: u64) {
        self.slots.fill(Slot::Free);
        (self.num_started, self.num_ready, self.num_received) = (rollouts, rollouts, rollouts);
        (self.version, self.num_requested, self.first) = (rollouts, rollouts, rollouts);
    }

    /// Whether actors wait for each other, too.
    pub(super) fn is_round_robin(&self) -> bool {
        self.staleness_policy.deterministic && self.actors > 1
    }

    /// How many rollouts were learned from.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The next rollout of an actor, with the next seed, if it may begin.
    pub(super) fn begin(&mut self, actor: usize, seeds: &mut Pcg64) -> Option<RolloutTicket> {
        let (number, max_staleness) = (self.num_started, self.staleness_policy.max_staleness as u64);
        let version = if self.staleness_policy.deterministic {
            // Between two rollouts nothing is under way but what the bound allows: a learner that stops there can go on.
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

    /// Draws the seeds of rollouts that are due: in lockstep it is known which will be begun, however fast anybody is.
    pub(super) fn draw_pending(&self, seeds: &mut Pcg64) {
        if self.staleness_policy.deterministic {
            for _ in self.num_started..self.num_requested + self.staleness_policy.max_staleness as u64 {
                Self::seed(seeds);
            }
        }
    }

    /// A rollout is there.
    pub(super) fn mark_ready(&mut self, slot: usize) {
        if let Slot::Filling(ticket) = self.slots[slot] {
            self.slots[slot] = Slot::Ready(ticket, self.num_ready);
            self.num_ready += 1;
        }
    }

    /// The learner waits for one more rollout.
    pub(super) fn request(&mut self) {
        self.num_requested = self.num_received + 1;
    }

    /// What is learned from next, and its lag, if it is there.
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

    /// The one whose policy is the oldest.
    fn oldest(&self) -> Option<RolloutTicket> {
        self.in_flight().min_by_key(|ticket| (ticket.version, ticket.number))
    }

    /// Whether all but one can be learned from after it, the oldest first, without passing the bound.
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

    /// The learner is through with a rollout, whether it learned from it or not.
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
    fn one_buffer_is_filled_while_the_other_is_learned_from() {
        let mut turns = turns(1, 1, false);
        let first = turns.begin(0, &mut Pcg64::seed_from(0)).unwrap();
        turns.mark_ready(first.slot);
        let second = turns.begin(0, &mut Pcg64::seed_from(0)).unwrap();
        assert_eq!(turns.begin(0, &mut Pcg64::seed_from(0)), None, "both are in use");
        assert_eq!(turns.take(), Some((first, 0)));
        assert_eq!(turns.begin(0, &mut Pcg64::seed_from(0)), None);
        turns.release(first.slot);
        assert_eq!((turns.version(), turns.take()), (1, None));
        turns.mark_ready(second.slot);
        assert_eq!(turns.take(), Some((second, 1)));
    }

    #[test]
    fn a_slow_actor_is_waited_for_once_the_bound_is_reached() {
        let mut turns = turns(2, 2, false);
        let slow = turns.begin(1, &mut Pcg64::seed_from(0)).unwrap();
        for lag in 0..3 {
            let fast = turns.begin(0, &mut Pcg64::seed_from(0)).unwrap();
            turns.mark_ready(fast.slot);
            if lag < 2 {
                assert_eq!(turns.take(), Some((fast, 0)));
                turns.release(fast.slot);
            } else {
                assert_eq!(turns.take(), None, "the slow one's policy would be 3 updates behind");
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
    fn bounds_that_let_somebody_starve_are_refused() {
        for (actors, max_staleness, deterministic) in [(0, 1, false), (1, 0, false), (3, 2, false), (0, 1, true)] {
            assert!(RolloutScheduler::new(actors, StalenessPolicy { max_staleness, deterministic }).is_err());
        }
        assert!(RolloutScheduler::new(3, StalenessPolicy { max_staleness: 0, deterministic: true }).is_ok());
    }

    proptest! {
        /// Whoever is fast or slow: nothing is lost or doubled, no rollout is older than the bound, and somebody can go on.
        #[test]
        fn every_rollout_is_learned_from_once_within_the_bound(
            actors in 1..5_usize, more in 0..4_usize, deterministic: bool, choices in proptest::collection::vec(0..6_usize, 1..300),
        ) {
            let max_staleness = if deterministic { more } else { actors + more };
            let mut turns = turns(actors, max_staleness, deterministic);
            let (mut filling, mut learning, mut asked) = (vec![None; actors], None, false);
            let mut learned = std::collections::BTreeSet::new();
            for (i, choice) in choices.iter().enumerate() {
                let mut moved = false;
                // Everybody in an order that differs from round to round; the first who can do something does it.
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
                            prop_assert!(learned.insert(turn.number), "learned from twice");
                            learning = Some(turn);
                            moved = true;
                        }
                    }
                    if moved {
                        break;
                    }
                }
                prop_assert!(moved, "nobody can go on");
            }
        }
    }
}
