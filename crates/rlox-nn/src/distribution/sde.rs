//! State-dependent exploration (gSDE): the noise is a random matrix times the last hidden layer.

use rand_distr::StandardNormal;
use rlox_core::{Pcg64, Result};

use super::gaussian::{HALF_LN_2_PI, draw_normal};
use super::squashed::Squash;
use super::{DistInputs, check_evaluated, ensure_len};
use crate::Parameters;
use crate::alloc::{resize, try_vec};

/// Constant that is added to variances, so that they stay above 0.
const EPSILON: f32 = 1e-6;

/// Limit of means before squashing, as in Stable-Baselines3. Clamped means get no gradient.
const CLIP_MEAN: f32 = 2.0;

/// Generalised state-dependent exploration of a Box space.
///
/// Let h be the last hidden layer, and E a random matrix of normal elements with the standard
/// deviations `exp(log_std)`. The action is `mean + h E`. Log-probabilities are those of a normal
/// distribution with the variances `h^2 exp(2 log_std) + 1e-6`. No gradient with respect to h is
/// computed.
#[derive(Clone, Debug)]
pub(super) struct StateDependent {
    pub(super) hidden: usize,
    pub(super) dim: usize,
    /// Log standard deviations of the elements of a random matrix, `[hidden, dim]`.
    pub(super) log_std: Parameters,
    /// Random matrices, one per environment, `[N, hidden, dim]`.
    pub(super) noise: Vec<f32>,
    /// Variances `exp(2 log_std)` of the elements of a random matrix, `[hidden, dim]`.
    variances: Vec<f32>,
    /// Standard deviations of the actions in the last batch, `[N, dim]`.
    stds: Vec<f32>,
    /// Gradients of `log_std` in the last batch.
    pub(super) sums: Vec<f64>,
    /// Number of rows of the last evaluation; 0 if another method was called after it.
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
            sums: try_vec("shape", hidden * dim, 0.0)?,
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

    /// Computes the standard deviations of the actions in a batch.
    fn prepare(&mut self, hidden: &[f32]) -> Result<()> {
        self.evaluated = 0;
        let variances = ensure_len(&mut self.variances, self.hidden * self.dim)?;
        for (variance, log_std) in variances.iter_mut().zip(self.log_std.values()) {
            *variance = (2.0 * log_std).exp();
        }
        let rows = hidden.len() / self.hidden;
        let stds = ensure_len(&mut self.stds, rows * self.dim)?;
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
        inputs: DistInputs<'_>,
        rngs: &mut [Pcg64],
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        if self.noise.len() != rngs.len() * self.hidden * self.dim {
            self.draw_noise(rngs)?;
        }
        actions.copy_from_slice(inputs.outputs);
        let rows = actions.chunks_exact_mut(self.dim).zip(inputs.hidden.chunks_exact(self.hidden));
        for ((row, h), matrix) in rows.zip(self.noise.chunks_exact(self.hidden * self.dim)) {
            for (h, noise) in h.iter().zip(matrix.chunks_exact(self.dim)) {
                row.iter_mut().zip(noise).for_each(|(action, noise)| *action += h * noise);
            }
        }
        self.prepare(inputs.hidden)?;
        self.sum_log_probs(inputs.outputs, actions, log_probs);
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
        inputs: DistInputs<'_>,
        actions: &[f32],
        log_probs: &mut [f32],
        entropies: &mut [f32],
    ) -> Result<()> {
        self.prepare(inputs.hidden)?;
        self.sum_log_probs(inputs.outputs, actions, log_probs);
        for (entropy, stds) in entropies.iter_mut().zip(self.stds.chunks_exact(self.dim)) {
            *entropy = stds.iter().map(|std| 0.5 + HALF_LN_2_PI + std.ln()).sum();
        }
        self.evaluated = entropies.len();
        Ok(())
    }

    /// Computes the gradients of a loss with respect to the means and to `log_std`.
    ///
    /// For an action a, the entropy H and `z = (a - mean) / std`: `d log_prob / d mean = z / std`,
    /// `d log_prob / d std = (z^2 - 1) / std`, `d H / d std = 1 / std`, and
    /// `d std_j / d log_std_kj = h_k^2 exp(2 log_std_kj) / std_j`.
    pub(super) fn backward(
        &mut self,
        inputs: DistInputs<'_>,
        actions: &[f32],
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        check_evaluated(self.evaluated, d_log_probs.len())?;
        self.sums.fill(0.0);
        let dim = self.dim;
        for (row, d_log_prob) in d_log_probs.iter().enumerate() {
            let h = &inputs.hidden[row * self.hidden..][..self.hidden];
            for j in 0..dim {
                let index = row * dim + j;
                let std = self.stds[index];
                let z = (actions[index] - inputs.outputs[index]) / std;
                d_outputs[index] = d_log_prob * z / std;
                let d_variance = (d_log_prob * (z * z - 1.0) + d_entropy) / (std * std);
                for (k, h) in h.iter().enumerate() {
                    self.sums[k * dim + j] += f64::from(d_variance * h * h * self.variances[k * dim + j]);
                }
            }
        }
        Ok(())
    }
}

