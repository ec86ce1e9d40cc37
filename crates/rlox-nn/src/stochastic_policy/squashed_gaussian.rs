//! Normal numbers squashed by a hyperbolic tangent.

use rlox_core::{Result, check_len};

use crate::distribution::HALF_LN_2_PI;
use crate::simd::elementary::exp_in_place;
use crate::squash::Squash;

/// What logarithms of standard deviations are cut to, as Stable-Baselines3 does; outside they take no gradient.
const LOG_STD: std::ops::RangeInclusive<f32> = -20.0..=2.0;

/// The largest action whose inverse tangent is taken.
const MOST_ACTION: f32 = 1.0 - f32::EPSILON;

/// The squashed Gaussian of SAC (Haarnoja et al. 2018, appendix C): `a = tanh(mean + std * noise)`, given a network's
/// outputs `[mean | log_std]`.
///
/// `log p(a) = log N(u; mean, std) - log(1 - tanh^2 u)`, summed over the numbers of an action, whose last term is computed
/// as `2 (ln 2 - u - softplus(-2 u))`. There is no closed form of the entropy; minus the log-probability of a sample
/// estimates it, and has its gradient through [`SquashedGaussian::backward`].
///
/// ```
/// use rlox_nn::SquashedGaussian;
///
/// let mut policy = SquashedGaussian::new(1);
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
    /// Of the last rows, `[N, a]`, and so are the next three.
    stds: Vec<f32>,
    noise: Vec<f32>,
    u: Vec<f32>,
    actions: Vec<f32>,
    squash: Squash,
}

impl SquashedGaussian {
    /// Actions of `dim` numbers.
    pub fn new(dim: usize) -> Self {
        let [stds, noise, u, actions] = Default::default();
        Self { dim, stds, noise, u, actions, squash: Squash::default() }
    }

    /// How many numbers a row of the network has for it.
    pub fn outputs(&self) -> usize {
        2 * self.dim
    }

    fn rows(&self, outputs: &[f32], actions: usize, log_probs: usize) -> Result<usize> {
        check_len("actions", actions, log_probs.saturating_mul(self.dim))?;
        check_len("outputs", outputs.len(), log_probs.saturating_mul(self.outputs()))?;
        Ok(log_probs)
    }

    /// `tanh(mean)`, `[N, a]`.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit.
    pub fn mode(&mut self, outputs: &[f32], actions: &mut [f32]) -> Result<()> {
        check_len("outputs", outputs.len(), actions.len().saturating_mul(2))?;
        let Self { dim, u, squash, .. } = self;
        u.resize(actions.len(), 0.0);
        for (u, row) in u.chunks_exact_mut(*dim).zip(outputs.chunks_exact(2 * *dim)) {
            u.copy_from_slice(&row[..*dim]);
        }
        squash.run(u, actions);
        Ok(())
    }

    /// Standard deviations of a batch.
    fn prepare(&mut self, outputs: &[f32]) {
        self.stds.resize(outputs.len() / 2, 0.0);
        for (stds, row) in self.stds.chunks_exact_mut(self.dim).zip(outputs.chunks_exact(2 * self.dim)) {
            let log_stds = row[self.dim..].iter();
            stds.iter_mut()
                .zip(log_stds)
                .for_each(|(std, log_std)| *std = log_std.clamp(*LOG_STD.start(), *LOG_STD.end()));
        }
        exp_in_place(&mut self.stds);
    }

