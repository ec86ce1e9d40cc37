//! Tests that the frequencies of sampled transitions follow the priorities.

use proptest::prelude::*;
use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::replay::{
    FieldSpec, Prioritized, PrioritizedReplayBuffer, Replay, ReplayStorage, SampledBatch, TransitionBatch,
    TransitionSchema,
};
use rlox_core::{
    Error, Pcg64,
    field::{DType, FieldData},
};

fn layout() -> TransitionSchema {
    TransitionSchema::new(FieldSpec::new("obs", &[1], DType::F32), FieldSpec::new("actions", &[], DType::F32))
}

/// Pushes one step of `num_envs` environments. The observations are the indices of the transitions.
fn push(buffer: &mut PrioritizedReplayBuffer, first: usize, num_envs: usize, promised: bool) {
    let next: Vec<f32> = (first..first + num_envs).map(|i| (i + num_envs) as f32).collect();
    let obs: Vec<f32> = (first..first + num_envs).map(|i| i as f32).collect();
    let (rewards, never) = (vec![0.0; num_envs], vec![false; num_envs]);
    let (obs, next_obs) = ([FieldData::F32(&obs)], [FieldData::F32(&next)]);
    let steps = TransitionBatch {
        obs: &obs,
        actions: FieldData::F32(&rewards),
        rewards: &rewards,
        terminated: &never,
        truncated: &never,
        next_obs: (!promised).then_some(&next_obs),
        extra: &[],
    };
    buffer.push_batch(&steps).unwrap();
}

/// Returns, for each transition, how often it was sampled and its last weight.
fn drawn(buffer: &PrioritizedReplayBuffer, batches: u64, size: usize) -> Vec<(usize, f32)> {
    let total = buffer.storage().indices().end;
    let (mut counts, mut batch) = (vec![(0, 0.0); total], SampledBatch::default());
    for seed in 0..batches {
        buffer.sample_into(&mut batch, size, seed).unwrap();
        for (i, index) in batch.indices().iter().enumerate() {
            assert_eq!(batch.f32s("obs")[i], *index as f32);
            counts[*index] = (counts[*index].0 + 1, batch.weights()[i]);
        }
    }
    counts
}

#[test]
fn frequencies_and_weights_follow_the_priorities() {
    let mut buffer = PrioritizedReplayBuffer::new(8, 1, 1, 0.5, 0.4).unwrap();
    for i in 0..11 {
        buffer.push_slices(&[i as f32], &[-1.0], &[0.0], 0.0, false, true).unwrap();
    }
    // Transitions 3 to 10 are stored, and 1 is not. Of the two priorities of transition 5, the
    // second has effect.
    let priorities = [9.0, 1.0, 4.0, 16.0, 100.0, 25.0];
    buffer.update_priorities(&[1, 3, 5, 5, 6, 8], &priorities).unwrap();
    // All other transitions have priority 1, the largest priority when they were pushed.
    let expected = [(3, 1.0), (4, 1.0), (5, 4.0), (6, 10.0), (7, 1.0), (8, 5.0), (9, 1.0), (10, 1.0)];
    let sum: f64 = expected.iter().map(|(_, p)| p).sum();
    let counts = drawn(&buffer, 3000, 8);
    assert!(counts[..3].iter().all(|(count, _)| *count == 0));
    let mut chi_squared = 0.0;
    for (index, power) in expected {
        let wanted = 24_000.0 * power / sum;
        chi_squared += (counts[index].0 as f64 - wanted).powi(2) / wanted;
        // The weight is (N P)^-beta, divided by the weight of the transition with the smallest
        // priority.
        let weight = (power as f32).powf(-0.4);
        assert!((counts[index].1 - weight).abs() < 1e-5, "{index}: {} instead of {weight}", counts[index].1);
    }
    assert!(chi_squared < 30.0, "{chi_squared}");
    // A new transition gets the largest priority so far.
    buffer.push_slices(&[11.0], &[-1.0], &[0.0], 0.0, false, true).unwrap();
    let counts = drawn(&buffer, 300, 8);
    assert!(counts[11].0.abs_diff(counts[6].0) < 100 && counts[3].0 == 0, "{counts:?}");
}

