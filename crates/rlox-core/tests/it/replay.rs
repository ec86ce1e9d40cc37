//! Replay storage, n-step returns, sequences and saved states compared with a model that stores every pushed row.

mod hindsight;
mod mmap;
mod prioritized;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use proptest::prelude::*;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::replay::{
    Column, FieldSpec, NStep, PersistSampler, Prioritized, Replay, ReplayBuffer, ReplayStorage, SampledBatch, Sampler,
    SequenceIndices, Sequences, TransitionSchema, Uniform,
};
use rlox_core::{
    Error, Pcg64, Result,
    field::{DType, Field, FieldData, FieldMut},
};

use crate::support::{FRAME, Pushed, Stacking, layout, push_with};

#[test]
fn invalid_storages_are_rejected_by_argument() {
    let named = |name| TransitionSchema { extra: vec![FieldSpec::new(name, &[], DType::F32)], ..layout(1) };
    for name in ["obs", "next_obs", "actions", "rewards", "indices", "mask", "episode_starts", "lengths"] {
        let duplicate = assert_rejects(ReplayStorage::new(10, 1, named(name)), Error::Config, "extra");
        assert_eq!(duplicate.got, format!("{name:?}"));
    }
    for (capacity, num_envs, argument) in [(1 << 50, 1, "capacity"), (3, 1 << 50, "num_envs")] {
        let rejected = assert_rejects(ReplayStorage::new(capacity, num_envs, layout(1)), Error::Memory, argument);
        assert!(rejected.got.starts_with("1125899906842624 transitions"), "{rejected}");
    }
    let wide = TransitionSchema::new(
        FieldSpec::new("obs", &[1 << 60], DType::F32),
        FieldSpec::new("actions", &[], DType::I64),
    );
    let rejected = assert_rejects(ReplayStorage::new(3, 1, wide), Error::Memory, "obs_dim");
    assert!(rejected.got.contains(&format!("which need {} bytes per row", 1_u64 << 62)), "{rejected}");
}

/// Tests that a row that overwrites another row frees the memory of the overwritten observations.
#[test]
fn a_wrapping_ring_does_not_grow() {
    for frames in [1, 3] {
        let mut storage = ReplayStorage::new(24, 3, layout(frames)).unwrap();
        let mut envs = [7, 8, 9].map(|seed| Stacking::new(seed, frames));
        let mut lap = |laps: usize| {
            for _ in 0..laps * 8 {
                push(&mut storage, &envs.each_mut().map(Stacking::step), false, false);
            }
            storage.memory()
        };
        let first = lap(50);
        assert!(lap(500) < 2 * first);
    }
}

fn column<T: Clone + Default>(
    storage: &ReplayStorage,
    column: Column,
    width: usize,
    wrap: impl Fn(&mut [T]) -> FieldMut<'_>,
) -> Vec<T> {
    let indices: Vec<_> = storage.indices().collect();
    let mut out = vec![T::default(); indices.len() * width];
    storage.gather(column, &indices, wrap(&mut out)).unwrap();
    out
}

/// Compares all columns of all stored transitions with the model.
fn assert_equals_model(storage: &ReplayStorage, model: &[Pushed], width: usize) {
    let held = &model[storage.indices()];
    let u8s = |wanted, width| column(storage, wanted, width, |out| FieldMut::U8(out));
    let flags = |wanted| column(storage, wanted, 1, |out| FieldMut::Bool(out));
    assert_eq!(u8s(Column::Obs(0), width), held.iter().flat_map(|row| row.obs.clone()).collect::<Vec<_>>());
    assert_eq!(u8s(Column::NextObs(0), width), held.iter().flat_map(|row| row.next_obs.clone()).collect::<Vec<_>>());
    assert_eq!(
        column(storage, Column::Action, 1, |out| FieldMut::I64(out)),
        held.iter().map(|row| row.action).collect::<Vec<_>>()
    );
    assert_eq!(
        column(storage, Column::Reward, 1, |out| FieldMut::F32(out)),
        held.iter().map(|row| row.reward).collect::<Vec<_>>()
    );
    assert_eq!(flags(Column::Terminated), held.iter().map(|row| u8::from(row.terminated)).collect::<Vec<_>>());
    assert_eq!(flags(Column::Truncated), held.iter().map(|row| u8::from(row.truncated)).collect::<Vec<_>>());
}

