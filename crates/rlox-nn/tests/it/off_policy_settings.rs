//! Settings, spaces and networks of DQN, SAC and TD3: invalid values are rejected, valid values
//! train.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step, VecEnv, VectorEnv, envs,
    error::Mismatch, normalize::NormalizerOptions,
};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, EntCoef, OffPolicy, OffPolicyMethod, Priorities, Sac, SacConfig, Schedule, Td3,
    Td3Config,
};
use rlox_nn::{Activation, CriticEnsemble, DeterministicActor, Mlp, Optimizer, QNetworks, SquashedPolicy};

use crate::support::trainers;
use crate::support::trainers::{HIDDEN, cartpole, pendulum};

/// Invalid change of a config, name of the setting, and the value that the error reports.
type Change<C> = (fn(&mut C), &'static str, &'static str);

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

/// Asserts that a setting is rejected.
fn rejects<T>(result: Result<T>, setting: &str) {
    assert_rejects(result, Error::Config, setting);
}

/// Invalid changes of settings that all three configs have.
macro_rules! common {
    ($config:ty) => {{
        let changes: [Change<$config>; 23] = [
            (|c| c.buffer_size = 0, "buffer_size", "0"),
            (|c| c.batch_size = 0, "batch_size", "0"),
            (|c| c.train_freq = 0, "train_freq", "0"),
            (|c| c.gradient_steps = Some(0), "gradient_steps", "0"),
            (|c| c.n_steps = 0, "n_steps", "0"),
            (|c| c.utd_ratio = Some(-0.5), "utd_ratio", "-0.5"),
            (|c| c.utd_ratio = Some(f64::NAN), "utd_ratio", "NaN"),
            (|c| c.utd_ratio = Some(f64::INFINITY), "utd_ratio", "inf"),
            (|c| c.gamma = -0.1, "gamma", "-0.1"),
            (|c| c.gamma = 1.1, "gamma", "1.1"),
            (|c| c.gamma = f64::NAN, "gamma", "NaN"),
            (|c| c.tau = -0.5, "tau", "-0.5"),
            (|c| c.tau = 1.5, "tau", "1.5"),
            (|c| c.tau = f32::NAN, "tau", "NaN"),
            (|c| c.optimizer = Optimizer::adam(f32::NAN), "lr", "NaN"),
            (|c| c.optimizer = Optimizer::adam(-0.5), "lr", "-0.5"),
            (|c| c.optimizer = Optimizer::adam(f32::INFINITY), "lr", "inf"),
            (|c| c.optimizer = Optimizer::adam(1e-3).with_eps(0.0), "eps", "0"),
            (|c| c.optimizer = Optimizer::Adam { lr: 0.1, beta1: 1.0, beta2: 0.9, eps: 1e-8 }, "beta1", "1"),
            (|c| c.optimizer = Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: f32::NAN, eps: 1e-8 }, "beta2", "NaN"),
            (|c| c.optimizer = Optimizer::RmsProp { lr: 0.1, alpha: 1.0, eps: 1e-8 }, "alpha", "1"),
            (|c| c.normalize = Some(NormalizerOptions { epsilon: -1.0, ..Default::default() }), "epsilon", "-1"),
            (|c| c.normalize = Some(NormalizerOptions { clip_obs: f64::NAN, ..Default::default() }), "clip_obs", "NaN"),
        ];
        changes
    }};
}

#[test]
fn invalid_common_settings_are_rejected() {
    for (change, argument, got) in common!(DqnConfig) {
        let mut config = DqnConfig::default();
        change(&mut config);
        assert_eq!(assert_rejects(new_dqn(cartpole(2), config), Error::Config, argument).got, got);
    }
    for (change, argument, got) in common!(SacConfig) {
        let mut config = SacConfig::default();
        change(&mut config);
        assert_eq!(assert_rejects(new_sac(pendulum(2), &config), Error::Config, argument).got, got);
    }
    for (change, argument, got) in common!(Td3Config) {
        let mut config = Td3Config::default();
        change(&mut config);
        assert_eq!(assert_rejects(new_td3(pendulum(2), &config), Error::Config, argument).got, got);
    }
}

