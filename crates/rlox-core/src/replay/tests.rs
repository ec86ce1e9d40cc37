//! Tests of interrupted calls and their effects, and of episodes and samplers.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use crate::interrupt::tests::{asked_to_panic, run_with_checks};
use crate::{
    Error, Pcg64, Result,
    field::{DType, FieldData, FieldMut},
};

/// Advance of the test clock per reading. It exceeds the period of polls, so that every check
/// polls.
const TICK: Duration = Duration::from_millis(60);

/// Interrupts a call at its first poll, then at its second, and so on, until the call completes.
///
/// Returns the number of interruptions.
pub(super) fn pressed(mut call: impl FnMut() -> Result<()>) -> usize {
    let mut stopped = |stop_at| match run_with_checks(TICK, stop_at, &mut call).0 {
        Err(Error::Interrupted) => true,
        other => {
            other.unwrap();
            false
        }
    };
    (1..10_000).take_while(|stop_at| stopped(*stop_at)).count()
}

/// Runs a call without polls.
fn unasked<R>(call: impl FnOnce() -> R) -> R {
    run_with_checks(Duration::ZERO, usize::MAX, call).0
}

/// Returns true if the sampled transitions can be read.
fn can_read(chosen: &SampleIndices, storage: &ReplayStorage) -> bool {
    chosen.read(storage, Column::Obs(0), FieldMut::F32(&mut vec![0.0; 20_000])).is_ok()
}

/// Creates a storage of images with `rows` transitions.
fn pictures(rows: usize, frames: usize) -> ReplayStorage {
    let part = |name, shape: &[usize], dtype| FieldSpec::new(name, shape, dtype);
    let layout = TransitionSchema {
        frame_stack: frames,
        ..TransitionSchema::new(part("obs", &[frames, 1 << 13], DType::U8), part("actions", &[], DType::I64))
    };
    let mut storage = ReplayStorage::new(rows, 1, layout).unwrap();
    let obs = vec![7; frames << 13];
    for _ in 0..rows {
        push(&mut storage, FieldData::U8(&obs), FieldData::I64(&[1]), 1).unwrap();
    }
    storage
}

/// Pushes `rows` rows that do not end an episode.
fn push(storage: &mut ReplayStorage, obs: FieldData<'_>, actions: FieldData<'_>, rows: usize) -> Result<()> {
    storage.push(&TransitionBatch {
        obs: &[obs],
        actions,
        rewards: &vec![0.0; rows],
        terminated: &vec![false; rows],
        truncated: &vec![false; rows],
        next_obs: Some(&[obs]),
        extra: &[],
    })
}

#[test]
fn an_interrupted_sample_draws_nothing_and_is_empty() {
    for frames in [1, 4] {
        let storage = pictures(300, frames);
        let mut buffer =
            Replay::from_parts(ReplayStorage::new(1, 1, storage.schema().clone()).unwrap(), Uniform).unwrap();
        *buffer.all_mut().0 = storage;
        let (mut batch, mut rng) = (SampledBatch::default(), Pcg64::seed_from(5));
        let stops = pressed(|| {
            rng = Pcg64::seed_from(5);
            let sampled = buffer.sample_with(&mut batch, 300, &mut rng);
            assert_eq!(sampled.is_ok(), rng != Pcg64::seed_from(5));
            assert_eq!(batch.len(), if sampled.is_ok() { 300 } else { 0 });
            assert_eq!(batch.flags("terminated").len(), batch.len());
            sampled
        });
        // Observations and next observations are read one megabyte at a time.
        assert!(stops >= 2 * ((300 * frames) >> 7), "{stops}");
    }
}

