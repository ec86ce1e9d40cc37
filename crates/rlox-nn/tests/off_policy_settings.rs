//! Settings, spaces and networks that do not fit are refused by name, before anything was made.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{AutoresetMode, EnvSpec, Error, NormalizerOptions, Pcg64, Result, VecEnv, VectorEnv, envs};
use rlox_nn::train::{ActionNoise, Dqn, DqnConfig, EntCoef, Sac, SacConfig, Td3, Td3Config};
use rlox_nn::{Activation, DeterministicActor, Mlp, Optimizer, QNetworks, SquashedPolicy, TwinCritics};

fn pendulum() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, envs::Pendulum::default).unwrap())
}

fn cartpole() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, envs::CartPole::default).unwrap())
}

fn unmade<T>(_: &EnvSpec, _: &mut Pcg64) -> Result<T> {
    panic!("networks are made once the settings were checked")
}

fn refused<T>(made: Result<T>, beginning: &str) {
    let error = made.err().expect(beginning).to_string();
    assert!(error.starts_with(beginning), "{beginning}: {error}");
}

#[test]
fn settings_out_of_range_are_named() {
    let sac = |change: fn(&mut SacConfig)| {
        let mut config = SacConfig::default();
        change(&mut config);
        Sac::<SquashedPolicy<Mlp>, TwinCritics<Mlp>>::new(pendulum(), unmade, config, 0)
    };
    refused(sac(|c| c.buffer_size = 0), "buffer_size: expected at least 1, got 0");
    refused(sac(|c| c.batch_size = 0), "batch_size: expected");
    refused(sac(|c| c.train_freq = 0), "train_freq: expected");
    refused(sac(|c| c.gradient_steps = Some(0)), "gradient_steps: expected");
    refused(sac(|c| c.n_steps = 0), "n_steps: expected");
    refused(sac(|c| c.gamma = 1.1), "gamma: expected");
    refused(sac(|c| c.tau = f32::NAN), "tau: expected");
    refused(sac(|c| c.target_update_interval = 0), "target_update_interval: expected");
    refused(sac(|c| c.optimizer = Optimizer::adam(-1.0)), "lr: expected");
    refused(sac(|c| c.ent_coef = EntCoef::Fixed(-1.0)), "ent_coef: expected");
    refused(sac(|c| c.ent_coef = EntCoef::Auto { initial: 0.0, target_entropy: None }), "ent_coef: expected");
    refused(
        sac(|c| c.ent_coef = EntCoef::Auto { initial: 1.0, target_entropy: Some(f32::NAN) }),
        "target_entropy: expected",
    );
    refused(sac(|c| c.use_sde_at_warmup = true), "use_sde_at_warmup: expected false without use_sde");
    refused(sac(|c| c.log_std_init = f32::INFINITY), "log_std_init: expected");
    refused(sac(|c| c.action_noise = Some(ActionNoise::Gaussian { sigma: -0.1 })), "action_noise.sigma: expected");
    refused(sac(|c| c.normalize = Some(NormalizerOptions { epsilon: 0.0, ..Default::default() })), "epsilon: expected");

    let td3 = |change: fn(&mut Td3Config)| {
        let mut config = Td3Config::default();
        change(&mut config);
        Td3::<DeterministicActor<Mlp>, TwinCritics<Mlp>>::new(pendulum(), unmade, config, 0)
    };
    refused(td3(|c| c.policy_delay = 0), "policy_delay: expected");
    refused(td3(|c| c.target_policy_noise = -0.1), "target_policy_noise: expected");
    refused(td3(|c| c.target_noise_clip = f32::NAN), "target_noise_clip: expected");
    let noise = |theta, dt| Some(ActionNoise::OrnsteinUhlenbeck { sigma: 0.1, theta, dt });
    let with_noise = |action_noise| {
        let config = Td3Config { action_noise, ..Td3Config::default() };
        Td3::<DeterministicActor<Mlp>, TwinCritics<Mlp>>::new(pendulum(), unmade, config, 0)
    };
    refused(with_noise(noise(-1.0, 0.1)), "action_noise.theta: expected");
    refused(with_noise(noise(1.0, 3.0)), "action_noise.dt: expected");

    let dqn = |change: fn(&mut DqnConfig)| {
        let mut config = DqnConfig::default();
        change(&mut config);
        Dqn::<QNetworks<Mlp>>::new(cartpole(), unmade, config, 0)
    };
    refused(dqn(|c| c.target_update_interval = 0), "target_update_interval: expected");
    refused(dqn(|c| c.exploration_fraction = -0.1), "exploration_fraction: expected");
    refused(dqn(|c| c.exploration_initial_eps = 1.1), "exploration_initial_eps: expected");
    refused(dqn(|c| c.exploration_final_eps = f32::NAN), "exploration_final_eps: expected");
    refused(dqn(|c| c.max_grad_norm = -1.0), "max_grad_norm: expected");
}

#[test]
fn spaces_modes_and_networks_that_do_not_fit_are_named() {
    type AnySac = Sac<SquashedPolicy<Mlp>, TwinCritics<Mlp>>;
    refused(AnySac::new(cartpole(), unmade, SacConfig::default(), 0), "action space: expected a Box");
    refused(
        Td3::<DeterministicActor<Mlp>, TwinCritics<Mlp>>::new(cartpole(), unmade, Td3Config::default(), 0),
        "action space: expected a Box",
    );
    refused(
        Dqn::<QNetworks<Mlp>>::new(pendulum(), unmade, DqnConfig::default(), 0),
        "action space: expected a Discrete one",
    );
    let next_step = Box::new(VecEnv::new(2, None, AutoresetMode::NextStep, envs::CartPole::default).unwrap());
    refused(
        Dqn::<QNetworks<Mlp>>::new(next_step, unmade, DqnConfig::default(), 0),
        "env: expected AutoresetMode::SameStep, got NextStep",
    );
    let foreign = |_: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(acrobot().spec(), &[8], Activation::Relu, rng);
    refused(
        Dqn::new(cartpole(), foreign, DqnConfig::default(), 0),
        "q_function: expected one for observations of 4 numbers and 2 of actions, got",
    );
    let endless = DqnConfig { buffer_size: usize::MAX / 4096, ..DqnConfig::default() };
    let made =
        Dqn::new(cartpole(), |s: &EnvSpec, r: &mut Pcg64| QNetworks::mlp(s, &[8], Activation::Relu, r), endless, 0);
    assert!(matches!(made, Err(Error::Memory(_))));
}

/// Environments of other spaces.
fn acrobot() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(1, None, AutoresetMode::SameStep, envs::Acrobot::default).unwrap())
}

#[test]
fn a_run_is_to_be_begun() {
    let make = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    let mut dqn = Dqn::new(cartpole(), make, DqnConfig::default(), 0).unwrap();
    refused(dqn.iterate(), "resume: expected a run that has not ended, got 0 steps of 0");
    dqn.begin(8);
    dqn.iterate().unwrap();
    refused(dqn.iterate(), "resume: expected");
}
