//! DQN on CartPole in pure Rust, without Python and without a tensor library.
//!
//! Run it with `cargo run --release -p rlox-nn --example dqn_cartpole`.

use std::time::Instant;

use rlox_core::{Result, VectorEnv, envs};
use rlox_nn::train::{Dqn, DqnConfig};
use rlox_nn::{Activation, Optimizer, QNetworks};

/// Seed of the run. With these settings, about half of all seeds end with a mean return of at least 475, because the
/// return still oscillates at the end of training.
const SEED: u64 = 2;

/// Creates native environments. The same seed and actions give the same trajectory as in Gymnasium.
fn cartpole(num_envs: usize) -> Result<Box<dyn VectorEnv>> {
    let options = envs::MakeOptions { num_envs, ..Default::default() };
    envs::make("CartPole-v1", &options)
}

/// Trains for `timesteps` steps and returns the mean return of greedy episodes.
#[expect(clippy::print_stdout, reason = "an example prints")]
fn train(timesteps: u64) -> Result<f64> {
    // Settings of rl-zoo3 for CartPole: 128 updates every 256 steps.
    let config = DqnConfig {
        buffer_size: 100_000,
        learning_starts: 1_000,
        batch_size: 64,
        train_freq: 256,
        gradient_steps: Some(128),
        target_update_interval: 10,
        exploration_fraction: 0.16,
        exploration_final_eps: 0.04,
        optimizer: Optimizer::adam(2.3e-3),
        ..DqnConfig::default()
    };

    // Q-network with two hidden layers of 256 units; the seed determines its initial weights.
    let network = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[256, 256], Activation::Relu, rng);
    let mut dqn = Dqn::new(cartpole(1)?, network, config, SEED)?;

    let start = Instant::now();
    let steps_per_second = |steps: u64| steps as f64 / start.elapsed().as_secs_f64();
    let mut iterations = 0;
    dqn.train(timesteps, |metrics| {
        iterations += 1;
        if let Some(learned) = metrics.last_update.filter(|_| iterations % 20 == 0) {
            println!(
                "{:>6} steps  {:>8.0} steps/s  return {:>6.1}  loss {:>8.4}  random actions {:>4.1} %",
                metrics.timesteps,
                steps_per_second(metrics.timesteps),
                metrics.mean_return,
                learned.critic_loss,
                100.0 * metrics.exploration_rate.unwrap_or_default(),
            );
        }
        true
    })?;
    let (steps, seconds) = (dqn.timesteps(), start.elapsed().as_secs_f64());
    println!("trained {steps} steps in {seconds:.2} s ({:.0} steps/s)", steps_per_second(steps));

    let returns = dqn.evaluate(cartpole(10)?.as_mut(), 30, 1_000)?;
    let score = returns.iter().sum::<f64>() / returns.len() as f64;
    println!("score {score:.1} over {} greedy episodes (solved from 475 on)", returns.len());
    Ok(score)
}

fn main() -> Result<()> {
    train(50_000).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn short_runs_train_and_evaluate() {
        let score = super::train(1_280).unwrap();
        assert!((1.0..=500.0).contains(&score), "{score}");
    }

    #[test]
    #[ignore = "slow: 50,000 steps"]
    fn dqn_learns_cartpole() {
        let score = super::train(50_000).unwrap();
        assert!(score > 100.0, "{score}");
    }
}