#[test]
fn alpha_zero_draws_uniformly_and_beta_zero_sets_all_weights_to_one() {
    let mut buffer = PrioritizedReplayBuffer::new(4, 1, 1, 0.0, 1.0).unwrap();
    for i in 0..4 {
        buffer.push_slices(&[i as f32], &[-1.0], &[0.0], 0.0, false, true).unwrap();
    }
    buffer.update_priorities(&[0, 1], &[1e30, 0.0]).unwrap();
    assert!(drawn(&buffer, 10, 4).iter().all(|(count, weight)| (*count, *weight) == (10, 1.0)));
    let mut buffer = PrioritizedReplayBuffer::new(4, 1, 1, 1.0, 0.0).unwrap();
    buffer.push_slices(&[0.0], &[-1.0], &[0.0], 0.0, false, true).unwrap();
    buffer.push_slices(&[1.0], &[-1.0], &[0.0], 0.0, false, true).unwrap();
    buffer.update_priorities(&[0], &[0.5]).unwrap();
    assert!(drawn(&buffer, 10, 2).iter().all(|(_, weight)| *weight == 1.0));
    buffer.sampler_mut().set_beta(1.0).unwrap();
    assert!(drawn(&buffer, 10, 2)[1].1 < 0.6);
}

#[test]
fn invalid_arguments_are_rejected_and_change_nothing() {
    for (alpha, beta, argument) in
        [(-0.1, 0.4, "alpha"), (1.5, 0.4, "alpha"), (f32::NAN, 0.4, "alpha"), (0.5, 2.0, "beta")]
    {
        assert_rejects(PrioritizedReplayBuffer::new(4, 1, 1, alpha, beta), Error::Config, argument);
    }
    let mut buffer = PrioritizedReplayBuffer::new(4, 1, 1, 0.6, 0.4).unwrap();
    for i in 0..4 {
        buffer.push_slices(&[i as f32], &[-1.0], &[0.0], 0.0, false, true).unwrap();
    }
    let before = drawn(&buffer, 20, 4);
    let short = assert_rejects(buffer.update_priorities(&[0, 1], &[1.0]), Error::Shape, "priorities");
    let outside = assert_rejects(buffer.update_priorities(&[0, 4], &[9.0, 9.0]), Error::Config, "indices");
    assert_eq!([&short.got[..], &outside.got[..]], ["1", "4"]);
    for (wrong, variant) in
        [(-1.0, Error::Config as Variant), (f32::NAN, Error::NotFinite), (f32::INFINITY, Error::NotFinite)]
    {
        let rejected = assert_rejects(buffer.update_priorities(&[0, 1], &[9.0, wrong]), variant, "priorities");
        assert_eq!((rejected.got, rejected.at.row), (wrong.to_string(), Some(1)));
    }
    assert_eq!(drawn(&buffer, 20, 4), before);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn only_samplable_transitions_are_drawn(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        capacity in 1_usize..20,
        steps in 1_usize..60,
    ) {
        let storage = ReplayStorage::new(capacity, num_envs, layout()).unwrap();
        let sampler = Prioritized::new(&storage, 1.0, 0.4).unwrap();
        let mut buffer = Replay::from_parts(storage, sampler).unwrap();
        let mut rng = Pcg64::seed_from(seed.into());
        let (mut model, mut largest): (Vec<f32>, f32) = (Vec::new(), 1.0);
        for t in 0..steps {
            push(&mut buffer, t * num_envs, num_envs, rng.integers(0, 3) == 0);
            model.resize((t + 1) * num_envs, f32::NAN);
            let held = buffer.storage().indices();
            for priority in &mut model[..held.end] {
                if priority.is_nan() {
                    *priority = largest;
                }
            }
            if held.is_empty() {
                continue;
            }
            // Some of the updated transitions are no longer stored.
            let indices: Vec<_> = (0..3).map(|_| rng.integers(0, held.end as i64) as usize).collect();
            let priorities: Vec<_> = (0..3).map(|_| rng.integers(1, 100) as f32).collect();
            buffer.update_priorities(&indices, &priorities).unwrap();
            for (index, priority) in indices.iter().zip(&priorities) {
                if held.contains(index) {
                    model[*index] = *priority;
                    largest = largest.max(*priority);
                }
            }
            let mut batch = SampledBatch::default();
            buffer.sample_into(&mut batch, held.len(), seed).unwrap();
            let least = model[held.clone()].iter().fold(f32::MAX, |least, p| least.min(*p));
            for (index, weight) in batch.indices().iter().zip(batch.weights()) {
                prop_assert!(held.contains(index));
                let expected = (model[*index] / least).powf(-0.4);
                prop_assert!((weight - expected).abs() < 1e-4, "{} instead of {}", weight, expected);
            }
        }
    }
}
