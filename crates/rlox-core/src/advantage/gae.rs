//! Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16) with exact time limits.
//!
//! `delta_t = r_t + gamma * (1 - terminated_t) * next_value_t - v_t` and
//! `A_t = delta_t + gamma * lambda * (1 - done_t) * A_{t+1}`, where `done = terminated | truncated` and `next_value_t`
//! is the value of the true final observation where the step was truncated, else the next row's. `returns = A + v`.
//! All of it is computed in f64, also for f32 numbers, which are rounded once, at the end.
//! What lies behind a finished episode is masked out, not multiplied by zero, so a NaN there stays there.

#![expect(
    clippy::too_many_arguments,
    reason = "free functions on slices: what they read, the settings, what they write"
)]

use super::ends::{Ends, check_discount, check_rows};
use super::kernel::{Rows, columns, trajectory};
use crate::interrupt::Watch;
use crate::pool::{PIECE, run_chunks};
use crate::{Float, Result, check_len};

/// Advantages and returns of one trajectory of T steps.
///
/// `last_value` is the value of the observation after the last step, read unless that step is done. All slices have
/// length T; `advantages` and `returns` are overwritten. An empty trajectory is fine and writes nothing. Sums are taken in
/// an order of their own: where some leave the range of f64, others than in the recursion may be infinite or NaN.
///
/// # Errors
/// [`crate::Error::Shape`] if a slice has another length than `rewards`, or if a step is truncated and not terminated
/// but there are no final values; [`crate::Error::Config`] if `gamma` or `gae_lambda` is outside [0, 1]. Nothing is
/// written then.
///
/// ```
/// use rlox_core::{Ends, compute_gae};
///
/// let (rewards, values) = ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]);
/// let ends = Ends {
///     terminated: &[false, false, false],
///     truncated: Some(&[false, true, false]),
///     final_values: Some(&[0.0, 2.0, 0.0]),
/// };
/// let (mut advantages, mut returns) = ([0.0; 3], [0.0; 3]);
/// compute_gae(&rewards, &values, ends, 4.0, 0.5, 0.5, &mut advantages, &mut returns)?;
/// // From the end: 1 + 0.5 * 4 - 0.5; 1 + 0.5 * 2 - 0.5, cut; 1 + 0.5 * 0.5 - 0.5 + 0.25 * 1.5.
/// assert_eq!(advantages, [1.125, 1.5, 2.5]);
/// assert_eq!(returns, [1.625, 2.0, 3.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_gae<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: Ends<'_, T>,
    last_value: T,
    gamma: f64,
    gae_lambda: f64,
    advantages: &mut [T],
    returns: &mut [T],
) -> Result<()> {
    let rows = check(rewards, values, ends, gamma, gae_lambda, [advantages.len(), returns.len()])?;
    let mut watch = Watch::default();
    trajectory(rows, last_value, advantages, returns, &mut || watch.check())
}

/// Advantages and returns of N environments over T steps, time-major: row `t * num_envs + n` is step t of
/// environment n.
///
/// `last_values` has length N, all other slices T * N. Each environment's numbers equal [`compute_gae`]'s up to
/// rounding.
///
/// # Errors
/// As [`compute_gae`]; also [`crate::Error::Shape`] if `rewards` is not a whole number of rows of `num_envs`.
///
/// ```
/// use rlox_core::{Ends, compute_gae_time_major};
///
/// // Two environments, two steps; the second environment terminates at its first.
/// let (rewards, values) = ([1.0_f32, 2.0, 3.0, 4.0], [0.0; 4]);
/// let ends = Ends::dones(&[false, true, false, false]);
/// let (mut advantages, mut returns) = ([0.0; 4], [0.0; 4]);
/// compute_gae_time_major(&rewards, &values, ends, 2, &[8.0, 8.0], 0.5, 1.0, &mut advantages, &mut returns)?;
/// assert_eq!(advantages, [4.5, 2.0, 7.0, 8.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_gae_time_major<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: Ends<'_, T>,
    num_envs: usize,
    last_values: &[T],
    gamma: f64,
    gae_lambda: f64,
    advantages: &mut [T],
    returns: &mut [T],
) -> Result<()> {
    check_rows(rewards.len(), "num_envs", num_envs)?;
    check_len("last_values", last_values.len(), num_envs)?;
    let rows = check(rewards, values, ends, gamma, gae_lambda, [advantages.len(), returns.len()])?;
    columns(rows, last_values, advantages, returns)
}

/// Advantages and returns of N trajectories of `n_steps` each, one after the other (environment-major): row
/// `n * n_steps + t` is step t of trajectory n.
///
/// `last_values` has length N, all other slices N * `n_steps`. Each trajectory's numbers equal [`compute_gae`]'s bit
/// for bit.
///
/// # Errors
/// As [`compute_gae`]; also [`crate::Error::Shape`] if `rewards` is not a whole number of trajectories of `n_steps`.
///
/// ```
/// use rlox_core::{Ends, compute_gae_batched};
///
/// let (rewards, values) = ([1.0_f32, 3.0, 2.0, 4.0], [0.0; 4]);
/// let ends = Ends::dones(&[false, false, true, false]);
/// let (mut advantages, mut returns) = ([0.0; 4], [0.0; 4]);
/// compute_gae_batched(&rewards, &values, ends, &[8.0, 8.0], 2, 0.5, 1.0, &mut advantages, &mut returns)?;
/// assert_eq!(advantages, [4.5, 7.0, 2.0, 8.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_gae_batched<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: Ends<'_, T>,
    last_values: &[T],
    n_steps: usize,
    gamma: f64,
    gae_lambda: f64,
    advantages: &mut [T],
    returns: &mut [T],
) -> Result<()> {
    check_rows(rewards.len(), "n_steps", n_steps)?;
    if let Some(trajectories) = rewards.len().checked_div(n_steps) {
        check_len("last_values", last_values.len(), trajectories)?;
    }
    let rows = check(rewards, values, ends, gamma, gae_lambda, [advantages.len(), returns.len()])?;
    // A thread takes several trajectories at a time if they are short.
    let each = PIECE.div_ceil(n_steps.max(1));
    run_chunks([advantages, returns], each * n_steps, |i, [advantages, returns], pause| {
        let out = advantages.chunks_exact_mut(n_steps).zip(returns.chunks_exact_mut(n_steps));
        (i * each..).zip(out).try_for_each(|(n, (advantages, returns))| {
            trajectory(rows.slice(n * n_steps..(n + 1) * n_steps), last_values[n], advantages, returns, pause)
        })
    })
}

/// Checks everything before anything is written.
fn check<'a, T: Float>(
    rewards: &'a [T],
    values: &'a [T],
    ends: Ends<'a, T>,
    gamma: f64,
    gae_lambda: f64,
    out: [usize; 2],
) -> Result<Rows<'a, T>> {
    check_discount("gamma", gamma)?;
    check_discount("gae_lambda", gae_lambda)?;
    let len = rewards.len();
    check_len("values", values.len(), len)?;
    let finals = ends.check(len)?;
    check_len("advantages", out[0], len)?;
    check_len("returns", out[1], len)?;
    Ok(Rows { rewards, values, terminated: ends.terminated, finals, gamma, decay: gamma * gae_lambda })
}
