//! DQN, SAC and TD3, as trainers and composed of their parts: learning, and results that do not
//! depend on the number of threads.

use allocation_counter::measure;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step, VecEnv, VectorEnv, envs,
    normalize::NormalizerOptions,
};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, EntCoef, OffPolicy, OffPolicyMethod, Sac, SacConfig, Td3, Td3Config, evaluate_policy,
};
use rlox_nn::{
    ActionValue, Activation, CriticEnsemble, DeterministicActor, DeterministicPolicy, Mlp, NamedTensors, Optimizer,
    QFunction, QNetworks, SquashedPolicy, StochasticPolicy, Temperature,
};

use crate::support::assert_independent_of_threads;
use crate::support::learners::{
    ACT, DOUBLE, OBS, SacParts, Td3Parts, batch, largest, q_networks, squashed, twin_critics,
};

type SacOf = Sac<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>;
type Td3Of = Td3<DeterministicActor<Mlp>, CriticEnsemble<Mlp>>;
type DqnOf = Dqn<QNetworks<Mlp>>;

const HIDDEN: &[usize] = &[32];

/// Environment with episodes of ten steps that rewards actions equal to the observation.
struct Identity<A: ?Sized> {
    spec: EnvSpec,
    state: Vec<f32>,
    kind: std::marker::PhantomData<fn(&A)>,
}

impl<A: ?Sized> Identity<A> {
    fn new(action: Space, observations: usize) -> Self {
        let spec = EnvSpec {
            id: "Identity-v0".into(),
            observation: Space::uniform_box(-1.0, 1.0, &[observations]),
            action,
            max_episode_steps: Some(10),
        };
        Self { spec, state: vec![0.0; observations], kind: std::marker::PhantomData }
    }

    fn draw(&mut self, rng: &mut Pcg64, obs: &mut [f32]) {
        if let Space::Discrete { n, .. } = self.spec.action {
            self.state.fill(0.0);
            self.state[rng.integers(0, n) as usize] = 1.0;
        } else {
            self.state.iter_mut().for_each(|x| *x = rng.uniform(-1.0, 1.0) as f32);
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
                let $env = &*self;
                let reward = $reward;
                self.draw(rng, obs);
                Step { reward, terminated: false, truncated: false }
            }
        }
    };
}
// Integer actions start at 5.
identity!(i64, |env, action| f64::from(env.state[*action as usize - 5]));
// Continuous actions are between -3 and 1.
identity!([f32], |env, action| {
    let off: f32 = env.state.iter().zip(action).map(|(x, a)| (2.0 * x - 1.0 - a) * (2.0 * x - 1.0 - a)).sum();
    f64::from(1.0 - 0.25 * off)
});

fn discrete() -> Box<dyn VectorEnv> {
    let make = || Identity::<i64>::new(Space::Discrete { n: 4, start: 5 }, 4);
    Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, make).unwrap())
}

fn continuous() -> Box<dyn VectorEnv> {
    let make = || Identity::<[f32]>::new(Space::uniform_box(-3.0, 1.0, &[2]), 2);
    Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, make).unwrap())
}

fn make(id: &str, num_envs: usize) -> Box<dyn VectorEnv> {
    let options = envs::MakeOptions { num_envs, ..Default::default() };
    envs::make(id, &options).unwrap()
}

fn small_q_networks(spec: &EnvSpec, rng: &mut Pcg64) -> Result<QNetworks<Mlp>> {
    QNetworks::mlp(spec, HIDDEN, Activation::Relu, rng)
}

fn new_sac(env: Box<dyn VectorEnv>, config: &SacConfig, seed: u64) -> Result<SacOf> {
    Sac::new(env, |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng), config.clone(), seed)
}

fn new_td3(env: Box<dyn VectorEnv>, config: &Td3Config, seed: u64) -> Result<Td3Of> {
    Td3::new(env, |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng), config.clone(), seed)
}

fn new_dqn(env: Box<dyn VectorEnv>, config: &DqnConfig, seed: u64) -> Result<DqnOf> {
    Dqn::new(env, small_q_networks, config.clone(), seed)
}

fn mean(returns: &[f64]) -> f64 {
    returns.iter().sum::<f64>() / returns.len() as f64
}

