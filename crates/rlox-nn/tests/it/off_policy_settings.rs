//! Whatever settings, spaces and networks DQN, SAC and TD3 are given, a typed error names the argument before anything was
//! made, or they train.

use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, NormalizerOptions, Pcg64, ResetOptions, Result, Space, Step, VecEnv, VectorEnv,
    envs,
};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, EntCoef, OffPolicy, OffPolicyMethod, Priorities, Sac, SacConfig, Schedule, Td3,
    Td3Config,
};
use rlox_nn::{Activation, DeterministicActor, Mlp, Optimizer, QNetworks, SquashedPolicy, TwinCritics};

use crate::support::trainers;
use crate::support::trainers::{HIDDEN, cartpole, pendulum};

/// A change of settings, and how the error about it begins.
type Change<C> = (fn(&mut C), &'static str);

fn new_dqn(env: Box<dyn VectorEnv>, config: DqnConfig) -> Result<trainers::AnyDqn> {
    let network = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(spec, HIDDEN, Activation::Relu, rng);
    Dqn::new(env, network, config, 0)
}

fn new_sac(env: Box<dyn VectorEnv>, config: &SacConfig) -> Result<trainers::AnySac> {
    Sac::new(env, |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng), config.clone(), 0)
}

fn new_td3(env: Box<dyn VectorEnv>, config: &Td3Config) -> Result<trainers::AnyTd3> {
    Td3::new(env, |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, HIDDEN, rng), config.clone(), 0)
}

fn refused<T>(made: Result<T>, beginning: &str) -> Error {
    let Err(error) = made else { panic!("not refused: {beginning}") };
    assert!(error.to_string().starts_with(beginning), "{beginning}: {error}");
    error
}

/// Changes of what the settings of all three have in common.
macro_rules! common {
    ($config:ty) => {{
        let changes: [Change<$config>; 25] = [
            (|c| c.buffer_size = 0, "buffer_size: expected at least 1, got 0"),
            (|c| c.batch_size = 0, "batch_size: expected at least 1, got 0"),
            (|c| c.train_freq = 0, "train_freq: expected at least 1, got 0"),
            (|c| c.gradient_steps = Some(0), "gradient_steps: expected at least 1, got 0"),
            (|c| c.n_steps = 0, "n_steps: expected at least 1, got 0"),
            (|c| c.utd_ratio = Some(-0.5), "utd_ratio: expected"),
            (|c| c.utd_ratio = Some(f64::NAN), "utd_ratio: expected"),
            (|c| c.utd_ratio = Some(f64::INFINITY), "utd_ratio: expected"),
            (|c| c.gamma = -0.1, "gamma: expected a number in [0, 1], got -0.1"),
            (|c| c.gamma = 1.1, "gamma: expected a number in [0, 1], got 1.1"),
            (|c| c.gamma = f64::NAN, "gamma: expected a number in [0, 1], got NaN"),
            (|c| c.tau = -0.1, "tau: expected a number in [0, 1]"),
            (|c| c.tau = 1.5, "tau: expected a number in [0, 1], got 1.5"),
            (|c| c.tau = f32::NAN, "tau: expected a number in [0, 1], got NaN"),
            (|c| c.optimizer = Optimizer::adam(f32::NAN), "lr: expected a number from 0 to 1e30, got NaN"),
            (|c| c.optimizer = Optimizer::adam(-1e-3), "lr: expected"),
            (|c| c.optimizer = Optimizer::adam(f32::INFINITY), "lr: expected"),
            (|c| c.optimizer = Optimizer::adam(1e-3).with_eps(0.0), "eps: expected a positive number, got 0"),
            (|c| c.optimizer = Optimizer::Adam { lr: 0.1, beta1: 1.0, beta2: 0.9, eps: 1e-8 }, "beta1: expected"),
            (|c| c.optimizer = Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: f32::NAN, eps: 1e-8 }, "beta2: expected"),
            (|c| c.optimizer = Optimizer::RmsProp { lr: 0.1, alpha: 1.0, eps: 1e-8 }, "alpha: expected"),
            (|c| c.normalize = Some(NormalizerOptions { epsilon: -1.0, ..Default::default() }), "epsilon: expected"),
            (
                |c| c.normalize = Some(NormalizerOptions { clip_obs: f64::NAN, ..Default::default() }),
                "clip_obs: expected",
            ),
            (|c| c.buffer_size = usize::MAX, "buffer_size: expected"),
            (|c| c.buffer_size = 1 << 44, "buffer_size: expected"),
        ];
        changes
    }};
}