    /// Actions made of standard normal noise, `[N, a]`, and their log-probabilities, `[N]`; keeps what
    /// [`SquashedGaussian::backward`] needs.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit.
    pub fn sample(&mut self, outputs: &[f32], noise: &[f32], actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        self.rows(outputs, actions.len(), log_probs.len())?;
        check_len("noise", noise.len(), actions.len())?;
        self.prepare(outputs);
        let Self { dim, stds, noise: kept, u, actions: squashed, squash } = self;
        let dim = *dim;
        kept.clear();
        kept.extend_from_slice(noise);
        u.resize(noise.len(), 0.0);
        for (index, (u, noise)) in u.iter_mut().zip(noise).enumerate() {
            *u = outputs[index / dim * 2 * dim + index % dim] + stds[index] * noise;
        }
        squash.run(u, actions);
        squashed.clear();
        squashed.extend_from_slice(actions);
        log_probs.fill(0.0);
        for (index, (noise, log_slope)) in noise.iter().zip(&squash.log_slopes).enumerate() {
            let log_std = outputs[index / dim * 2 * dim + dim + index % dim].clamp(*LOG_STD.start(), *LOG_STD.end());
            log_probs[index / dim] -= 0.5 * noise * noise + log_std + HALF_LN_2_PI + log_slope;
        }
        Ok(())
    }

    /// The gradient of a loss with respect to the outputs, given those with respect to the actions, `[N, a]`, and the
    /// log-probabilities, `[N]`, of the last [`SquashedGaussian::sample`] of the same outputs.
    ///
    /// With `u = mean + std * noise`: `da/du = 1 - a^2`, `d log_prob / du = 2 a` through the tangent alone, and
    /// `d log_prob / d log_std = -1` beside it.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit.
    pub fn backward(
        &mut self,
        outputs: &[f32],
        d_actions: &[f32],
        d_log_probs: &[f32],
        d_outputs: &mut [f32],
    ) -> Result<()> {
        self.rows(outputs, d_actions.len(), d_log_probs.len())?;
        check_len("d_outputs", d_outputs.len(), outputs.len())?;
        check_len("d_actions", d_actions.len(), self.noise.len())?;
        let dim = self.dim;
        for (index, (d_action, action)) in d_actions.iter().zip(&self.actions).enumerate() {
            let (row, j) = (index / dim, index % dim);
            let (mean, log_std) = (row * 2 * dim + j, row * 2 * dim + dim + j);
            let d_u = d_action * self.squash.slopes[index] + d_log_probs[row] * 2.0 * action;
            d_outputs[mean] = d_u;
            let d_log_std = d_u * self.stds[index] * self.noise[index] - d_log_probs[row];
            d_outputs[log_std] = if LOG_STD.contains(&outputs[log_std]) { d_log_std } else { 0.0 };
        }
        Ok(())
    }

    /// The log-probabilities of given actions, `[N]`. Those nearer to 1 than f32 can tell are taken for the next smaller.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit.
    pub fn log_prob(&mut self, outputs: &[f32], actions: &[f32], log_probs: &mut [f32]) -> Result<()> {
        self.rows(outputs, actions.len(), log_probs.len())?;
        self.prepare(outputs);
        let Self { dim, stds, u, actions: squashed, squash, .. } = self;
        let dim = *dim;
        u.clear();
        u.extend(actions.iter().map(|action| action.clamp(-MOST_ACTION, MOST_ACTION).atanh()));
        squashed.resize(actions.len(), 0.0);
        squash.run(u, squashed);
        log_probs.fill(0.0);
        for (index, (u, log_slope)) in u.iter().zip(&squash.log_slopes).enumerate() {
            let (row, j) = (index / dim, index % dim);
            let log_std = outputs[row * 2 * dim + dim + j].clamp(*LOG_STD.start(), *LOG_STD.end());
            let z = (u - outputs[row * 2 * dim + j]) / stds[index];
            log_probs[row] -= 0.5 * z * z + log_std + HALF_LN_2_PI + log_slope;
        }
        Ok(())
    }

    /// The gradient of a loss with respect to the outputs, given that with respect to the log-probabilities of the last
    /// [`SquashedGaussian::log_prob`] of the same outputs. The actions are constants.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit.
    pub fn log_prob_backward(&mut self, outputs: &[f32], d_log_probs: &[f32], d_outputs: &mut [f32]) -> Result<()> {
        self.rows(outputs, self.u.len(), d_log_probs.len())?;
        check_len("d_outputs", d_outputs.len(), outputs.len())?;
        let dim = self.dim;
        for (index, (u, std)) in self.u.iter().zip(&self.stds).enumerate() {
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