/// Returns settings for short runs.
fn sac_config() -> SacConfig {
    SacConfig { batch_size: 64, gamma: 0.0, optimizer: Optimizer::adam(3e-3), ..SacConfig::default() }
}

fn td3_config() -> Td3Config {
    Td3Config {
        batch_size: 64,
        gamma: 0.0,
        action_noise: Some(ActionNoise::Gaussian { sigma: 0.1 }),
        optimizer: Optimizer::adam(3e-3),
        ..Td3Config::default()
    }
}

fn dqn_config() -> DqnConfig {
    DqnConfig {
        batch_size: 64,
        gamma: 0.0,
        train_freq: 1,
        target_update_interval: 100,
        optimizer: Optimizer::adam(3e-3),
        ..DqnConfig::default()
    }
}

#[test]
fn dqn_solves_identity_unless_the_learning_rate_is_zero() {
    let default = dqn_config();
    for (name, config, solved) in [
        ("defaults", default.clone(), true),
        ("double", DqnConfig { double: true, gamma: 0.5, ..default.clone() }, true),
        ("soft target", DqnConfig { tau: 0.05, target_update_interval: 4, gamma: 0.5, ..default.clone() }, true),
        ("normalised", DqnConfig { normalize: Some(NormalizerOptions::default()), ..default.clone() }, true),
        ("control", DqnConfig { optimizer: Optimizer::adam(0.0), ..default }, false),
    ] {
        let mut dqn = new_dqn(discrete(), &config, 3).unwrap();
        dqn.train(6_000, |_| true).unwrap();
        let score = mean(&dqn.evaluate(discrete().as_mut(), 20, 7).unwrap());
        assert_eq!(score > 9.5, solved, "{name}: {score} of 10");
    }
}

#[test]
fn dueling_dqn_solves_identity() {
    let make = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::dueling(spec, HIDDEN, Activation::Relu, rng);
    let mut dqn = Dqn::new(discrete(), make, DqnConfig { double: true, gamma: 0.5, ..dqn_config() }, 3).unwrap();
    dqn.train(6_000, |_| true).unwrap();
    let score = mean(&dqn.evaluate(discrete().as_mut(), 20, 7).unwrap());
    assert!(score > 9.5, "{score} of 10");
}

#[test]
fn sac_solves_identity_with_every_option() {
    let default = sac_config();
    for (name, config) in [
        ("defaults", default.clone()),
        ("fixed temperature", SacConfig { ent_coef: EntCoef::Fixed(0.01), ..default.clone() }),
        ("gSDE", SacConfig { use_sde: true, sde_sample_freq: 2, use_sde_at_warmup: true, ..default.clone() }),
        ("normalised", SacConfig { normalize: Some(NormalizerOptions::default()), ..default }),
    ] {
        let mut sac = new_sac(continuous(), &config, 3).unwrap();
        sac.train(6_000, |_| true).unwrap();
        let score = mean(&sac.evaluate(continuous().as_mut(), 20, 7).unwrap());
        assert!(score > 9.5, "{name}: {score} of 10");
    }
}

#[test]
fn td3_solves_identity_with_either_noise() {
    let default = td3_config();
    for (name, config) in [
        ("Gaussian", default.clone()),
        ("OU", Td3Config { action_noise: Some(ActionNoise::ornstein_uhlenbeck(0.5)), ..default }),
    ] {
        let mut td3 = new_td3(continuous(), &config, 3).unwrap();
        td3.train(6_000, |_| true).unwrap();
        let score = mean(&td3.evaluate(continuous().as_mut(), 20, 7).unwrap());
        assert!(score > 9.5, "{name}: {score} of 10");
    }
}

#[test]
fn evaluate_policy_equals_the_trainers_evaluate() {
    let mut sac = new_sac(continuous(), &sac_config(), 3).unwrap();
    sac.train(500, |_| true).unwrap();
    let by_trainer = sac.evaluate(continuous().as_mut(), 8, 7).unwrap();
    let policy: &mut dyn StochasticPolicy = sac.learner_mut().policy_mut();
    assert_eq!(evaluate_policy(policy, continuous().as_mut(), 8, 7, None).unwrap(), by_trainer);
}

