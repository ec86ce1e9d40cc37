//! Normal distribution squashed by a hyperbolic tangent, which limits actions to [-1, 1].

use std::f32::consts::LN_2;

use rlox_core::{Error, Result, error::check_len};

use super::gaussian::HALF_LN_2_PI;
use crate::alloc::resize;
use crate::kernels::activations::{exp_in_place, ln_in_place, tanh_in_place};
use crate::validate;

/// Range of log standard deviations, as in Stable-Baselines3. Clamped log standard deviations get
/// no gradient.
const LOG_STD: std::ops::RangeInclusive<f32> = -20.0..=2.0;

/// Largest action whose inverse hyperbolic tangent is finite.
const MAX_ACTION: f32 = 1.0_f32.next_down();

/// Squashed Gaussian of SAC, `a = tanh(u)` with `u = mean + std * noise`. The network outputs are
/// `[mean | log_std]` rows.
///
/// The log-probability is `log p(a) = log N(u; mean, std) - log(1 - tanh^2 u)`, summed over the
/// elements of an action. The term `log(1 - tanh^2 u)` is computed as
/// `2 (ln 2 - u - softplus(-2 u))` (Haarnoja et al. 2018, appendix C). The entropy has no closed
/// form. Minus the log-probability of a sample estimates the entropy;
/// [`SquashedGaussian::backward`] computes the gradient of this estimate.
///
/// ```
/// use rlox_nn::SquashedGaussian;
///
/// let mut policy = SquashedGaussian::new(1)?;
/// let (mut actions, mut log_probs) = ([0.0], [0.0]);
/// policy.sample(&[0.5, 0.0], &[0.0], &mut actions, &mut log_probs)?;
/// assert!((actions[0] - 0.5_f32.tanh()).abs() < 1e-6);
/// let mut d_outputs = [0.0; 2];
/// policy.backward(&[0.5, 0.0], &[1.0], &[0.0], &mut d_outputs)?;
/// assert!((d_outputs[0] - 1.0 / 0.5_f32.cosh().powi(2)).abs() < 1e-6);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SquashedGaussian {
    dim: usize,
    sampled: Sampled,
    evaluation: Normal,
    mode: Normal,
}

/// Standard deviations, actions before squashing, and derivatives of a batch.
#[derive(Clone, Debug, Default)]
struct Normal {
    /// Standard deviations, `[N, a]`.
    stds: Vec<f32>,
    /// Actions before squashing, `[N, a]`.
    u: Vec<f32>,
    squash: Squash,
}

/// Data of the last sample for the backward pass.
#[derive(Clone, Debug, Default)]
struct Sampled {
    normal: Normal,
    /// Standard normal noise, `[N, a]`.
    noise: Vec<f32>,
    /// Actions, `[N, a]`.
    actions: Vec<f32>,
}

impl Normal {
    /// Computes the standard deviations of a batch.
    fn prepare(&mut self, dim: usize, outputs: &[f32]) -> Result<()> {
        resize("outputs", &mut self.stds, outputs.len() / 2, 0.0)?;
        for (stds, row) in self.stds.chunks_exact_mut(dim).zip(outputs.chunks_exact(2 * dim)) {
            stds.iter_mut().zip(&row[dim..]).for_each(|(std, log_std)| *std = clamp_log_std(*log_std));
        }
        exp_in_place(&mut self.stds);
        Ok(())
    }
}

fn clamp_log_std(log_std: f32) -> f32 {
    log_std.clamp(*LOG_STD.start(), *LOG_STD.end())
}

impl SquashedGaussian {
    /// Creates a distribution of actions with `dim` elements.
    ///
    /// # Errors
    /// [`Error::Config`] if `dim` is 0, or `2 * dim` overflows.
    pub fn new(dim: usize) -> Result<Self> {
        const MAX: usize = usize::MAX / 2;
        if !(1..=MAX).contains(&dim) {
            let expected = format!("at least 1 and at most {MAX}");
            return Err(Error::config("dim", expected, dim.to_string(), "pass the number of elements of an action"));
        }
        Ok(Self { dim, sampled: Sampled::default(), evaluation: Normal::default(), mode: Normal::default() })
    }

    /// Returns the number of network outputs per row.
    pub fn outputs(&self) -> usize {
        2 * self.dim
    }

    fn check(&self, outputs: &[f32], actions: usize, rows: usize) -> Result<()> {
        check_len("actions", actions, rows.saturating_mul(self.dim))?;
        check_len("outputs", outputs.len(), rows.saturating_mul(self.outputs()))?;
        self.check_finite(outputs)
    }

    /// Checks that all outputs of a network are finite.
    pub(crate) fn check_finite(&self, outputs: &[f32]) -> Result<()> {
        validate::check_finite_outputs("outputs", outputs, self.outputs()).map_err(|error| {
            let index = outputs.iter().position(|x| !x.is_finite()).unwrap_or(0);
            error.rename_argument("outputs", if index % self.outputs() < self.dim { "mean" } else { "log_std" })
        })
    }

