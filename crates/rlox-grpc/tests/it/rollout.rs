//! Remote rollouts equal local rollouts, with masks, gSDE noise, autoreset modes and killed workers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::support::process::{Process, killer};
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{
    Actions, AutoresetMode, Env, EnvSpec, Pcg64, ResetOptions, Result, Seeds, Space, Step, StepOut, VectorEnv,
    pipeline::StalenessPolicy,
};
use rlox_grpc::{ClientOptions, EnvOptions, MakeEnv, RemoteVecEnv, Worker, WorkerOptions, build_async_on_policy};
use rlox_nn::train::{AsyncOnPolicy, ImpalaConfig, PpoConfig};
use rlox_nn::{Activation, ActorCritic, Mlp, NamedTensors, PolicyBuilder, PolicyNetworks};

type Networks = PolicyNetworks<Mlp>;

/// A corridor with action masks. Staying is allowed only in the middle. Walking into a wall is not
/// allowed.
#[derive(Clone)]
struct Corridor {
    at: usize,
    /// True if the environment supports snapshots.
    has_state: bool,
    spec: EnvSpec,
}

fn allowed(at: usize) -> [bool; 3] {
    [(1..4).contains(&at), at == 2, at < 4]
}

impl Env for Corridor {
    type Action = i64;
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }
    fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.at = rng.integers(0, 3) as usize;
        obs[0] = self.at as f32;
    }
    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        assert!(allowed(self.at)[*action as usize], "{action} at {}", self.at);
        self.at = self.at + *action as usize - 1;
        obs[0] = self.at as f32;
        Step { reward: self.at as f64, terminated: self.at == 4, truncated: false }
    }
    fn has_action_mask(&self) -> bool {
        true
    }
    fn action_mask(&self, mask: &mut [bool]) {
        mask.copy_from_slice(&allowed(self.at));
    }
    fn state(&self) -> Option<Vec<f64>> {
        self.has_state.then(|| vec![self.at as f64])
    }
    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        self.at = state[0] as usize;
        obs[0] = self.at as f32;
        Ok(())
    }
}

fn make(id: &str, options: &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> {
    if !id.starts_with("Corridor") {
        return envs::make(id, options);
    }
    let (observation, action) = (Space::uniform_box(0.0, 4.0, &[1]), Space::discrete(3));
    let spec = EnvSpec { id: id.into(), observation, action, max_episode_steps: Some(9) };
    options.build_vec_env(Corridor { at: 0, has_state: id != "CorridorWithoutState-v0", spec })
}

fn workers() -> [Worker; 2] {
    let make: MakeEnv = Arc::new(make);
    [(); 2].map(|()| Worker::start(WorkerOptions { make: Arc::clone(&make), ..WorkerOptions::default() }).unwrap())
}

fn local(env: &EnvOptions) -> Box<dyn VectorEnv> {
    let EnvOptions { num_envs, seed, autoreset_mode, max_episode_steps, arguments, .. } = env;
    let (num_envs, autoreset_mode, max_episode_steps) = (*num_envs, *autoreset_mode, *max_episode_steps);
    make(&env.id, &MakeOptions { num_envs, seed: Some(*seed), autoreset_mode, max_episode_steps, arguments }).unwrap()
}

/// Returns the metrics of several updates, and the weights after the updates.
fn train<P: ActorCritic + 'static>(
    mut trainer: AsyncOnPolicy<PpoConfig, P>,
    updates: usize,
) -> (Vec<String>, NamedTensors) {
    let results = (0..updates).map(|_| format!("{:?}", trainer.iterate(0.5).unwrap())).collect();
    (results, trainer.stop().unwrap().tensors())
}

fn compare(env: &EnvOptions, networks: impl Fn(&EnvSpec, &mut Pcg64) -> Result<Networks> + Copy, sde_every: usize) {
    let workers = workers();
    let addresses = workers.each_ref().map(Worker::address);
    let config = PpoConfig { n_steps: 16, batch_size: 16, sde_sample_freq: sde_every, ..PpoConfig::default() };
    let (staleness, options) = (StalenessPolicy { max_staleness: 1, deterministic: true }, ClientOptions::default());
    let local_trainer =
        AsyncOnPolicy::new(vec![local(env), local(env)], networks, config.clone(), staleness, 3).unwrap();
    let remote_trainer = build_async_on_policy(&addresses, env, 2, networks, config, staleness, 3, &options).unwrap();
    assert_eq!(train(local_trainer, 8), train(remote_trainer, 8), "{env:?}");
}

fn default_networks(spec: &EnvSpec, rng: &mut Pcg64) -> Result<Networks> {
    PolicyNetworks::mlp(spec, &[16, 16], Activation::Tanh, rng)
}

#[test]
fn remote_rollouts_respect_masks() {
    for autoreset_mode in [AutoresetMode::SameStep, AutoresetMode::NextStep] {
        compare(&EnvOptions { autoreset_mode, ..EnvOptions::new("Corridor-v0", 4, 0) }, default_networks, 0);
    }
}