/// Returns the weights after a run of `steps` steps.
fn weights<A: OffPolicyMethod>(trainer: Result<OffPolicy<A>>, steps: u64) -> NamedTensors {
    let mut trainer = trainer.unwrap();
    trainer.train(steps, |_| true).unwrap();
    assert_eq!(trainer.timesteps(), steps);
    trainer.learner().tensors()
}

/// Returns the weights of each algorithm after a run with all kinds of random numbers and large
/// minibatches.
fn trained_weights(seed: u64) -> [NamedTensors; 4] {
    let sac = SacConfig { batch_size: 256, ..sac_config() };
    let sde = SacConfig { use_sde: true, sde_sample_freq: 2, ..sac };
    let td3 = Td3Config { batch_size: 256, ..td3_config() };
    let normalize = Some(NormalizerOptions::default());
    let dqn = DqnConfig { batch_size: 640, train_freq: 8, n_steps: 3, gamma: 0.9, normalize, ..dqn_config() };
    [
        weights(new_sac(make("Pendulum-v1", 2), &sac, seed), 240),
        weights(new_sac(make("Pendulum-v1", 2), &sde, seed), 240),
        weights(new_td3(make("Pendulum-v1", 2), &td3, seed), 240),
        weights(new_dqn(make("CartPole-v1", 2), &dqn, seed), 720),
    ]
}

#[test]
fn seeds_determine_the_weights() {
    let (one, repeated, other) = (trained_weights(1), trained_weights(1), trained_weights(2));
    assert_eq!(one, repeated);
    assert!(one.iter().zip(&other).all(|(one, other)| one != other));
}

