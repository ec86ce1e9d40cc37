//! Off-policy trainers: they learn, and a seed decides everything.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{
    AutoresetMode, Env, EnvSpec, NormalizerOptions, Pcg64, ResetOptions, Result, Space, Step, VecEnv, VectorEnv, envs,
};
use rlox_nn::train::{ActionNoise, Dqn, DqnConfig, EntCoef, OffPolicy, Sac, SacConfig, Td3, Td3Config};
use rlox_nn::train::{OffPolicyMethod, evaluate_policy};
use rlox_nn::{
    Activation, DeterministicActor, Mlp, NamedTensors, Optimizer, QNetworks, SquashedPolicy, StochasticPolicy,
    TwinCritics,
};

type SacOf = Sac<SquashedPolicy<Mlp>, TwinCritics<Mlp>>;
type Td3Of = Td3<DeterministicActor<Mlp>, TwinCritics<Mlp>>;
type DqnOf = Dqn<QNetworks<Mlp>>;

const HIDDEN: &[usize] = &[32];

/// Pays for the action that the observation names; ten steps an episode.
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
// The actions are counted from 5.
identity!(i64, |env, action| f64::from(env.state[*action as usize - 5]));
// The actions are between -3 and 1.
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
    let options = envs::MakeOptions {
        num_envs,
        seed: None,
        autoreset_mode: AutoresetMode::SameStep,
        max_episode_steps: None,
        arguments: &[],
    };
    envs::make(id, &options).unwrap()
}

fn q_networks(spec: &EnvSpec, rng: &mut Pcg64) -> Result<QNetworks<Mlp>> {
    QNetworks::mlp(spec, HIDDEN, Activation::Relu, rng)
}

fn new_sac(env: Box<dyn VectorEnv>, config: &SacConfig, seed: u64) -> Result<SacOf> {
    Sac::new(env, |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng), config.clone(), seed)
}

fn new_td3(env: Box<dyn VectorEnv>, config: &Td3Config, seed: u64) -> Result<Td3Of> {
    Td3::new(env, |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng), config.clone(), seed)
}

fn new_dqn(env: Box<dyn VectorEnv>, config: &DqnConfig, seed: u64) -> Result<DqnOf> {
    Dqn::new(env, q_networks, config.clone(), seed)
}

fn mean(returns: &[f64]) -> f64 {
    returns.iter().sum::<f64>() / returns.len() as f64
}

/// Settings for short runs.
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
fn dqn_solves_identity_with_every_option_and_cannot_without_a_learning_rate() {
    let default = dqn_config();
    for (name, config, solved) in [
        ("as it is", default.clone(), true),
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
        ("as it is", default.clone()),
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
fn policies_are_evaluated_by_themselves() {
    let mut sac = new_sac(continuous(), &sac_config(), 3).unwrap();
    sac.train(500, |_| true).unwrap();
    let by_trainer = sac.evaluate(continuous().as_mut(), 8, 7).unwrap();
    let policy: &mut dyn StochasticPolicy = sac.learner_mut().policy_mut();
    assert_eq!(evaluate_policy(policy, continuous().as_mut(), 8, 7, None).unwrap(), by_trainer);
}

/// Weights after a run of so many steps.
fn weights<A: OffPolicyMethod>(trainer: Result<OffPolicy<A>>, steps: u64) -> NamedTensors {
    let mut trainer = trainer.unwrap();
    trainer.train(steps, |_| true).unwrap();
    assert_eq!(trainer.timesteps(), steps);
    trainer.learner().tensors()
}

/// Of each method, with all that is random, and minibatches that two threads share in the end.
fn trained(seed: u64) -> [NamedTensors; 4] {
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
fn a_seed_decides_everything() {
    let (one, again, other) = (trained(1), trained(1), trained(2));
    assert_eq!(one, again);
    assert!(one.iter().zip(&other).all(|(one, other)| one != other));
}

/// A sum that any changed bit changes.
fn checksum(all: &[NamedTensors]) -> u64 {
    let tensors = all.iter().flat_map(NamedTensors::iter);
    let words = tensors.flat_map(|tensor| &tensor.data).map(|x| u64::from(x.to_bits()));
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn weights_do_not_depend_on_the_number_of_threads() {
    const ASKED: &str = "RLOX_TEST_CHECKSUM";
    if std::env::var_os(ASKED).is_some() {
        eprintln!("checksum {:x}", checksum(&trained(1)));
        return;
    }
    let in_process = |threads: &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "weights_do_not_depend_on_the_number_of_threads", "--nocapture"])
            .env(ASKED, "1")
            .env("RLOX_NUM_THREADS", threads)
            .output()
            .unwrap();
        let said = String::from_utf8(child.stderr).unwrap();
        said.lines().find(|line| line.starts_with("checksum")).expect("a checksum").to_owned()
    };
    let one = in_process("1");
    assert_eq!(one, in_process("2"));
    assert_eq!(one, format!("checksum {:x}", checksum(&trained(1))));
}
