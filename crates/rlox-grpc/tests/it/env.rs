//! Remote environments have the same trajectories as local environments with the same seeds.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{
    Actions, ActionsMut, AutoresetMode, Error, Pcg64, Policy, PolicyOut, RandomPolicy, ResetOptions, Seeds, StepOut,
    VectorEnv,
    vector::{EnvSnapshot, EpisodeProgress},
};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};

const MODES: [AutoresetMode; 3] = [AutoresetMode::SameStep, AutoresetMode::NextStep, AutoresetMode::Disabled];

fn local(env: &EnvOptions) -> Box<dyn VectorEnv> {
    let options = MakeOptions {
        num_envs: env.num_envs,
        seed: Some(env.seed),
        autoreset_mode: env.autoreset_mode,
        max_episode_steps: env.max_episode_steps,
        arguments: &env.arguments,
    };
    envs::make(&env.id, &options).unwrap()
}

/// All results of several steps with random actions.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    obs: Vec<u32>,
    rewards: Vec<u64>,
    ends: Vec<(bool, bool)>,
    finals: Vec<u32>,
    episodes: (Vec<f64>, Vec<u32>),
}

fn run(env: &mut dyn VectorEnv, steps: usize, seed: u64) -> Trace {
    let (n, dim, width) = (env.num_envs(), env.spec().observation.dim(), env.spec().action.dim());
    let space = env.spec().action.clone();
    let mut policy = RandomPolicy::new(&space).unwrap();
    let mut rngs: Vec<_> = (0..n).map(|i| Pcg64::seed_from(u128::from(seed) + i as u128)).collect();
    let (mut obs, mut finals) = (vec![0.0; n * dim], vec![0.0; n * dim]);
    let (mut reward, mut terminated, mut truncated) = (vec![0.0; n], vec![false; n], vec![false; n]);
    let (mut discrete, mut continuous) = (vec![0; n * width], vec![0.0; n * width]);
    let (mut log_probs, mut values) = (vec![0.0; n], vec![0.0; n]);
    let mut trace = Trace::default();
    env.observe(&mut obs).unwrap();
    for _ in 0..steps {
        let boxes = matches!(space, rlox_core::Space::Box { .. });
        let actions = if boxes { ActionsMut::Continuous(&mut continuous) } else { ActionsMut::Discrete(&mut discrete) };
        let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
        policy.act(&obs, None, &mut rngs, out).unwrap();
        let actions = if boxes { Actions::Continuous(&continuous) } else { Actions::Discrete(&discrete) };
        let out = StepOut {
            obs: &mut obs,
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut finals,
        };
        env.step(actions, out).unwrap();
        let ends: Vec<_> = terminated.iter().copied().zip(truncated.iter().copied()).collect();
        if env.autoreset_mode() == AutoresetMode::SameStep {
            let rows = finals.chunks(dim).zip(&ends).filter(|(_, end)| end.0 || end.1);
            trace.finals.extend(rows.flat_map(|(row, _)| row.iter().map(|x| x.to_bits())));
        }
        if env.autoreset_mode() == AutoresetMode::Disabled {
            let mask: Vec<_> = ends.iter().map(|end| end.0 || end.1).collect();
            if mask.contains(&true) {
                env.reset(Seeds::Keep, Some(&mask), &ResetOptions::default(), &mut obs).unwrap();
            }
        }
        trace.obs.extend(obs.iter().map(|x| x.to_bits()));
        trace.rewards.extend(reward.iter().map(|x| x.to_bits()));
        trace.ends.extend(ends);
    }
    env.episodes().drain(&mut trace.episodes.0, &mut trace.episodes.1);
    trace
}

fn reset(env: &mut dyn VectorEnv, seeds: Seeds<'_>) -> Vec<f32> {
    let mut obs = vec![0.0; env.num_envs() * env.spec().observation.dim()];
    env.reset(seeds, None, &ResetOptions::default(), &mut obs).unwrap();
    obs
}