fn push(storage: &mut ReplayStorage, rows: &[Pushed], in_order: bool, promised: bool) {
    push_with(rows, promised, |steps| if in_order { storage.push_in_order(steps) } else { storage.push(steps) });
}

/// Sampler that returns all transitions in order.
struct Each;

impl Sampler for Each {
    fn sample_indices(
        &self,
        storage: &ReplayStorage,
        _: &mut Pcg64,
        indices: &mut [usize],
        _: &mut [f32],
    ) -> Result<()> {
        indices.iter_mut().zip(storage.indices()).for_each(|(index, held)| *index = held);
        Ok(())
    }
}

/// Computes the n-step reward, the discount and the last step of a span, step by step.
fn spanned(model: &[Pushed], num_envs: usize, end: usize, first: usize, steps: NStep) -> (f32, f32, Pushed) {
    let (mut at, mut sum, mut discount) = (first, f64::from(model[first].reward), steps.gamma);
    for _ in 1..steps.n {
        let next = at + num_envs;
        let done = model[at].terminated || model[at].truncated;
        if done || next >= end || model[next].obs != model[at].next_obs {
            break;
        }
        at = next;
        sum += discount * f64::from(model[at].reward);
        discount *= steps.gamma;
    }
    (sum as f32, discount as f32, model[at].clone())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn stored_rows_equal_the_model(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..5,
        capacity in 1_usize..30,
        steps in 1_usize..80,
    ) {
        let mut storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut envs: Vec<_> = (0..num_envs).map(|i| Stacking::new(u128::from(seed) + i as u128, frames)).collect();
        let mut rng = Pcg64::seed_from(u128::from(seed) << 1);
        let mut model: Vec<Pushed> = Vec::new();
        for _ in 0..steps {
            let rows: Vec<_> = envs.iter_mut().map(Stacking::step).collect();
            // Next observations can be omitted only if the next rows start with them.
            let can_promise = rows.iter().zip(&envs).all(|(row, env)| {
                !row.terminated && !row.truncated && row.next_obs == env.stack
            });
            let in_order = num_envs == 1 && rng.integers(0, 4) == 0;
            push(&mut storage, &rows, in_order, can_promise && rng.integers(0, 3) == 0);
            model.extend(rows);
            prop_assert_eq!(storage.len(), model.len().min((capacity / num_envs).max(1) * num_envs));
            assert_equals_model(&storage, &model, frames * FRAME);
        }
    }

    #[test]
    fn batches_of_one_environment_equal_the_model(
        seed in any::<u64>(),
        frames in 1_usize..5,
        capacity in 1_usize..40,
        batches in prop::collection::vec((0_usize..100, 0..3), 1..12),
    ) {
        let mut storage = ReplayStorage::new(capacity, 1, layout(frames)).unwrap();
        let (mut env, mut strays) = (Stacking::new(seed.into(), frames), Stacking::new(u128::from(!seed), frames));
        let mut model: Vec<Pushed> = Vec::new();
        // The test mixes batches of independent and of consecutive rows, because the storage treats
        // them differently.
        for (count, kind) in batches {
            let mut rows: Vec<Pushed> = Vec::new();
            while rows.len() < count {
                let row = env.step();
                // Next observations can be omitted (kind 2) only if the next row starts with them.
                let fits = kind != 2 || (!row.terminated && !row.truncated && row.next_obs == env.stack);
                if !fits {
                    env.reset();
                    if let Some(last) = rows.last_mut() {
                        last.next_obs.clone_from(&env.stack);
                    }
                    continue;
                }
                rows.push(row);
            }
            if kind == 2 && count > 0 {
                push(&mut storage, &rows, true, true);
                // After a row without its next observation, independent rows are rejected, and none
                // of them is stored.
                push_with(&[strays.step(), strays.step()], false, |steps| {
                    assert_rejects(storage.push(steps), Error::Config, "obs");
                    Ok(())
                });
                assert_equals_model(&storage, &[&model[..], &rows].concat(), frames * FRAME);
                // The row that starts with the omitted observation follows.
                let mut row = env.step();
                row.truncated = true;
                rows.push(row);
                push(&mut storage, &rows[count..], true, false);
            } else {
                push(&mut storage, &rows, kind == 1, false);
            }
            model.extend(rows);
            assert_equals_model(&storage, &model, frames * FRAME);
        }
        let bound = (capacity + frames) * (frames * FRAME * 2 + 64);
        prop_assert!(storage.memory() <= 2 * bound + 4096, "{} bytes for {}", storage.memory(), bound);
    }

    #[test]
    fn n_step_samples_equal_a_sum_over_steps(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..3,
        capacity in 1_usize..30,
        steps in 1_usize..60,
        n in 1_usize..6,
    ) {
        let n_step = NStep { n, gamma: 0.9 };
        let storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut buffer = Replay::from_parts(storage, Each).unwrap().with_n_step(n_step).unwrap();
        let mut envs: Vec<_> = (0..num_envs).map(|i| Stacking::new(u128::from(seed) + i as u128, frames)).collect();
        let mut rng = Pcg64::seed_from(u128::from(seed) << 1);
        let (mut model, mut batch): (Vec<Pushed>, _) = (Vec::new(), SampledBatch::default());
        for _ in 0..steps {
            let rows: Vec<_> = envs.iter_mut().map(Stacking::step).collect();
            let can_promise = rows.iter().zip(&envs).all(|(row, env)| {
                !row.terminated && !row.truncated && row.next_obs == env.stack
            });
            push_with(&rows, can_promise && rng.integers(0, 3) == 0, |steps| buffer.push_batch(steps));
            model.extend(rows);
            let held = buffer.storage().indices();
            if held.is_empty() {
                continue;
            }
            buffer.sample_into(&mut batch, held.len(), 0).unwrap();
            let bytes = |name| match batch.field(name).map(Field::data) {
                Some(FieldData::U8(data) | FieldData::Bool(data)) => data,
                _ => unreachable!(),
            };
            let width = frames * FRAME;
            for (i, index) in held.clone().enumerate() {
                let (sum, discount, last) = spanned(&model, num_envs, held.end, index, n_step);
                prop_assert_eq!((batch.f32s("rewards")[i], batch.discounts()[i]), (sum, discount));
                prop_assert_eq!(&bytes("obs")[i * width..][..width], &model[index].obs);
                prop_assert_eq!(&bytes("next_obs")[i * width..][..width], &last.next_obs);
                prop_assert_eq!((bytes("terminated")[i] != 0, bytes("truncated")[i] != 0), (last.terminated, last.truncated));
                prop_assert_eq!(batch.i64s("actions")[i], model[index].action);
            }
        }
    }
}