/// Random matrices of a squashed policy with gSDE, as in Stable-Baselines3's SAC.
///
/// Let h be the last hidden layer, and E a random matrix of normal elements with the standard
/// deviations `exp(log_std)`. The action is `tanh(mean + h E)`. Log-probabilities use the variances
/// `h^2 exp(2 log_std) + 1e-6` of `h E`. A gradient with respect to h is computed.
#[derive(Clone, Debug)]
pub(crate) struct Exploration {
    pub(crate) hidden: usize,
    dim: usize,
    /// Log standard deviations of the elements of a random matrix, `[hidden, a]`.
    pub(crate) log_std: Parameters,
    /// Random matrices, one per environment, `[N, a, hidden]`.
    pub(crate) matrices: Vec<f32>,
    /// Buffer of standard normal noise, `[hidden, a]`.
    noise: Vec<f32>,
    sums: [Vec<f64>; 2],
}

impl Exploration {
    pub(crate) fn new(hidden: usize, dim: usize, log_std_init: f32) -> Result<Self> {
        let log_std = Parameters::filled("log_std", &[hidden, dim], log_std_init)?;
        let count = hidden * dim;
        let sums = [try_vec("shape", count, 0.0)?, try_vec("shape", count, 0.0)?];
        Ok(Self { hidden, dim, log_std, matrices: Vec::new(), noise: try_vec("shape", count, 0.0)?, sums })
    }

    /// Draws a random matrix for each environment, for environment `i` from `rngs[i]`.
    pub(crate) fn draw(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        let count = self.hidden * self.dim;
        resize("rngs", &mut self.matrices, rngs.len().saturating_mul(count), 0.0)?;
        for (matrix, rng) in self.matrices.chunks_exact_mut(count).zip(rngs) {
            draw_normal(&mut self.noise, rng);
            scale(self.log_std.values(), self.dim, &self.noise, matrix);
        }
        Ok(())
    }

    /// Computes a random matrix, `[a, hidden]`, from standard normal noise, `[hidden, a]`.
    pub(crate) fn matrix(&self, noise: &[f32], matrix: &mut Vec<f32>) -> Result<()> {
        resize("obs", matrix, noise.len(), 0.0)?;
        scale(self.log_std.values(), self.dim, noise, matrix);
        Ok(())
    }
}

/// Multiplies noise `[hidden, a]` by the standard deviations and transposes it to `[a, hidden]`.
fn scale(log_stds: &[f32], dim: usize, noise: &[f32], matrix: &mut [f32]) {
    let hidden = noise.len() / dim;
    for (index, (noise, log_std)) in noise.iter().zip(log_stds).enumerate() {
        matrix[index % dim * hidden + index / dim] = noise * log_std.exp();
    }
}

/// Data of the last sample for the backward pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explored {
    /// `exp(2 log_std)`, `[a, hidden]`.
    squares: Vec<f32>,
    /// Noise `h E` of the actions before squashing, `[N, a]`.
    noise: Vec<f32>,
    /// Variances of `h E`, `[N, a]`.
    variances: Vec<f32>,
    /// Actions before squashing, `[N, a]`.
    u: Vec<f32>,
    actions: Vec<f32>,
    squash: Squash,
}

impl Explored {
    /// Computes the actions without noise: `tanh` of the clamped means.
    pub(crate) fn mode(&mut self, outputs: &[f32], actions: &mut [f32]) {
        self.u.clear();
        self.u.extend(outputs.iter().map(|mean| mean.clamp(-CLIP_MEAN, CLIP_MEAN)));
        self.squash.run(&self.u, actions);
    }