#[test]
fn interrupted_samplers_draw_nothing() {
    let mut buffer = PrioritizedReplayBuffer::new(20_000, 1, 1, 0.6, 0.4).unwrap();
    for i in 0..20_000 {
        buffer.push_slices(&[i as f32], &[0.0], &[0.0], 0.0, false, i % 100 == 99).unwrap();
    }
    let (mut chosen, mut rng) = (SampleIndices::default(), Pcg64::seed_from(5));
    let stops = pressed(|| {
        rng = Pcg64::seed_from(5);
        let done = buffer.sample_indices(&mut chosen, 20_000, &mut rng);
        assert_eq!(done.is_ok(), rng != Pcg64::seed_from(5));
        // After an interruption, neither the previous nor the new sample can be read.
        assert_eq!(done.is_ok(), unasked(|| can_read(&chosen, buffer.storage())));
        done
    });
    assert!(stops > 3, "{stops}");
    let part = |name| FieldSpec::new(name, &[1], DType::F32);
    let layout = TransitionSchema {
        obs: vec![part("achieved"), part("desired")],
        ..TransitionSchema::new(part("obs"), part("actions"))
    };
    let storage = ReplayStorage::new(20_000, 1, layout).unwrap();
    let sampler = Hindsight::new(&storage, (0, 1), Strategy::Future, 4).unwrap();
    let mut buffer = Replay::from_parts(storage, sampler).unwrap();
    let rows = vec![0.0; 20_000];
    let obs = [FieldData::F32(&rows), FieldData::F32(&rows)];
    let flags = vec![false; 20_000];
    let steps = TransitionBatch {
        obs: &obs,
        actions: obs[0],
        rewards: &rows,
        terminated: &flags,
        truncated: &flags,
        next_obs: Some(&obs),
        extra: &[],
    };
    buffer.push_in_order(&steps).unwrap();
    assert!(pressed(|| buffer.sample_indices(&mut chosen, 20_000, &mut rng)) > 2);
}

#[test]
fn interrupted_sequences_cannot_be_read() {
    let storage = pictures(200, 1);
    let (mut chosen, mut rng) = (SequenceIndices::default(), Pcg64::seed_from(5));
    let of = Sequences { length: 3, burn_in: 2, whole_episodes: false };
    let stops = pressed(|| {
        rng = Pcg64::seed_from(5);
        let done = of.sample_indices(&storage, 100, &mut rng, &mut chosen);
        assert_eq!(done.is_ok(), rng != Pcg64::seed_from(5));
        let mut out = vec![0; 500 << 13];
        let read = unasked(|| chosen.read(&storage, Column::Obs(0), FieldMut::U8(&mut out)).is_ok());
        assert_eq!(done.is_ok(), read);
        done
    });
    assert!(stops >= 500 / 64, "{stops}");
    let one = Sequences { length: 20_000, burn_in: 0, whole_episodes: false };
    for burn_in in [0, 20_000] {
        let one = Sequences { burn_in, ..one };
        let stops = pressed(|| one.sample_indices(&storage, 1, &mut rng, &mut chosen));
        assert!(stops >= (20_000 + burn_in) / 64, "{stops}");
    }
    let mut out = vec![0; 500 << 13];
    of.sample_indices(&storage, 100, &mut rng, &mut chosen).unwrap();
    assert!(pressed(|| chosen.read(&storage, Column::Obs(0), FieldMut::U8(&mut out))) > 6);
    let stops = pressed(|| {
        let done = of.find(&storage, &mut chosen);
        let read = unasked(|| chosen.read(&storage, Column::Obs(0), FieldMut::U8(&mut out)).is_ok());
        assert_eq!(done.is_ok(), read, "found before");
        done
    });
    assert!(stops >= 500 / 64, "{stops}");
}

