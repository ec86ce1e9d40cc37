//! Tests that backends train CartPole policies.

use rlox_core::{AutoresetMode, VecEnv, VectorEnv, envs::CartPole};
use rlox_nn::train::{Ppo, PpoConfig, Schedule};
use rlox_nn::{ActorCritic, Network, Optimizer, PolicyBuilder, PolicyNetworks};

use crate::Make;

fn cartpole() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(8, None, AutoresetMode::SameStep, CartPole::default).unwrap())
}

/// Returns a PPO trainer with the settings of RL Baselines3 Zoo.
fn ppo<N: Network>(make: Make<N>, seed: u64) -> Ppo<PolicyNetworks<N>> {
    let config = PpoConfig {
        n_steps: 32,
        batch_size: 256,
        n_epochs: 20,
        gamma: 0.98,
        gae_lambda: 0.8,
        optimizer: Optimizer::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-5 },
        lr_schedule: Schedule::Linear,
        clip_schedule: Schedule::Linear,
        ..PpoConfig::default()
    };
    let policy = |spec: &_, rng: &mut _| PolicyBuilder::new(spec).build_with(rng, make);
    Ppo::new(cartpole(), policy, config, seed).unwrap()
}

/// Returns the mean episode return of the greedy policy over `episodes` episodes.
fn score<N: Network>(ppo: &mut Ppo<PolicyNetworks<N>>, episodes: usize) -> f64 {
    let returns = ppo.evaluate(cartpole().as_mut(), episodes, 7).unwrap();
    returns.iter().sum::<f64>() / returns.len() as f64
}

pub fn training_is_reproducible_from_seed<N: Network>(make: Make<N>) {
    let train = |seed| {
        let mut ppo = ppo(make, seed);
        ppo.train(512, |_| true).unwrap();
        (ppo.policy().tensors(), ppo.policy().optimizer_state())
    };
    let first = train(1);
    assert_eq!(first, train(1));
    assert_ne!(first, train(2));
}

pub fn ppo_improves_on_cartpole<N: Network>(make: Make<N>) {
    let mut ppo = ppo(make, 1);
    let before = score(&mut ppo, 20);
    ppo.train(40_000, |_| true).unwrap();
    let after = score(&mut ppo, 20);
    assert!(before < 100.0 && after > 200.0, "from {before} to {after}");
}

pub fn ppo_solves_cartpole<N: Network>(make: Make<N>) {
    for seed in 0..3 {
        let mut ppo = ppo(make, seed);
        ppo.train(100_000, |_| true).unwrap();
        let after = score(&mut ppo, 100);
        assert!(after >= 475.0, "seed {seed}: {after}");
    }
}