#[test]
fn state_dependent_noise_equals_local_noise() {
    let sde = |spec: &EnvSpec, rng: &mut Pcg64| {
        PolicyBuilder::new(spec).net_arch(&[16, 16]).use_sde(true).log_std_init(-1.0).build(rng)
    };
    let env = EnvOptions { max_episode_steps: Some(Some(25)), ..EnvOptions::new("Pendulum-v1", 4, 0) };
    for every in [0, 4] {
        compare(&env, sde, every);
    }
}

#[test]
fn next_step_autoreset_equals_local_rollouts() {
    let (autoreset_mode, max_episode_steps) = (AutoresetMode::NextStep, Some(Some(20)));
    for id in ["CartPole-v1", "Pendulum-v1"] {
        compare(&EnvOptions { autoreset_mode, max_episode_steps, ..EnvOptions::new(id, 4, 0) }, default_networks, 0);
    }
}

#[test]
fn environments_without_state_equal_local_environments() {
    compare(&EnvOptions::new("CorridorWithoutState-v0", 4, 0), default_networks, 0);
}

#[test]
fn environments_without_state_replay_all_requests() {
    let [first, second] = workers();
    let env = EnvOptions::new("CorridorWithoutState-v0", 2, 5);
    let options = ClientOptions { snapshot_every: 3, ..ClientOptions::default() };
    let (mut local_env, addresses) = (local(&env), [first.address(), second.address()]);
    let mut remote_env = RemoteVecEnv::new(&addresses, &env, &options).unwrap();
    local_env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 2]).unwrap();
    remote_env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 2]).unwrap();
    let mut run = |steps: usize, remote_env: &mut RemoteVecEnv| {
        let trace = |env: &mut dyn VectorEnv| {
            let (mut obs, mut masks, mut results) = (vec![0.0; 2], vec![true; 6], Vec::new());
            let (mut reward, mut terminated, mut truncated) = (vec![0.0; 2], vec![false; 2], vec![false; 2]);
            for _ in 0..steps {
                env.action_masks(&mut masks).unwrap();
                let first = |row: &[bool]| row.iter().rposition(|allowed| *allowed).unwrap() as i64;
                let actions: Vec<_> = masks.chunks(3).map(first).collect();
                let (over, cut) = (&mut terminated, &mut truncated);
                let out = StepOut {
                    obs: &mut obs,
                    reward: &mut reward,
                    terminated: over,
                    truncated: cut,
                    final_obs: &mut [],
                };
                env.step(Actions::Discrete(&actions), out).unwrap();
                results.push((obs.clone(), masks.clone(), reward.clone(), terminated.clone()));
            }
            results
        };
        assert_eq!(trace(remote_env), trace(local_env.as_mut()));
    };
    run(30, &mut remote_env);
    first.stop().unwrap();
    run(30, &mut remote_env);
    let faults = remote_env.faults();
    assert_eq!((faults.lost, faults.restarted), (1, 1));
    assert_eq!(faults.replayed, 31, "a reset and 30 steps");
    let opened = second.counters().opened.load(Relaxed);
    assert!(rlox_core::vector::EnvSnapshot::capture(&remote_env).unwrap().is_none());
    run(1, &mut remote_env);
    assert_eq!(second.counters().opened.load(Relaxed), opened, "a snapshot request opens no session");
}

#[test]
fn killed_workers_do_not_change_rollouts() {
    compare_under_kills(4, Duration::from_millis(300));
}

#[test]
#[ignore = "half a minute of random kills"]
fn thirty_kills_do_not_change_rollouts() {
    compare_under_kills(30, Duration::from_secs(1));
}

fn compare_under_kills(count: usize, every: Duration) {
    let env = EnvOptions::new("CartPole-v1", 4, 0);
    let config = ImpalaConfig { n_steps: 20, ..ImpalaConfig::default() };
    let (staleness, options) = (StalenessPolicy { max_staleness: 2, deterministic: true }, ClientOptions::default());
    let workers: Vec<_> = (0..3).map(|_| Process::start(&[])).collect();
    let addresses: Vec<_> = workers.iter().map(|worker| worker.address.clone()).collect();
    let mut local_trainer =
        AsyncOnPolicy::new(vec![local(&env), local(&env)], default_networks, config.clone(), staleness, 3).unwrap();
    let mut remote_trainer =
        build_async_on_policy(&addresses, &env, 2, default_networks, config, staleness, 3, &options).unwrap();
    let (done, killer) = killer(count, every, workers);
    let mut rollouts = 0;
    while !done.load(Relaxed) {
        assert_eq!(
            format!("{:?}", remote_trainer.iterate(0.5).unwrap()),
            format!("{:?}", local_trainer.iterate(0.5).unwrap())
        );
        rollouts += 1;
    }
    assert!(rollouts > count);
    assert_eq!(remote_trainer.stop().unwrap().tensors(), local_trainer.stop().unwrap().tensors());
    drop(killer.join().unwrap());
}