#[test]
fn settings_that_cannot_be_are_named_by_all_three() {
    for (change, beginning) in common!(DqnConfig) {
        let mut config = DqnConfig::default();
        change(&mut config);
        refused(new_dqn(cartpole(2), config), beginning);
    }
    for (change, beginning) in common!(SacConfig) {
        let mut config = SacConfig::default();
        change(&mut config);
        refused(new_sac(pendulum(2), &config), beginning);
    }
    for (change, beginning) in common!(Td3Config) {
        let mut config = Td3Config::default();
        change(&mut config);
        refused(new_td3(pendulum(2), &config), beginning);
    }
}

#[test]
fn a_buffer_that_memory_cannot_hold_is_refused_before_it_is_made() {
    for buffer_size in [usize::MAX, usize::MAX / 64, 1 << 44] {
        let error = refused(new_dqn(cartpole(2), DqnConfig { buffer_size, ..DqnConfig::default() }), "buffer_size: ");
        assert!(matches!(error, Error::Memory(_)), "{error}");
        let prioritized = Some(Priorities { alpha: 0.6, beta: 0.4 });
        let config = DqnConfig { buffer_size, prioritized, ..DqnConfig::default() };
        assert!(matches!(refused(new_dqn(cartpole(2), config), "buffer_size: "), Error::Memory(_)));
        let config = SacConfig { buffer_size, ..SacConfig::default() };
        assert!(matches!(refused(new_sac(pendulum(2), &config), "buffer_size: "), Error::Memory(_)));
        let config = Td3Config { buffer_size, ..Td3Config::default() };
        assert!(matches!(refused(new_td3(pendulum(2), &config), "buffer_size: "), Error::Memory(_)));
    }
}

#[test]
fn settings_of_one_alone_are_named() {
    let priorities = |alpha, beta| Some(Priorities { alpha, beta });
    for (config, beginning) in [
        (
            DqnConfig { target_update_interval: 0, ..DqnConfig::default() },
            "target_update_interval: expected at least 1",
        ),
        (DqnConfig { exploration_fraction: f64::NAN, ..DqnConfig::default() }, "exploration_fraction: expected"),
        (DqnConfig { exploration_initial_eps: -0.1, ..DqnConfig::default() }, "exploration_initial_eps: expected"),
        (DqnConfig { exploration_final_eps: 1.5, ..DqnConfig::default() }, "exploration_final_eps: expected"),
        (DqnConfig { max_grad_norm: f32::NAN, ..DqnConfig::default() }, "max_grad_norm: expected"),
        (DqnConfig { max_grad_norm: -1.0, ..DqnConfig::default() }, "max_grad_norm: expected"),
        (DqnConfig { prioritized: priorities(-0.1, 0.4), ..DqnConfig::default() }, "priority_alpha: expected"),
        (DqnConfig { prioritized: priorities(0.6, f32::NAN), ..DqnConfig::default() }, "priority_beta: expected"),
    ] {
        refused(new_dqn(cartpole(2), config), beginning);
    }
    let learned = |initial, target_entropy| EntCoef::Auto { initial, target_entropy };
    for (config, beginning) in [
        (
            SacConfig { target_update_interval: 0, ..SacConfig::default() },
            "target_update_interval: expected at least 1",
        ),
        (SacConfig { ent_coef: EntCoef::Fixed(f32::NAN), ..SacConfig::default() }, "ent_coef: expected"),
        (SacConfig { ent_coef: EntCoef::Fixed(-0.1), ..SacConfig::default() }, "ent_coef: expected"),
        (SacConfig { ent_coef: learned(0.0, None), ..SacConfig::default() }, "ent_coef: expected"),
        (SacConfig { ent_coef: learned(f32::INFINITY, None), ..SacConfig::default() }, "ent_coef: expected"),
        (SacConfig { ent_coef: learned(1.0, Some(f32::NAN)), ..SacConfig::default() }, "target_entropy: expected"),
        (SacConfig { use_sde_at_warmup: true, ..SacConfig::default() }, "use_sde_at_warmup: expected false"),
        (SacConfig { log_std_init: f32::NAN, ..SacConfig::default() }, "log_std_init: expected"),
        (SacConfig { use_sde: true, log_std_init: 1e10, ..SacConfig::default() }, "log_std_init: expected"),
    ] {
        refused(new_sac(pendulum(2), &config), beginning);
    }
    let walk = |sigma, theta, dt| Some(ActionNoise::OrnsteinUhlenbeck { sigma, theta, dt });
    let noises = [
        (Some(ActionNoise::Gaussian { sigma: f32::NAN }), "action_noise.sigma: expected"),
        (walk(f32::INFINITY, 0.1, 0.1), "action_noise.sigma: expected"),
        (walk(0.1, f32::NAN, 0.1), "action_noise.theta: expected"),
        (walk(0.1, 0.1, -1.0), "action_noise.dt: expected"),
        (walk(0.1, 1e30, 1e30), "action_noise.dt: expected theta * dt below 2"),
    ];
    for (action_noise, beginning) in noises {
        refused(new_td3(pendulum(2), &Td3Config { action_noise, ..Td3Config::default() }), beginning);
        refused(new_sac(pendulum(2), &SacConfig { action_noise, ..SacConfig::default() }), beginning);
    }
    for (config, beginning) in [
        (Td3Config { policy_delay: 0, ..Td3Config::default() }, "policy_delay: expected at least 1, got 0"),
        (Td3Config { target_policy_noise: f32::NAN, ..Td3Config::default() }, "target_policy_noise: expected"),
        (Td3Config { target_noise_clip: -0.5, ..Td3Config::default() }, "target_noise_clip: expected"),
    ] {
        refused(new_td3(pendulum(2), &config), beginning);
    }
}

