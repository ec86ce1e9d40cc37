use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::envs::CartPole;
use crate::testing::assert_rejects;
use crate::{AutoresetMode, Error, RandomPolicy, VecEnv, VectorEnv, field::FieldData};

/// Actor that fills the buffer with its number, the rollout's number, the weights and their
/// version.
struct Writer {
    number: usize,
    pause: Duration,
    deaf: bool,
    fails_at: Option<u64>,
    panics_at: Option<u64>,
    live: Arc<AtomicU64>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Collect<u64, Vec<u64>> for Writer {
    fn collect(&mut self, job: &mut RolloutJob<u64, Vec<u64>>, stop: &dyn Fn() -> bool) -> Result<()> {
        let until = Instant::now() + self.pause;
        while Instant::now() < until {
            if stop() && !self.deaf {
                return Err(Error::Interrupted);
            }
            std::hint::spin_loop();
        }
        let turn = job.ticket;
        assert!(self.panics_at != Some(turn.number), "the pole broke");
        if self.fails_at == Some(turn.number) {
            return Err(Error::Backend("the pole is gone".into()));
        }
        job.buffer.clear();
        job.buffer.extend([self.number as u64, turn.number, *job.weights, turn.version]);
        Ok(())
    }
}

type Ring = AsyncCollector<u64, Vec<u64>>;

fn ring(actors: usize, staleness_policy: StalenessPolicy, change: impl Fn(&mut Writer)) -> (Ring, Arc<AtomicU64>) {
    let live = Arc::new(AtomicU64::new(actors as u64));
    let writer = |number| {
        let (pause, live) = (Duration::ZERO, Arc::clone(&live));
        let mut writer = Writer { number, pause, deaf: false, fails_at: None, panics_at: None, live };
        change(&mut writer);
        Box::new(writer) as Box<dyn Collect<u64, Vec<u64>>>
    };
    let actors = (0..actors).map(writer).collect();
    (Ring::new(actors, staleness_policy, 0, Pcg64::seed_from(1), || Ok(Vec::with_capacity(4))).unwrap(), live)
}

/// Publishes weights that equal their version, so that mixed-up weights are detected.
fn learn(ring: &mut Ring, rounds: u64) -> Vec<(Vec<u64>, u64)> {
    (1..=rounds)
        .map(|version| {
            let collected = ring.recv().unwrap();
            let received = (collected.buffer.clone(), collected.staleness);
            assert_eq!(collected.buffer[3], collected.ticket.version);
            ring.publish(version).unwrap();
            received
        })
        .collect()
}

#[test]
fn every_rollout_arrives_once_with_the_weights_of_its_version() {
    for (actors, max_staleness) in [(1, 1), (1, 4), (2, 2), (3, 5), (8, 8)] {
        let (mut ring, live) = ring(actors, StalenessPolicy { max_staleness, deterministic: false }, |writer| {
            writer.pause = Duration::from_micros(writer.number as u64 * 20);
        });
        let mut staleness_values = learn(&mut ring, 2000);
        assert!(staleness_values.iter().all(|(buffer, lag)| buffer[2] == buffer[3] && *lag <= max_staleness as u64));
        let stats = ring.stats().unwrap();
        assert_eq!((stats.rollouts, stats.total_staleness), (2000, staleness_values.iter().map(|(_, lag)| lag).sum()));
        staleness_values.sort_by_key(|(buffer, _)| buffer[1]);
        staleness_values.dedup_by_key(|(buffer, _)| buffer[1]);
        assert_eq!(staleness_values.len(), 2000);
        assert!(staleness_values[1990].0[1] <= 1990 + max_staleness as u64, "an earlier rollout is lost");
        ring.stop().unwrap();
        assert_eq!(live.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn deterministic_results_do_not_depend_on_speed() {
    for (actors, max_staleness) in [(1, 0), (1, 1), (2, 0), (2, 3), (3, 2)] {
        let results = [0, 30].map(|micros| {
            let (mut ring, _) = ring(actors, StalenessPolicy { max_staleness, deterministic: true }, |writer| {
                writer.pause = Duration::from_micros(micros * (writer.number as u64 % 2));
            });
            learn(&mut ring, 300)
        });
        assert_eq!(results[0], results[1]);
        for (k, (buffer, lag)) in (0_u64..).zip(&results[0]) {
            let version = k.saturating_sub(max_staleness as u64);
            assert_eq!(buffer[..], [k % actors as u64, k, version, version]);
            assert_eq!(*lag, k - version);
        }
    }
}

#[test]
fn the_first_error_or_panic_ends_the_pipeline() {
    for panics in [false, true] {
        let (mut ring, live) = ring(3, StalenessPolicy { max_staleness: 4, deterministic: false }, |writer| {
            let at = Some(50);
            (writer.fails_at, writer.panics_at) = if panics { (None, at) } else { (at, None) };
        });
        let error = loop {
            match ring.recv() {
                Ok(_) => ring.publish(0).unwrap(),
                Err(error) => break error.to_string(),
            }
        };
        let expected = if panics { "panicked: the pole broke" } else { "the pole is gone" };
        assert!(error.contains(expected), "{error}");
        assert!(matches!(ring.recv(), Err(Error::Closed(_))));
        ring.stop().unwrap();
        assert_eq!(live.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn dropping_the_collector_ends_the_actors() {
    for pause in [0, 100, 3_600_000_000] {
        let (ring, live) = ring(4, StalenessPolicy { max_staleness: 4, deterministic: false }, |writer| {
            writer.pause = Duration::from_micros(pause);
        });
        std::thread::sleep(Duration::from_millis(5));
        drop(ring);
        assert_eq!(live.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn rollouts_returned_without_learning_leave_the_weights_unchanged() {
    let (mut ring, _) = ring(1, StalenessPolicy { max_staleness: 0, deterministic: true }, |_| ());
    for number in 0..3 {
        let collected = ring.recv().unwrap();
        assert_eq!(collected.buffer[..], [0, number, 0, number]);
    }
    ring.publish(7).unwrap();
    assert_eq!(ring.recv().unwrap().buffer[..], [0, 3, 7, 3]);
}

#[test]
fn publishing_without_a_received_rollout_is_rejected() {
    let (mut ring, _) = ring(1, StalenessPolicy { max_staleness: 0, deterministic: true }, |_| ());
    let rejects = |ring: &mut Ring| assert_rejects(ring.publish(7), Error::Config, "publish");
    rejects(&mut ring);
    ring.recv().unwrap();
    ring.publish(1).unwrap();
    rejects(&mut ring);
    // Actors have received version 1.
    assert_eq!(ring.recv().unwrap().buffer[..], [0, 1, 1, 1]);
}

#[test]
fn actors_collect_the_same_rollouts_as_a_loop() {
    let make = || VecEnv::new(3, None, AutoresetMode::SameStep, CartPole::default).unwrap();
    let actor = || -> Box<dyn Collect<(), Rollout>> {
        let policy = RandomPolicy::new(&make().spec().action).unwrap();
        Box::new(Actor::new(Box::new(make()), policy, 5, RolloutOptions::default()))
    };
    let rows = |max_staleness, deterministic| {
        let buffer = || Rollout::for_env(40, &make());
        let staleness_policy = StalenessPolicy { max_staleness, deterministic };
        let mut ring = AsyncCollector::new(vec![actor()], staleness_policy, (), Pcg64::seed_from(1), buffer).unwrap();
        let (mut rewards, mut episodes) = (Vec::new(), 0);
        for _ in 0..6 {
            let rollout = ring.recv().unwrap().buffer;
            let Some(FieldData::F32(advantages)) = rollout.steps.field("advantages").map(crate::field::Field::data)
            else {
                unreachable!()
            };
            rewards.extend_from_slice(advantages);
            assert_eq!(rollout.episodes, rollout.returns.len() as u64);
            episodes += rollout.episodes;
        }
        (rewards, episodes)
    };
    let alone = rows(0, true);
    assert!(alone.1 > 10);
    // The weights never change, so the staleness has no effect.
    assert_eq!(alone, rows(1, false));
    assert_eq!(alone, rows(3, true));
}

#[test]
fn quiesced_actors_continue_exactly() {
    let rounds = |pauses: bool| {
        let (mut ring, live) = ring(3, StalenessPolicy { max_staleness: 0, deterministic: true }, |_| ());
        let mut seeds = Vec::new();
        for version in 1..=20 {
            let collected = ring.recv().unwrap();
            seeds.push((collected.ticket, collected.buffer.clone()));
            ring.publish(version).unwrap();
            if pauses {
                assert_eq!(ring.quiesce().unwrap().len(), 3);
                assert_eq!((ring.version().unwrap(), live.load(Ordering::SeqCst)), (version, 3));
            }
        }
        let after = ring.seeds().unwrap();
        ring.stop().unwrap();
        assert_eq!(live.load(Ordering::SeqCst), 0, "quiesced actors end, too");
        (seeds, after.state())
    };
    assert_eq!(rounds(true), rounds(false));
}

#[test]
fn quiescing_drops_pending_rollouts_and_versions_continue() {
    for (actors, deterministic) in [(1, false), (3, false), (2, true)] {
        let max_staleness = 3;
        let (mut ring, _) = ring(actors, StalenessPolicy { max_staleness, deterministic }, |writer| {
            writer.pause = Duration::from_micros(50);
        });
        let mut seeds = Vec::new();
        for version in 1..200 {
            let collected = ring.recv().unwrap();
            assert_eq!(
                (collected.buffer[2], collected.buffer[3]),
                (collected.ticket.version, collected.ticket.version)
            );
            assert!(collected.staleness <= max_staleness as u64);
            seeds.push(collected.ticket.seed);
            if version % 7 == 0 {
                ring.quiesce().unwrap(); // also returns the received rollout
                ring.restart_from(version, version, ring.seeds().unwrap()).unwrap();
            } else {
                ring.publish(version).unwrap();
            }
        }
        let count = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), count, "a seed was used twice");
    }
}

#[test]
fn deterministic_seed_streams_do_not_depend_on_speed() {
    let after = [0, 300].map(|micros| {
        let (mut ring, _) = ring(2, StalenessPolicy { max_staleness: 2, deterministic: true }, |writer| {
            writer.pause = Duration::from_micros(micros);
        });
        learn(&mut ring, 5);
        let seeds = ring.seeds().unwrap();
        ring.quiesce().unwrap();
        assert_eq!(ring.seeds().unwrap().state(), seeds.state());
        seeds.state()
    });
    assert_eq!(after[0], after[1]);
}

#[test]
fn restart_needs_quiesced_actors() {
    let (mut ring, _) = ring(2, StalenessPolicy { max_staleness: 0, deterministic: true }, |_| ());
    assert_rejects(ring.restart_from(5, 9, Pcg64::seed_from(2)), Error::Config, "restart_from");
    ring.quiesce().unwrap();
    ring.restart_from(5, 9, Pcg64::seed_from(2)).unwrap();
    assert_eq!(ring.seeds().unwrap().state(), Pcg64::seed_from(2).state());
    let collected = ring.recv().unwrap();
    assert_eq!((&collected.buffer[..], collected.staleness), (&[1, 5, 9, 5][..], 0));
}

#[test]
fn failed_collectors_cannot_be_quiesced() {
    let (mut ring, live) =
        ring(2, StalenessPolicy { max_staleness: 3, deterministic: false }, |writer| writer.panics_at = Some(3));
    let first = loop {
        match ring.quiesce() {
            Ok(_) => drop(ring.recv().map(|_| ())),
            Err(error) => break error,
        }
    };
    assert!(first.to_string().contains("panicked: the pole broke") || matches!(first, Error::Closed(_)), "{first}");
    assert!(matches!(ring.quiesce(), Err(Error::Closed(_))));
    assert!(matches!(ring.recv(), Err(Error::Closed(_))));
    drop(ring);
    assert_eq!(live.load(Ordering::SeqCst), 0);
}

/// Returns a collector whose actor is in a step that outlasts the timeout and the test.
fn stuck() -> Ring {
    let (ring, _) = ring(1, StalenessPolicy::default(), |writer| {
        (writer.pause, writer.deaf) = (Duration::from_secs(30), true);
    });
    std::thread::sleep(Duration::from_millis(50));
    ring
}

#[test]
fn a_hanging_actor_is_awaited_once() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ring, start) = (stuck(), Instant::now());
            let message = ring.stop().unwrap_err().to_string();
            assert!(message.contains("an actor did not finish its step within 2 s and was abandoned"), "{message}");
            assert!(start.elapsed() < Duration::from_millis(3500));
        });
        scope.spawn(|| {
            let (mut ring, start) = (stuck(), Instant::now());
            let message = ring.quiesce().err().unwrap().to_string();
            assert!(message.contains("was abandoned"), "{message}");
            assert!(matches!(ring.quiesce(), Err(Error::Closed(_))));
            assert!(matches!(ring.recv(), Err(Error::Closed(_))));
            drop(ring);
            assert!(start.elapsed() < Duration::from_millis(3500));
        });
    });
}

#[test]
fn actors_and_learner_do_not_allocate_per_step() {
    let counted = |n_steps, rollouts| {
        let make = || VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default).unwrap();
        let policy = RandomPolicy::new(&make().spec().action).unwrap();
        let actor = Box::new(Actor::new(Box::new(make()), policy, 5, RolloutOptions::default()));
        let (staleness_policy, buffer) =
            (StalenessPolicy { max_staleness: 0, deterministic: true }, || Rollout::for_env(n_steps, &make()));
        let shared = Channel::new(1, staleness_policy, (), Pcg64::seed_from(1), buffer).unwrap();
        shared.actor_started();
        std::thread::scope(|scope| {
            let acted = scope.spawn(|| allocation_counter::measure(|| act(0, actor, &shared)).count_total);
            let learned = allocation_counter::measure(|| {
                for _ in 0..rollouts {
                    let (turn, _, buffer) = shared.take(&mut || false).unwrap().unwrap();
                    shared.release(turn, buffer, Some(()));
                }
            });
            shared.stop();
            (acted.join().unwrap(), learned.count_total)
        })
    };
    // Allocations in 100 rollouts, after the first 100 rollouts.
    let [short, long] = [16, 64].map(|n_steps| {
        let (one, both) = (counted(n_steps, 100), counted(n_steps, 200));
        (both.0 - one.0, both.1 - one.1)
    });
    assert_eq!(short, long);
    assert!(long.0 <= 300 && long.1 <= 100, "{long:?}: a few per rollout and its weights");
}