#[test]
fn buffers_beyond_memory_are_rejected() {
    for buffer_size in [usize::MAX, usize::MAX / 64, 1 << 44] {
        let config = DqnConfig { buffer_size, ..DqnConfig::default() };
        assert_rejects(new_dqn(cartpole(2), config.clone()), Error::Memory, "buffer_size");
        let prioritized = Some(Priorities { alpha: 0.6, beta: 0.4 });
        assert_rejects(new_dqn(cartpole(2), DqnConfig { prioritized, ..config }), Error::Memory, "buffer_size");
        let config = SacConfig { buffer_size, ..SacConfig::default() };
        assert_rejects(new_sac(pendulum(2), &config), Error::Memory, "buffer_size");
        let config = Td3Config { buffer_size, ..Td3Config::default() };
        assert_rejects(new_td3(pendulum(2), &config), Error::Memory, "buffer_size");
    }
}

#[test]
fn invalid_settings_of_one_algorithm_are_rejected() {
    let priorities = |alpha, beta| Some(Priorities { alpha, beta });
    for (config, argument) in [
        (DqnConfig { target_update_interval: 0, ..DqnConfig::default() }, "target_update_interval"),
        (DqnConfig { exploration_fraction: f64::NAN, ..DqnConfig::default() }, "exploration_fraction"),
        (DqnConfig { exploration_initial_eps: -0.1, ..DqnConfig::default() }, "exploration_initial_eps"),
        (DqnConfig { exploration_final_eps: 1.5, ..DqnConfig::default() }, "exploration_final_eps"),
        (DqnConfig { max_grad_norm: f32::NAN, ..DqnConfig::default() }, "max_grad_norm"),
        (DqnConfig { max_grad_norm: -1.0, ..DqnConfig::default() }, "max_grad_norm"),
        (DqnConfig { prioritized: priorities(-0.1, 0.4), ..DqnConfig::default() }, "priority_alpha"),
        (DqnConfig { prioritized: priorities(0.6, f32::NAN), ..DqnConfig::default() }, "priority_beta"),
    ] {
        rejects(new_dqn(cartpole(2), config), argument);
    }
    let learned = |initial, target_entropy| EntCoef::Auto { initial, target_entropy };
    for (config, argument) in [
        (SacConfig { target_update_interval: 0, ..SacConfig::default() }, "target_update_interval"),
        (SacConfig { ent_coef: EntCoef::Fixed(f32::NAN), ..SacConfig::default() }, "ent_coef"),
        (SacConfig { ent_coef: EntCoef::Fixed(-0.1), ..SacConfig::default() }, "ent_coef"),
        (SacConfig { ent_coef: learned(0.0, None), ..SacConfig::default() }, "ent_coef"),
        (SacConfig { ent_coef: learned(f32::INFINITY, None), ..SacConfig::default() }, "ent_coef"),
        (SacConfig { ent_coef: learned(1.0, Some(f32::NAN)), ..SacConfig::default() }, "target_entropy"),
        (SacConfig { use_sde_at_warmup: true, ..SacConfig::default() }, "use_sde_at_warmup"),
        (SacConfig { log_std_init: f32::NAN, ..SacConfig::default() }, "log_std_init"),
        (SacConfig { use_sde: true, log_std_init: 1e10, ..SacConfig::default() }, "log_std_init"),
    ] {
        rejects(new_sac(pendulum(2), &config), argument);
    }
    let walk = |sigma, theta, dt| Some(ActionNoise::OrnsteinUhlenbeck { sigma, theta, dt });
    let noises = [
        (Some(ActionNoise::Gaussian { sigma: f32::NAN }), "action_noise.sigma"),
        (walk(f32::INFINITY, 0.1, 0.1), "action_noise.sigma"),
        (walk(0.1, f32::NAN, 0.1), "action_noise.theta"),
        (walk(0.1, 0.1, -1.0), "action_noise.dt"),
        (walk(0.1, 1e30, 1e30), "action_noise.dt"),
    ];
    for (action_noise, argument) in noises {
        rejects(new_td3(pendulum(2), &Td3Config { action_noise, ..Td3Config::default() }), argument);
        rejects(new_sac(pendulum(2), &SacConfig { action_noise, ..SacConfig::default() }), argument);
    }
    let unstable = Td3Config { action_noise: walk(0.1, 1e30, 1e30), ..Td3Config::default() };
    let rejected = assert_rejects(new_td3(pendulum(2), &unstable), Error::Config, "action_noise.dt");
    assert!(rejected.expected.starts_with("theta * dt below 2"), "{rejected}");
    for (config, argument) in [
        (Td3Config { policy_delay: 0, ..Td3Config::default() }, "policy_delay"),
        (Td3Config { target_policy_noise: f32::NAN, ..Td3Config::default() }, "target_policy_noise"),
        (Td3Config { target_noise_clip: -0.5, ..Td3Config::default() }, "target_noise_clip"),
    ] {
        rejects(new_td3(pendulum(2), &config), argument);
    }
}