/// Returns a checksum that depends on every bit.
fn checksum(all: &[NamedTensors]) -> u64 {
    let tensors = all.iter().flat_map(NamedTensors::iter);
    let bits = tensors.flat_map(|tensor| &tensor.data).map(|x| u64::from(x.to_bits()));
    bits.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn weights_do_not_depend_on_the_number_of_threads() {
    let name = "off_policy_learning::weights_do_not_depend_on_the_number_of_threads";
    assert_independent_of_threads(name, || format!("{:x}", checksum(&trained_weights(1))));
}

/// Returns the mean distance of actions from the optimal actions.
fn distance(obs: &[f32], actions: &[f32]) -> f32 {
    let each = obs.chunks(OBS).zip(actions.chunks(ACT));
    let sum: f32 =
        each.map(|(obs, actions)| actions.iter().zip(obs).map(|(a, x)| (a - 0.7 * x).abs()).sum::<f32>()).sum();
    sum / actions.len() as f32
}

#[test]
fn parts_learn_one_step_tasks() {
    let (optimizer, mut rng) = (Optimizer::adam(3e-3), Pcg64::seed_from(5));
    let test = batch(200, true, &mut rng);
    let mut actions = vec![0.0; 200 * ACT];
    for state_dependent in [false, true] {
        let mut sac = SacParts::new(32, 64, state_dependent);
        (0..1500).for_each(|_| sac.update(&batch(64, true, &mut rng), &optimizer));
        sac.policy.act_deterministic(&test.obs, &mut actions).unwrap();
        let error = distance(&test.obs, &actions);
        assert!(error < 0.1, "SAC, state-dependent {state_dependent}: {error}");
    }
    let mut td3 = Td3Parts::new(32, 64);
    (0..1500).for_each(|_| td3.update(&batch(64, true, &mut rng), &optimizer));
    td3.policy.act(&test.obs, &mut actions).unwrap();
    let error = distance(&test.obs, &actions);
    assert!(error < 0.1, "TD3: {error}");
    let (mut q, mut choices) = (q_networks(32), vec![0; 200]);
    for _ in 0..1500 {
        q.update(&batch(64, true, &mut rng).transitions(), DOUBLE, &optimizer, Some(10.0)).unwrap();
    }
    let mut rngs: Vec<_> = (0..200).map(Pcg64::seed_from).collect();
    q.act(&test.obs, None, 0.0, &mut rngs, &mut choices).unwrap();
    let correct = test.obs.chunks(OBS).zip(&choices).filter(|(obs, choice)| largest(obs) == **choice).count();
    assert!(correct > 185, "DQN: {correct} of 200");
}

#[test]
fn updates_do_not_allocate_after_the_first() {
    let (optimizer, batch) = (Optimizer::adam(1e-3), batch(64, false, &mut Pcg64::seed_from(5)));
    for hidden in [32, 128, 256] {
        let (mut q, mut td3) = (q_networks(hidden), Td3Parts::new(hidden, 64));
        let mut sacs = [SacParts::new(hidden, 64, false), SacParts::new(hidden, 64, true)];
        let mut rngs: Vec<_> = (0..8).map(Pcg64::seed_from).collect();
        let (mut actions, mut log_probs, mut choices) = ([0.0; 8 * ACT], [0.0; 8], [0; 8]);
        let mut all = || {
            let obs = &batch.obs[..8 * OBS];
            q.act(obs, None, 0.5, &mut rngs, &mut choices).unwrap();
            q.update(&batch.transitions(), DOUBLE, &optimizer, Some(10.0)).unwrap();
            q.soft_update(0.5).unwrap();
            td3.policy.act(obs, &mut actions).unwrap();
            td3.update(&batch, &optimizer);
            for sac in &mut sacs {
                sac.policy.act(obs, &mut rngs, &mut actions, &mut log_probs).unwrap();
                sac.update(&batch, &optimizer);
            }
        };
        all();
        assert_eq!(measure(|| (0..3).for_each(|_| all())).count_total, 0, "{hidden}");
    }
}

/// Returns all weights after updates with minibatches large enough for several threads.
fn trained_parts() -> Vec<NamedTensors> {
    let (optimizer, mut rng) = (Optimizer::adam(1e-3), Pcg64::seed_from(5));
    let (mut q, mut td3) = (q_networks(256), Td3Parts::new(256, 64));
    let mut sacs = [SacParts::new(256, 64, false), SacParts::new(256, 64, true)];
    for _ in 0..3 {
        let batch = batch(64, false, &mut rng);
        q.update(&batch.transitions(), DOUBLE, &optimizer, Some(10.0)).unwrap();
        td3.update(&batch, &optimizer);
        for sac in &mut sacs {
            sac.update(&batch, &optimizer);
        }
    }
    let mut all = vec![q.tensors(), td3.policy.tensors(), td3.policy.optimizer_state(), td3.critics.tensors()];
    for sac in &sacs {
        all.extend([sac.policy.tensors(), sac.policy.optimizer_state(), sac.critics.tensors()]);
    }
    all
}

#[test]
fn updates_do_not_depend_on_the_number_of_threads() {
    let checksum = |all: &[NamedTensors]| {
        let numbers = all.iter().flatten().flat_map(|tensor| &tensor.data);
        numbers.fold(0_u64, |sum, x| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(x.to_bits()))
    };
    let name = "off_policy_learning::updates_do_not_depend_on_the_number_of_threads";
    assert_independent_of_threads(name, || format!("{:x}", checksum(&trained_parts())));
}

#[test]
fn tensors_restore_learners() {
    let (optimizer, mut rng) = (Optimizer::adam(1e-2), Pcg64::seed_from(5));
    let (first, second) = (batch(16, false, &mut rng), batch(16, false, &mut rng));
    let (mut q, mut td3, mut sac) = (q_networks(8), Td3Parts::new(8, 16), SacParts::new(8, 16, true));
    q.update(&first.transitions(), DOUBLE, &optimizer, None).unwrap();
    td3.update(&first, &optimizer);
    sac.update(&first, &optimizer);
    let (mut q2, mut td32, mut sac2) = (q_networks(8), Td3Parts::new(8, 16), SacParts::new(8, 16, true));
    q2.load(&q.tensors()).unwrap();
    q2.load_optimizer_state(&q.optimizer_state()).unwrap();
    for (copy, one) in [(&mut td32.critics, &td3.critics), (&mut sac2.critics, &sac.critics)] {
        copy.load(&one.tensors()).unwrap();
        copy.load_optimizer_state(&one.optimizer_state()).unwrap();
    }
    td32.policy.load(&td3.policy.tensors()).unwrap();
    td32.policy.load_optimizer_state(&td3.policy.optimizer_state()).unwrap();
    sac2.policy.load(&sac.policy.tensors()).unwrap();
    sac2.policy.load_optimizer_state(&sac.policy.optimizer_state()).unwrap();
    sac2.temperature.load(&sac.temperature.tensors()).unwrap();
    sac2.temperature.load_optimizer_state(&sac.temperature.optimizer_state()).unwrap();
    (td32.rng, sac2.rng) = (td3.rng.clone(), sac.rng.clone());
    for (q, td3, sac) in [(&mut q, &mut td3, &mut sac), (&mut q2, &mut td32, &mut sac2)] {
        q.update(&second.transitions(), DOUBLE, &optimizer, None).unwrap();
        td3.update(&second, &optimizer);
        sac.update(&second, &optimizer);
    }
    assert_eq!(q.tensors(), q2.tensors());
    assert_eq!(td3.policy.tensors(), td32.policy.tensors());
    assert_eq!(td3.critics.tensors(), td32.critics.tensors());
    assert_eq!(sac.policy.tensors(), sac2.policy.tensors());
    assert_eq!(sac.critics.tensors(), sac2.critics.tensors());
    assert_eq!(sac.temperature.tensors(), sac2.temperature.tensors());
    assert_eq!(sac.policy.tensors().iter().next_back().unwrap().name, "log_std");
}

#[test]
fn rows_draw_from_their_own_streams() {
    let test = batch(4, true, &mut Pcg64::seed_from(5));
    let streams = || (0..4).map(Pcg64::seed_from).collect::<Vec<_>>();
    for state_dependent in [false, true] {
        let mut policy = squashed(16, state_dependent);
        let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
        policy.draw_noise(&mut streams()).unwrap();
        policy.act(&test.obs, &mut streams(), &mut actions, &mut log_probs).unwrap();
        policy.draw_noise(&mut streams()[2..3]).unwrap();
        let (mut alone, mut log_prob) = ([0.0; ACT], [0.0]);
        policy.act(&test.obs[2 * OBS..3 * OBS], &mut streams()[2..3], &mut alone, &mut log_prob).unwrap();
        assert_eq!((&actions[2 * ACT..3 * ACT], log_probs[2]), (&alone[..], log_prob[0]));
        assert_ne!(actions[..ACT], actions[ACT..2 * ACT]);
    }
    let mut q = q_networks(16);
    let mut choices = [0; 4];
    let allowed = [false, true, true, true, false, true, true, true, false, false, false, true];
    let mut counts = [0; 3];
    let mut rngs = streams();
    for _ in 0..300 {
        q.act(&test.obs, Some(&allowed), 0.5, &mut rngs, &mut choices).unwrap();
        assert!(choices.iter().enumerate().all(|(row, choice)| allowed[row * 3 + *choice as usize]));
        counts[choices[2] as usize] += 1;
    }
    assert!(counts[0] > 50 && counts[1] > 50 && counts[2] == 0, "{counts:?}");
}

#[test]
fn samples_can_be_learned_from_once() {
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let (mut policy, mut critics, optimizer) = (squashed(8, true), twin_critics(8), Optimizer::adam(1e-3));
    let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
    policy.rsample(&good.obs, &mut Pcg64::seed_from(0), &mut actions, &mut log_probs).unwrap();
    policy.update(&good.obs, &mut critics, 0.1, &optimizer, None).unwrap();
    assert_rejects(policy.update(&good.obs, &mut critics, 0.1, &optimizer, None), Error::Shape, "rsample");
}

#[test]
fn temperature_rises_below_the_target_entropy() {
    let mut temperature = Temperature::learned(0.5, -2.0).unwrap();
    // An entropy of -3 is below the target entropy, so the coefficient increases.
    let loss = temperature.update(&[3.0; 4], &Optimizer::adam(0.1)).unwrap();
    assert!((loss - -(0.5_f32.ln())).abs() < 1e-6 && (temperature.alpha() - 0.5 * 0.1_f32.exp()).abs() < 1e-4);
    let mut fixed = Temperature::fixed(0.5).unwrap();
    fixed.update(&[3.0; 4], &Optimizer::adam(0.1)).unwrap();
    assert_eq!(fixed.alpha(), 0.5);
}
