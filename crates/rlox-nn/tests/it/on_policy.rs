//! On-policy trainers: learning, determinism by seed, and errors for invalid rollouts and settings.

use allocation_counter::measure;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    Actions, AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, RolloutBuffer, Seeds, Space, Step, VecEnv,
    VectorEnv, envs, normalize::NormalizerOptions,
};
use rlox_nn::train::{
    A2c, A2cConfig, CollectConfig, Encoding, IterationStreams, Minibatches, Ppo, PpoConfig, Schedule,
    collect_transitions, estimate_advantages,
};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Minibatch, Mlp, NamedTensors, Optimizer, PolicyBuilder, PolicyLoss,
    PolicyNetworks,
};

use crate::support::assert_independent_of_threads;

/// Environment with ten-step episodes and a reward for the action that equals this or the next observation.
struct Identity<A: ?Sized> {
    spec: EnvSpec,
    state: Vec<f32>,
    rewards_next_state: bool,
    kind: std::marker::PhantomData<fn(&A)>,
}

impl<A: ?Sized> Identity<A> {
    fn new(action: Space, observations: usize) -> Self {
        let spec = EnvSpec {
            id: "Identity-v0".into(),
            observation: Space::uniform_box(-1.0, 2.0, &[observations]),
            action,
            max_episode_steps: Some(10),
        };
        Self { spec, state: vec![0.0; observations], rewards_next_state: false, kind: std::marker::PhantomData }
    }

    fn draw(&mut self, rng: &mut Pcg64, obs: &mut [f32]) {
        match &self.spec.action {
            // A one-hot observation.
            Space::Discrete { n, .. } => {
                self.state.fill(0.0);
                self.state[rng.integers(0, *n) as usize] = 1.0;
            }
            Space::MultiDiscrete { nvec, .. } => {
                self.state.iter_mut().zip(nvec).for_each(|(x, n)| *x = rng.integers(0, *n) as f32);
            }
            Space::MultiBinary { .. } => self.state.iter_mut().for_each(|x| *x = rng.integers(0, 2) as f32),
            Space::Box { .. } => self.state.iter_mut().for_each(|x| *x = rng.uniform(-1.0, 1.0) as f32),
        }
        obs.copy_from_slice(&self.state);
    }
}

macro_rules! identity {
    ($action:ty, |$env:ident, $chosen:ident| $reward:expr) => {
        impl Env for Identity<$action> {
            type Action = $action;

            fn spec(&self) -> &EnvSpec {
                &self.spec
            }

            fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
                self.draw(rng, obs);
            }

            fn step(&mut self, $chosen: &$action, rng: &mut Pcg64, obs: &mut [f32]) -> Step {
                if self.rewards_next_state {
                    self.draw(rng, obs);
                }
                let $env = &*self;
                let reward = $reward;
                self.draw(rng, obs);
                Step { reward, terminated: false, truncated: false }
            }
        }
    };
}
identity!(i64, |env, action| f64::from(env.state[*action as usize]));
identity!([i64], |env, action| {
    let correct = env.state.iter().zip(action).filter(|(x, a)| **x == **a as f32).count();
    correct as f64 / env.state.len() as f64
});
identity!([f32], |env, action| {
    let squared_error: f32 = env.state.iter().zip(action).map(|(x, a)| (x - a) * (x - a)).sum();
    f64::from(1.0 - squared_error)
});

fn copies<A: ?Sized + 'static>(action: &Space, observations: usize) -> Box<dyn VectorEnv>
where
    Identity<A>: Env,
{
    identity_envs(action, observations, false)
}

fn identity_envs<A: ?Sized + 'static>(
    action: &Space,
    observations: usize,
    rewards_next_state: bool,
) -> Box<dyn VectorEnv>
where
    Identity<A>: Env,
{
    let make = || Identity::<A> { rewards_next_state, ..Identity::new(action.clone(), observations) };
    Box::new(VecEnv::new(8, None, AutoresetMode::SameStep, make).unwrap())
}

fn mean(returns: &[f64]) -> f64 {
    returns.iter().sum::<f64>() / returns.len() as f64
}

type PolicyResult = rlox_core::Result<PolicyNetworks<Mlp>>;

fn two_networks(spec: &EnvSpec, rng: &mut Pcg64) -> PolicyResult {
    PolicyNetworks::mlp(spec, &[32], Activation::Tanh, rng)
}