#[test]
fn an_interrupted_push_stores_the_first_rows_or_nothing() {
    let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let flags = vec![false; 1000];
    let data = [FieldData::F32(&numbers)];
    let steps = TransitionBatch {
        obs: &data,
        actions: data[0],
        rewards: &numbers,
        terminated: &flags,
        truncated: &flags,
        next_obs: Some(&data),
        extra: &[],
    };
    for in_order in [false, true] {
        let mut lens = Vec::new();
        let stops = pressed(|| {
            let mut buffer = PrioritizedReplayBuffer::new(900, 1, 1, 0.6, 0.4).unwrap();
            let done = if in_order { buffer.push_in_order(&steps) } else { buffer.push_batch(&steps) };
            let held = buffer.storage().indices();
            lens.push(held.end);
            if held.is_empty() {
                return done;
            }
            let (mut batch, count) = (SampledBatch::default(), held.len());
            // All stored rows have priorities and the right content.
            unasked(|| buffer.sample_into(&mut batch, count, 1)).unwrap();
            assert!(batch.indices().iter().all(|index| held.contains(index)));
            assert!(batch.f32s("obs").iter().zip(batch.indices()).all(|(obs, index)| *obs == *index as f32));
            done
        });
        assert!(stops > 10 && lens.is_sorted(), "{stops} {lens:?}");
        assert_eq!(lens.last(), Some(&1000));
    }
}

/// Pushes a step of episodes with random ends. Some steps do not continue the previous step.
fn wandering(buffer: &mut Replay<Uniform>, rng: &mut Pcg64, at: &mut [f32]) {
    let n = at.len();
    let obs: Vec<f32> = at.iter().map(|at| if rng.random() < 0.05 { at + 0.5 } else { *at }).collect();
    let next: Vec<f32> = obs.iter().map(|obs| obs + 1.0).collect();
    let ended: Vec<bool> = (0..n).map(|_| rng.random() < 0.1).collect();
    let cut: Vec<bool> = (0..n).map(|_| rng.random() < 0.1).collect();
    at.copy_from_slice(&next);
    let (obs, next) = ([FieldData::F32(&obs)], [FieldData::F32(&next)]);
    let steps = TransitionBatch {
        obs: &obs,
        actions: obs[0],
        rewards: &vec![0.0; n],
        terminated: &ended,
        truncated: &cut,
        next_obs: Some(&next),
        extra: &[],
    };
    buffer.push_batch(&steps).unwrap();
}

