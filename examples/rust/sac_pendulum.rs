//! SAC on Pendulum in pure Rust, without Python and without a tensor library.
//!
//! Run it with `cargo run --release -p rlox-nn --example sac_pendulum`.

use std::time::Instant;

use rlox_core::{Result, VectorEnv, envs};
use rlox_nn::Optimizer;
use rlox_nn::train::{Sac, SacConfig};

const SEED: u64 = 1;

/// Creates native environments. The same seed and actions give the same trajectory as in Gymnasium.
fn pendulum(num_envs: usize) -> Result<Box<dyn VectorEnv>> {
    let options = envs::MakeOptions { num_envs, ..Default::default() };
    envs::make("Pendulum-v1", &options)
}

/// Trains for `timesteps` steps and returns the mean return of greedy episodes.
#[expect(clippy::print_stdout, reason = "an example prints")]
fn train(timesteps: u64) -> Result<f64> {
    // Settings of rl-zoo3 for Pendulum: one minibatch of 256 transitions per step, and a learned entropy coefficient.
    let config = SacConfig { optimizer: Optimizer::adam(1e-3), ..SacConfig::default() };

    // Policy and two critics with two hidden layers of 256 units; the seed determines their initial weights.
    let networks = |spec: &_, rng: &mut _| config.mlp(spec, &[256, 256], rng);
    let mut sac = Sac::new(pendulum(1)?, networks, config.clone(), SEED)?;

    let start = Instant::now();
    let steps_per_second = |steps: u64| steps as f64 / start.elapsed().as_secs_f64();
    sac.train(timesteps, |metrics| {
        if let Some(learned) = metrics.last_update.filter(|_| metrics.timesteps % 2_000 == 0) {
            println!(
                "{:>6} steps  {:>6.0} steps/s  return {:>8.1}  critic loss {:>7.3}  entropy coefficient {:.3}",
                metrics.timesteps,
                steps_per_second(metrics.timesteps),
                metrics.mean_return,
                learned.critic_loss,
                learned.ent_coef.unwrap_or_default(),
            );
        }
        true
    })?;
    let (steps, seconds) = (sac.timesteps(), start.elapsed().as_secs_f64());
    println!("trained {steps} steps in {seconds:.2} s ({:.0} steps/s)", steps_per_second(steps));

    let returns = sac.evaluate(pendulum(10)?.as_mut(), 30, 1_000)?;
    let score = returns.iter().sum::<f64>() / returns.len() as f64;
    println!("score {score:.1} over {} greedy episodes (good from -180 on)", returns.len());
    Ok(score)
}

fn main() -> Result<()> {
    train(20_000).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn short_runs_train_and_evaluate() {
        // The reward of a step is between -16.3 and 0.
        let score = super::train(110).unwrap();
        assert!((-3300.0..0.0).contains(&score), "{score}");
    }

    #[test]
    #[ignore = "slow: 20,000 steps"]
    fn sac_learns_pendulum() {
        let score = super::train(20_000).unwrap();
        assert!(score > -400.0, "{score}");
    }
}