    /// Computes the actions without noise, `tanh(mean)`, `[N, a]`.
    ///
    /// # Errors
    /// - [`Error::Shape`]: a slice has the wrong length.
    /// - [`Error::NotFinite`]: a `mean` or `log_std` is NaN or infinite.
    pub fn mode(&mut self, outputs: &[f32], actions: &mut [f32]) -> Result<()> {
        self.check(outputs, actions.len(), actions.len() / self.dim)?;
        let Self { dim, mode: Normal { u, squash, .. }, .. } = self;
        resize("outputs", u, actions.len(), 0.0)?;
        for (u, row) in u.chunks_exact_mut(*dim).zip(outputs.chunks_exact(2 * *dim)) {
            u.copy_from_slice(&row[..*dim]);
        }
        squash.run(u, actions);
        Ok(())
    }

    /// Computes actions from standard normal noise, `[N, a]`, and their log-probabilities, `[N]`.
    ///
    /// Stores the data that [`SquashedGaussian::backward`] needs.
    ///
    /// # Errors
    /// The errors of [`SquashedGaussian::mode`].
    pub fn sample(&mut self, outputs: &[f32], noise: &[f32], actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        self.check(outputs, actions.len(), log_probs.len())?;
        check_len("noise", noise.len(), actions.len())?;
        let Self { dim, sampled: Sampled { normal, noise: stored_noise, actions: squashed }, .. } = self;
        let dim = *dim;
        normal.prepare(dim, outputs)?;
        let Normal { stds, u, squash } = normal;
        stored_noise.clear();
        stored_noise.extend_from_slice(noise);
        resize("outputs", u, noise.len(), 0.0)?;
        for (index, (u, noise)) in u.iter_mut().zip(noise).enumerate() {
            *u = outputs[index / dim * 2 * dim + index % dim] + stds[index] * noise;
        }
        squash.run(u, actions);
        squashed.clear();
        squashed.extend_from_slice(actions);
        log_probs.fill(0.0);
        for (index, (noise, log_slope)) in noise.iter().zip(&squash.log_slopes).enumerate() {
            let log_std = clamp_log_std(outputs[index / dim * 2 * dim + dim + index % dim]);
            log_probs[index / dim] -= 0.5 * noise * noise + log_std + HALF_LN_2_PI + log_slope;
        }
        Ok(())
    }

    /// Computes the gradient of a loss with respect to the outputs.
    ///
    /// `d_actions`, `[N, a]`, and `d_log_probs`, `[N]`, are the gradients of the loss with respect
    /// to the results of the last [`SquashedGaussian::sample`] with the same outputs. Let
    /// `u = mean + std * noise` with constant noise. Then `da / du = 1 - a^2`. The derivative of the
    /// log-probability is `2 a` with respect to u and, in addition, -1 with respect to `log_std`.
    ///
    /// # Errors
    /// The errors of [`SquashedGaussian::mode`]. Also [`Error::Shape`] if the last sample had
    /// another number of rows.
    pub fn backward(
        &mut self,
        outputs: &[f32],
        d_actions: &[f32],
        d_log_probs: &[f32],
        d_outputs: &mut [f32],
    ) -> Result<()> {
        self.check(outputs, d_actions.len(), d_log_probs.len())?;
        let Self { dim, sampled: Sampled { normal, noise, actions }, .. } = self;
        check_len("d_actions", d_actions.len(), actions.len())?;
        check_len("d_outputs", d_outputs.len(), outputs.len())?;
        let dim = *dim;
        for (index, (d_action, action)) in d_actions.iter().zip(&*actions).enumerate() {
            let (row, j) = (index / dim, index % dim);
            let (mean, log_std) = (row * 2 * dim + j, row * 2 * dim + dim + j);
            let d_u = d_action * normal.squash.slopes[index] + d_log_probs[row] * 2.0 * action;
            d_outputs[mean] = d_u;
            let d_log_std = d_u * normal.stds[index] * noise[index] - d_log_probs[row];
            d_outputs[log_std] = if LOG_STD.contains(&outputs[log_std]) { d_log_std } else { 0.0 };
        }
        Ok(())
    }