/// An environment of any space of integers.
struct Any(EnvSpec);

impl Env for Any {
    type Action = [i64];

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }

    fn step(&mut self, _: &[i64], _: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs.fill(0.0);
        Step { reward: 0.0, terminated: false, truncated: false }
    }
}

/// The same with numbers for actions.
struct AnyBox(Any);

impl Env for AnyBox {
    type Action = [f32];

    fn spec(&self) -> &EnvSpec {
        &self.0.0
    }

    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        self.0.reset(rng, options, obs);
    }

    fn step(&mut self, _: &[f32], rng: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.0.step(&[], rng, obs)
    }
}

fn any(action: &Space) -> Any {
    let observation = Space::uniform_box(-1.0, 1.0, &[1]);
    Any(EnvSpec { id: "Any-v0".into(), observation, action: action.clone(), max_episode_steps: None })
}

#[test]
fn spaces_that_an_algorithm_is_not_for_are_refused_with_those_that_are() {
    let envs = |action: &Space| -> Box<dyn VectorEnv> {
        if matches!(action, Space::Box { .. }) {
            Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, || AnyBox(any(action))).unwrap())
        } else {
            Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, || any(action)).unwrap())
        }
    };
    let (sac, td3) = (SacConfig::default(), Td3Config::default());
    for (action, who) in
        [(Space::MultiDiscrete { nvec: vec![2, 3] }, "use PPO or A2C"), (Space::MultiBinary { n: 3 }, "use PPO or A2C")]
    {
        for error in [
            refused(new_dqn(envs(&action), DqnConfig::default()), "action space: expected a Discrete one, got {"),
            refused(new_sac(envs(&action), &sac), "action space: expected a Box, got {"),
            refused(new_td3(envs(&action), &td3), "action space: expected a Box, got {"),
        ] {
            assert!(matches!(error, Error::Space(_)) && error.to_string().ends_with(who), "{error}");
        }
    }
    let said = refused(new_sac(cartpole(2), &sac), "action space: expected a Box, got {").to_string();
    assert!(said.ends_with("use DQN, PPO or A2C"), "{said}");
    let said = refused(new_td3(cartpole(2), &td3), "action space: expected a Box, got {").to_string();
    assert!(said.ends_with("use DQN, PPO or A2C"), "{said}");
    let made = new_dqn(pendulum(2), DqnConfig::default());
    let said = refused(made, "action space: expected a Discrete one, got {").to_string();
    assert!(said.ends_with("use SAC, TD3, PPO or A2C"), "{said}");
    let endless = Space::uniform_box(f32::NEG_INFINITY, f32::INFINITY, &[1]);
    let said = refused(new_dqn(envs(&endless), DqnConfig::default()), "action space: ").to_string();
    assert!(said.ends_with("use PPO or A2C"), "{said}");
    for made in [new_sac(envs(&endless), &sac).map(drop), new_td3(envs(&endless), &td3).map(drop)] {
        let said = refused(made, "action space: expected finite bounds").to_string();
        assert!(said.ends_with("or use PPO or A2C"), "{said}");
    }
}

