//! What is sampled is what was pushed, whatever lies aside or is stored once.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod stacking;

use proptest::prelude::*;
use rlox_core::replay::{Column, Layout, NStep, Part, Replay, ReplayStorage, SampledBatch, Sampler};
use rlox_core::{DType, Field, FieldData, FieldMut, Pcg64, Result};
use stacking::{FRAME, Pushed, Stacking, layout, push_with};

#[test]
fn storages_that_make_no_sense_are_refused_by_what_was_asked_for() {
    let named = |name| Layout { extra: vec![Part::new(name, &[], DType::F32)], ..layout(1) };
    for name in ["obs", "next_obs", "actions", "rewards", "indices", "mask", "episode_starts", "lengths"] {
        let said = ReplayStorage::new(10, 1, named(name)).unwrap_err().to_string();
        assert!(said.starts_with("extra: expected a name that is none of") && said.contains(name), "{said}");
    }
    for (capacity, num_envs, argument) in [(1 << 50, 1, "capacity"), (3, 1 << 50, "num_envs")] {
        let said = ReplayStorage::new(capacity, num_envs, layout(1)).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{argument}: expected at most")), "{said}");
        assert!(said.contains(&format!("{argument} = 1125899906842624, rows of")), "{said}");
    }
    let wide = Layout::new(Part::new("obs", &[1 << 60], DType::F32), Part::new("actions", &[], DType::I64));
    let said = ReplayStorage::new(3, 1, wide).unwrap_err().to_string();
    assert!(said.starts_with("obs_dim: ") && said.contains(&format!("a row needs {} bytes", 1_u64 << 62)), "{said}");
}

/// What lies aside of rows that others take the place of is given back, whether those go on or not.
#[test]
fn a_ring_that_goes_round_takes_no_more_memory() {
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

/// Everything that can be sampled is as the model has it.
fn agrees(storage: &ReplayStorage, model: &[Pushed], width: usize) {
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

/// Chooses all transitions in their order.
struct Each;

impl Sampler for Each {
    fn choose(&self, storage: &ReplayStorage, _: &mut Pcg64, indices: &mut [usize], _: &mut [f32]) -> Result<()> {
        indices.iter_mut().zip(storage.indices()).for_each(|(index, held)| *index = held);
        Ok(())
    }
}

/// What a transition of several steps is, step by step.
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
    fn nothing_is_torn_lost_or_doubled(
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
            // A promise is kept: the next row has the observation.
            let kept = rows.iter().zip(&envs).all(|(row, env)| {
                !row.terminated && !row.truncated && row.next_obs == env.stack
            });
            let in_order = num_envs == 1 && rng.integers(0, 4) == 0;
            push(&mut storage, &rows, in_order, kept && rng.integers(0, 3) == 0);
            model.extend(rows);
            prop_assert_eq!(storage.len(), model.len().min((capacity / num_envs).max(1) * num_envs));
            agrees(&storage, &model, frames * FRAME);
        }
    }

    #[test]
    fn batches_of_one_environment_are_what_was_pushed(
        seed in any::<u64>(),
        frames in 1_usize..5,
        capacity in 1_usize..40,
        batches in prop::collection::vec((0_usize..100, 0..3), 1..12),
    ) {
        let mut storage = ReplayStorage::new(capacity, 1, layout(frames)).unwrap();
        let (mut env, mut strays) = (Stacking::new(seed.into(), frames), Stacking::new(u128::from(!seed), frames));
        let mut model: Vec<Pushed> = Vec::new();
        // As often as it can be, rows go on: what lies aside changes most where few do, and where most do.
        for (count, kind) in batches {
            let mut rows: Vec<Pushed> = Vec::new();
            while rows.len() < count {
                let row = env.step();
                // A promise is kept: the next row has the observation, whatever its frames are.
                let kept = kind != 2 || (!row.terminated && !row.truncated && row.next_obs == env.stack);
                if !kept {
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
                // Rows that stand for themselves are not what was promised: nothing of them is stored.
                let (others, mut refused) = ([strays.step(), strays.step()], None);
                push_with(&others, false, |steps| {
                    refused = storage.push(steps).err();
                    Ok(())
                });
                let said = refused.map_or_else(String::new, |error| error.to_string());
                prop_assert!(said.starts_with("obs: expected the next step first"), "{}", said);
                agrees(&storage, &[&model[..], &rows].concat(), frames * FRAME);
                // What was promised comes.
                let mut row = env.step();
                row.truncated = true;
                rows.push(row);
                push(&mut storage, &rows[count..], true, false);
            } else {
                push(&mut storage, &rows, kind == 1, false);
            }
            model.extend(rows);
            agrees(&storage, &model, frames * FRAME);
        }
        let room = (capacity + frames) * (frames * FRAME * 2 + 64);
        prop_assert!(storage.memory() <= 2 * room + 4096, "{} bytes for {}", storage.memory(), room);
    }

    #[test]
    fn several_steps_are_what_a_slow_sum_says(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..3,
        capacity in 1_usize..30,
        steps in 1_usize..60,
        n in 1_usize..6,
    ) {
        let n_step = NStep { n, gamma: 0.9 };
        let storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut buffer = Replay::with(storage, Each).unwrap().with_n_step(n_step).unwrap();
        let mut envs: Vec<_> = (0..num_envs).map(|i| Stacking::new(u128::from(seed) + i as u128, frames)).collect();
        let mut rng = Pcg64::seed_from(u128::from(seed) << 1);
        let (mut model, mut batch): (Vec<Pushed>, _) = (Vec::new(), SampledBatch::default());
        for _ in 0..steps {
            let rows: Vec<_> = envs.iter_mut().map(Stacking::step).collect();
            let kept = rows.iter().zip(&envs).all(|(row, env)| {
                !row.terminated && !row.truncated && row.next_obs == env.stack
            });
            push_with(&rows, kept && rng.integers(0, 3) == 0, |steps| buffer.push_batch(steps));
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