/// Environment with any action space of integers.
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

/// Environment with any Box as action space.
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
fn unsupported_spaces_are_rejected_with_alternatives() {
    let envs = |action: &Space| -> Box<dyn VectorEnv> {
        if matches!(action, Space::Box { .. }) {
            Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, || AnyBox(any(action))).unwrap())
        } else {
            Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, || any(action)).unwrap())
        }
    };
    let (sac, td3) = (SacConfig::default(), Td3Config::default());
    let hint = "use PPO or A2C";
    for action in [Space::MultiDiscrete { nvec: vec![2, 3] }, Space::MultiBinary { n: 3 }] {
        rejects_space(new_dqn(envs(&action), DqnConfig::default()), "a Discrete space", hint);
        rejects_space(new_sac(envs(&action), &sac), "a Box", hint);
        rejects_space(new_td3(envs(&action), &td3), "a Box", hint);
    }
    let rejected = rejects_space(new_sac(cartpole(2), &sac), "a Box", "use DQN, PPO or A2C");
    assert_eq!(rejected.got, cartpole(2).spec().action.to_json().to_string());
    rejects_space(new_td3(cartpole(2), &td3), "a Box", "use DQN, PPO or A2C");
    rejects_space(new_dqn(pendulum(2), DqnConfig::default()), "a Discrete space", "use SAC, TD3, PPO or A2C");
    let unbounded = Space::uniform_box(f32::NEG_INFINITY, f32::INFINITY, &[1]);
    rejects_space(new_dqn(envs(&unbounded), DqnConfig::default()), "a Discrete space", "use PPO or A2C");
    rejects_space(new_sac(envs(&unbounded), &sac), "finite bounds", "or use PPO or A2C");
    rejects_space(new_td3(envs(&unbounded), &td3), "finite bounds", "or use PPO or A2C");
}

/// Asserts that the action space is rejected by an error with this expected space and this hint.
fn rejects_space<T>(result: Result<T>, expected: &str, hint: &str) -> Mismatch {
    let rejected = assert_rejects(result, Error::Space, "action space");
    assert!(rejected.expected == expected && rejected.hint.ends_with(hint), "{rejected}");
    rejected
}

#[test]
fn other_autoreset_modes_are_rejected() {
    for mode in [AutoresetMode::NextStep, AutoresetMode::Disabled] {
        let env = VecEnv::new(2, None, mode, rlox_core::envs::CartPole::default).unwrap();
        let rejected = assert_rejects(new_dqn(Box::new(env), DqnConfig::default()), Error::Config, "env");
        assert_eq!(rejected.got, format!("{mode:?}"));
    }
}