#[test]
fn environments_that_reset_elsewhere_are_refused() {
    for mode in [AutoresetMode::NextStep, AutoresetMode::Disabled] {
        let env = VecEnv::new(2, None, mode, rlox_core::envs::CartPole::default).unwrap();
        refused(new_dqn(Box::new(env), DqnConfig::default()), "env: expected AutoresetMode::SameStep");
    }
}

/// Pays for the first of two numbers, and panics where the other is not 0.3.
struct Fixed(EnvSpec);

impl Env for Fixed {
    type Action = [f32];

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }

    fn step(&mut self, action: &[f32], _: &mut Pcg64, obs: &mut [f32]) -> Step {
        assert_eq!(action[1], 0.3);
        obs.fill(0.0);
        Step { reward: f64::from(action[0]), terminated: false, truncated: false }
    }
}

#[test]
fn actions_with_a_constant_element_train() {
    let action = Space::Box { low: vec![-1.0, 0.3], high: vec![1.0, 0.3], shape: vec![2] };
    let envs = || -> Box<dyn VectorEnv> {
        let env = || Fixed(EnvSpec { max_episode_steps: Some(20), ..any(&action).0 });
        Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, env).unwrap())
    };
    let sac = SacConfig { learning_starts: 8, batch_size: 16, ..SacConfig::default() };
    let sde = SacConfig { use_sde: true, ..sac };
    for config in [sac, sde] {
        let mut trainer = new_sac(envs(), &config).unwrap();
        trainer.train(60, |_| true).unwrap();
        trainer.evaluate(envs().as_mut(), 2, 0).unwrap();
    }
    let action_noise = Some(ActionNoise::Gaussian { sigma: 0.5 });
    let td3 = Td3Config { learning_starts: 8, batch_size: 16, action_noise, ..Td3Config::default() };
    let mut trainer = new_td3(envs(), &td3).unwrap();
    trainer.train(60, |_| true).unwrap();
    trainer.evaluate(envs().as_mut(), 2, 0).unwrap();
}

fn trains<A: OffPolicyMethod>(made: Result<OffPolicy<A>>) {
    let mut trainer = made.unwrap();
    let metrics = trainer.train(60, |_| true).unwrap();
    assert!(metrics.timesteps >= 60, "{metrics:?}");
}

#[test]
fn extreme_settings_that_mean_something_train() {
    let small = DqnConfig { buffer_size: 64, learning_starts: 8, train_freq: 1, ..DqnConfig::default() };
    for config in [
        DqnConfig { batch_size: usize::MAX, ..small.clone() },
        DqnConfig { learning_starts: u64::MAX, ..small.clone() },
        DqnConfig { learning_starts: 0, ..small.clone() },
        DqnConfig { target_update_interval: u64::MAX, ..small.clone() },
        DqnConfig { gradient_steps: None, ..small.clone() },
        DqnConfig { utd_ratio: Some(0.0), ..small.clone() },
        DqnConfig { n_steps: 30, ..small.clone() },
        DqnConfig { gamma: 0.0, tau: 0.0, ..small.clone() },
        DqnConfig { gamma: 1.0, max_grad_norm: 0.0, ..small.clone() },
        DqnConfig { optimizer: Optimizer::adam(0.0), lr_schedule: Schedule::Linear, ..small.clone() },
        DqnConfig { exploration_fraction: 0.0, exploration_initial_eps: 0.0, ..small.clone() },
        DqnConfig { prioritized: Some(Priorities { alpha: 0.0, beta: 0.0 }), ..small.clone() },
        DqnConfig { prioritized: Some(Priorities { alpha: 1.0, beta: 1.0 }), buffer_size: 2, ..small },
    ] {
        trains(new_dqn(cartpole(2), config));
    }
    let small = SacConfig { buffer_size: 64, learning_starts: 8, ..SacConfig::default() };
    for config in [
        SacConfig { batch_size: usize::MAX, ..small.clone() },
        SacConfig { target_update_interval: usize::MAX, ..small.clone() },
        SacConfig { ent_coef: EntCoef::Fixed(0.0), ..small.clone() },
        SacConfig { use_sde: true, sde_sample_freq: usize::MAX, ..small.clone() },
        SacConfig { use_sde: true, log_std_init: 20.0, ..small.clone() },
        SacConfig { buffer_size: 2, ..small },
    ] {
        trains(new_sac(pendulum(2), &config));
    }
    let small = Td3Config { buffer_size: 64, learning_starts: 8, ..Td3Config::default() };
    for config in [
        Td3Config { policy_delay: usize::MAX, ..small.clone() },
        Td3Config { target_policy_noise: 0.0, target_noise_clip: 0.0, ..small.clone() },
        Td3Config { action_noise: Some(ActionNoise::Gaussian { sigma: 1e30 }), ..small },
    ] {
        trains(new_td3(pendulum(2), &config));
    }
}

