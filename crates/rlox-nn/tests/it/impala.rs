//! IMPALA: V-trace compared with a direct computation, equality with A2C if rollouts are not stale,
//! and actor threads.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    Actions, ActionsMut, AutoresetMode, EnvSpec, Error, Pcg64, Policy, PolicyOut, Result, RolloutBuffer, Seeds,
    VectorEnv, envs,
    field::{Field, FieldData},
    pipeline::StalenessPolicy,
};
use rlox_nn::train::{
    A2c, A2cConfig, AsyncOnPolicy, CollectConfig, Encoding, Impala, ImpalaConfig, Minibatches, OnPolicy, Ppo,
    PpoConfig, Schedule, collect_transitions,
};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, Mlp, NamedTensors, Optimizer, PolicyNetworks,
};

fn make(id: &str, num_envs: usize, autoreset_mode: AutoresetMode, limit: Option<u32>) -> Box<dyn VectorEnv> {
    let options =
        envs::MakeOptions { num_envs, autoreset_mode, max_episode_steps: limit.map(Some), ..Default::default() };
    envs::make(id, &options).unwrap()
}

fn cartpole(num_envs: usize) -> Box<dyn VectorEnv> {
    make("CartPole-v1", num_envs, AutoresetMode::SameStep, None)
}

fn networks(spec: &EnvSpec, rng: &mut Pcg64) -> Result<PolicyNetworks<Mlp>> {
    PolicyNetworks::mlp(spec, &[16, 16], Activation::Tanh, rng)
}

const SYNCHRONOUS: StalenessPolicy = StalenessPolicy { max_staleness: 0, deterministic: true };

/// Policy that records the targets it learns from.
struct RecordingPolicy {
    policy: PolicyNetworks<Mlp>,
    targets: Option<[Vec<f32>; 3]>,
}

impl Policy for RecordingPolicy {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        self.policy.act(obs, masks, rngs, out)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        self.policy.value(obs, values)
    }
}

impl ActorCritic for RecordingPolicy {
    fn act_stateless(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        out: PolicyOut<'_>,
    ) -> Result<()> {
        self.policy.act_stateless(obs, masks, rngs, out)
    }

    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.policy.act_deterministic(obs, masks, actions)
    }

    fn evaluate_actions(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        self.policy.evaluate_actions(obs, masks, actions, log_probs, values)
    }

    fn zero_gradients(&mut self) {
        self.policy.zero_gradients();
    }

    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats> {
        self.targets = Some([batch.advantages.to_vec(), batch.returns.to_vec(), batch.values.to_vec()]);
        self.policy.evaluate(batch, loss)
    }

    fn backward(&mut self) -> Result<()> {
        self.policy.backward()
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        self.policy.step(optimizer, max_grad_norm)
    }

    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        self.policy.draw_noise(rngs)
    }

    fn tensors(&self) -> NamedTensors {
        self.policy.tensors()
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.policy.load(tensors)
    }

    fn gradients(&self) -> NamedTensors {
        self.policy.gradients()
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.policy.optimizer_state()
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.policy.load_optimizer_state(state)
    }
}

/// Collects a rollout.
fn rollout(env: &mut dyn VectorEnv, policy: &mut dyn ActorCritic, n_steps: usize) -> RolloutBuffer {
    let mut buffer = RolloutBuffer::for_env(n_steps, env).unwrap();
    buffer.begin(env, Seeds::Base(3), None).unwrap();
    let mut streams: Vec<_> = (0..env.num_envs()).map(|i| Pcg64::seed_from(i as u128)).collect();
    let config = CollectConfig { gamma: 0.9, gae_lambda: 1.0, sde_sample_freq: 0 };
    collect_transitions(env, policy, &mut streams, &mut buffer, None, config, &mut || false).unwrap();
    buffer
}

fn numbers(buffer: &RolloutBuffer, name: &str) -> Vec<f64> {
    match buffer.field(name).map(Field::data).unwrap() {
        FieldData::F32(data) => data.iter().map(|x| f64::from(*x)).collect(),
        FieldData::Bool(data) => data.iter().map(|x| f64::from(*x)).collect(),
        FieldData::I64(data) => data.iter().map(|x| *x as f64).collect(),
        _ => unreachable!(),
    }
}

