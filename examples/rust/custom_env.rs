//! Custom environment: a type that implements `Env` gets rollouts, episode statistics and advantages from rlox.
//!
//! Run it with `cargo run --release -p rlox-core --example custom_env`.

use rlox_core::{
    ActionsMut, AutoresetMode, Env, EnvSpec, Pcg64, Policy, PolicyOut, ResetOptions, Result, RolloutBuffer, Space,
    Step, VecEnv, VectorEnv, collect,
    field::{Field, FieldData},
};

/// Walk on a line of cells that starts near the middle. The reward is 1 at the right end and 0 elsewhere.
struct Walk {
    cell: i64,
    cells: i64,
    spec: EnvSpec,
}

impl Walk {
    fn new(cells: i64) -> Self {
        let spec = EnvSpec {
            id: "Walk-v0".into(),
            observation: Space::uniform_box(0.0, 1.0, &[1]),
            action: Space::discrete(2),
            max_episode_steps: Some(100),
        };
        Self { cell: 0, cells, spec }
    }

    fn observe(&self, obs: &mut [f32]) {
        obs[0] = self.cell as f32 / (self.cells - 1) as f32;
    }
}

impl Env for Walk {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.cell = self.cells / 2 + rng.integers(-1, 2);
        self.observe(obs);
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.cell += 2 * action - 1;
        self.observe(obs);
        let (left, right) = (self.cell <= 0, self.cell >= self.cells - 1);
        Step { reward: f64::from(u8::from(right)), terminated: left || right, truncated: false }
    }
}

/// Policy that goes right with a fixed probability.
struct Biased(f64);

impl Policy for Biased {
    fn act(&mut self, obs: &[f32], _: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        if let ActionsMut::Discrete(actions) = out.actions {
            for ((action, log_prob), rng) in actions.iter_mut().zip(out.log_probs).zip(rngs) {
                let right = rng.random() < self.0;
                *action = i64::from(right);
                *log_prob = if right { self.0.ln() } else { (1.0 - self.0).ln() } as f32;
            }
        }
        self.value(obs, out.values)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        // An unbiased walk ends on the right with a probability equal to the observation, its position in [0, 1].
        values.copy_from_slice(obs);
        Ok(())
    }
}

fn mean_return(policy: &mut dyn Policy) -> Result<(f64, f32)> {
    let mut env = VecEnv::new(16, Some(0), AutoresetMode::SameStep, || Walk::new(9))?;
    let mut buffer = RolloutBuffer::for_env(256, &env)?;
    let mut rngs: Vec<_> = (0..16).map(Pcg64::seed_from).collect();
    collect(&mut env, policy, &mut rngs, &mut buffer, None, 1.0, 0.95)?;
    let (mut returns, mut lengths) = (Vec::new(), Vec::new());
    env.episodes().drain(&mut returns, &mut lengths);
    let Some(FieldData::F32(advantages)) = buffer.field("advantages").map(Field::data) else {
        return Ok((0.0, 0.0));
    };
    let mean_advantage = advantages.iter().sum::<f32>() / advantages.len() as f32;
    Ok((returns.iter().sum::<f64>() / returns.len() as f64, mean_advantage))
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<()> {
    // The values of `Biased` are exact for the unbiased walk, so the mean advantage of this walk is about 0.
    for right in [0.5, 0.75] {
        let (mean, advantage) = mean_return(&mut Biased(right))?;
        println!("right with {right:.2}: mean return {mean:.2}, mean advantage {advantage:+.3}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn biased_walks_end_on_the_right_more_often() {
        let (fair, advantage) = super::mean_return(&mut super::Biased(0.5)).unwrap();
        let (biased, _) = super::mean_return(&mut super::Biased(0.75)).unwrap();
        assert!((fair - 0.5).abs() < 0.1 && biased > 0.9, "{fair} {biased}");
        assert!(advantage.abs() < 0.05, "{advantage}");
    }
}
