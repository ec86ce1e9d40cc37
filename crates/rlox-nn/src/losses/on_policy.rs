//! Losses of actor-critic methods and their gradients, on slices.
//!
//! All losses are means over the B rows of a minibatch. Gradients overwrite the output slices.

use rlox_core::{Result, error::check_len};

use crate::kernels::activations::exp_in_place;
use crate::validate::{check_not_negative, check_some};

/// Result of PPO's policy loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClippedLoss {
    /// Loss.
    pub loss: f32,
    /// Estimate k3 of the divergence KL(old || new) from the ratios r: `mean(r - 1 - ln r)` (Schulman
    /// 2020).
    pub approx_kl: f32,
    /// Share of the ratios whose distance from 1 exceeds `clip_coef`.
    pub clip_fraction: f32,
}

/// Computes PPO's clipped surrogate loss and its gradient (Schulman et al. 2017, eq. 7).
///
/// With the ratio `r = exp(log_prob - old_log_prob)` and the advantage A, the loss is
/// `-mean(min(r A, clip(r, 1 - clip_coef, 1 + clip_coef) A))`. All slices have the shape `[B]`.
///
/// # Errors
/// - [`rlox_core::Error::Shape`]: there are no rows, or a slice has another length than
///   `log_probs`.
/// - [`rlox_core::Error::Config`]: `clip_coef` is negative or not finite.
///
/// After an error, nothing was written.
///
/// ```
/// let mut gradient = [0.0; 2];
/// let loss = rlox_nn::losses::clipped_policy_loss(&[0.0, 0.5], &[0.0, 0.0], &[1.0, 1.0], 0.2, &mut gradient)?;
/// // The second ratio, 1.65, is clipped to 1.2 and has no gradient.
/// assert!((loss.loss + (1.0 + 1.2) / 2.0).abs() < 1e-6);
/// assert_eq!(gradient, [-0.5, 0.0]);
/// assert_eq!(loss.clip_fraction, 0.5);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn clipped_policy_loss(
    log_probs: &[f32],
    old_log_probs: &[f32],
    advantages: &[f32],
    clip_coef: f32,
    d_log_probs: &mut [f32],
) -> Result<ClippedLoss> {
    check_not_negative("clip_coef", clip_coef)?;
    check_some("log_probs", log_probs.len())?;
    check_len("old_log_probs", old_log_probs.len(), log_probs.len())?;
    check_len("advantages", advantages.len(), log_probs.len())?;
    check_len("d_log_probs", d_log_probs.len(), log_probs.len())?;
    let count = log_probs.len() as f32;
    // The slice of gradients holds the log-ratios and then the ratios until it receives the
    // gradients.
    for ((ratio, new), old) in d_log_probs.iter_mut().zip(log_probs).zip(old_log_probs) {
        *ratio = new - old;
    }
    exp_in_place(d_log_probs);
    let [mut loss, mut kl, mut clipped] = [0.0_f64; 3];
    let rows = log_probs.iter().zip(old_log_probs).zip(advantages);
    for (out, ((new, old), advantage)) in d_log_probs.iter_mut().zip(rows) {
        let ratio = *out;
        let (free, cut) = (ratio * advantage, ratio.clamp(1.0 - clip_coef, 1.0 + clip_coef) * advantage);
        // Comparisons with NaN are false, so that NaN reaches the gradient and the loss.
        *out = if free > cut { 0.0 } else { -free / count };
        loss -= f64::from(if free > cut { cut } else { free });
        kl += f64::from(ratio - 1.0 - (new - old));
        clipped += f64::from(u8::from((ratio - 1.0).abs() > clip_coef));
    }
    let mean = |sum: f64| (sum / f64::from(count)) as f32;
    Ok(ClippedLoss { loss: mean(loss), approx_kl: mean(kl), clip_fraction: mean(clipped) })
}

/// Computes the policy gradient loss, `-mean(log_prob A)` with the advantage A, and its gradient.
///
/// This is the loss of A2C, and of IMPALA with the advantages of V-trace. All slices have the shape
/// `[B]`.
///
/// # Errors
/// [`rlox_core::Error::Shape`] if there are no rows, or a slice has another length than
/// `log_probs`.
///
/// ```
/// let mut gradient = [0.0; 2];
/// assert_eq!(rlox_nn::losses::policy_gradient_loss(&[-1.0, -2.0], &[1.0, 0.5], &mut gradient)?, 1.0);
/// assert_eq!(gradient, [-0.5, -0.25]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn policy_gradient_loss(log_probs: &[f32], advantages: &[f32], d_log_probs: &mut [f32]) -> Result<f32> {
    check_some("log_probs", log_probs.len())?;
    check_len("advantages", advantages.len(), log_probs.len())?;
    check_len("d_log_probs", d_log_probs.len(), log_probs.len())?;
    let count = log_probs.len() as f32;
    let mut loss = 0.0;
    for ((out, log_prob), advantage) in d_log_probs.iter_mut().zip(log_probs).zip(advantages) {
        *out = -advantage / count;
        loss -= f64::from(log_prob * advantage);
    }
    Ok((loss / f64::from(count)) as f32)
}