/// Returns advantages, returns and values of V-trace, computed without a recursion by equation 1 of
/// Espeholt et al.
fn slow_vtrace(policy: &mut dyn ActorCritic, buffer: &RolloutBuffer, config: &ImpalaConfig) -> [Vec<f64>; 3] {
    let (n, steps) = (buffer.num_envs(), buffer.n_steps());
    let FieldData::F32(obs) = buffer.field("obs").unwrap().data() else { unreachable!() };
    let FieldData::F32(final_obs) = buffer.final_obs() else { unreachable!() };
    let mut value = |obs: &[f32]| {
        let mut value = [0.0];
        policy.value(obs, &mut value).unwrap();
        f64::from(value[0])
    };
    let dim = obs.len() / ((steps + 1) * n);
    let values: Vec<f64> = obs.chunks(dim).map(&mut value).collect();
    let finals: Vec<f64> = final_obs.chunks(dim).map(&mut value).collect();
    let (actions, old) = (numbers(buffer, "actions"), numbers(buffer, "log_probs"));
    let ratio: Vec<f64> = (0..steps * n)
        .map(|row| {
            let mut log_prob = [0.0];
            let action = [actions[row] as i64];
            let obs_row = &obs[row * dim..][..dim];
            policy.evaluate_actions(obs_row, None, Actions::Discrete(&action), &mut log_prob, &mut [0.0]).unwrap();
            (f64::from(log_prob[0]) - old[row]).exp()
        })
        .collect();
    let [rewards, terminated, truncated, valid] =
        ["rewards", "terminated", "truncated", "valid"].map(|x| numbers(buffer, x));
    let done = |row: usize| terminated[row] + truncated[row] > 0.0;
    // The value of the state after the step of a row.
    let next = |row: usize| match buffer.final_index().iter().position(|cut| *cut == row) {
        Some(at) => finals[at],
        None if terminated[row] > 0.0 => 0.0,
        None => values[row + n],
    };
    let target = |row: usize| {
        let (mut sum, mut weight, mut at) = (0.0, 1.0, row);
        while at < steps * n {
            sum += weight * ratio[at].min(config.rho_bar) * (rewards[at] + config.gamma * next(at) - values[at]);
            if done(at) {
                break;
            }
            weight *= config.gamma * config.vtrace_lambda * ratio[at].min(config.c_bar);
            at += n;
        }
        values[row] + sum
    };
    let rows: Vec<usize> = (0..steps * n).filter(|row| valid[*row] > 0.0).collect();
    let returns = rows.iter().map(|row| target(*row)).collect();
    let advantages = rows.iter().map(|row| {
        let after = if done(*row) || row + n >= steps * n { next(*row) } else { target(row + n) };
        ratio[*row].min(config.rho_bar) * (rewards[*row] + config.gamma * after - values[*row])
    });
    [advantages.collect(), returns, rows.iter().map(|row| values[*row]).collect()]
}

#[test]
fn v_trace_targets_equal_a_slow_reference() {
    for mode in [AutoresetMode::SameStep, AutoresetMode::NextStep] {
        for (vtrace_lambda, rho_bar, c_bar) in [(1.0, 1.0, 1.0), (0.9, 2.0, 0.5), (0.0, f64::INFINITY, 1.0)] {
            let mut env = make("CartPole-v1", 3, mode, Some(14));
            let mut older = networks(env.spec(), &mut Pcg64::seed_from(1)).unwrap();
            let buffer = rollout(env.as_mut(), &mut older, 60);
            assert!(!buffer.final_index().is_empty() && numbers(&buffer, "terminated").contains(&1.0));
            let mut policy = networks(env.spec(), &mut Pcg64::seed_from(2)).unwrap();
            let mut tensors = NamedTensors::default();
            for tensor in policy.tensors() {
                // The factor makes the policy differ strongly from the policy that collected the
                // rollout.
                let factor = if tensor.name.contains("4.weight") { 40.0 } else { 1.0 };
                let data = tensor.data.iter().map(|x| x * factor).collect();
                tensors.push(tensor.name.clone(), &tensor.shape, data).unwrap();
            }
            policy.load(&tensors).unwrap();
            let config = ImpalaConfig { gamma: 0.9, vtrace_lambda, rho_bar, c_bar, ..ImpalaConfig::default() };
            let expected = slow_vtrace(&mut policy, &buffer, &config);
            let mut policy = RecordingPolicy { policy, targets: None };
            let mut minibatches = Minibatches::new(Encoding::Numbers(4));
            let learned = config.learn(&mut policy, &buffer, &mut minibatches, 0.0, &mut || false).unwrap();
            assert!(learned.stats.clip_fraction > 0.2 || rho_bar > 1.5, "{learned:?}");
            for (got, expected) in policy.targets.unwrap().iter().zip(expected) {
                assert_eq!(got.len(), expected.len());
                assert_eq!(got.len(), buffer.transitions());
                for (got, expected) in got.iter().zip(expected) {
                    let scale = expected.abs().max(1.0);
                    assert!((f64::from(*got) - expected).abs() < 2e-4 * scale, "{got} for {expected}");
                }
            }
        }
    }
}

