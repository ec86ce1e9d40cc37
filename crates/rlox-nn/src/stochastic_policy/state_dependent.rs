//! State-dependent exploration under a hyperbolic tangent.

use rlox_core::{Pcg64, Result};

use crate::distribution::HALF_LN_2_PI;
use crate::room::{filled, resize};
use crate::squash::Squash;
use crate::{Parameters, rows};

/// Keeps variances away from 0.
const EPSILON: f32 = 1e-6;

/// What means are cut to, as Stable-Baselines3 does; outside they take no gradient.
const CLIP_MEAN: f32 = 2.0;

/// The exploration matrices E, whose elements are normal with standard deviations `exp(log_std)`: with the last hidden
/// layer h, `a = tanh(mean + h E)`, and over all matrices `h E` has the variances `h^2 exp(2 log_std) + 1e-6`. The hidden
/// layer learns from it, too, as in Stable-Baselines3's SAC.
#[derive(Clone, Debug)]
pub(super) struct Exploration {
    pub(super) hidden: usize,
    dim: usize,
    /// `[hidden, a]`.
    pub(super) log_std: Parameters,
    /// Those of environments, `[N, a, hidden]`.
    pub(super) matrices: Vec<f32>,
    /// `[hidden, a]`.
    noise: Vec<f32>,
    sums: [Vec<f64>; 2],
}

impl Exploration {
    pub(super) fn new(hidden: usize, dim: usize, log_std_init: f32) -> Result<Self> {
        let log_std = Parameters::filled("log_std", &[hidden, dim], log_std_init)?;
        let count = hidden * dim;
        let sums = [filled("shape", count, 0.0)?, filled("shape", count, 0.0)?];
        Ok(Self { hidden, dim, log_std, matrices: Vec::new(), noise: filled("shape", count, 0.0)?, sums })
    }

    /// A matrix for each environment.
    pub(super) fn draw(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        let count = self.hidden * self.dim;
        resize("rngs", &mut self.matrices, rngs.len().saturating_mul(count), 0.0)?;
        for (matrix, rng) in self.matrices.chunks_exact_mut(count).zip(rngs) {
            rows::draw_normal(&mut self.noise, rng);
            scale(self.log_std.values(), self.dim, &self.noise, matrix);
        }
        Ok(())
    }

    /// The matrix, `[a, hidden]`, of standard normal noise, `[hidden, a]`.
    pub(super) fn matrix(&self, noise: &[f32], matrix: &mut Vec<f32>) -> Result<()> {
        resize("obs", matrix, noise.len(), 0.0)?;
        scale(self.log_std.values(), self.dim, noise, matrix);
        Ok(())
    }
}

/// Noise `[hidden, a]` times standard deviations, as `[a, hidden]`.
fn scale(log_stds: &[f32], dim: usize, noise: &[f32], matrix: &mut [f32]) {
    let hidden = noise.len() / dim;
    for (index, (noise, log_std)) in noise.iter().zip(log_stds).enumerate() {
        matrix[index % dim * hidden + index / dim] = noise * log_std.exp();
    }
}

/// What is kept of rows that explored.
#[derive(Clone, Debug, Default)]
pub(super) struct Explored {
    /// `exp(2 log_std)`, `[a, hidden]`.
    squares: Vec<f32>,
    /// `h E`, `[N, a]`, and so are the next two.
    noise: Vec<f32>,
    variances: Vec<f32>,
    u: Vec<f32>,
    actions: Vec<f32>,
    squash: Squash,
}

impl Explored {
    /// Squashed means.
    pub(super) fn mode(&mut self, outputs: &[f32], actions: &mut [f32]) {
        self.u.clear();
        self.u.extend(outputs.iter().map(|mean| mean.clamp(-CLIP_MEAN, CLIP_MEAN)));
        self.squash.run(&self.u, actions);
    }

    /// Actions and their log-probabilities, by one matrix a row, or one for all.
    pub(super) fn sample(
        &mut self,
        exploration: &Exploration,
        matrices: &[f32],
        (outputs, hidden): (&[f32], &[f32]),
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        let (dim, count) = (exploration.dim, exploration.hidden);
        let Self { squares, noise, variances, u, actions: kept, squash } = self;
        resize("obs", squares, count * dim, 0.0)?;
        for (index, log_std) in exploration.log_std.values().iter().enumerate() {
            squares[index % dim * count + index / dim] = (2.0 * log_std).exp();
        }
        for vector in [&mut *noise, &mut *variances, &mut *u] {
            resize("obs", vector, actions.len(), 0.0)?;
        }
        let one_a_row = matrices.len() > count * dim;
        for (row, h) in hidden.chunks_exact(count).enumerate() {
            let matrix = if one_a_row { &matrices[row * count * dim..][..count * dim] } else { matrices };
            for (j, (column, squares)) in matrix.chunks_exact(count).zip(squares.chunks_exact(count)).enumerate() {
                let at = row * dim + j;
                noise[at] = sum_of(h, column, |h, x| h * x);
                variances[at] = EPSILON + sum_of(h, squares, |h, x| h * h * x);
                u[at] = outputs[at].clamp(-CLIP_MEAN, CLIP_MEAN) + noise[at];
            }
        }
        squash.run(u, actions);
        kept.clear();
        kept.extend_from_slice(actions);
        log_probs.fill(0.0);
        for (index, ((noise, variance), log_slope)) in noise.iter().zip(&*variances).zip(&squash.log_slopes).enumerate()
        {
            let log_std = 0.5 * variance.ln();
            log_probs[index / dim] -= 0.5 * noise * noise / variance + log_std + HALF_LN_2_PI + log_slope;
        }
        Ok(())
    }

    /// The gradients with respect to what the network said. That of `log_std` waits for [`Explored::add_gradients`].
    ///
    /// With `n = h E` and the variance v: `d log_prob / dn = -n / v` and `d log_prob / dv = (n^2 / v - 1) / 2v` beside the
    /// tangent's part, `dn / d log_std = h E`, `dv / d log_std = 2 h^2 exp(2 log_std)`, `dn / dh = E`, `dv / dh = 2 h exp(2
    /// log_std)`, element by element.
    pub(super) fn backward(
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

    /// Adds the gradient of `log_std`, which the last [`Explored::backward`] has found.
    pub(super) fn add_gradients(&self, exploration: &mut Exploration, matrix: &[f32]) {
        let Exploration { hidden: count, dim, sums: [first, second], log_std, .. } = exploration;
        let (count, dim) = (*count, *dim);
        log_std.add_gradients((0..count * dim).map(|index| {
            let at = index % dim * count + index / dim;
            (first[at] * f64::from(matrix[at]) + 2.0 * second[at] * f64::from(self.squares[at])) as f32
        }));
    }
}

/// The sum of `f` over pairs, in lanes that a compiler can make vectors of.
fn sum_of(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
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