/// Returns true if the next row of the environment continues the episode.
fn continues(model: &[Pushed], num_envs: usize, at: usize) -> bool {
    let next = model.get(at + num_envs);
    !model[at].terminated && !model[at].truncated && next.is_some_and(|next| next.obs == model[at].next_obs)
}

/// Finds the rows of a sequence step by step. Returns each row with a flag that is true at the
/// first step of an episode.
fn walk_sequence(
    model: &[Pushed],
    n: usize,
    held: &Range<usize>,
    start: usize,
    of: Sequences,
) -> Vec<Option<(usize, bool)>> {
    let first = |at: usize| at < n || !continues(model, n, at - n);
    let mut rows = vec![None; of.burn_in + of.length];
    let mut at = start;
    for row in &mut rows[of.burn_in..] {
        *row = Some((at, first(at)));
        if !continues(model, n, at) || at + n >= held.end {
            break;
        }
        at += n;
    }
    at = start;
    for row in rows[..of.burn_in].iter_mut().rev() {
        if first(at) || at - n < held.start {
            break;
        }
        at -= n;
        *row = Some((at, first(at)));
    }
    rows
}

/// Returns the first steps of those episodes whose steps are all stored.
fn complete_episodes(model: &[Pushed], n: usize, held: &Range<usize>) -> Vec<usize> {
    let ends = |mut at: usize| {
        while continues(model, n, at) && at + n < held.end {
            at += n;
        }
        model[at].terminated || model[at].truncated
    };
    held.clone().filter(|at| (*at < n || !continues(model, n, at - n)) && ends(*at)).collect()
}