#[test]
fn complete_episodes_equal_a_search_before_and_after_loading() {
    for (seed, n) in [(1, 1), (2, 3), (3, 2)] {
        let (mut rng, mut at) = (Pcg64::seed_from(seed), vec![0.0; n]);
        let part = |name| FieldSpec::new(name, &[1], DType::F32);
        let new_buffer = || {
            let layout = TransitionSchema::new(part("obs"), part("actions"));
            Replay::from_parts(ReplayStorage::new(40 * n, n, layout).unwrap(), Uniform).unwrap()
        };
        let (mut buffer, mut copy) = (new_buffer(), new_buffer());
        for step in 0..150 {
            wandering(&mut buffer, &mut rng, &mut at);
            if step % 7 == 0 {
                copy.load_state(&buffer.state().unwrap()).unwrap();
            } else {
                copy.clone_from(&buffer);
            }
            let storage = buffer.storage();
            let held = storage.indices();
            let is_complete = |first: &usize| {
                let mut at = *first;
                while let Some(next) = storage.next_in_episode(at, &held) {
                    at = next;
                }
                let done = storage::TERMINATED | storage::TRUNCATED;
                !storage.is_cut(*first) && storage.flags(storage.row_of(at)) & done != 0
            };
            let mut expected: Vec<_> = held.clone().filter(is_complete).collect();
            expected.sort_by_key(|index| (index % n, *index));
            for storage in [storage, copy.storage()] {
                let (mut counts, mut drawn) = (Vec::new(), vec![0; 200]);
                let done = storage.episodes.draw(&held, &mut Pcg64::seed_from(9), &mut counts, &mut drawn);
                assert_eq!(done.is_ok(), !expected.is_empty());
                let mut places = vec![0; 200];
                storage::draw(&(0..expected.len()), &mut Pcg64::seed_from(9), &mut places);
                let of = |place: usize| expected.get(place).copied().unwrap_or(0);
                assert_eq!(drawn, places.into_iter().map(of).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn rare_episodes_are_found_without_a_search() {
    let mut buffer = ReplayBuffer::new(200_000, 1, 1).unwrap();
    for i in 0..200_000 {
        // One short episode and one unfinished episode.
        buffer.push_slices(&[i as f32], &[i as f32 + 1.0], &[0.0], 0.0, false, i == 3).unwrap();
    }
    let (mut chosen, mut rng) = (SequenceIndices::default(), Pcg64::seed_from(5));
    let of = Sequences { length: 4, burn_in: 0, whole_episodes: true };
    let (done, polls) =
        run_with_checks(TICK, usize::MAX, || of.sample_indices(buffer.storage(), 1, &mut rng, &mut chosen));
    done.unwrap();
    assert!(polls <= 1, "{polls}");
    assert_eq!((chosen.indices(), chosen.lengths()), (&[0][..], &[4][..]));
}

#[test]
fn any_sampler_equals_its_inner_sampler() {
    fn filled<S: Sampler>(sampler: impl Fn(&ReplayStorage) -> S) -> Replay<S> {
        let part = |name| FieldSpec::new(name, &[1], DType::F32);
        let layout = TransitionSchema {
            obs: vec![part("achieved"), part("desired")],
            ..TransitionSchema::new(part("obs"), part("actions"))
        };
        let storage = ReplayStorage::new(50, 1, layout).unwrap();
        let sampler = sampler(&storage);
        let mut buffer = Replay::from_parts(storage, sampler).unwrap();
        for i in 0..70 {
            let (obs, next, goal) = ([i as f32], [i as f32 + 1.0], [-1.0]);
            let parts = |now: &'static [f32]| FieldData::F32(now);
            let (obs, next) =
                ([FieldData::F32(&obs), FieldData::F32(&goal)], [FieldData::F32(&next), FieldData::F32(&goal)]);
            let steps = TransitionBatch {
                obs: &obs,
                actions: parts(&[0.0]),
                rewards: &[0.0],
                terminated: &[i % 9 == 8],
                truncated: &[false],
                next_obs: Some(&next),
                extra: &[],
            };
            buffer.push_batch(&steps).unwrap();
        }
        buffer
    }
    fn agree<S: PersistSampler + Into<AnySampler>>(make: impl Fn(&ReplayStorage) -> S + Copy) {
        let (own, mut any) = (filled(make), filled(|storage| -> AnySampler { make(storage).into() }));
        assert_eq!((own.to_config(), own.state().unwrap()), (any.to_config(), any.state().unwrap()));
        assert_eq!(own.sampler().supports_n_step(), any.sampler().supports_n_step());
        let mut copy = Replay::<AnySampler>::from_config(&own.to_config()).unwrap();
        copy.load_state(&own.state().unwrap()).unwrap();
        if let (storage, AnySampler::Prioritized(sampler)) = any.parts_mut() {
            sampler.update_priorities(storage, &[30], &[1.0]).unwrap();
        }
        let (mut batch, mut again) = (SampledBatch::default(), SampledBatch::default());
        for buffer in [&any, &copy] {
            own.sample_into(&mut batch, 20, 4).unwrap();
            buffer.sample_into(&mut again, 20, 4).unwrap();
            assert_eq!((batch.indices(), batch.f32s("desired")), (again.indices(), again.f32s("desired")));
            assert_eq!(
                (batch.weights(), batch.sample_indices().relabelled()),
                (again.weights(), again.sample_indices().relabelled())
            );
        }
    }
    agree(|_| Uniform);
    agree(|storage| Prioritized::new(storage, 0.6, 0.4).unwrap());
    agree(|storage| Hindsight::new(storage, (0, 1), Strategy::Final, 2).unwrap());
}

/// Creates a prioritized buffer of three environments and two observation fields, with `steps` steps.
fn priorities(steps: usize) -> Replay<Prioritized> {
    let part = |name| FieldSpec::new(name, &[2], DType::F32);
    let layout =
        TransitionSchema { obs: vec![part("one"), part("two")], ..TransitionSchema::new(part("one"), part("actions")) };
    let storage = ReplayStorage::new(60_000, 3, layout).unwrap();
    let sampler = Prioritized::new(&storage, 0.6, 0.4).unwrap();
    let mut buffer = Replay::from_parts(storage, sampler).unwrap();
    (0..steps).for_each(|step| buffer.push_batch(&three(&[step as f32; 6], &[step % 7 == 0; 3])).unwrap());
    buffer
}

/// Returns a batch of one row for each of three environments.
fn three<'a>(numbers: &'a [f32; 6], done: &'a [bool; 3]) -> TransitionBatch<'a> {
    // The batch borrows the parts for as long as the numbers.
    let parts: &'a [FieldData<'a>] = Box::leak(Box::new([FieldData::F32(numbers); 2]));
    let (actions, rewards) = (FieldData::F32(numbers), &numbers[..3]);
    TransitionBatch {
        obs: parts,
        actions,
        rewards,
        terminated: done,
        truncated: done,
        next_obs: Some(parts),
        extra: &[],
    }
}

#[test]
fn interrupted_loads_leave_the_old_state_or_an_empty_buffer() {
    let state = priorities(20_000).state().unwrap();
    let (mut unchanged, mut emptied) = (0, 0);
    for stop_at in 1.. {
        let mut buffer = priorities(30);
        let before = buffer.state().unwrap();
        let done = run_with_checks(TICK, stop_at, || buffer.load_state(&state)).0;
        if done.is_ok() {
            assert_eq!(buffer.state().unwrap(), state);
            break;
        }
        assert!(matches!(done, Err(Error::Interrupted)));
        if buffer.is_empty() {
            emptied += 1;
        } else {
            unchanged += 1;
            assert_eq!(buffer.state().unwrap(), before);
        }
        // The buffer can be used in both cases.
        (0..20).for_each(|step| buffer.push_batch(&three(&[step as f32; 6], &[false; 3])).unwrap());
        let mut batch = SampledBatch::default();
        buffer.sample_into(&mut batch, 20, 1).unwrap();
    }
    assert!(unchanged > 10 && emptied > 50, "{unchanged} unchanged, {emptied} empty");
}

#[test]
fn a_panic_of_the_interrupt_check_leaves_a_working_buffer() {
    let part = |name| FieldSpec::new(name, &[2], DType::F32);
    let layout =
        TransitionSchema { obs: vec![part("one"), part("two")], ..TransitionSchema::new(part("one"), part("actions")) };
    let mut buffer = Replay::from_parts(ReplayStorage::new(300, 1, layout).unwrap(), Uniform).unwrap();
    let (numbers, flags) = (vec![8.0; 200], vec![false; 100]);
    let (data, rewards) = ([FieldData::F32(&numbers); 2], &numbers[..100]);
    let (obs, actions) = (&data, data[0]);
    let steps = TransitionBatch {
        obs,
        actions,
        rewards,
        terminated: &flags,
        truncated: &flags,
        next_obs: Some(&data),
        extra: &[],
    };
    let push = std::panic::AssertUnwindSafe(|| asked_to_panic(TICK, || buffer.push_batch(&steps)));
    assert!(std::panic::catch_unwind(push).is_err());
    let stored = buffer.len();
    assert!(stored < 100, "{stored}");
    unasked(|| buffer.push_batch(&steps)).unwrap();
    assert_eq!(buffer.len(), stored + 100);
    let mut batch = SampledBatch::default();
    buffer.sample_into(&mut batch, 100, 1).unwrap();
    assert!(batch.f32s("next_two").iter().all(|number| *number == 8.0));
}
