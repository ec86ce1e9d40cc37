//! A buffer that takes another's state goes on exactly as that one.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod stacking;

use std::fs;

use proptest::prelude::*;
use rlox_core::replay::{NStep, Prioritized, Replay, ReplayBuffer, ReplayStorage, SampledBatch, Saved, Uniform};
use rlox_core::{Error, Field, FieldData, Pcg64};
use stacking::{Stacking, layout, push_with};

/// Everything that a sample of all that is stored has.
fn sampled<S: Saved>(buffer: &Replay<S>, seed: u64) -> Vec<(String, Vec<u8>)> {
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

/// Environments, and what decides how their steps are pushed.
#[derive(Clone)]
struct Pushing {
    envs: Vec<Stacking>,
    rng: Pcg64,
    /// The last row was pushed without its next observation.
    promised: bool,
}

impl Pushing {
    fn new(seed: u64, num_envs: usize, frames: usize) -> Self {
        let env = |i| Stacking::new(u128::from(seed) + i as u128, frames);
        let rng = Pcg64::seed_from(u128::from(seed) << 1);
        Self { envs: (0..num_envs).map(env).collect(), rng, promised: false }
    }

    /// Pushes a time step, or several rows that stand for themselves or follow each other.
    fn push<S: Saved>(&mut self, buffer: &mut Replay<S>) {
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
        let kept = rows
            .iter()
            .zip(&self.envs)
            .all(|(row, env)| !row.terminated && !row.truncated && row.next_obs == env.stack);
        self.promised = kept && self.rng.integers(0, 3) == 0;
        push_with(&rows, self.promised, |steps| buffer.push_batch(steps));
    }
}

/// Pushes, copies, and does the same with both.
fn goes_on<S: Saved>(
    mut first: Replay<S>,
    mut pushing: Pushing,
    steps: [usize; 2],
    mut update: impl FnMut(&mut Replay<S>),
) {
    for _ in 0..steps[0] {
        pushing.push(&mut first);
        update(&mut first);
    }
    let mut second = Replay::<S>::described(&first.describe()).unwrap();
    // What was there before makes no difference.
    let mut others = Pushing::new(99, pushing.envs.len(), first.storage().layout().frame_stack);
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
    fn uniform_buffers_go_on(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..5,
        capacity in 1_usize..30,
        steps in [0_usize..60, 1_usize..40],
        n in 1_usize..4,
    ) {
        let storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut buffer = Replay::with(storage, Uniform).unwrap();
        if n > 1 {
            buffer = buffer.with_n_step(NStep { n, gamma: 0.9 }).unwrap();
        }
        goes_on(buffer, Pushing::new(seed, num_envs, frames), steps, |_| ());
    }

    #[test]
    fn prioritized_buffers_go_on(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        capacity in 1_usize..30,
        steps in [0_usize..60, 1_usize..40],
    ) {
        let storage = ReplayStorage::new(capacity, num_envs, layout(2)).unwrap();
        let sampler = Prioritized::new(&storage, 0.6, 0.4).unwrap();
        let buffer = Replay::with(storage, sampler).unwrap();
        goes_on(buffer, Pushing::new(seed, num_envs, 2), steps, |buffer: &mut Replay<Prioritized>| {
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
    let mut buffer = Replay::with(storage, Uniform).unwrap();
    let mut pushing = Pushing::new(3, 2, 3);
    for _ in 0..steps {
        pushing.push(&mut buffer);
    }
    buffer
}

#[test]
fn only_what_is_stored_is_kept() {
    let storage = ReplayStorage::new(1_000_000, 1, layout(1)).unwrap();
    let mut buffer = Replay::with(storage, Uniform).unwrap();
    let mut pushing = Pushing::new(3, 1, 1);
    pushing.push(&mut buffer);
    let bytes: usize = buffer.state().unwrap().iter().map(|field| field.rows() * field.width() * 8).sum();
    assert!(bytes < 1000, "{bytes}");
}

#[test]
fn states_of_others_are_refused_by_name_and_nothing_changes() {
    let (mut buffer, state) = (filled(3), filled(9).state().unwrap());
    let before = buffer.state().unwrap();
    let names: Vec<_> = state.iter().map(|field| field.name().to_owned()).collect();
    for (i, name) in names.iter().enumerate() {
        let mut missing = state.clone();
        missing.remove(i);
        let said = buffer.load_state(&missing).unwrap_err().to_string();
        assert!(said.starts_with(&format!("arrays[{name:?}]: expected an array, got none")), "{said}");
        let mut shorter = state.clone();
        let (field, rows) = (&state[i], state[i].rows());
        shorter[i] = Field::new(name.clone(), rows + 1, field.shape(), field.dtype()).unwrap();
        let said = buffer.load_state(&shorter).unwrap_err().to_string();
        assert!(said.starts_with("arrays["), "{said}");
        assert_eq!(buffer.state().unwrap(), before, "{name}");
    }
    let mut more = state.clone();
    more.push(Field::new("other", 1, &[], rlox_core::DType::F32).unwrap());
    let said = buffer.load_state(&more).unwrap_err().to_string();
    assert!(said.starts_with("arrays[\"other\"]: expected no such array"), "{said}");
    let steps = NStep { n: 3, gamma: 0.9 };
    let mut spans = Replay::with(ReplayStorage::new(8, 2, layout(3)).unwrap(), Uniform).unwrap().with_n_step(steps);
    let said = spans.as_mut().unwrap().load_state(&state).unwrap_err().to_string();
    assert!(said.starts_with("arrays[\"n_step\"]: expected 3, got 1"), "{said}");
    let storage = ReplayStorage::new(10, 2, layout(3)).unwrap();
    let said = Replay::with(storage, Uniform).unwrap().load_state(&state).unwrap_err().to_string();
    assert!(said.starts_with("arrays[\"capacity\"]: expected 10, got 8"), "{said}");
    assert_eq!(buffer.state().unwrap(), before);
}

/// Every byte of every field may be anything: it is refused, or the buffer works with it.
#[test]
fn states_with_any_bytes_are_refused_or_work() {
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
            rlox_core::FieldMut::I64(data) => data[0] = [i64::MIN, -1, 0, 1, 5, 1 << 40, i64::MAX][round % 7],
            rlox_core::FieldMut::F64(data) => data[0] = f64::from(byte),
            rlox_core::FieldMut::F32(data) => data[round % data.len()] = [f32::NAN, 1.5, f32::INFINITY][round % 3],
            rlox_core::FieldMut::U8(data) | rlox_core::FieldMut::Bool(data) => {
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
fn folders_hold_buffers_and_every_damage_is_seen() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("buffer");
    let buffer = filled(9);
    buffer.save(&path).unwrap();
    let again = ReplayBuffer::load(&path).unwrap();
    assert_eq!(again.state().unwrap(), buffer.state().unwrap());
    assert_eq!((again.storage().capacity(), again.storage().layout().frame_stack), (8, 3));
    assert!(matches!(Replay::<Prioritized>::load(&path), Err(Error::Config(_))));
    for name in ["manifest.json", "replay.safetensors"] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        for at in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&file, damaged).unwrap();
            let error = ReplayBuffer::load(&path).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "{name} at {at}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        for len in (0..whole.len()).step_by(13) {
            fs::write(&file, &whole[..len]).unwrap();
            assert!(matches!(ReplayBuffer::load(&path), Err(Error::Corrupt(_))), "{name} of {len} bytes");
        }
        fs::write(&file, whole).unwrap();
    }
    assert!(ReplayBuffer::load(&path).is_ok());
}