    /// Computes the log-probabilities, `[N]`, of actions.
    ///
    /// Actions of 1 and -1 are replaced by the nearest f32 whose inverse hyperbolic tangent is
    /// finite.
    ///
    /// # Errors
    /// The errors of [`SquashedGaussian::mode`]. Also [`Error::Action`] if an action is outside
    /// [-1, 1].
    pub fn log_prob(&mut self, outputs: &[f32], actions: &[f32], log_probs: &mut [f32]) -> Result<()> {
        self.check(outputs, actions.len(), log_probs.len())?;
        if let Some(index) = actions.iter().position(|action| !(-1.0..=1.0).contains(action)) {
            let got = actions[index].to_string();
            let fix = "pass the actions before they are scaled to the bounds of the environment";
            return Err(Error::action("actions", "numbers from -1 to 1", got, fix).at_row(index / self.dim));
        }
        let Self { dim, evaluation: normal, .. } = self;
        let dim = *dim;
        normal.prepare(dim, outputs)?;
        let Normal { stds, u, squash } = normal;
        u.clear();
        // The f32 `atanh` loses more digits near -1 than near 1.
        u.extend(actions.iter().map(|action| action.abs().min(MAX_ACTION).atanh().copysign(*action)));
        squash.compute_slopes(u);
        log_probs.fill(0.0);
        for (index, (u, log_slope)) in u.iter().zip(&squash.log_slopes).enumerate() {
            let (row, j) = (index / dim, index % dim);
            let log_std = clamp_log_std(outputs[row * 2 * dim + dim + j]);
            let z = (u - outputs[row * 2 * dim + j]) / stds[index];
            log_probs[row] -= 0.5 * z * z + log_std + HALF_LN_2_PI + log_slope;
        }
        Ok(())
    }

    /// Computes the gradient of a loss with respect to the outputs, for constant actions.
    ///
    /// `d_log_probs` is the gradient of the loss with respect to the log-probabilities of the last
    /// [`SquashedGaussian::log_prob`] with the same outputs.
    ///
    /// # Errors
    /// The errors of [`SquashedGaussian::mode`]. Also [`Error::Shape`] if the last call had another
    /// number of rows.
    pub fn log_prob_backward(&mut self, outputs: &[f32], d_log_probs: &[f32], d_outputs: &mut [f32]) -> Result<()> {
        self.check(outputs, d_log_probs.len().saturating_mul(self.dim), d_log_probs.len())?;
        let Self { dim, evaluation: Normal { u, stds, .. }, .. } = self;
        check_len("d_log_probs", d_log_probs.len(), u.len() / *dim)?;
        check_len("d_outputs", d_outputs.len(), outputs.len())?;
        let dim = *dim;
        for (index, (u, std)) in u.iter().zip(&*stds).enumerate() {
            let (row, j) = (index / dim, index % dim);
            let (mean, log_std) = (row * 2 * dim + j, row * 2 * dim + dim + j);
            let z = (u - outputs[mean]) / std;
            d_outputs[mean] = d_log_probs[row] * z / std;
            let inside = LOG_STD.contains(&outputs[log_std]);
            d_outputs[log_std] = if inside { d_log_probs[row] * (z * z - 1.0) } else { 0.0 };
        }
        Ok(())
    }
}

/// Derivatives of `tanh` in the last batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Squash {
    /// Derivatives `1 - tanh^2 u`.
    pub(crate) slopes: Vec<f32>,
    /// Logarithms of the derivatives.
    pub(crate) log_slopes: Vec<f32>,
}

impl Squash {
    /// Computes `tanh u` and its derivatives.
    ///
    /// Let `t = e^-2|u|`. The derivative `1 - tanh^2 u` is `4 t / (1 + t)^2`, and its logarithm is
    /// `2 (ln 2 - |u| - ln(1 + t))`. Both formulas are accurate even if `tanh u` rounds to 1.
    pub(crate) fn run(&mut self, u: &[f32], squashed: &mut [f32]) {
        squashed.copy_from_slice(u);
        tanh_in_place(squashed);
        self.compute_slopes(u);
    }

    /// Computes only the derivatives of `tanh u`.
    pub(crate) fn compute_slopes(&mut self, u: &[f32]) {
        let Self { slopes, log_slopes } = self;
        slopes.clear();
        slopes.extend(u.iter().map(|u| -2.0 * u.abs()));
        exp_in_place(slopes);
        log_slopes.clear();
        log_slopes.extend(slopes.iter().map(|t| 1.0 + t));
        ln_in_place(log_slopes);
        for ((slope, log), u) in slopes.iter_mut().zip(log_slopes).zip(u) {
            let sum = 1.0 + *slope;
            *slope = 4.0 * *slope / (sum * sum);
            *log = 2.0 * (LN_2 - u.abs() - *log);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_and_log_slopes_are_accurate_in_the_tails() {
        let u = [0.0, 1e-3, -0.5, 2.0, -8.0, 30.0, f32::NAN];
        let (mut squash, mut squashed) = (Squash::default(), [0.0; 7]);
        squash.run(&u, &mut squashed);
        for (i, u) in u.iter().take(6).map(|u| f64::from(*u)).enumerate() {
            let slope = 1.0 / u.cosh().powi(2);
            assert!((f64::from(squashed[i]) - u.tanh()).abs() < 1e-6, "tanh {u}");
            assert!((f64::from(squash.slopes[i]) / slope - 1.0).abs() < 2e-6, "slope at {u}: {}", squash.slopes[i]);
            assert!((f64::from(squash.log_slopes[i]) - slope.ln()).abs() < 1e-6 * (1.0 + u.abs()), "log at {u}");
        }
        assert!(squashed[6].is_nan() && squash.slopes[6].is_nan() && squash.log_slopes[6].is_nan());
    }
}
