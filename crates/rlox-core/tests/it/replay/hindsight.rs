//! Tests that the goals that replace desired goals were achieved in the same episode.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::replay::{FieldSpec, Hindsight, HindsightReplayBuffer, NStep, Replay, ReplayStorage, TransitionSchema};
use rlox_core::replay::{SampledBatch, Strategy as Goals, TransitionBatch};
use rlox_core::{
    Error, Pcg64,
    field::{DType, FieldData},
};

/// A step of an environment whose achieved goals are all different.
#[derive(Clone, Copy)]
struct Step {
    achieved: f32,
    done: bool,
    /// True if the environment starts another episode after the step, with or without the flag
    /// `done`.
    last: bool,
}

fn buffer(capacity: usize, num_envs: usize, strategy: Goals, n: usize) -> HindsightReplayBuffer {
    let part = |name: &str| FieldSpec::new(name, &[1], DType::F32);
    let obs = vec![part("achieved"), part("observation"), part("desired")];
    let layout = TransitionSchema { obs, ..TransitionSchema::new(part("achieved"), part("actions")) };
    let storage = ReplayStorage::new(capacity, num_envs, layout).unwrap();
    let sampler = Hindsight::new(&storage, (0, 2), strategy, n).unwrap();
    Replay::from_parts(storage, sampler).unwrap()
}

fn push(buffer: &mut HindsightReplayBuffer, rows: &[Step], promised: bool) {
    let now: Vec<_> = rows.iter().map(|row| row.achieved).collect();
    let next: Vec<_> = rows.iter().map(|row| row.achieved + 1.0).collect();
    let (zeros, meant, no) = (vec![0.0; rows.len()], vec![-1.0; rows.len()], vec![false; rows.len()]);
    let done: Vec<_> = rows.iter().map(|row| row.done).collect();
    let following = [FieldData::F32(&next), FieldData::F32(&zeros), FieldData::F32(&meant)];
    let steps = TransitionBatch {
        obs: &[FieldData::F32(&now), FieldData::F32(&zeros), FieldData::F32(&meant)],
        actions: FieldData::F32(&zeros),
        rewards: &zeros,
        terminated: &no,
        truncated: &done,
        next_obs: (!promised).then_some(&following),
        extra: &[],
    };
    buffer.push_batch(&steps).unwrap();
}

/// Returns the goals that a transition may get: goals that steps of its episode achieved, as
/// `strategy` selects.
fn allowed(model: &[Step], n: usize, held: &std::ops::Range<usize>, at: usize, strategy: Goals) -> BTreeSet<i64> {
    let (mut first, mut last) = (at, at);
    while first >= held.start + n && !model[first - n].last {
        first -= n;
    }
    while !model[last].last && last + n < held.end {
        last += n;
    }
    let from = match strategy {
        Goals::Future => at,
        Goals::Final => last,
        Goals::Episode => first,
    };
    (from..=last).step_by(n).map(|step| model[step].achieved as i64 + 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn goals_are_achieved_by_the_same_episode(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        capacity in 1_usize..14,
        steps in 1_usize..40,
        strategy in prop::sample::select(vec![Goals::Future, Goals::Final, Goals::Episode]),
        k in 0_usize..6,
    ) {
        let mut buffer = buffer(capacity, num_envs, strategy, k);
        let (mut rng, mut model) = (Pcg64::seed_from(seed.into()), Vec::new());
        let mut at: Vec<_> = (0..num_envs).map(|env| 10_000.0 * env as f32).collect();
        for _ in 0..steps {
            let mut rows = Vec::new();
            for achieved in &mut at {
                let done = rng.integers(0, 6) == 0;
                let last = done || rng.integers(0, 10) == 0;
                rows.push(Step { achieved: *achieved, done, last });
                *achieved += if last { 7.0 } else { 1.0 };
            }
            let promised = rows.iter().all(|row| !row.last) && rng.integers(0, 3) == 0;
            push(&mut buffer, &rows, promised);
            model.extend(rows);
        }
        let held = buffer.storage().indices();
        let mut copy = Replay::<Hindsight>::from_config(&buffer.to_config()).unwrap();
        copy.load_state(&buffer.state().unwrap()).unwrap();
        let (mut batch, mut again) = (SampledBatch::default(), SampledBatch::default());
        let mut goals_by_index: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
        for draw in 0..if held.is_empty() { 0 } else { 700 } {
            buffer.sample_into(&mut batch, held.len(), draw).unwrap();
            copy.sample_into(&mut again, held.len(), draw).unwrap();
            let relabelled = batch.sample_indices().relabelled();
            prop_assert_eq!(relabelled, held.len() * k / (k + 1));
            prop_assert_eq!(batch.f32s("desired"), again.f32s("desired"));
            prop_assert_eq!(batch.f32s("desired"), batch.f32s("next_desired"));
            for (i, index) in batch.indices().iter().enumerate() {
                let goal = batch.f32s("desired")[i] as i64;
                prop_assert_eq!(batch.f32s("achieved")[i], model[*index].achieved);
                prop_assert_eq!(batch.f32s("next_achieved")[i], model[*index].achieved + 1.0);
                if i < relabelled {
                    goals_by_index.entry(*index).or_default().insert(goal);
                } else {
                    prop_assert_eq!(goal, -1);
                }
            }
        }
        for (index, goals) in goals_by_index {
            prop_assert_eq!(goals, allowed(&model, num_envs, &held, index, strategy), "of {}", index);
        }
    }
}

#[test]
fn invalid_settings_are_rejected() {
    assert!(buffer(4, 1, Goals::Future, 4).with_n_step(NStep { n: 3, gamma: 0.9 }).is_err());
    assert!(Goals::from_name("past").is_err());
    let part = |name: &str, width| FieldSpec::new(name, &[width], DType::F32);
    let layout = TransitionSchema {
        obs: vec![part("a", 1), part("b", 2)],
        ..TransitionSchema::new(part("a", 1), part("actions", 1))
    };
    let storage = ReplayStorage::new(4, 1, layout).unwrap();
    for parts in [(0, 1), (0, 2), (1, 1)] {
        assert!(Hindsight::new(&storage, parts, Goals::Future, 4).is_err());
    }
}

#[test]
fn states_with_other_settings_are_rejected() {
    let step = |achieved| Step { achieved, done: false, last: false };
    let mut future = buffer(8, 1, Goals::Future, 4);
    (0..5_u8).for_each(|i| push(&mut future, &[step(f32::from(i))], false));
    let state = future.state().unwrap();
    for (strategy, k, argument, values) in [
        (Goals::Final, 4, "arrays[\"strategy\"]", ("final", "future")),
        (Goals::Future, 3, "arrays[\"n_sampled_goal\"]", ("3", "4")),
    ] {
        let mut other = buffer(8, 1, strategy, k);
        push(&mut other, &[step(9.0)], false);
        let rejected = assert_rejects(other.load_state(&state), Error::Config, argument);
        assert_eq!((&rejected.expected[..], &rejected.got[..]), values);
        assert_eq!(other.len(), 1);
    }
    let mut same = buffer(8, 1, Goals::Future, 4);
    same.load_state(&state).unwrap();
    assert_eq!(same.state().unwrap(), state);
}
