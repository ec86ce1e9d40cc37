//! Losses of off-policy methods and their gradients, on slices.
//!
//! All losses are means over the B rows of a minibatch. Gradients overwrite the output slices.

use rlox_core::{Error, Result, error::check_len};

use crate::validate::check_some;

/// Factor of the next value in the target of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Discount<'a> {
    /// One discount for all rows.
    Same(f32),
    /// One discount per row, `[B]`: `gamma^k` for a transition over k steps.
    Each(&'a [f32]),
}

impl Discount<'_> {
    fn value_at(&self, row: usize) -> f32 {
        match self {
            Self::Same(gamma) => *gamma,
            Self::Each(gammas) => gammas[row],
        }
    }

    /// Checks the number of discounts and their range.
    ///
    /// # Errors
    /// - [`Error::Shape`]: there are not `rows` discounts.
    /// - [`Error::Config`]: a discount is outside [0, 1].
    pub fn check(&self, rows: usize) -> Result<()> {
        let gammas = match self {
            Self::Same(gamma) => std::slice::from_ref(gamma),
            Self::Each(gammas) => {
                check_len("discount", gammas.len(), rows)?;
                gammas
            }
        };
        match gammas.iter().position(|gamma| !(0.0..=1.0).contains(gamma)) {
            None => Ok(()),
            Some(row) => {
                let (got, hint) = (gammas[row].to_string(), "pass gamma, or gamma^k for each row");
                Err(Error::config("discount", "numbers from 0 to 1", got, hint).at_row(row))
            }
        }
    }
}

/// Computes the value targets `reward + discount * next_value`, without the second term in
/// terminated rows.
///
/// Truncated rows have the second term: their next value belongs to the last observation of the
/// episode. All slices have the shape `[B]`.
///
/// # Errors
/// [`Error::Shape`] if a slice has another length than `rewards`, and the errors of
/// [`Discount::check`]. After an error, nothing was written.
///
/// ```
/// use rlox_nn::losses::td_targets;
/// use rlox_nn::Discount;
///
/// let mut targets = [0.0; 2];
/// td_targets(&[1.0, 1.0], &[false, true], Discount::Same(0.5), &[4.0, 4.0], &mut targets)?;
/// assert_eq!(targets, [3.0, 1.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn td_targets(
    rewards: &[f32],
    terminated: &[bool],
    discount: Discount<'_>,
    next_values: &[f32],
    targets: &mut [f32],
) -> Result<()> {
    let count = rewards.len();
    check_len("terminated", terminated.len(), count)?;
    check_len("next_values", next_values.len(), count)?;
    check_len("targets", targets.len(), count)?;
    discount.check(count)?;
    let known = rewards.iter().zip(terminated).zip(next_values);
    for (row, (target, ((reward, terminated), next))) in targets.iter_mut().zip(known).enumerate() {
        *target = if *terminated { *reward } else { reward + discount.value_at(row) * next };
    }
    Ok(())
}

/// Distance between values and targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TdLoss {
    /// `(value - target)^2`.
    SquaredError,
    /// `d^2 / 2` for a distance d of at most 1, and `d - 1/2` for a larger distance (Huber 1964,
    /// with delta 1).
    ///
    /// Its gradient is the clipped error of Mnih et al. 2015.
    Huber,
}

/// Computes the mean weighted distance between values and targets, and `coef` times its gradient.
///
/// `td_errors` receives `target - value`. If `weights` is `None`, all importance weights are 1. All
/// slices have the shape `[B]`.
///
/// # Errors
/// [`Error::Shape`] if there are no rows, or a slice has another length than `values`. After an
/// error, nothing was written.
///
/// ```
/// use rlox_nn::losses::td_loss;
/// use rlox_nn::TdLoss;
///
/// let (mut errors, mut gradient) = ([0.0; 2], [0.0; 2]);
/// let loss = td_loss(TdLoss::Huber, &[0.5, 3.0], &[0.0, 0.0], None, 1.0, &mut errors, &mut gradient)?;
/// assert_eq!(loss, (0.125 + 2.5) / 2.0);
/// assert_eq!((errors, gradient), ([-0.5, -3.0], [0.25, 0.5]));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn td_loss(
    kind: TdLoss,
    values: &[f32],
    targets: &[f32],
    weights: Option<&[f32]>,
    coef: f32,
    td_errors: &mut [f32],
    d_values: &mut [f32],
) -> Result<f32> {
    check_some("values", values.len())?;
    check_len("targets", targets.len(), values.len())?;
    check_len("weights", weights.map_or(values.len(), <[f32]>::len), values.len())?;
    check_len("td_errors", td_errors.len(), values.len())?;
    check_len("d_values", d_values.len(), values.len())?;
    let count = values.len() as f32;
    let mut sum = 0.0;
    let known = values.iter().zip(targets).zip(td_errors);
    for (row, (out, ((value, target), td_error))) in d_values.iter_mut().zip(known).enumerate() {
        let error = value - target;
        *td_error = -error;
        let weight = weights.map_or(1.0, |weights| weights[row]);
        let (loss, slope) = match kind {
            TdLoss::SquaredError => (error * error, 2.0 * error),
            TdLoss::Huber if error.abs() > 1.0 => (error.abs() - 0.5, error.signum()),
            TdLoss::Huber => (0.5 * error * error, error),
        };
        *out = coef * weight * slope / count;
        sum += f64::from(weight * loss);
    }
    Ok((sum / f64::from(count)) as f32)
}