fn one_network(spec: &EnvSpec, rng: &mut Pcg64) -> PolicyResult {
    PolicyBuilder::new(spec).net_arch(&[32]).shared_trunk(true).build(rng)
}

fn with_sde(spec: &EnvSpec, rng: &mut Pcg64) -> PolicyResult {
    PolicyBuilder::new(spec).net_arch(&[32]).use_sde(true).log_std_init(-1.0).build(rng)
}

#[test]
fn ppo_solves_identity_for_all_action_spaces() {
    let adam = Optimizer::Adam { lr: 3e-3, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
    let config =
        PpoConfig { n_steps: 32, batch_size: 64, n_epochs: 10, gamma: 0.0, optimizer: adam, ..Default::default() };
    let discrete = Space::discrete(4);
    let (bits, numbers) = (Space::MultiBinary { n: 3 }, Space::uniform_box(-1.0, 1.0, &[2]));
    let multi_discrete = Space::MultiDiscrete { nvec: vec![3, 2] };
    for (name, env, make) in [
        (
            "discrete",
            (|space| copies::<i64>(space, 4)) as fn(&Space) -> _,
            two_networks as fn(&EnvSpec, &mut Pcg64) -> PolicyResult,
        ),
        ("discrete, one network", |space| copies::<i64>(space, 4), one_network),
        ("multi-discrete", |space| copies::<[i64]>(space, 2), two_networks),
        ("binary", |space| copies::<[i64]>(space, 3), two_networks),
        ("box", |space| copies::<[f32]>(space, 2), two_networks),
        ("box, gSDE", |space| copies::<[f32]>(space, 2), with_sde),
    ] {
        let space = if name.starts_with("discrete") {
            &discrete
        } else if name == "binary" {
            &bits
        } else if name == "multi-discrete" {
            &multi_discrete
        } else {
            &numbers
        };
        let mut ppo = Ppo::new(env(space), make, config.clone(), 3).unwrap();
        ppo.train(16_000, |_| true).unwrap();
        let score = mean(&ppo.evaluate(env(space).as_mut(), 20, 7).unwrap());
        assert!(score > 9.5, "{name}: {score} of 10");
    }
}

#[test]
fn iterations_do_not_allocate() {
    let space = Space::discrete(4);
    let normalize = Some(NormalizerOptions::default());
    let config = PpoConfig { n_steps: 16, batch_size: 32, normalize, ..Default::default() };
    let mut ppo = Ppo::new(copies::<i64>(&space, 4), two_networks, config, 3).unwrap();
    // Later iterations do not enlarge the buffer of final observations.
    ppo.train(4_000, |_| true).unwrap();
    assert_eq!(measure(|| (0..10).for_each(|_| ppo.iterate(0.5).map(|_| ()).unwrap())).count_total, 0);
    let numbers = Space::uniform_box(-1.0, 1.0, &[2]);
    let mut a2c = A2c::new(copies::<[f32]>(&numbers, 2), with_sde, A2cConfig::default(), 3).unwrap();
    a2c.train(4_000, |_| true).unwrap();
    assert_eq!(measure(|| (0..10).for_each(|_| a2c.iterate(0.5).map(|_| ()).unwrap())).count_total, 0);
}

#[test]
fn a2c_solves_identity_unless_rewards_are_unrelated() {
    let space = Space::discrete(4);
    let optimizer = Optimizer::RmsProp { lr: 3e-3, alpha: 0.99, eps: 1e-5 };
    let config = A2cConfig { gamma: 0.0, optimizer, ..Default::default() };
    let mut a2c = A2c::new(copies::<i64>(&space, 4), two_networks, config.clone(), 3).unwrap();
    a2c.train(16_000, |_| true).unwrap();
    assert!(mean(&a2c.evaluate(copies::<i64>(&space, 4).as_mut(), 20, 7).unwrap()) > 9.5);
    let mut a2c = A2c::new(identity_envs::<i64>(&space, 4, true), two_networks, config, 3).unwrap();
    a2c.train(16_000, |_| true).unwrap();
    assert!(mean(&a2c.evaluate(copies::<i64>(&space, 4).as_mut(), 20, 7).unwrap()) < 6.0);
}

fn make(id: &str, num_envs: usize) -> Box<dyn VectorEnv> {
    let options = envs::MakeOptions { num_envs, ..Default::default() };
    envs::make(id, &options).unwrap()
}

/// Returns the weights after a short run.
fn trained_weights(seed: u64) -> NamedTensors {
    let config =
        PpoConfig { n_steps: 64, n_epochs: 2, normalize: Some(NormalizerOptions::default()), ..Default::default() };
    let make_policy = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
    let mut ppo = Ppo::new(make("CartPole-v1", 8), make_policy, config, seed).unwrap();
    ppo.train(2_000, |_| true).unwrap();
    assert_eq!(ppo.timesteps(), 2048);
    ppo.policy().tensors()
}

#[test]
fn seeds_determine_the_weights() {
    assert_eq!(trained_weights(1), trained_weights(1));
    assert_ne!(trained_weights(1), trained_weights(2));
}

/// Returns a checksum that depends on every bit.
fn checksum(tensors: &NamedTensors) -> u64 {
    let bits = tensors.iter().flat_map(|tensor| &tensor.data).map(|x| u64::from(x.to_bits()));
    bits.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn weights_do_not_depend_on_the_number_of_threads() {
    let name = "on_policy::weights_do_not_depend_on_the_number_of_threads";
    assert_independent_of_threads(name, || format!("{:x}", checksum(&trained_weights(1))));
}

#[test]
fn target_kl_ends_updates() {
    let updates = |target_kl| {
        let adam = Optimizer::adam(3e-3);
        let config = PpoConfig { n_steps: 64, n_epochs: 10, target_kl, optimizer: adam, ..Default::default() };
        let mut ppo = Ppo::new(make("CartPole-v1", 8), two_networks, config, 1).unwrap();
        ppo.train(2_000, |_| true).unwrap().updates
    };
    assert_eq!(updates(None), 40);
    assert!(updates(Some(1e-4)) < 20);
}

#[test]
fn linear_schedules_decrease_and_callbacks_end_the_run() {
    let config = PpoConfig { n_steps: 16, batch_size: 32, lr_schedule: Schedule::Linear, ..Default::default() };
    let mut ppo = Ppo::new(make("Pendulum-v1", 2), two_networks, config, 1).unwrap();
    let mut rates = Vec::new();
    ppo.train(320, |metrics| {
        rates.push(metrics.last_update.learning_rate);
        rates.len() < 5
    })
    .unwrap();
    assert_eq!(rates.len(), 5);
    assert!((rates[4] - 3e-4 * 0.6).abs() < 1e-9 && rates[0] == 3e-4, "{rates:?}");
}

#[test]
fn rollouts_with_only_resets_are_collected_again() {
    let options = envs::MakeOptions {
        num_envs: 2,
        autoreset_mode: AutoresetMode::NextStep,
        max_episode_steps: Some(Some(1)),
        ..Default::default()
    };
    let env = envs::make("CartPole-v1", &options).unwrap();
    let mut a2c = A2c::new(env, two_networks, A2cConfig { n_steps: 1, ..Default::default() }, 1).unwrap();
    let metrics = a2c.train(8, |_| true).unwrap();
    assert_eq!((metrics.timesteps, metrics.updates), (8, 4));
}

#[test]
fn updates_equal_evaluate_backward_and_step() {
    let env = make("Pendulum-v1", 1);
    let (mut large, rows) = (two_networks(env.spec(), &mut Pcg64::seed_from(1)).unwrap(), 2500_usize);
    let mut rng = Pcg64::seed_from(2);
    let mut draw = |len: usize| (0..len).map(|_| rng.uniform(-1.0, 1.0) as f32).collect::<Vec<_>>();
    let [obs, actions] = [draw(3 * rows), draw(rows)];
    let [log_probs, values, advantages, returns] = std::array::from_fn(|_| draw(rows));
    let batch = |part: std::ops::Range<usize>| Minibatch {
        obs: &obs[3 * part.start..3 * part.end],
        actions: Actions::Continuous(&actions[part.clone()]),
        masks: None,
        log_probs: &log_probs[part.clone()],
        values: &values[part.clone()],
        advantages: &advantages[part.clone()],
        returns: &returns[part],
    };
    let loss = ActorCriticLoss {
        policy: PolicyLoss::Clipped { clip_coef: 0.2 },
        clip_coef_vf: Some(0.3),
        vf_coef: 0.5,
        ent_coef: 0.01,
    };
    // The expected result computes all rows in one call of `evaluate` and `backward`.
    let mut full = large.clone();
    let expected = full.evaluate(&batch(0..rows), &loss).unwrap();
    full.backward().unwrap();
    let norm = full.step(&Optimizer::adam(1e-3), None).unwrap();
    let result = large.update(&batch(0..rows), &loss, &Optimizer::adam(1e-3), None).unwrap();
    for (a, b) in [
        (result.policy_loss, expected.policy_loss),
        (result.value_loss, expected.value_loss),
        (result.entropy_loss, expected.entropy_loss),
        (result.loss, expected.loss),
        (result.approx_kl, expected.approx_kl),
        (result.clip_fraction, expected.clip_fraction),
        (result.grad_norm, norm),
    ] {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
    for (a, b) in large.tensors().iter().zip(&full.tensors()) {
        assert!(a.data.iter().zip(&b.data).all(|(a, b)| (a - b).abs() < 2e-5), "{}", a.name);
    }
}

#[test]
fn rejected_minibatches_leave_no_gradients() {
    let env = make("CartPole-v1", 1);
    let mut policy = two_networks(env.spec(), &mut Pcg64::seed_from(0)).unwrap();
    let obs = vec![0.1; 4 * 512];
    let (zeros, ones) = (vec![0.0; 512], vec![1.0; 512]);
    let mut actions = vec![0; 512];
    actions[9] = 2;
    let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.0 };
    let mut update = |actions: &[i64]| {
        let batch = Minibatch {
            obs: &obs,
            actions: Actions::Discrete(actions),
            masks: None,
            log_probs: &zeros,
            values: &zeros,
            advantages: &ones,
            returns: &ones,
        };
        let result = policy.update(&batch, &loss, &Optimizer::adam(1e-3), None);
        let grad_sum: f32 = policy.gradients().iter().flat_map(|tensor| &tensor.data).map(|x| x.abs()).sum();
        (result, grad_sum)
    };
    let (result, grad_sum) = update(&actions);
    let rejected = assert_rejects(result, Error::Action, "actions");
    assert_eq!((&rejected.got[..], rejected.at.row), ("2", Some(9)));
    assert_eq!(grad_sum, 0.0);
    actions[9] = 1;
    assert!(update(&actions).0.unwrap().grad_norm > 0.0);
}

#[test]
fn constructors_reject_settings_out_of_range() {
    let default = PpoConfig::default();
    for (config, name) in [
        (PpoConfig { n_steps: 0, ..default.clone() }, "n_steps"),
        (PpoConfig { batch_size: 0, ..default.clone() }, "batch_size"),
        (PpoConfig { n_steps: 4, ..default.clone() }, "batch_size"),
        (PpoConfig { gamma: 1.5, ..default.clone() }, "gamma"),
        (PpoConfig { gae_lambda: f64::NAN, ..default.clone() }, "gae_lambda"),
        (PpoConfig { clip_coef: -0.1, ..default.clone() }, "clip_coef"),
        (PpoConfig { vf_coef: f32::INFINITY, ..default.clone() }, "vf_coef"),
        (PpoConfig { optimizer: Optimizer::adam(f32::NAN), ..default.clone() }, "lr"),
        (PpoConfig { optimizer: Optimizer::RmsProp { lr: 0.1, alpha: 1.0, eps: 1e-5 }, ..default }, "alpha"),
    ] {
        assert_rejects(Ppo::new(make("CartPole-v1", 8), two_networks, config, 0), Error::Config, name);
    }
    let mut ppo = Ppo::new(make("CartPole-v1", 8), two_networks, default, 0).unwrap();
    assert_rejects(ppo.iterate(1.5), Error::Config, "progress");
    assert_rejects(with_sde(make("CartPole-v1", 1).spec(), &mut Pcg64::seed_from(0)), Error::Space, "use_sde");
}

#[test]
fn non_finite_outputs_are_rejected_with_the_timesteps() {
    let space = Space::discrete(4);
    let config = PpoConfig { n_steps: 16, batch_size: 64, optimizer: Optimizer::adam(1e-3), ..Default::default() };
    let mut ppo = Ppo::new(copies::<i64>(&space, 4), two_networks, config, 3).unwrap();
    ppo.train(256, |_| true).unwrap();
    let mut weights = NamedTensors::default();
    for tensor in &ppo.policy().tensors() {
        weights.push(tensor.name.clone(), &tensor.shape, vec![3e38; tensor.data.len()]).unwrap();
    }
    ppo.policy_mut().load(&weights).unwrap();
    let at = assert_rejects(ppo.iterate(0.0), Error::NotFinite, "logits").at;
    assert_eq!((at.row, at.timesteps), (Some(0), Some(256)));
}

const ENVS: usize = 2;

/// Returns a policy for the actions of `CartPole` with `inputs` inputs.
fn policy(inputs: usize) -> PolicyNetworks<Mlp> {
    let observation = Space::uniform_box(-1.0, 1.0, &[inputs]);
    let spec = EnvSpec { id: "none".into(), observation, action: Space::discrete(2), max_episode_steps: None };
    PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap()
}

/// Returns a finished rollout of `CartPole`.
fn rollout() -> RolloutBuffer {
    let mut env = VecEnv::new(ENVS, None, AutoresetMode::SameStep, envs::CartPole::default).unwrap();
    let mut streams = IterationStreams::new(1, ENVS).unwrap();
    let mut buffer = RolloutBuffer::for_env(16, &env).unwrap();
    buffer.begin(&mut env, Seeds::Base(3), None).unwrap();
    let config = CollectConfig::default();
    let actions = &mut streams.actions;
    collect_transitions(&mut env, &mut policy(4), actions, &mut buffer, None, config, &mut || false).unwrap();
    buffer
}

#[test]
fn observations_of_wrong_width_are_rejected() {
    let (mut buffer, mut policy) = (rollout(), policy(2));
    let before = policy.tensors();
    let mut minibatches = Minibatches::new(Encoding::Numbers(2));
    let order = &mut Pcg64::seed_from(0);
    let ppo = PpoConfig::default().learn(&mut policy, &buffer, &mut minibatches, order, 0.0, &mut || false);
    let a2c = A2cConfig::default().learn(&mut policy, &buffer, &mut minibatches, 0.0, &mut || false);
    let encoding = Encoding::OneHot(vec![1, 1]);
    let estimated = estimate_advantages(&mut policy, &mut buffer, &encoding, &mut Vec::new(), 0.99, 0.95);
    for (result, encoding) in
        [(ppo.map(drop), "Numbers(2)"), (a2c.map(drop), "Numbers(2)"), (estimated, "OneHot([1, 1])")]
    {
        let rejected = assert_rejects(result, Error::Shape, "obs");
        assert_eq!((rejected.expected, &rejected.got[..]), (format!("rows of 2 numbers for {encoding}"), "4"));
    }
    assert_eq!(policy.tensors(), before);
}

/// Checks that actions of an earlier rollout with another kind of actions are removed from
/// minibatches.
#[test]
fn minibatches_can_change_the_kind_of_actions() {
    let mut minibatches = Minibatches::new(Encoding::Numbers(2));
    let mut learn = |env: &mut dyn VectorEnv| {
        let mut policy = PolicyNetworks::mlp(env.spec(), &[4], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
        let mut buffer = RolloutBuffer::for_env(8, env).unwrap();
        buffer.begin(env, Seeds::Base(0), None).unwrap();
        let mut streams = IterationStreams::new(0, 1).unwrap();
        let config = CollectConfig::default();
        let actions = &mut streams.actions;
        collect_transitions(env, &mut policy, actions, &mut buffer, None, config, &mut || false).unwrap();
        let config = PpoConfig { batch_size: 8, n_epochs: 1, ..PpoConfig::default() };
        let order = &mut streams.order;
        config.learn(&mut policy, &buffer, &mut minibatches, order, 0.0, &mut || false).unwrap().updates
    };
    let mode = AutoresetMode::SameStep;
    let mut discrete = VecEnv::new(1, None, mode, envs::MountainCar::default).unwrap();
    let mut continuous = VecEnv::new(1, None, mode, envs::MountainCarContinuous::default).unwrap();
    assert_eq!([learn(&mut discrete), learn(&mut continuous), learn(&mut discrete)], [1; 3]);
}

#[test]
fn updates_reject_settings_out_of_range() {
    let (buffer, mut policy) = (rollout(), policy(4));
    let mut minibatches = Minibatches::new(Encoding::Numbers(4));
    let order = &mut Pcg64::seed_from(0);
    let config = PpoConfig { batch_size: 0, ..PpoConfig::default() };
    let result = config.learn(&mut policy, &buffer, &mut minibatches, order, 0.0, &mut || false);
    assert_eq!(assert_rejects(result, Error::Config, "batch_size").got, "0");
    let config = A2cConfig { optimizer: Optimizer::rms_prop(f32::NAN), ..A2cConfig::default() };
    let result = config.learn(&mut policy, &buffer, &mut minibatches, 0.0, &mut || false);
    assert_rejects(result, Error::Config, "lr");
}