#[test]
fn more_steps_than_the_buffer_holds_are_refused_or_remembered() {
    for n_steps in [33, 64, 65, usize::MAX / 2, usize::MAX] {
        let config = DqnConfig { buffer_size: 64, learning_starts: 8, n_steps, ..DqnConfig::default() };
        match new_dqn(cartpole(2), config) {
            Ok(trainer) => trains(Ok(trainer)),
            Err(error) => assert!(error.to_string().starts_with("n_steps: "), "{error}"),
        }
    }
}

fn unmade<T>(_: &EnvSpec, _: &mut Pcg64) -> Result<T> {
    panic!("networks are made once the settings were checked")
}

#[test]
fn settings_out_of_range_are_named() {
    let sac = |change: fn(&mut SacConfig)| {
        let mut config = SacConfig::default();
        change(&mut config);
        Sac::<SquashedPolicy<Mlp>, TwinCritics<Mlp>>::new(pendulum(2), unmade, config, 0)
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
        Td3::<DeterministicActor<Mlp>, TwinCritics<Mlp>>::new(pendulum(2), unmade, config, 0)
    };
    refused(td3(|c| c.policy_delay = 0), "policy_delay: expected");
    refused(td3(|c| c.target_policy_noise = -0.1), "target_policy_noise: expected");
    refused(td3(|c| c.target_noise_clip = f32::NAN), "target_noise_clip: expected");
    let noise = |theta, dt| Some(ActionNoise::OrnsteinUhlenbeck { sigma: 0.1, theta, dt });
    let with_noise = |action_noise| {
        let config = Td3Config { action_noise, ..Td3Config::default() };
        Td3::<DeterministicActor<Mlp>, TwinCritics<Mlp>>::new(pendulum(2), unmade, config, 0)
    };
    refused(with_noise(noise(-1.0, 0.1)), "action_noise.theta: expected");
    refused(with_noise(noise(1.0, 3.0)), "action_noise.dt: expected");

    let dqn = |change: fn(&mut DqnConfig)| {
        let mut config = DqnConfig::default();
        change(&mut config);
        Dqn::<QNetworks<Mlp>>::new(cartpole(2), unmade, config, 0)
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
    refused(AnySac::new(cartpole(2), unmade, SacConfig::default(), 0), "action space: expected a Box");
    refused(
        Td3::<DeterministicActor<Mlp>, TwinCritics<Mlp>>::new(cartpole(2), unmade, Td3Config::default(), 0),
        "action space: expected a Box",
    );
    refused(
        Dqn::<QNetworks<Mlp>>::new(pendulum(2), unmade, DqnConfig::default(), 0),
        "action space: expected a Discrete one",
    );
    let next_step = Box::new(VecEnv::new(2, None, AutoresetMode::NextStep, envs::CartPole::default).unwrap());
    refused(
        Dqn::<QNetworks<Mlp>>::new(next_step, unmade, DqnConfig::default(), 0),
        "env: expected AutoresetMode::SameStep, got NextStep",
    );
    let foreign = |_: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(acrobot().spec(), &[8], Activation::Relu, rng);
    refused(
        Dqn::new(cartpole(2), foreign, DqnConfig::default(), 0),
        "q_function: expected one for observations of 4 numbers and 2 of actions, got",
    );
    let endless = DqnConfig { buffer_size: usize::MAX / 4096, ..DqnConfig::default() };
    let made =
        Dqn::new(cartpole(2), |s: &EnvSpec, r: &mut Pcg64| QNetworks::mlp(s, &[8], Activation::Relu, r), endless, 0);
    assert!(matches!(made, Err(Error::Memory(_))));
}

/// Environments of other spaces.
fn acrobot() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(1, None, AutoresetMode::SameStep, envs::Acrobot::default).unwrap())
}

#[test]
fn a_run_is_to_be_begun() {
    let make = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    let mut dqn = Dqn::new(cartpole(2), make, DqnConfig::default(), 0).unwrap();
    refused(dqn.iterate(), "resume: expected a run that has not ended, got 0 steps of 0");
    dqn.begin(8);
    dqn.iterate().unwrap();
    refused(dqn.iterate(), "resume: expected");
}