/// Replaces values of states by the entropy-regularized values `value - alpha * log_prob`, in
/// place.
///
/// `log_probs` are the log-probabilities of the sampled actions (Haarnoja et al. 2018, "Soft
/// Actor-Critic Algorithms and Applications", eq. 3).
///
/// # Errors
/// [`Error::Shape`] if the slices have different lengths. After an error, nothing was written.
///
/// ```
/// let mut values = [1.0];
/// rlox_nn::losses::soft_values(&mut values, &[-2.0], 0.5)?;
/// assert_eq!(values, [2.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn soft_values(values: &mut [f32], log_probs: &[f32], alpha: f32) -> Result<()> {
    check_len("log_probs", log_probs.len(), values.len())?;
    values.iter_mut().zip(log_probs).for_each(|(value, log_prob)| *value -= alpha * log_prob);
    Ok(())
}

/// Computes SAC's actor loss, `mean(alpha * log_prob - value)`, and its gradients.
///
/// `d_log_probs`, `[B]`, receives the gradients with respect to the log-probabilities. `d_actions`,
/// `[B, a]`, must hold `dQ/da` of each row, and receives the gradients with respect to the actions
/// (Haarnoja et al. 2018, eq. 7).
///
/// # Errors
/// [`Error::Shape`] if there are no rows, or a slice has another number of rows than `log_probs`.
/// After an error, nothing was written.
///
/// ```
/// let (mut d_log_probs, mut d_actions) = ([0.0; 2], [1.0, -3.0]);
/// let loss = rlox_nn::losses::sac_actor_loss(&[-1.0, 1.0], &[2.0, 4.0], 0.5, &mut d_log_probs, &mut d_actions)?;
/// assert_eq!(loss, -3.0);
/// assert_eq!((d_log_probs, d_actions), ([0.25, 0.25], [-0.5, 1.5]));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn sac_actor_loss(
    log_probs: &[f32],
    values: &[f32],
    alpha: f32,
    d_log_probs: &mut [f32],
    d_actions: &mut [f32],
) -> Result<f32> {
    check_some("log_probs", log_probs.len())?;
    check_len("values", values.len(), log_probs.len())?;
    check_len("d_log_probs", d_log_probs.len(), log_probs.len())?;
    let loss = td3_actor_loss(values, d_actions)?;
    d_log_probs.fill(alpha / log_probs.len() as f32);
    let bonus = log_probs.iter().map(|log_prob| f64::from(alpha * log_prob)).sum::<f64>() / log_probs.len() as f64;
    Ok((bonus + f64::from(loss)) as f32)
}

/// Computes TD3's actor loss, `-mean(value)`, and its gradient with respect to the actions,
/// `[B, a]`.
///
/// `d_actions` must hold `dQ/da` of each row, and receives the gradient (Fujimoto et al. 2018,
/// "Addressing Function Approximation Error in Actor-Critic Methods").
///
/// # Errors
/// [`Error::Shape`] if there are no rows, or the last row of `d_actions` is incomplete. After an
/// error, nothing was written.
///
/// ```
/// let mut d_actions = [1.0, -3.0];
/// assert_eq!(rlox_nn::losses::td3_actor_loss(&[2.0, 4.0], &mut d_actions)?, -3.0);
/// assert_eq!(d_actions, [-0.5, 1.5]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn td3_actor_loss(values: &[f32], d_actions: &mut [f32]) -> Result<f32> {
    check_some("values", values.len())?;
    let expected_len = (d_actions.len() / values.len()).max(1) * values.len();
    check_len("d_actions", d_actions.len(), expected_len)?;
    let count = values.len() as f32;
    for slope in d_actions {
        *slope = -*slope / count;
    }
    Ok((-values.iter().map(|value| f64::from(*value)).sum::<f64>() / f64::from(count)) as f32)
}

/// Returns the loss of SAC's temperature and its gradient with respect to `log_alpha`.
///
/// The loss is `-mean(log_alpha * (log_prob + target_entropy))`, as in Stable-Baselines3 (Haarnoja
/// et al. 2018, eq. 18).
///
/// # Errors
/// [`Error::Shape`] if there are no log-probabilities.
///
/// ```
/// assert_eq!(rlox_nn::losses::temperature_loss(0.5, &[1.0, 2.0], -1.0)?, (-0.25, -0.5));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn temperature_loss(log_alpha: f32, log_probs: &[f32], target_entropy: f32) -> Result<(f32, f32)> {
    check_some("log_probs", log_probs.len())?;
    let sum: f64 = log_probs.iter().map(|log_prob| f64::from(log_prob + target_entropy)).sum();
    let gradient = (-sum / log_probs.len() as f64) as f32;
    Ok((log_alpha * gradient, gradient))
}
