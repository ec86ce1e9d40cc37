//! PPO on CartPole in pure Rust, without Python and without a tensor library.
//!
//! Run it with `cargo run --release -p rlox-nn --example ppo_cartpole`.

use std::time::Instant;

use rlox_core::{Result, envs};
use rlox_nn::train::{Ppo, PpoConfig, Schedule};
use rlox_nn::{Activation, Optimizer, PolicyNetworks};

const NUM_ENVS: usize = 8;
const TIMESTEPS: u64 = 100_000;
const SEED: u64 = 1;

fn main() -> Result<()> {
    train(TIMESTEPS).map(|_| ())
}

/// Trains for `timesteps` steps over all environments and returns the mean return of greedy episodes.
#[expect(clippy::print_stdout, reason = "an example prints")]
fn train(timesteps: u64) -> Result<f64> {
    // The same seed and actions give the same trajectory as in Gymnasium.
    let env = || {
        let options = envs::MakeOptions { num_envs: NUM_ENVS, ..Default::default() };
        envs::make("CartPole-v1", &options)
    };

    // Settings of rl-zoo3 for CartPole.
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

    // Actor and critic with two hidden layers of 64 units; the seed determines their initial weights.
    let policy = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
    let mut ppo = Ppo::new(env()?, policy, config, SEED)?;

    let start = Instant::now();
    let steps_per_second = |steps: u64| steps as f64 / start.elapsed().as_secs_f64();
    let mut iterations = 0;
    ppo.train(timesteps, |metrics| {
        iterations += 1;
        if iterations % 40 == 0 {
            println!(
                "{:>7} steps  {:>9.0} steps/s  return {:>6.1}  approx. KL {:.4}  explained variance {:>5.2}",
                metrics.timesteps,
                steps_per_second(metrics.timesteps),
                metrics.mean_return,
                metrics.last_update.stats.approx_kl,
                metrics.last_update.explained_variance,
            );
        }
        true
    })?;
    let (steps, seconds) = (ppo.timesteps(), start.elapsed().as_secs_f64());
    println!("trained {steps} steps in {seconds:.2} s ({:.0} steps/s)", steps_per_second(steps));

    let returns = ppo.evaluate(env()?.as_mut(), 30, 1_000)?;
    let mean = returns.iter().sum::<f64>() / returns.len() as f64;
    println!("score {mean:.1} over {} greedy episodes (solved from 475 on)", returns.len());
    Ok(mean)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ppo_solves_cartpole() {
        let score = super::train(super::TIMESTEPS).unwrap();
        assert!(score >= 475.0, "{score}");
    }
}