/// Environment that rewards the first of two action numbers, and panics unless the second is 0.3.
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
fn actions_with_equal_bounds_train() {
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

fn assert_trains<A: OffPolicyMethod>(result: Result<OffPolicy<A>>) {
    let mut trainer = result.unwrap();
    let metrics = trainer.train(60, |_| true).unwrap();
    assert!(metrics.timesteps >= 60, "{metrics:?}");
}

#[test]
fn extreme_valid_settings_train() {
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
        assert_trains(new_dqn(cartpole(2), config));
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
        assert_trains(new_sac(pendulum(2), &config));
    }
    let small = Td3Config { buffer_size: 64, learning_starts: 8, ..Td3Config::default() };
    for config in [
        Td3Config { policy_delay: usize::MAX, ..small.clone() },
        Td3Config { target_policy_noise: 0.0, target_noise_clip: 0.0, ..small.clone() },
        Td3Config { action_noise: Some(ActionNoise::Gaussian { sigma: 1e30 }), ..small },
    ] {
        assert_trains(new_td3(pendulum(2), &config));
    }
}

#[test]
fn n_steps_beyond_the_buffer_are_rejected_or_train() {
    for n_steps in [33, 64, 65, usize::MAX / 2, usize::MAX] {
        let config = DqnConfig { buffer_size: 64, learning_starts: 8, n_steps, ..DqnConfig::default() };
        match new_dqn(cartpole(2), config) {
            Ok(trainer) => assert_trains(Ok(trainer)),
            rejected => drop(assert_rejects(rejected, Error::Config, "n_steps")),
        }
    }
}

fn unreachable_networks<T>(_: &EnvSpec, _: &mut Pcg64) -> Result<T> {
    panic!("networks are created after the settings are checked")
}

#[test]
fn settings_are_checked_before_networks_are_created() {
    let sac = |change: fn(&mut SacConfig)| {
        let mut config = SacConfig::default();
        change(&mut config);
        Sac::<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>::new(pendulum(2), unreachable_networks, config, 0)
    };
    rejects(sac(|c| c.buffer_size = 0), "buffer_size");
    rejects(sac(|c| c.batch_size = 0), "batch_size");
    rejects(sac(|c| c.train_freq = 0), "train_freq");
    rejects(sac(|c| c.gradient_steps = Some(0)), "gradient_steps");
    rejects(sac(|c| c.n_steps = 0), "n_steps");
    rejects(sac(|c| c.gamma = 1.1), "gamma");
    rejects(sac(|c| c.tau = f32::NAN), "tau");
    rejects(sac(|c| c.target_update_interval = 0), "target_update_interval");
    rejects(sac(|c| c.optimizer = Optimizer::adam(-1.0)), "lr");
    rejects(sac(|c| c.ent_coef = EntCoef::Fixed(-1.0)), "ent_coef");
    rejects(sac(|c| c.ent_coef = EntCoef::Auto { initial: 0.0, target_entropy: None }), "ent_coef");
    rejects(sac(|c| c.ent_coef = EntCoef::Auto { initial: 1.0, target_entropy: Some(f32::NAN) }), "target_entropy");
    rejects(sac(|c| c.use_sde_at_warmup = true), "use_sde_at_warmup");
    rejects(sac(|c| c.log_std_init = f32::INFINITY), "log_std_init");
    rejects(sac(|c| c.action_noise = Some(ActionNoise::Gaussian { sigma: -0.1 })), "action_noise.sigma");
    rejects(sac(|c| c.normalize = Some(NormalizerOptions { epsilon: 0.0, ..Default::default() })), "epsilon");

    let td3 = |change: fn(&mut Td3Config)| {
        let mut config = Td3Config::default();
        change(&mut config);
        Td3::<DeterministicActor<Mlp>, CriticEnsemble<Mlp>>::new(pendulum(2), unreachable_networks, config, 0)
    };
    rejects(td3(|c| c.policy_delay = 0), "policy_delay");
    rejects(td3(|c| c.target_policy_noise = -0.1), "target_policy_noise");
    rejects(td3(|c| c.target_noise_clip = f32::NAN), "target_noise_clip");
    let noise = |theta, dt| Some(ActionNoise::OrnsteinUhlenbeck { sigma: 0.1, theta, dt });
    let with_noise = |action_noise| {
        let config = Td3Config { action_noise, ..Td3Config::default() };
        Td3::<DeterministicActor<Mlp>, CriticEnsemble<Mlp>>::new(pendulum(2), unreachable_networks, config, 0)
    };
    rejects(with_noise(noise(-1.0, 0.1)), "action_noise.theta");
    rejects(with_noise(noise(1.0, 3.0)), "action_noise.dt");

    let dqn = |change: fn(&mut DqnConfig)| {
        let mut config = DqnConfig::default();
        change(&mut config);
        Dqn::<QNetworks<Mlp>>::new(cartpole(2), unreachable_networks, config, 0)
    };
    rejects(dqn(|c| c.target_update_interval = 0), "target_update_interval");
    rejects(dqn(|c| c.exploration_fraction = -0.1), "exploration_fraction");
    rejects(dqn(|c| c.exploration_initial_eps = 1.1), "exploration_initial_eps");
    rejects(dqn(|c| c.exploration_final_eps = f32::NAN), "exploration_final_eps");
    rejects(dqn(|c| c.max_grad_norm = -1.0), "max_grad_norm");
}