/// Computes the mean squared error of values, and `vf_coef` times its gradient.
///
/// `clip` has the old values, `[B]`, and the largest change of a value. Values that change more are
/// clipped and get no gradient, as in Stable-Baselines3. All slices have the shape `[B]`.
///
/// # Errors
/// - [`rlox_core::Error::Shape`]: there are no rows, or a slice has another length than `values`.
/// - [`rlox_core::Error::Config`]: the largest change or `vf_coef` is negative or not finite.
///
/// After an error, nothing was written.
///
/// ```
/// let mut gradient = [0.0; 2];
/// let loss = rlox_nn::losses::value_loss(&[1.0, 3.0], &[0.0, 0.0], Some((&[1.0, 0.0], 0.5)), 0.5, &mut gradient)?;
/// assert_eq!(loss, (1.0 + 0.25) / 2.0);
/// assert_eq!(gradient, [0.5, 0.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn value_loss(
    values: &[f32],
    returns: &[f32],
    clip: Option<(&[f32], f32)>,
    vf_coef: f32,
    d_values: &mut [f32],
) -> Result<f32> {
    check_some("values", values.len())?;
    check_len("returns", returns.len(), values.len())?;
    check_len("d_values", d_values.len(), values.len())?;
    check_not_negative("vf_coef", vf_coef)?;
    if let Some((old, most)) = clip {
        check_len("old_values", old.len(), values.len())?;
        check_not_negative("clip_coef_vf", most)?;
    }
    let count = values.len() as f32;
    let mut loss = 0.0;
    for (i, ((out, value), target)) in d_values.iter_mut().zip(values).zip(returns).enumerate() {
        let moved = clip.map(|(old, most)| (value - old[i], old[i], most));
        let (value, inside) = match moved {
            Some((moved, old, most)) => (old + moved.clamp(-most, most), moved.is_nan() || moved.abs() <= most),
            None => (*value, true),
        };
        let error = value - target;
        *out = if inside { vf_coef * 2.0 * error / count } else { 0.0 };
        loss += f64::from(error * error);
    }
    Ok((loss / f64::from(count)) as f32)
}

/// Normalizes advantages of a minibatch to mean 0 and standard deviation 1, in place.
///
/// The results are `(A - mean) / (std + 1e-8)` for the B advantages A, with `B - 1` in the
/// denominator of the variance. A single advantage does not change.
///
/// ```
/// let mut advantages = [1.0, 3.0];
/// rlox_nn::losses::normalize_advantages(&mut advantages);
/// assert!((advantages[1] - 0.5_f32.sqrt()).abs() < 1e-6);
/// ```
pub fn normalize_advantages(advantages: &mut [f32]) {
    let count = advantages.len() as f64;
    if advantages.len() < 2 {
        return;
    }
    let mean = advantages.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares: f64 = advantages.iter().map(|x| (f64::from(*x) - mean) * (f64::from(*x) - mean)).sum();
    let scale = 1.0 / ((squares / (count - 1.0)).sqrt() + 1e-8);
    for x in advantages {
        *x = ((f64::from(*x) - mean) * scale) as f32;
    }
}

/// Returns the explained variance of values, `1 - Var(returns - values) / Var(returns)`.
///
/// The result is 1 for perfect values, and NaN if all returns are equal.
///
/// # Errors
/// [`rlox_core::Error::Shape`] if the slices have different lengths.
///
/// ```
/// assert_eq!(rlox_nn::losses::explained_variance(&[1.0, 2.0], &[1.0, 3.0])?, 0.75);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn explained_variance(values: &[f32], returns: &[f32]) -> Result<f32> {
    check_len("returns", returns.len(), values.len())?;
    let variance = |numbers: &mut dyn Iterator<Item = f64>| {
        let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for x in numbers {
            count += 1.0;
            let moved = x - mean;
            mean += moved / count;
            squares += moved * (x - mean);
        }
        squares / count
    };
    let return_variance = variance(&mut returns.iter().map(|x| f64::from(*x)));
    let residual_variance = variance(&mut returns.iter().zip(values).map(|(r, v)| f64::from(*r) - f64::from(*v)));
    Ok(if return_variance > 0.0 { (1.0 - residual_variance / return_variance) as f32 } else { f32::NAN })
}
