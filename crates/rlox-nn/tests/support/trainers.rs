//! Small trainers of DQN, SAC and TD3, which use all kinds of random numbers and replay buffers.

use rlox_core::{
    AutoresetMode, Env, EnvSpec, Pcg64, ResetOptions, Space, Step, VecEnv, VectorEnv, envs,
    normalize::NormalizerOptions,
};
use rlox_nn::train::{ActionNoise, Dqn, DqnConfig, EntCoef, Priorities, Sac, SacConfig, Schedule, Td3, Td3Config};
use rlox_nn::{Activation, CriticEnsemble, DeterministicActor, Dueling, Mlp, Optimizer, QNetworks, SquashedPolicy};

pub(crate) type AnyDqn = Dqn<QNetworks<Mlp>>;
pub(crate) type Rainbow = Dqn<QNetworks<Dueling<Mlp>>>;
pub(crate) type AnySac = Sac<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>;
pub(crate) type AnyTd3 = Td3<DeterministicActor<Mlp>, CriticEnsemble<Mlp>>;

pub(crate) const HIDDEN: &[usize] = &[8];

pub(crate) fn make(id: &str, num_envs: usize) -> Box<dyn VectorEnv> {
    let autoreset_mode = AutoresetMode::SameStep;
    let options = envs::MakeOptions { num_envs, autoreset_mode, ..Default::default() };
    envs::make(id, &options).unwrap()
}

pub(crate) fn cartpole(num_envs: usize) -> Box<dyn VectorEnv> {
    make("CartPole-v1", num_envs)
}

pub(crate) fn pendulum(num_envs: usize) -> Box<dyn VectorEnv> {
    make("Pendulum-v1", num_envs)
}

pub(crate) fn dqn_config() -> DqnConfig {
    DqnConfig {
        buffer_size: 190,
        learning_starts: 40,
        batch_size: 16,
        target_update_interval: 60,
        optimizer: Optimizer::adam(2.3e-3),
        ..DqnConfig::default()
    }
}

pub(crate) fn dqn(num_envs: usize, seed: u64) -> AnyDqn {
    let network = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(spec, HIDDEN, Activation::Relu, rng);
    Dqn::new(cartpole(num_envs), network, dqn_config(), seed).unwrap()
}

/// Returns a config that enables all options of DQN.
pub(crate) fn rainbow_config() -> DqnConfig {
    DqnConfig {
        buffer_size: 300,
        train_freq: 2,
        utd_ratio: Some(0.3),
        n_steps: 3,
        tau: 0.1,
        double: true,
        lr_schedule: Schedule::Linear,
        exploration_fraction: 0.5,
        prioritized: Some(Priorities { alpha: 0.6, beta: 0.4 }),
        normalize: Some(NormalizerOptions::default()),
        ..dqn_config()
    }
}

pub(crate) fn rainbow(num_envs: usize, seed: u64) -> Rainbow {
    let network = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::dueling(spec, HIDDEN, Activation::Relu, rng);
    Dqn::new(cartpole(num_envs), network, rainbow_config(), seed).unwrap()
}

pub(crate) fn sac_config(use_sde: bool) -> SacConfig {
    SacConfig {
        buffer_size: 256,
        learning_starts: 60,
        batch_size: 16,
        train_freq: 4,
        gradient_steps: Some(2),
        optimizer: Optimizer::adam(1e-3),
        lr_schedule: Schedule::Linear,
        ent_coef: EntCoef::Auto { initial: 0.5, target_entropy: None },
        action_noise: Some(ActionNoise::ornstein_uhlenbeck(0.2)),
        use_sde,
        sde_sample_freq: if use_sde { 3 } else { 0 },
        use_sde_at_warmup: use_sde,
        ..SacConfig::default()
    }
}

pub(crate) fn sac(num_envs: usize, use_sde: bool, seed: u64) -> AnySac {
    let config = sac_config(use_sde);
    let networks = |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng);
    Sac::new(pendulum(num_envs), networks, config.clone(), seed).unwrap()
}

pub(crate) fn td3_config() -> Td3Config {
    Td3Config {
        buffer_size: 256,
        learning_starts: 60,
        batch_size: 16,
        n_steps: 2,
        action_noise: Some(ActionNoise::ornstein_uhlenbeck(0.5)),
        normalize: Some(NormalizerOptions::default()),
        ..Td3Config::default()
    }
}

pub(crate) fn td3(num_envs: usize, seed: u64) -> AnyTd3 {
    let config = td3_config();
    let networks = |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng);
    Td3::new(pendulum(num_envs), networks, config.clone(), seed).unwrap()
}

/// Environment that observes the last action and does not support states.
struct Silent(EnvSpec);

impl Env for Silent {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs[0] = rng.uniform(-1.0, 1.0) as f32;
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs[0] = *action as f32;
        Step { reward: 1.0, terminated: false, truncated: false }
    }
}

/// Creates environments with episodes of seven steps that do not support states.
pub(crate) fn silent(num_envs: usize) -> Box<dyn VectorEnv> {
    let make = || {
        Silent(EnvSpec {
            id: "Silent-v0".into(),
            observation: Space::uniform_box(-1.0, 1.0, &[1]),
            action: Space::discrete(2),
            max_episode_steps: Some(7),
        })
    };
    Box::new(VecEnv::new(num_envs, None, AutoresetMode::SameStep, make).unwrap())
}