#[test]
fn mismatched_spaces_modes_and_networks_are_rejected() {
    type AnySac = Sac<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>;
    type AnyTd3 = Td3<DeterministicActor<Mlp>, CriticEnsemble<Mlp>>;
    type AnyDqn = Dqn<QNetworks<Mlp>>;
    rejects_space(AnySac::new(cartpole(2), unreachable_networks, SacConfig::default(), 0), "a Box", "");
    rejects_space(AnyTd3::new(cartpole(2), unreachable_networks, Td3Config::default(), 0), "a Box", "");
    rejects_space(AnyDqn::new(pendulum(2), unreachable_networks, DqnConfig::default(), 0), "a Discrete space", "");
    let next_step = Box::new(VecEnv::new(2, None, AutoresetMode::NextStep, envs::CartPole::default).unwrap());
    let result = AnyDqn::new(next_step, unreachable_networks, DqnConfig::default(), 0);
    assert_eq!(assert_rejects(result, Error::Config, "env").got, "NextStep");
    let foreign = |_: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(acrobot().spec(), &[8], Activation::Relu, rng);
    let result = Dqn::new(cartpole(2), foreign, DqnConfig::default(), 0);
    let rejected = assert_rejects(result, Error::Shape, "q_function");
    assert_eq!(rejected.expected, "a network with observation size 4 and action size 2");
    let unbounded = DqnConfig { buffer_size: usize::MAX / 4096, ..DqnConfig::default() };
    let result =
        Dqn::new(cartpole(2), |s: &EnvSpec, r: &mut Pcg64| QNetworks::mlp(s, &[8], Activation::Relu, r), unbounded, 0);
    assert!(matches!(result, Err(Error::Memory(_))));
}

/// Returns environments whose spaces differ from those of the other tests.
fn acrobot() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(1, None, AutoresetMode::SameStep, envs::Acrobot::default).unwrap())
}

#[test]
fn iterate_requires_an_unfinished_run() {
    let make = |spec: &EnvSpec, rng: &mut Pcg64| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    let mut dqn = Dqn::new(cartpole(2), make, DqnConfig::default(), 0).unwrap();
    assert_eq!(assert_rejects(dqn.iterate(), Error::Config, "resume").got, "a run with 0 of 0 steps finished");
    dqn.begin(8);
    dqn.iterate().unwrap();
    rejects(dqn.iterate(), "resume");
}