#[test]
fn impala_without_staleness_equals_a2c() {
    let optimizer = Optimizer::rms_prop(1e-3);
    let shared = (16, 0.02, Schedule::Constant);
    let impala = ImpalaConfig {
        n_steps: shared.0,
        ent_coef: shared.1,
        lr_schedule: shared.2,
        optimizer,
        gamma: 0.95,
        ..ImpalaConfig::default()
    };
    let a2c = A2cConfig {
        n_steps: shared.0,
        ent_coef: shared.1,
        lr_schedule: shared.2,
        optimizer,
        gamma: 0.95,
        ..A2cConfig::default()
    };
    for mode in [AutoresetMode::SameStep, AutoresetMode::NextStep] {
        let env = || make("CartPole-v1", 4, mode, Some(20));
        let mut one = OnPolicy::new(env(), networks, impala.clone(), 5).unwrap();
        let mut other = A2c::new(env(), networks, a2c.clone(), 5).unwrap();
        for _ in 0..20 {
            let (one, other) = (one.iterate(0.0).unwrap(), other.iterate(0.0).unwrap());
            assert!(one.last_update.stats.approx_kl.abs() < 1e-6);
            assert!((one.last_update.stats.value_loss - other.last_update.stats.value_loss).abs() < 1e-3);
        }
        for (one, other) in one.policy().tensors().iter().zip(other.policy().tensors().iter()) {
            for (x, y) in one.data.iter().zip(&other.data) {
                assert!((x - y).abs() < 1e-5, "{}: {x} for {y}", one.name);
            }
        }
    }
}

#[test]
fn one_synchronous_actor_equals_on_policy() {
    let ppo = PpoConfig { n_steps: 8, batch_size: 8, n_epochs: 2, ..PpoConfig::default() };
    let mut alone = Ppo::new(cartpole(4), networks, ppo.clone(), 7).unwrap();
    let mut threads = AsyncOnPolicy::new(vec![cartpole(4)], networks, ppo, SYNCHRONOUS, 7).unwrap();
    let (one, other) = (alone.train(640, |_| true).unwrap(), threads.train(640, |_| true).unwrap());
    assert_eq!(one, other);
    assert_eq!(alone.policy().tensors(), threads.policy().tensors());
    assert_eq!(threads.stats().unwrap().max_staleness, 0);

    let mut alone = A2c::new(cartpole(4), networks, A2cConfig::default(), 7).unwrap();
    let mut threads = AsyncOnPolicy::new(vec![cartpole(4)], networks, A2cConfig::default(), SYNCHRONOUS, 7).unwrap();
    alone.train(400, |_| true).unwrap();
    let policy = {
        threads.train(400, |_| true).unwrap();
        threads.stop().unwrap()
    };
    assert_eq!(alone.policy().tensors(), policy.tensors());
}

#[test]
fn deterministic_runs_are_repeatable_with_any_staleness() {
    let trained_weights = |actors: usize, max_staleness, seed| {
        let envs = (0..actors).map(|_| cartpole(2)).collect();
        let staleness_policy = StalenessPolicy { max_staleness, deterministic: true };
        let mut impala = Impala::new(envs, networks, ImpalaConfig::default(), staleness_policy, seed).unwrap();
        impala.train(4000, |_| true).unwrap();
        assert_eq!(
            (impala.stats().unwrap().max_staleness, impala.staleness()),
            (max_staleness as u64, max_staleness as u64)
        );
        impala.stop().unwrap().tensors()
    };
    for (actors, max_staleness) in [(1, 1), (2, 2), (3, 1)] {
        assert_eq!(trained_weights(actors, max_staleness, 1), trained_weights(actors, max_staleness, 1));
    }
    assert_ne!(trained_weights(1, 1, 1), trained_weights(1, 1, 2));
    assert_ne!(trained_weights(1, 1, 1), trained_weights(1, 2, 1));
}

#[test]
fn invalid_combinations_are_rejected() {
    let new = |envs, config, staleness_policy| Impala::new(envs, networks, config, staleness_policy, 1);
    let free = |max_staleness| StalenessPolicy { max_staleness, deterministic: false };
    assert_rejects(new(vec![cartpole(1)], ImpalaConfig::default(), free(0)), Error::Config, "max_staleness");
    assert_rejects(new(vec![], ImpalaConfig::default(), StalenessPolicy::default()), Error::Config, "num_actors");
    let uneven = new(vec![cartpole(1), cartpole(2)], ImpalaConfig::default(), free(2));
    assert_rejects(uneven, Error::Config, "envs");
    for (config, name) in [
        (ImpalaConfig { n_steps: 0, ..ImpalaConfig::default() }, "n_steps"),
        (ImpalaConfig { vtrace_lambda: 1.5, ..ImpalaConfig::default() }, "vtrace_lambda"),
        (ImpalaConfig { rho_bar: -1.0, ..ImpalaConfig::default() }, "rho_bar"),
        (ImpalaConfig { c_bar: f64::NAN, ..ImpalaConfig::default() }, "c_bar"),
        (ImpalaConfig { ent_coef: -0.1, ..ImpalaConfig::default() }, "ent_coef"),
    ] {
        assert_rejects(new(vec![cartpole(1)], config, StalenessPolicy::default()), Error::Config, name);
    }
    let mut impala =
        Impala::new(vec![cartpole(1)], networks, ImpalaConfig::default(), StalenessPolicy::default(), 1).unwrap();
    assert!(matches!(impala.iterate(2.0), Err(Error::Config(_))));
    assert!(matches!(impala.resume(|_| true), Err(Error::Config(_))));
}
