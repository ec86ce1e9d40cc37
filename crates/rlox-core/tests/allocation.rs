//! Tests that stepping, collecting and sampling do not allocate memory after their first
//! iterations.

use rlox_core::envs::{self, MakeOptions};
use rlox_core::replay::{
    Column, FieldSpec, Hindsight, NStep, PrioritizedReplayBuffer, Replay, ReplayBuffer, ReplayStorage, SampledBatch,
    SequenceIndices, Sequences, Strategy, TransitionBatch, TransitionSchema, Uniform,
};
use rlox_core::{
    ActionsMut, AutoresetMode, Normalizer, Pcg64, Policy, PolicyOut, RandomPolicy, ResetOptions, RolloutBuffer, Seeds,
    Space, StepOut, VectorEnv,
    checkpoint::Checkpoint,
    collect,
    field::{DType, FieldData, FieldMut},
    normalize::NormalizerOptions,
};

fn make(id: &str, num_envs: usize, mode: AutoresetMode) -> Box<dyn VectorEnv> {
    let options = MakeOptions {
        num_envs,
        seed: Some(0),
        autoreset_mode: mode,
        max_episode_steps: Some(Some(9)),
        ..Default::default()
    };
    envs::make(id, &options).unwrap()
}

const MODES: [AutoresetMode; 2] = [AutoresetMode::SameStep, AutoresetMode::NextStep];

fn allocations(f: impl FnOnce()) -> u64 {
    allocation_counter::measure(f).count_total
}

#[test]
fn the_allocation_counter_works() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0_u8; 10]))), 1);
}

#[test]
fn replay_buffers_do_not_allocate() {
    let mut uniform = ReplayBuffer::new(100, 4, 2).unwrap().with_n_step(NStep { n: 3, gamma: 0.9 }).unwrap();
    let mut prioritized = PrioritizedReplayBuffer::new(100, 4, 2, 0.6, 0.4).unwrap();
    let (mut rng, mut batch, mut other) = (Pcg64::seed_from(0), SampledBatch::default(), SampledBatch::default());
    let mut round = |times: u32| {
        for i in 0..times {
            let (obs, next_obs, end) = ([i as f32; 4], [(i + 1) as f32; 4], i % 7 == 6);
            uniform.push_slices(&obs, &next_obs, &[0.0; 2], 1.0, end, false).unwrap();
            prioritized.push_slices(&obs, &next_obs, &[0.0; 2], 1.0, end, false).unwrap();
            if i >= 32 {
                uniform.sample_with(&mut batch, 32, &mut rng).unwrap();
                prioritized.sample_with(&mut other, 32, &mut rng).unwrap();
                prioritized.update_priorities(other.indices(), &[0.5; 32]).unwrap();
            }
        }
    };
    round(200);
    assert_eq!(allocations(|| round(150)), 0);
}

#[test]
fn saving_a_buffer_copies_it_once() {
    let layout =
        TransitionSchema::new(FieldSpec::new("obs", &[4096], DType::U8), FieldSpec::new("actions", &[], DType::I64));
    let mut buffer = Replay::from_parts(ReplayStorage::new(2000, 1, layout).unwrap(), Uniform).unwrap();
    let (obs, next_obs) = ([1_u8; 4096], [2_u8; 4096]);
    for i in 0..2000 {
        let steps = TransitionBatch {
            obs: &[FieldData::U8(&obs)],
            actions: FieldData::I64(&[i]),
            rewards: &[1.0],
            terminated: &[false],
            truncated: &[i % 2 == 0],
            next_obs: Some(&[FieldData::U8(if i % 2 == 0 { &next_obs } else { &obs })]),
            extra: &[],
        };
        buffer.push_batch(&steps).unwrap();
    }
    let mut checkpoint = Checkpoint::default();
    let peak =
        allocation_counter::measure(|| buffer.write_to_checkpoint(&mut checkpoint, Vec::new()).unwrap()).bytes_max;
    let (stored, copy) = (buffer.storage().memory() as u64, checkpoint.safetensors("replay").unwrap().len() as u64);
    assert!(copy > 3000 * 4096 && copy < stored + stored / 10, "{copy} of {stored}");
    assert!(peak < copy + copy / 50, "{peak} for {copy}");
}

/// Creates a buffer of stacked frames. All rows store frames in the pools outside of the ring
/// buffer, because no frame is shared by two rows.
fn stacked(rows: i64) -> Replay<Uniform> {
    let layout =
        TransitionSchema::new(FieldSpec::new("obs", &[2], DType::U8), FieldSpec::new("actions", &[], DType::I64));
    let layout = TransitionSchema { frame_stack: 2, ..layout };
    let mut buffer = Replay::from_parts(ReplayStorage::new(rows as usize, 1, layout).unwrap(), Uniform).unwrap();
    for i in 0..rows {
        let steps = TransitionBatch {
            obs: &[FieldData::U8(&[i as u8, 1])],
            actions: FieldData::I64(&[i]),
            rewards: &[1.0],
            terminated: &[true],
            truncated: &[false],
            next_obs: Some(&[FieldData::U8(&[1, 2])]),
            extra: &[],
        };
        buffer.push_batch(&steps).unwrap();
    }
    buffer
}

