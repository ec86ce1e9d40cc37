//! Independent normal distributions, whose means are the network outputs.

use rand_distr::StandardNormal;
use rlox_core::{Pcg64, Result};

use super::{DistInputs, check_evaluated};
use crate::Parameters;
use crate::alloc::try_vec;

/// `ln(2 pi) / 2`.
pub(crate) const HALF_LN_2_PI: f32 = 0.918_938_5;

/// Diagonal Gaussian of a Box space with learned, state-independent standard deviations.
#[derive(Clone, Debug)]
pub(super) struct Gaussian {
    pub(super) dim: usize,
    pub(super) log_std: Parameters,
    /// Gradients of `log_std` in the last batch. They are f64 because they are sums over the batch.
    pub(super) sums: Vec<f64>,
    /// Number of rows of the last evaluation; 0 if another method was called after it.
    evaluated: usize,
}

impl Gaussian {
    pub(super) fn new(dim: usize, log_std_init: f32) -> Result<Self> {
        let log_std = Parameters::filled("log_std", &[dim], log_std_init)?;
        Ok(Self { dim, log_std, sums: try_vec("shape", dim, 0.0)?, evaluated: 0 })
    }

    pub(super) fn sample(
        &mut self,
        inputs: DistInputs<'_>,
        rngs: &mut [Pcg64],
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) {
        self.evaluated = 0;
        let log_stds = self.log_std.values();
        let rows = actions.chunks_exact_mut(self.dim).zip(inputs.outputs.chunks_exact(self.dim));
        for ((row, means), (rng, log_prob)) in rows.zip(rngs.iter_mut().zip(log_probs)) {
            *log_prob = 0.0;
            for ((action, mean), log_std) in row.iter_mut().zip(means).zip(log_stds) {
                let noise: f32 = rand_distr::Distribution::sample(&StandardNormal, rng);
                *action = mean + noise * log_std.exp();
                *log_prob -= 0.5 * noise * noise + log_std + HALF_LN_2_PI;
            }
        }
    }

    pub(super) fn evaluate(
        &mut self,
        inputs: DistInputs<'_>,
        actions: &[f32],
        log_probs: &mut [f32],
        entropies: &mut [f32],
    ) {
        self.evaluated = entropies.len();
        let log_stds = self.log_std.values();
        entropies.fill(log_stds.iter().map(|log_std| 0.5 + HALF_LN_2_PI + log_std).sum());
        let rows = actions.chunks_exact(self.dim).zip(inputs.outputs.chunks_exact(self.dim));
        for ((row, means), log_prob) in rows.zip(log_probs) {
            *log_prob = 0.0;
            for ((action, mean), log_std) in row.iter().zip(means).zip(log_stds) {
                let z = (action - mean) * (-log_std).exp();
                *log_prob -= 0.5 * z * z + log_std + HALF_LN_2_PI;
            }
        }
    }

    /// Computes the gradients of a loss with respect to the means and to `log_std`.
    ///
    /// For an action a, the entropy H and `z = (a - mean) / std`: `d log_prob / d mean = z / std`,
    /// `d log_prob / d log_std = z^2 - 1`, and `d H / d log_std = 1`.
    pub(super) fn backward(
        &mut self,
        inputs: DistInputs<'_>,
        actions: &[f32],
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        check_evaluated(self.evaluated, d_log_probs.len())?;
        self.sums.fill(f64::from(d_entropy) * d_log_probs.len() as f64);
        let rows = actions.chunks_exact(self.dim).zip(inputs.outputs.chunks_exact(self.dim));
        for (((row, means), d_log_prob), out) in rows.zip(d_log_probs).zip(d_outputs.chunks_exact_mut(self.dim)) {
            let known = row.iter().zip(means).zip(self.log_std.values());
            for ((((action, mean), log_std), out), sum) in known.zip(out).zip(&mut self.sums) {
                let precision = (-log_std).exp();
                let z = (action - mean) * precision;
                *out = d_log_prob * z * precision;
                *sum += f64::from(d_log_prob * (z * z - 1.0));
            }
        }
        Ok(())
    }
}

/// Fills a slice with standard normal numbers from one random generator.
pub(crate) fn draw_normal(noise: &mut [f32], rng: &mut Pcg64) {
    for x in noise {
        *x = rand_distr::Distribution::sample(&StandardNormal, rng);
    }
}
