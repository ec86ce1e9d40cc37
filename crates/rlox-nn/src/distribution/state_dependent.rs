//! Exploration that depends on the state: a random matrix, kept for a while, times the last hidden layer.

use rand_distr::StandardNormal;
use rlox_core::{Pcg64, Result};

use super::gaussian::HALF_LN_2_PI;
use super::{Given, check_evaluated, room};
use crate::Parameters;
use crate::room::{filled, resize};

/// Keeps variances away from 0.
const EPSILON: f32 = 1e-6;

/// Generalised state-dependent exploration of a Box space.
///
/// With hidden layer h and an exploration matrix E whose elements are normal with standard deviations `exp(log_std)`, the
/// action is `mean + h E`; over all matrices it is normal with variances `h^2 exp(2 log_std) + 1e-6`. The hidden layer
/// takes no gradient from it.
#[derive(Clone, Debug)]
pub(super) struct StateDependent {
    pub(super) hidden: usize,
    pub(super) dim: usize,
    /// `[hidden, dim]`.
    pub(super) log_std: Parameters,
    /// The matrices, one an environment, `[N, hidden, dim]`.
    pub(super) noise: Vec<f32>,
    /// `exp(2 log_std)`.
    variances: Vec<f32>,
    /// The standard deviations of the last batch, `[N, dim]`.
    stds: Vec<f32>,
    /// The gradients of `log_std` of the last batch.
    pub(super) sums: Vec<f64>,
    /// The rows that the last call evaluated.
    evaluated: usize,
}

impl StateDependent {
    pub(super) fn new(hidden: usize, dim: usize, log_std_init: f32) -> Result<Self> {
        let log_std = Parameters::filled("log_std", &[hidden, dim], log_std_init)?;
        let [noise, variances, stds] = Default::default();
        Ok(Self {
            hidden,
            dim,
            log_std,
            noise,
            variances,
            stds,
            sums: filled("shape", hidden * dim, 0.0)?,
            evaluated: 0,
        })
    }

    pub(super) fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        resize("rngs", &mut self.noise, rngs.len().saturating_mul(self.hidden * self.dim), 0.0)?;
        for (matrix, rng) in self.noise.chunks_exact_mut(self.hidden * self.dim).zip(rngs) {
            for (element, log_std) in matrix.iter_mut().zip(self.log_std.values()) {
                let noise: f32 = rand_distr::Distribution::sample(&StandardNormal, rng);
                *element = noise * log_std.exp();
            }
        }
        Ok(())
    }

    /// Computes the standard deviations of a batch.
    fn prepare(&mut self, hidden: &[f32]) -> Result<()> {
        self.evaluated = 0;
        let variances = room(&mut self.variances, self.hidden * self.dim)?;
        for (variance, log_std) in variances.iter_mut().zip(self.log_std.values()) {
            *variance = (2.0 * log_std).exp();
        }
        let rows = hidden.len() / self.hidden;
        let stds = room(&mut self.stds, rows * self.dim)?;
        stds.fill(EPSILON);
        for (row, h) in stds.chunks_exact_mut(self.dim).zip(hidden.chunks_exact(self.hidden)) {
            for (h, variances) in h.iter().zip(variances.chunks_exact(self.dim)) {
                row.iter_mut().zip(variances).for_each(|(sum, variance)| *sum += h * h * variance);
            }
            for variance in row {
                *variance = variance.sqrt();
            }
        }
        Ok(())
    }

    pub(super) fn sample(
        &mut self,
        given: Given<'_>,
        rngs: &mut [Pcg64],
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        if self.noise.len() != rngs.len() * self.hidden * self.dim {
            self.draw_noise(rngs)?;
        }
        actions.copy_from_slice(given.outputs);
        let rows = actions.chunks_exact_mut(self.dim).zip(given.hidden.chunks_exact(self.hidden));
        for ((row, h), matrix) in rows.zip(self.noise.chunks_exact(self.hidden * self.dim)) {
            for (h, noise) in h.iter().zip(matrix.chunks_exact(self.dim)) {
                row.iter_mut().zip(noise).for_each(|(action, noise)| *action += h * noise);
            }
        }
        self.prepare(given.hidden)?;
        self.sum_log_probs(given.outputs, actions, log_probs);
        Ok(())
    }

    fn sum_log_probs(&self, means: &[f32], actions: &[f32], log_probs: &mut [f32]) {
        log_probs.fill(0.0);
        for (index, ((action, mean), std)) in actions.iter().zip(means).zip(&self.stds).enumerate() {
            let z = (action - mean) / std;
            log_probs[index / self.dim] -= 0.5 * z * z + std.ln() + HALF_LN_2_PI;
        }
    }

    pub(super) fn evaluate(
        &mut self,
        given: Given<'_>,
        actions: &[f32],
        log_probs: &mut [f32],
        entropies: &mut [f32],
    ) -> Result<()> {
        self.prepare(given.hidden)?;
        self.sum_log_probs(given.outputs, actions, log_probs);
        for (entropy, stds) in entropies.iter_mut().zip(self.stds.chunks_exact(self.dim)) {
            *entropy = stds.iter().map(|std| 0.5 + HALF_LN_2_PI + std.ln()).sum();
        }
        self.evaluated = entropies.len();
        Ok(())
    }

    /// With `z = (a - mean) / std`: `d log_prob / d mean = z / std`, `d log_prob / d std = (z^2 - 1) / std`,
    /// `d H / d std = 1 / std`, and `d std_j / d log_std_kj = h_k^2 exp(2 log_std_kj) / std_j`.
    pub(super) fn backward(
        &mut self,
        given: Given<'_>,
        actions: &[f32],
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        check_evaluated(self.evaluated, d_log_probs.len())?;
        self.sums.fill(0.0);
        let dim = self.dim;
        for (row, d_log_prob) in d_log_probs.iter().enumerate() {
            let h = &given.hidden[row * self.hidden..][..self.hidden];
            for j in 0..dim {
                let at = row * dim + j;
                let std = self.stds[at];
                let z = (actions[at] - given.outputs[at]) / std;
                d_outputs[at] = d_log_prob * z / std;
                let d_variance = (d_log_prob * (z * z - 1.0) + d_entropy) / (std * std);
                for (k, h) in h.iter().enumerate() {
                    self.sums[k * dim + j] += f64::from(d_variance * h * h * self.variances[k * dim + j]);
                }
            }
        }
        Ok(())
    }
}
