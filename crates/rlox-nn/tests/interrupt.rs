//! Long calls end where they are told to: the check is a process's own, so these tests have one.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};

use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Space, Step, VecEnv, VectorEnv, set_interrupt_check,
};
use rlox_nn::train::{A2c, A2cConfig, Ppo, PpoConfig};
use rlox_nn::{Activation, ActorCritic, PolicyNetworks};

static STOP: AtomicBool = AtomicBool::new(false);

/// Ends no episode.
struct Endless(EnvSpec);

impl Env for Endless {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }

    fn step(&mut self, _: &i64, rng: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs[0] = rng.uniform(-1.0, 1.0) as f32;
        Step { reward: 1.0, terminated: false, truncated: false }
    }
}

fn endless() -> Box<dyn VectorEnv> {
    let make = || {
        Endless(EnvSpec {
            id: "Endless-v0".into(),
            observation: Space::uniform_box(-1.0, 1.0, &[1]),
            action: Space::discrete(2),
            max_episode_steps: None,
        })
    };
    Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, make).unwrap())
}

#[test]
fn updates_and_evaluations_end_and_keep_what_was_learned() {
    set_interrupt_check(|| STOP.load(Ordering::Relaxed));
    let config = PpoConfig { n_steps: 16, batch_size: 8, n_epochs: 1_000_000, ..PpoConfig::default() };
    let make = |spec: &EnvSpec, rng: &mut Pcg64| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
    let mut ppo = Ppo::new(endless(), make, config, 1).unwrap();
    let before = ppo.policy().tensors();
    STOP.store(true, Ordering::Relaxed);
    assert!(matches!(ppo.iterate(0.0), Err(Error::Interrupted)));
    assert_ne!(ppo.policy().tensors(), before);
    assert_eq!(ppo.timesteps(), 32);
    assert!(matches!(ppo.evaluate(endless().as_mut(), 1, 0), Err(Error::Interrupted)));
    // Iterations that are shorter than the time between two questions.
    let mut a2c = A2c::new(endless(), make, A2cConfig::default(), 1).unwrap();
    assert!(matches!(a2c.train(u64::MAX, |_| true), Err(Error::Interrupted)));
    assert!(a2c.timesteps() > 0);
    STOP.store(false, Ordering::Relaxed);
}