#[test]
fn loading_a_state_needs_no_memory_per_transition() {
    let used = |rows| {
        let mut buffer = stacked(rows);
        let state = buffer.state().unwrap();
        buffer.load_state(&state).unwrap();
        let measured = allocation_counter::measure(|| buffer.load_state(&state).unwrap());
        let same = buffer.state().unwrap().iter().zip(&state).all(|(a, b)| a.data() == b.data());
        assert!(same);
        (measured.count_total, measured.bytes_total)
    };
    let small = used(10);
    assert_eq!(used(5000), small);
    assert!(small.1 < 8192, "{small:?}");
}

#[test]
fn sequences_and_hindsight_goals_do_not_allocate() {
    let part = |name: &str| FieldSpec::new(name, &[2], DType::F32);
    let layout = TransitionSchema {
        obs: vec![part("achieved"), part("desired")],
        ..TransitionSchema::new(part("obs"), part("actions"))
    };
    let storage = ReplayStorage::new(100, 1, layout).unwrap();
    let sampler = Hindsight::new(&storage, (0, 1), Strategy::Future, 4).unwrap();
    let mut buffer = Replay::from_parts(storage, sampler).unwrap();
    let (mut rng, mut batch) = (Pcg64::seed_from(0), SampledBatch::default());
    let (mut chosen, mut obs) = (SequenceIndices::default(), vec![0.0; 12 * 8 * 2]);
    let mut round = |times: u32| {
        for i in 0..times {
            let (now, next) = ([i as f32; 2], [(i + 1) as f32; 2]);
            let steps = TransitionBatch {
                obs: &[FieldData::F32(&now), FieldData::F32(&[0.0; 2])],
                actions: FieldData::F32(&[0.0; 2]),
                rewards: &[1.0],
                terminated: &[i % 7 == 6],
                truncated: &[false],
                next_obs: Some(&[FieldData::F32(&next), FieldData::F32(&[0.0; 2])]),
                extra: &[],
            };
            buffer.push_batch(&steps).unwrap();
            if i >= 32 {
                buffer.sample_with(&mut batch, 32, &mut rng).unwrap();
                for whole_episodes in [false, true] {
                    let of = Sequences { length: 12, burn_in: 0, whole_episodes };
                    of.sample_indices(buffer.storage(), 8, &mut rng, &mut chosen).unwrap();
                    chosen.read(buffer.storage(), Column::Obs(0), FieldMut::F32(&mut obs)).unwrap();
                }
            }
        }
    };
    round(300);
    assert_eq!(allocations(|| round(150)), 0);
}

#[test]
fn steps_do_not_allocate() {
    for id in envs::ids() {
        // Most environments step 4 as scalar copies. 16 are a partial SIMD block, 100 a full and a
        // partial block, 5000 enough for several threads.
        for (n, mode) in [4, 16, 100, 5000].into_iter().flat_map(|n| MODES.map(|mode| (n, mode))) {
            let mut env = make(id, n, mode);
            let (d, a) = (env.spec().observation.dim(), env.spec().action.dim());
            let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
            let mut rngs: Vec<_> = (0..n as u128).map(Pcg64::seed_from).collect();
            let (mut obs, mut final_obs, mut reward) = (vec![0.0; n * d], vec![0.0; n * d], vec![0.0; n]);
            let (mut terminated, mut truncated) = (vec![false; n], vec![false; n]);
            let (mut integers, mut floats) = (vec![0_i64; n * a], vec![0.0_f32; n * a]);
            let (mut log_probs, mut values) = (vec![0.0; n], vec![0.0; n]);
            env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).unwrap();
            let discrete = matches!(env.spec().action, Space::Discrete { .. });
            let mut run = |steps: usize| {
                for _ in 0..steps {
                    let actions = if discrete {
                        ActionsMut::Discrete(&mut integers)
                    } else {
                        ActionsMut::Continuous(&mut floats)
                    };
                    let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
                    policy.act(&obs, None, &mut rngs, out).unwrap();
                    let actions = if discrete {
                        rlox_core::Actions::Discrete(&integers)
                    } else {
                        rlox_core::Actions::Continuous(&floats)
                    };
                    let out = StepOut {
                        obs: &mut obs,
                        reward: &mut reward,
                        terminated: &mut terminated,
                        truncated: &mut truncated,
                        final_obs: &mut final_obs,
                    };
                    env.step(actions, out).unwrap();
                }
            };
            run(1); // starts the worker threads
            let count = allocations(|| run(if n > 1000 { 10 } else { 200 }));
            assert_eq!(count, 0, "{n} {id} {mode:?}");
        }
    }
}

#[test]
fn rollouts_do_not_allocate_after_the_first_ones() {
    for id in envs::ids() {
        let mut env = make(id, 16, AutoresetMode::SameStep);
        let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
        let mut rngs: Vec<_> = (0..16).map(Pcg64::seed_from).collect();
        let mut buffer = RolloutBuffer::for_env(64, &*env).unwrap();
        let mut normalizer = Normalizer::new(16, env.spec().observation.dim(), NormalizerOptions::default()).unwrap();
        let mut collect = || collect(&mut *env, &mut policy, &mut rngs, &mut buffer, Some(&mut normalizer), 0.99, 0.95);
        // The number of truncated episodes differs between rollouts. The memory for final
        // observations grows to the maximum.
        for _ in 0..20 {
            collect().unwrap();
        }
        assert_eq!(allocations(|| collect().unwrap()), 0, "{id}");
    }
}
