//! Rollouts and settings that do not fit are refused, and nothing was learned.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{AutoresetMode, EnvSpec, Pcg64, RolloutBuffer, Seeds, Space, VecEnv, VectorEnv, envs};
use rlox_nn::train::{
    A2cConfig, Collection, Encoding, IterationStreams, Minibatches, PpoConfig, collect_transitions, estimate_advantages,
};
use rlox_nn::{Activation, ActorCritic, Mlp, Optimizer, PolicyNetworks};

const ENVS: usize = 2;

/// A policy of `CartPole`'s actions that takes so many numbers.
fn policy(inputs: usize) -> PolicyNetworks<Mlp> {
    let observation = Space::uniform_box(-1.0, 1.0, &[inputs]);
    let spec = EnvSpec { id: "none".into(), observation, action: Space::discrete(2), max_episode_steps: None };
    PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap()
}

/// A finished rollout of `CartPole`.
fn rollout() -> RolloutBuffer {
    let mut env = VecEnv::new(ENVS, None, AutoresetMode::SameStep, envs::CartPole::default).unwrap();
    let mut streams = IterationStreams::new(1, ENVS).unwrap();
    let mut buffer = RolloutBuffer::for_env(16, &env).unwrap();
    buffer.begin(&mut env, Seeds::Base(3), None).unwrap();
    let how = Collection { gamma: 0.99, gae_lambda: 0.95, sde_sample_freq: 0 };
    let actions = &mut streams.actions;
    collect_transitions(&mut env, &mut policy(4), actions, &mut buffer, None, how, &mut || false).unwrap();
    buffer
}

#[test]
fn observations_of_another_width_are_not_learned_from() {
    let (mut buffer, mut policy) = (rollout(), policy(2));
    let before = policy.tensors();
    let mut minibatches = Minibatches::new(Encoding::Numbers(2));
    let order = &mut Pcg64::seed_from(0);
    let expected = "obs: expected rows of 2 numbers for Numbers(2), got 4";
    let ppo = PpoConfig::default().learn(&mut policy, &buffer, &mut minibatches, order, 0.0, &mut || false);
    let a2c = A2cConfig::default().learn(&mut policy, &buffer, &mut minibatches, 0.0, &mut || false);
    let encoding = Encoding::OneHot(vec![1, 1]);
    let estimated = estimate_advantages(&mut policy, &mut buffer, &encoding, &mut Vec::new(), 0.99, 0.95);
    for error in [ppo.unwrap_err(), a2c.unwrap_err()] {
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let error = estimated.unwrap_err().to_string();
    assert!(error.starts_with("obs: expected rows of 2 numbers for OneHot([1, 1]), got 4"), "{error}");
    assert_eq!(policy.tensors(), before);
}

/// Actions of what was learned from last are not those of the next rollout, whatever their kind.
#[test]
fn minibatches_go_from_one_kind_of_actions_to_the_other() {
    let mut minibatches = Minibatches::new(Encoding::Numbers(2));
    let mut learn = |env: &mut dyn VectorEnv| {
        let mut policy = PolicyNetworks::mlp(env.spec(), &[4], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
        let mut buffer = RolloutBuffer::for_env(8, env).unwrap();
        buffer.begin(env, Seeds::Base(0), None).unwrap();
        let mut streams = IterationStreams::new(0, 1).unwrap();
        let how = Collection { gamma: 0.99, gae_lambda: 0.95, sde_sample_freq: 0 };
        let actions = &mut streams.actions;
        collect_transitions(env, &mut policy, actions, &mut buffer, None, how, &mut || false).unwrap();
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
fn settings_out_of_range_are_refused_before_learning() {
    let (buffer, mut policy) = (rollout(), policy(4));
    let mut minibatches = Minibatches::new(Encoding::Numbers(4));
    let order = &mut Pcg64::seed_from(0);
    let config = PpoConfig { batch_size: 0, ..PpoConfig::default() };
    let error = config.learn(&mut policy, &buffer, &mut minibatches, order, 0.0, &mut || false).unwrap_err();
    assert!(error.to_string().starts_with("batch_size: expected at least 1, got 0"), "{error}");
    let config = A2cConfig { optimizer: Optimizer::rms_prop(f32::NAN), ..A2cConfig::default() };
    let error = config.learn(&mut policy, &buffer, &mut minibatches, 0.0, &mut || false).unwrap_err();
    assert!(error.to_string().starts_with("lr: expected"), "{error}");
}