    /// Computes actions and log-probabilities.
    ///
    /// `matrices` has one random matrix per row, or one matrix for all rows.
    pub(crate) fn sample(
        &mut self,
        exploration: &Exploration,
        matrices: &[f32],
        (outputs, hidden): (&[f32], &[f32]),
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        let (dim, count) = (exploration.dim, exploration.hidden);
        let Self { squares, noise, variances, u, actions: stored_actions, squash } = self;
        resize("obs", squares, count * dim, 0.0)?;
        for (index, log_std) in exploration.log_std.values().iter().enumerate() {
            squares[index % dim * count + index / dim] = (2.0 * log_std).exp();
        }
        for vector in [&mut *noise, &mut *variances, &mut *u] {
            resize("obs", vector, actions.len(), 0.0)?;
        }
        let matrix_per_row = matrices.len() > count * dim;
        for (row, h) in hidden.chunks_exact(count).enumerate() {
            let matrix = if matrix_per_row { &matrices[row * count * dim..][..count * dim] } else { matrices };
            for (j, (column, squares)) in matrix.chunks_exact(count).zip(squares.chunks_exact(count)).enumerate() {
                let index = row * dim + j;
                noise[index] = zip_sum(h, column, |h, x| h * x);
                variances[index] = EPSILON + zip_sum(h, squares, |h, x| h * h * x);
                u[index] = outputs[index].clamp(-CLIP_MEAN, CLIP_MEAN) + noise[index];
            }
        }
        squash.run(u, actions);
        stored_actions.clear();
        stored_actions.extend_from_slice(actions);
        log_probs.fill(0.0);
        for (index, ((noise, variance), log_slope)) in noise.iter().zip(&*variances).zip(&squash.log_slopes).enumerate()
        {
            let log_std = 0.5 * variance.ln();
            log_probs[index / dim] -= 0.5 * noise * noise / variance + log_std + HALF_LN_2_PI + log_slope;
        }
        Ok(())
    }

    /// Computes the gradients of a loss with respect to the outputs and the last hidden layer h.
    ///
    /// Also computes the gradient of `log_std`, which [`Explored::add_gradients`] adds. Let
    /// `n = h E` and let v be the variance of n. Element by element, `dn / d log_std = h E`,
    /// `dn / dh = E`, `dv / d log_std = 2 h^2 exp(2 log_std)` and `dv / dh = 2 h exp(2 log_std)`.
    /// The normal log-probability of n has the derivatives `-n / v` with respect to n and
    /// `(n^2 / v - 1) / (2 v)` with respect to v. The correction for `tanh` is added.
    pub(crate) fn backward(
        &self,
        exploration: &mut Exploration,
        matrix: &[f32],
        (outputs, hidden): (&[f32], &[f32]),
        (d_actions, d_log_probs): (&[f32], &[f32]),
        (d_outputs, d_hidden): (&mut [f32], &mut [f32]),
    ) {
        let Exploration { hidden: count, dim, sums: [first, second], .. } = exploration;
        let (count, dim) = (*count, *dim);
        first.fill(0.0);
        second.fill(0.0);
        d_hidden.fill(0.0);
        for (index, d_output) in d_outputs.iter_mut().enumerate() {
            let (row, j) = (index / dim, index % dim);
            let (noise, variance, d_log_prob) = (self.noise[index], self.variances[index], d_log_probs[row]);
            let d_u = d_actions[index] * self.squash.slopes[index] + d_log_prob * 2.0 * self.actions[index];
            *d_output = if outputs[index].abs() >= CLIP_MEAN { 0.0 } else { d_u };
            let d_noise = d_u - d_log_prob * noise / variance;
            let d_variance = d_log_prob * 0.5 * (noise * noise / variance - 1.0) / variance;
            let h = &hidden[row * count..(row + 1) * count];
            let factors = matrix[j * count..].iter().zip(&self.squares[j * count..]);
            let d_hidden = &mut d_hidden[row * count..(row + 1) * count];
            for ((d_hidden, h), (e, square)) in d_hidden.iter_mut().zip(h).zip(factors) {
                *d_hidden += d_noise * e + d_variance * 2.0 * h * square;
            }
            let (d_noise, d_variance) = (f64::from(d_noise), f64::from(d_variance));
            let sums = first[j * count..].iter_mut().zip(&mut second[j * count..]);
            for ((first, second), h) in sums.zip(h) {
                let h = f64::from(*h);
                *first += d_noise * h;
                *second += d_variance * h * h;
            }
        }
    }

    /// Adds the gradient of `log_std` from the last [`Explored::backward`] to the gradients of
    /// `log_std`.
    pub(crate) fn add_gradients(&self, exploration: &mut Exploration, matrix: &[f32]) {
        let Exploration { hidden: count, dim, sums: [first, second], log_std, .. } = exploration;
        let (count, dim) = (*count, *dim);
        log_std.add_gradients((0..count * dim).map(|index| {
            let transposed_index = index % dim * count + index / dim;
            (first[transposed_index] * f64::from(matrix[transposed_index])
                + 2.0 * second[transposed_index] * f64::from(self.squares[transposed_index])) as f32
        }));
    }
}

/// Returns the sum of `f(x, y)` over pairs, as 16 partial sums that compilers vectorize.
fn zip_sum(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (x, y) in x.iter().zip(y) {
        for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += f(*x, *y);
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| f(*x, *y)).sum();
    rest + lanes.iter().sum::<f32>()
}