#[test]
fn remote_trajectories_equal_local_trajectories() {
    let workers = [(); 2].map(|()| Worker::start(WorkerOptions::default()).unwrap());
    let addresses = [workers[0].address(), workers[1].address()];
    for id in envs::ids() {
        for autoreset_mode in MODES {
            // Three environments are stepped one by one, 21 with SIMD instructions. A short time
            // limit ends episodes.
            for num_envs in [3, 21] {
                let max_episode_steps = Some(Some(40));
                let env = EnvOptions { autoreset_mode, max_episode_steps, ..EnvOptions::new(id, num_envs, 5) };
                let mut local_env = local(&env);
                let mut remote_env = RemoteVecEnv::new(&addresses, &env, &ClientOptions::default()).unwrap();
                assert_eq!((remote_env.spec(), remote_env.num_envs()), (local_env.spec(), num_envs));
                for seeds in [Seeds::Keep, Seeds::Base(11)] {
                    assert_eq!(reset(local_env.as_mut(), seeds), reset(&mut remote_env, seeds));
                    let (a, b) = (run(local_env.as_mut(), 100, 3), run(&mut remote_env, 100, 3));
                    assert!(!a.episodes.0.is_empty());
                    assert_eq!(a, b, "{id} {autoreset_mode:?}");
                }
                assert_eq!(
                    EnvSnapshot::capture(local_env.as_ref()).unwrap(),
                    EnvSnapshot::capture(&remote_env).unwrap()
                );
            }
        }
    }
    let steps = workers[0].counters().steps.load(std::sync::atomic::Ordering::Relaxed);
    assert!(steps > 0);
    for worker in workers {
        worker.stop().unwrap();
    }
}

#[test]
fn snapshots_move_between_local_and_remote_environments() {
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    for autoreset_mode in MODES {
        let env = EnvOptions { autoreset_mode, ..EnvOptions::new("Pendulum-v1", 3, 1) };
        let mut local_env = local(&env);
        let mut remote_env = RemoteVecEnv::new(&[worker.address()], &env, &ClientOptions::default()).unwrap();
        reset(local_env.as_mut(), Seeds::Base(9));
        run(local_env.as_mut(), 17, 0);
        let snapshot = EnvSnapshot::capture(local_env.as_ref()).unwrap().unwrap();
        snapshot.restore_into(&mut remote_env).unwrap();
        assert_eq!(EnvSnapshot::capture(&remote_env).unwrap().as_ref(), Some(&snapshot));
        let (mut a, mut b) = ([0.0; 9], [0.0; 9]);
        local_env.observe(&mut a).unwrap();
        remote_env.observe(&mut b).unwrap();
        assert_eq!(a, b);
        assert_eq!(run(local_env.as_mut(), 210, 1), run(&mut remote_env, 210, 1));
        let second_snapshot = EnvSnapshot::capture(&remote_env).unwrap().unwrap();
        let mut restored = local(&env);
        second_snapshot.restore_into(restored.as_mut()).unwrap();
        assert_eq!(run(restored.as_mut(), 50, 2), run(&mut remote_env, 50, 2));
        let result = remote_env.check_state(1, &[f64::NAN; 3], rlox_core::vector::EpisodeProgress::default());
        let rejected = assert_rejects(result, Error::NotFinite, "states");
        assert_eq!((&rejected.got[..], rejected.at.env, rejected.at.index), ("NaN", Some(1), Some(0)));
        let result = remote_env.check_state(1, &[0.0; 4], rlox_core::vector::EpisodeProgress::default());
        assert_eq!(assert_rejects(result, Error::Config, "state").got, "4");
    }
}