fn sequences_agree(storage: &ReplayStorage, chosen: &SequenceIndices, model: &[Pushed], of: Sequences, frames: usize) {
    let (batch, steps, width) = (chosen.indices().len(), of.burn_in + of.length, frames * FRAME);
    let mut obs = vec![9_u8; steps * batch * width];
    let mut next_obs = obs.clone();
    let (mut actions, mut rewards) = (vec![9_i64; steps * batch], vec![9.0_f32; steps * batch]);
    let (mut terminated, mut truncated) = (vec![true; steps * batch], vec![9_u8; steps * batch]);
    chosen.read(storage, Column::Obs(0), FieldMut::U8(&mut obs)).unwrap();
    chosen.read(storage, Column::NextObs(0), FieldMut::U8(&mut next_obs)).unwrap();
    chosen.read(storage, Column::Action, FieldMut::I64(&mut actions)).unwrap();
    chosen.read(storage, Column::Reward, FieldMut::F32(&mut rewards)).unwrap();
    chosen.read_bools(storage, Column::Terminated, &mut terminated).unwrap();
    chosen.read(storage, Column::Truncated, FieldMut::Bool(&mut truncated)).unwrap();
    let none = Pushed {
        obs: vec![0; width],
        next_obs: vec![0; width],
        action: 0,
        reward: 0.0,
        terminated: false,
        truncated: false,
    };
    for (b, start) in chosen.indices().iter().enumerate() {
        let rows = walk_sequence(model, storage.num_envs(), &storage.indices(), *start, of);
        assert_eq!(chosen.lengths()[b], rows[of.burn_in..].iter().flatten().count());
        for (t, row) in rows.iter().enumerate() {
            let at = t * batch + b;
            assert_eq!(chosen.mask()[at], row.is_some());
            assert_eq!(chosen.episode_starts()[at], row.is_some_and(|row| row.1));
            let got = Pushed {
                obs: obs[at * width..][..width].to_vec(),
                next_obs: next_obs[at * width..][..width].to_vec(),
                action: actions[at],
                reward: rewards[at],
                terminated: terminated[at],
                truncated: truncated[at] != 0,
            };
            assert_eq!(&got, row.map_or(&none, |row| &model[row.0]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn sequences_equal_a_walk_over_steps(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..4,
        capacity in 1_usize..40,
        steps in 1_usize..80,
        length in 1_usize..12,
        burn_in in 0_usize..5,
    ) {
        let mut storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut envs: Vec<_> = (0..num_envs).map(|i| Stacking::new(u128::from(seed) + i as u128, frames)).collect();
        let mut rng = Pcg64::seed_from(u128::from(seed) << 1);
        let (mut model, mut chosen): (Vec<Pushed>, _) = (Vec::new(), SequenceIndices::default());
        for _ in 0..steps {
            let rows: Vec<_> = envs.iter_mut().map(Stacking::step).collect();
            let can_promise = rows.iter().zip(&envs).all(|(row, env)| {
                !row.terminated && !row.truncated && row.next_obs == env.stack
            });
            push_with(&rows, can_promise && rng.integers(0, 3) == 0, |steps| storage.push(steps));
            model.extend(rows);
            let held = storage.indices();
            if held.is_empty() {
                continue;
            }
            let part = Sequences { length, burn_in, whole_episodes: false };
            part.sample_indices(&storage, held.len(), &mut rng, &mut chosen).unwrap();
            sequences_agree(&storage, &chosen, &model, part, frames);
            let (all, starts) = (Sequences { length, burn_in: 0, whole_episodes: true }, complete_episodes(&model, num_envs, &held));
            match all.sample_indices(&storage, 1, &mut rng, &mut chosen) {
                Ok(()) => {
                    prop_assert!(starts.contains(&chosen.indices()[0]));
                    sequences_agree(&storage, &chosen, &model, all, frames);
                }
                Err(error) => prop_assert!(starts.is_empty(), "{error}"),
            }
        }
    }
}

/// Creates a buffer with episodes of the given lengths. The observations of an episode are
/// consecutive numbers.
fn buffer_of_episodes(lengths: &[usize], capacity: usize) -> ReplayBuffer {
    let mut buffer = ReplayBuffer::new(capacity, 1, 1).unwrap();
    let mut at = 0.0;
    for length in lengths {
        for i in 1..=*length {
            buffer.push_slices(&[at], &[at + 1.0], &[0.0], 0.0, false, i == *length).unwrap();
            at += 1.0;
        }
        at += 100.0;
    }
    buffer
}

#[test]
fn starts_are_equally_likely() {
    // In both cases, the first episode has lost its first steps. The second case has few, long
    // episodes in a large ring buffer.
    for (lengths, capacity, wanted) in [(vec![4, 1, 3, 8], 14, 3), (vec![3000, 2, 1000, 5000, 1], 8000, 4)] {
        let buffer = buffer_of_episodes(&lengths, capacity);
        let (mut rng, mut chosen) = (Pcg64::seed_from(1), SequenceIndices::default());
        let mut counts = BTreeMap::new();
        for _ in 0..100 {
            let of = Sequences { length: 2, burn_in: 0, whole_episodes: true };
            of.sample_indices(buffer.storage(), 6, &mut rng, &mut chosen).unwrap();
            chosen.indices().iter().for_each(|start| *counts.entry(*start).or_insert(0.0) += 1.0);
        }
        assert_eq!(counts.len(), wanted, "{counts:?}");
        let expected = 600.0 / wanted as f64;
        let chi_squared: f64 = counts.values().map(|count: &f64| (count - expected).powi(2) / expected).sum();
        assert!(chi_squared < 22.0, "{counts:?}"); // 2 or 3 degrees of freedom: p = 0.0001
    }
}

#[test]
fn invalid_sequences_are_rejected() {
    let (buffer, mut rng) = (buffer_of_episodes(&[3], 10), Pcg64::seed_from(1));
    let mut chosen = SequenceIndices::default();
    let mut rejects = |variant, argument, (length, burn_in, whole_episodes), batch_size, buffer: &ReplayBuffer| {
        let of = Sequences { length, burn_in, whole_episodes };
        assert_rejects(of.sample_indices(buffer.storage(), batch_size, &mut rng, &mut chosen), variant, argument)
    };
    rejects(Error::Config, "length", (0, 0, false), 1, &buffer);
    rejects(Error::Config, "burn_in", (2, 1, true), 1, &buffer);
    assert_eq!(
        rejects(Error::Config, "batch_size", (2, 0, false), 4, &buffer).expected,
        "1 to 3, the number of stored transitions"
    );
    rejects(Error::Memory, "length", (usize::MAX, 9, false), 1, &buffer);
    let long = rejects(Error::Memory, "length", (1 << 50, 0, false), 2, &buffer);
    assert!(long.got.starts_with("1125899906842624 steps, which needs"), "{long}");
    rejects(Error::Memory, "burn_in", (3, 1 << 50, false), 2, &buffer);
    rejects(Error::Memory, "length", (1 << 50, 0, false), 2, &ReplayBuffer::new(5, 1, 1).unwrap());
    let mut running = ReplayBuffer::new(5, 1, 1).unwrap();
    running.push_slices(&[0.0], &[1.0], &[0.0], 0.0, false, false).unwrap();
    rejects(Error::Config, "whole_episodes", (2, 0, true), 1, &running);
}

/// Samples a batch of as many transitions as are stored, and returns all its columns.
fn sampled<S: PersistSampler>(buffer: &Replay<S>, seed: u64) -> Vec<(String, Vec<u8>)> {
    let (count, mut batch) = (buffer.storage().indices().len(), SampledBatch::default());
    if count == 0 {
        return Vec::new();
    }
    buffer.sample_into(&mut batch, count, seed).unwrap();
    let bytes = |data: FieldData<'_>| match data {
        FieldData::U8(data) | FieldData::Bool(data) => data.to_vec(),
        FieldData::F32(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        FieldData::I64(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        FieldData::F64(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let names = ["obs", "next_obs", "actions", "rewards", "terminated", "truncated"];
    let mut all: Vec<_> =
        names.map(|name| (name.to_owned(), bytes(batch.field(name).map(Field::data).unwrap()))).into();
    all.push(("discounts".into(), bytes(FieldData::F32(batch.discounts()))));
    all.push(("weights".into(), bytes(FieldData::F32(batch.weights()))));
    all.push(("indices".into(), batch.indices().iter().flat_map(|i| i.to_le_bytes()).collect()));
    all
}

/// Environments, and a random generator that decides how their steps are pushed.
#[derive(Clone)]
struct Pushing {
    envs: Vec<Stacking>,
    rng: Pcg64,
    /// True if the last row was pushed without its next observation.
    promised: bool,
}

impl Pushing {
    fn new(seed: u64, num_envs: usize, frames: usize) -> Self {
        let env = |i| Stacking::new(u128::from(seed) + i as u128, frames);
        let rng = Pcg64::seed_from(u128::from(seed) << 1);
        Self { envs: (0..num_envs).map(env).collect(), rng, promised: false }
    }

    /// Pushes one step of all environments, or, with one environment, sometimes several independent
    /// or consecutive rows.
    fn push<S: PersistSampler>(&mut self, buffer: &mut Replay<S>) {
        if self.envs.len() == 1 && self.rng.integers(0, 5) == 0 {
            let count = self.rng.integers(0, 6);
            let rows: Vec<_> = (0..count).map(|_| self.envs[0].step()).collect();
            let in_order = self.rng.integers(0, 2) == 0 || self.promised;
            self.promised &= rows.is_empty();
            push_with(
                &rows,
                false,
                |steps| {
                    if in_order { buffer.push_in_order(steps) } else { buffer.push_batch(steps) }
                },
            );
            return;
        }
        let rows: Vec<_> = self.envs.iter_mut().map(Stacking::step).collect();
        let can_promise = rows
            .iter()
            .zip(&self.envs)
            .all(|(row, env)| !row.terminated && !row.truncated && row.next_obs == env.stack);
        self.promised = can_promise && self.rng.integers(0, 3) == 0;
        push_with(&rows, self.promised, |steps| buffer.push_batch(steps));
    }
}

/// Pushes rows, loads the state into another buffer, and checks that both buffers then return the
/// same samples.
fn assert_continues<S: PersistSampler>(
    mut first: Replay<S>,
    mut pushing: Pushing,
    steps: [usize; 2],
    mut update: impl FnMut(&mut Replay<S>),
) {
    for _ in 0..steps[0] {
        pushing.push(&mut first);
        update(&mut first);
    }
    let mut second = Replay::<S>::from_config(&first.to_config()).unwrap();
    // Loading a state must replace the former content of the second buffer.
    let mut others = Pushing::new(99, pushing.envs.len(), first.storage().schema().frame_stack);
    for _ in 0..steps[1] / 2 {
        others.push(&mut second);
    }
    let state = first.state().unwrap();
    second.load_state(&state).unwrap();
    assert_eq!(second.state().unwrap(), state);
    assert_eq!((second.len(), second.storage().indices()), (first.len(), first.storage().indices()));
    let mut copy = pushing.clone();
    for step in 0..steps[1] {
        assert_eq!(sampled(&first, step as u64), sampled(&second, step as u64));
        pushing.push(&mut first);
        copy.push(&mut second);
        update(&mut first);
        update(&mut second);
    }
    assert_eq!(first.state().unwrap(), second.state().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn uniform_buffers_continue_exactly(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..5,
        capacity in 1_usize..30,
        steps in [0_usize..60, 1_usize..40],
        n in 1_usize..4,
    ) {
        let storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut buffer = Replay::from_parts(storage, Uniform).unwrap();
        if n > 1 {
            buffer = buffer.with_n_step(NStep { n, gamma: 0.9 }).unwrap();
        }
        assert_continues(buffer, Pushing::new(seed, num_envs, frames), steps, |_| ());
    }

    #[test]
    fn prioritized_buffers_continue_exactly(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        capacity in 1_usize..30,
        steps in [0_usize..60, 1_usize..40],
    ) {
        let storage = ReplayStorage::new(capacity, num_envs, layout(2)).unwrap();
        let sampler = Prioritized::new(&storage, 0.6, 0.4).unwrap();
        let buffer = Replay::from_parts(storage, sampler).unwrap();
        assert_continues(buffer, Pushing::new(seed, num_envs, 2), steps, |buffer: &mut Replay<Prioritized>| {
            let held = buffer.storage().indices();
            let some: Vec<_> = held.step_by(3).collect();
            let priorities: Vec<_> = some.iter().map(|i| (i % 7) as f32).collect();
            buffer.update_priorities(&some, &priorities).unwrap();
            buffer.sampler_mut().set_beta((some.len() % 10) as f32 / 10.0).unwrap();
        });
    }
}

fn filled(steps: usize) -> ReplayBuffer {
    let storage = ReplayStorage::new(8, 2, layout(3)).unwrap();
    let mut buffer = Replay::from_parts(storage, Uniform).unwrap();
    let mut pushing = Pushing::new(3, 2, 3);
    for _ in 0..steps {
        pushing.push(&mut buffer);
    }
    buffer
}

#[test]
fn the_size_of_a_state_depends_on_stored_rows_only() {
    let storage = ReplayStorage::new(1_000_000, 1, layout(1)).unwrap();
    let mut buffer = Replay::from_parts(storage, Uniform).unwrap();
    let mut pushing = Pushing::new(3, 1, 1);
    pushing.push(&mut buffer);
    let bytes: usize = buffer.state().unwrap().iter().map(|field| field.rows() * field.width() * 8).sum();
    assert!(bytes < 1000, "{bytes}");
}

#[test]
fn foreign_states_are_rejected_by_name_and_change_nothing() {
    let (mut buffer, state) = (filled(3), filled(9).state().unwrap());
    let before = buffer.state().unwrap();
    let names: Vec<_> = state.iter().map(|field| field.name().to_owned()).collect();
    for (i, name) in names.iter().enumerate() {
        let mut missing = state.clone();
        missing.remove(i);
        let rejected = assert_rejects(buffer.load_state(&missing), Error::Config, &format!("arrays[{name:?}]"));
        assert_eq!(rejected.got, "none");
        let mut shorter = state.clone();
        let (field, rows) = (&state[i], state[i].rows());
        shorter[i] = Field::new(name.clone(), rows + 1, field.shape(), field.dtype()).unwrap();
        assert_rejects(buffer.load_state(&shorter), Error::Shape, &format!("arrays[{name:?}]"));
        assert_eq!(buffer.state().unwrap(), before, "{name}");
    }
    let mut more = state.clone();
    more.push(Field::new("other", 1, &[], rlox_core::field::DType::F32).unwrap());
    assert_rejects(buffer.load_state(&more), Error::Config, "arrays[\"other\"]");
    let steps = NStep { n: 3, gamma: 0.9 };
    let mut spans =
        Replay::from_parts(ReplayStorage::new(8, 2, layout(3)).unwrap(), Uniform).unwrap().with_n_step(steps);
    let other = assert_rejects(spans.as_mut().unwrap().load_state(&state), Error::Config, "arrays[\"n_step\"]");
    assert_eq!((&other.expected[..], &other.got[..]), ("3", "1"));
    let storage = ReplayStorage::new(10, 2, layout(3)).unwrap();
    let result = Replay::from_parts(storage, Uniform).unwrap().load_state(&state);
    let other = assert_rejects(result, Error::Config, "arrays[\"capacity\"]");
    assert_eq!((&other.expected[..], &other.got[..]), ("10", "8"));
    assert_eq!(buffer.state().unwrap(), before);
}

/// Tests that a state with a changed number or byte is either rejected or leaves a working buffer.
#[test]
fn states_with_arbitrary_bytes_are_rejected_or_work() {
    let mut rng = Pcg64::seed_from(5);
    let state = filled(9).state().unwrap();
    for round in 0..3000 {
        let mut changed = state.clone();
        let at = rng.integers(0, changed.len() as i64) as usize;
        if changed[at].rows() == 0 {
            continue;
        }
        let byte = rng.integers(0, 256) as u8;
        match changed[at].data_mut() {
            rlox_core::field::FieldMut::I64(data) => data[0] = [i64::MIN, -1, 0, 1, 5, 1 << 40, i64::MAX][round % 7],
            rlox_core::field::FieldMut::F64(data) => data[0] = f64::from(byte),
            rlox_core::field::FieldMut::F32(data) => {
                data[round % data.len()] = [f32::NAN, 1.5, f32::INFINITY][round % 3];
            }
            rlox_core::field::FieldMut::U8(data) | rlox_core::field::FieldMut::Bool(data) => {
                let at = rng.integers(0, data.len() as i64) as usize;
                data[at] = byte;
            }
        }
        let mut buffer = filled(3);
        let before = buffer.state().unwrap();
        if buffer.load_state(&changed).is_err() {
            assert_eq!(buffer.state().unwrap(), before);
        }
        let mut pushing = Pushing::new(round as u64, 2, 3);
        for step in 0..12 {
            sampled(&buffer, step);
            pushing.push(&mut buffer);
        }
    }
}

#[test]
fn saved_buffers_round_trip_and_damage_is_detected() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("buffer");
    let buffer = filled(9);
    buffer.save(&path).unwrap();
    let again = ReplayBuffer::load(&path).unwrap();
    assert_eq!(again.state().unwrap(), buffer.state().unwrap());
    assert_eq!((again.storage().capacity(), again.storage().schema().frame_stack), (8, 3));
    assert!(matches!(Replay::<Prioritized>::load(&path), Err(Error::Config(_))));
    for name in ["manifest.json", "replay.safetensors"] {
        let file = path.join(name);
        let intact = fs::read(&file).unwrap();
        for at in (0..intact.len()).step_by(7) {
            let mut damaged = intact.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&file, damaged).unwrap();
            assert_rejects(ReplayBuffer::load(&path), Error::Corrupt, &file.display().to_string());
        }
        for len in (0..intact.len()).step_by(13) {
            fs::write(&file, &intact[..len]).unwrap();
            assert!(matches!(ReplayBuffer::load(&path), Err(Error::Corrupt(_))), "{name} of {len} bytes");
        }
        fs::write(&file, intact).unwrap();
    }
    assert!(ReplayBuffer::load(&path).is_ok());
}