#[test]
fn seeds_masks_and_options_work_as_in_local_environments() {
    let worker = Worker::start(WorkerOptions::default()).unwrap();
    let env = EnvOptions::new("CartPole-v1", 3, 1);
    let mut local_env = local(&env);
    let mut remote_env = RemoteVecEnv::new(&[worker.address()], &env, &ClientOptions::default()).unwrap();
    let mut obs = [[0.0; 12]; 2];
    let options = ResetOptions::new([("low", -0.01), ("high", 0.02)]);
    for (seeds, mask) in [
        (Seeds::Each(&[Some(4), None, Some(1 << 40)]), None),
        (Seeds::Keep, Some([true, false, true])),
        (Seeds::Base(8), Some([false, false, true])),
    ] {
        let mask = mask.as_ref().map(|mask| &mask[..]);
        local_env.reset(seeds, mask, &options, &mut obs[0]).unwrap();
        remote_env.reset(seeds, mask, &options, &mut obs[1]).unwrap();
        assert_eq!(obs[0], obs[1]);
    }
    // Local and remote environments reject the same options, and do not change.
    for options in [ResetOptions::new([("lo", 0.0)]), ResetOptions::new([("low", 1.0), ("high", 0.0)])] {
        let mut a = assert_rejects(local_env.reset(Seeds::Keep, None, &options, &mut obs[0]), Error::Config, "options");
        let b = assert_rejects(remote_env.reset(Seeds::Keep, None, &options, &mut obs[1]), Error::Config, "options");
        a.at.worker = Some(worker.address());
        assert_eq!(a, b);
    }
    assert_eq!(run(local_env.as_mut(), 30, 3), run(&mut remote_env, 30, 3));
}

#[test]
fn errors_of_workers_have_global_indices() {
    let workers = [(); 2].map(|()| Worker::start(WorkerOptions::default()).unwrap());
    let addresses = [workers[0].address(), workers[1].address()];
    let env = EnvOptions::new("CartPole-v1", 5, 1);
    let mut env = RemoteVecEnv::new(&addresses, &env, &ClientOptions::default()).unwrap();
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 20]).unwrap();
    // The first worker has three of the five environments.
    for (index, worker) in [(1, 0), (4, 1)] {
        let mut state = env.state(index).unwrap();
        state[2] = f64::NAN;
        let error = env.check_state(index, &state, EpisodeProgress::default()).unwrap_err();
        let wrong = error.mismatch().unwrap();
        assert_eq!((&*wrong.argument, &*wrong.got), ("states", "NaN"));
        assert_eq!((wrong.at.env, wrong.at.index), (Some(index), Some(2)));
        assert_eq!(wrong.at.worker.as_ref(), Some(&addresses[worker]));
    }
}

#[test]
fn invalid_calls_are_rejected_before_anything_is_sent() {
    let workers = [(); 2].map(|()| Worker::start(WorkerOptions::default()).unwrap());
    let addresses = [workers[0].address(), workers[1].address()];
    let env = EnvOptions { autoreset_mode: AutoresetMode::Disabled, ..EnvOptions::new("CartPole-v1", 2, 1) };
    let mut remote_env = RemoteVecEnv::new(&addresses, &env, &ClientOptions::default()).unwrap();
    let step = |env: &mut RemoteVecEnv, actions: Actions<'_>| {
        let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0; 8], [0.0; 2], [false; 2], [false; 2]);
        let (terminated, truncated) = (&mut terminated, &mut truncated);
        let out = StepOut { obs: &mut obs, reward: &mut reward, terminated, truncated, final_obs: &mut [] };
        env.step(actions, out)
    };
    let early = assert_rejects(step(&mut remote_env, Actions::Discrete(&[0, 0])), Error::Action, "step");
    assert_eq!(early.got, "a call before reset");
    assert!(remote_env.observe(&mut [0.0; 8]).is_err());
    let mut obs = [0.0; 8];
    let half = remote_env.reset(Seeds::Keep, Some(&[true, false]), &ResetOptions::default(), &mut obs);
    assert_rejects(half, Error::Action, "reset_mask");
    assert!(remote_env.reset(Seeds::Base(u64::MAX), None, &ResetOptions::default(), &mut obs).is_err());
    let before = reset(&mut remote_env, Seeds::Base(1));
    for bad in [Actions::Discrete(&[0, 2]), Actions::Discrete(&[0]), Actions::Continuous(&[0.0, 0.0])] {
        assert!(step(&mut remote_env, bad).is_err());
        remote_env.observe(&mut obs).unwrap();
        assert_eq!(obs[..], before[..]);
    }
    // An environment whose episode has ended needs a reset.
    while step(&mut remote_env, Actions::Discrete(&[0, 0])).is_ok() {}
    let late = assert_rejects(step(&mut remote_env, Actions::Discrete(&[0, 0])), Error::Action, "step");
    assert_eq!(late.got, "an episode that is over");
}
