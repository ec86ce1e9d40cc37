//! Discounted returns, and lambda returns (Sutton and Barto 2018, eq. 12.2 and 12.18), with
//! bootstrapping at time limits.
//!
//! `G_t = r_t + gamma * (1 - terminated_t) * ((1 - lambda) * next_value_t + lambda * G_{t+1})`
//!
//! If step t was truncated, both `next_value_t` and `G_{t+1}` are the value of the final
//! observation of the episode. For the last step, both are `last_value`. Discounted returns have
//! `lambda` = 1, so they depend on no other values. Values after the end of an episode are ignored
//! instead of multiplied by zero, so a NaN there has no effect on the episode.

#![expect(
    clippy::inline_always,
    clippy::too_many_arguments,
    reason = "loops that are compiled for several instruction sets; free functions on slices"
)]

use super::lanes::{Window, array_at, mask, select};
use super::recurrence::{Recursion, Steps, Terms, compute_columns, compute_trajectory};
use super::{EpisodeEnds, check_discount, check_rows};
use crate::simd::LANES;
use crate::simd::f64x8::F64s;
use crate::{Result, advantage::Float, error::check_len};

/// Computes discounted returns of one trajectory of T steps.
///
/// All slices have length T. `returns` is overwritten. `last_value` is the value of the observation
/// after the last step, and is not used if that step ends an episode. With a `last_value` of 0, the
/// results are discounted sums of rewards. For an empty trajectory, nothing is written.
///
/// # Errors
/// - [`crate::Error::Shape`] if the length of a slice differs from that of `rewards`, or if a step
///   is truncated and not terminated but `final_values` is `None`;
/// - [`crate::Error::Config`] if `gamma` is outside [0, 1].
///
/// Nothing is written if one of these errors occurs.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, compute_returns};
///
/// let mut returns = [0.0; 3];
/// compute_returns(&[1.0, 2.0, 3.0], EpisodeEnds::dones(&[false, true, false]), 4.0, 0.5, &mut returns)?;
/// assert_eq!(returns, [2.0, 2.0, 5.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_returns<T: Float>(
    rewards: &[T],
    ends: EpisodeEnds<'_, T>,
    last_value: T,
    gamma: f64,
    returns: &mut [T],
) -> Result<()> {
    // With lambda = 1 the values have no effect, so `rewards` takes their place.
    compute_lambda_returns(rewards, rewards, ends, last_value, gamma, 1.0, returns)
}

/// Computes discounted returns of N environments over T steps, stored time-major.
///
/// Element `t * num_envs + n` of a slice belongs to step t of environment n. `last_values` has
/// length N, all other slices have length T * N. The results of each environment equal those of
/// [`compute_returns`] up to rounding.
///
/// # Errors
/// The errors of [`compute_returns`]. Also [`crate::Error::Shape`] if the length of `rewards` is
/// not a multiple of `num_envs`.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, compute_returns_time_major};
///
/// let mut returns = [0.0_f32; 4];
/// let ends = EpisodeEnds::dones(&[false, true, false, false]);
/// compute_returns_time_major(&[1.0, 2.0, 3.0, 4.0], ends, 2, &[8.0, 8.0], 0.5, &mut returns)?;
/// assert_eq!(returns, [4.5, 2.0, 7.0, 8.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_returns_time_major<T: Float>(
    rewards: &[T],
    ends: EpisodeEnds<'_, T>,
    num_envs: usize,
    last_values: &[T],
    gamma: f64,
    returns: &mut [T],
) -> Result<()> {
    compute_lambda_returns_time_major(rewards, rewards, ends, num_envs, last_values, gamma, 1.0, returns)
}

/// Computes lambda returns, the targets of TD(lambda), of one trajectory of T steps.
///
/// `values[t]` is the value of the observation before step t, so `values[0]` has no effect. Up to
/// rounding, the results equal the returns of [`crate::compute_gae`]. With `lambda` = 0, the
/// results are one-step targets. With `lambda` = 1, they are those of [`compute_returns`].
///
/// # Errors
/// The errors of [`compute_returns`], also for the length of `values` and the range of `lambda`.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, compute_lambda_returns};
///
/// let mut returns = [0.0; 2];
/// let ends = EpisodeEnds::dones(&[false, false]);
/// compute_lambda_returns(&[1.0, 2.0], &[2.0, 1.0], ends, 4.0, 0.5, 0.5, &mut returns)?;
/// // Step 1: 2 + 0.5 * 4 = 4. Step 0: 1 + 0.5 * (0.5 * 1 + 0.5 * 4).
/// assert_eq!(returns, [2.25, 4.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_lambda_returns<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
    last_value: T,
    gamma: f64,
    lambda: f64,
    returns: &mut [T],
) -> Result<()> {
    compute_trajectory(&check(rewards, values, ends, gamma, lambda, returns.len())?, last_value, [returns])
}

/// Computes lambda returns of N environments over T steps, stored time-major.
///
/// Element `t * num_envs + n` of a slice belongs to step t of environment n. `last_values` has
/// length N, all other slices have length T * N. The results of each environment equal those of
/// [`compute_lambda_returns`] up to rounding.
///
/// # Errors
/// The errors of [`compute_lambda_returns`]. Also [`crate::Error::Shape`] if the length of
/// `rewards` is not a multiple of `num_envs`.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, compute_lambda_returns_time_major};
///
/// let mut returns = [0.0; 2];
/// let ends = EpisodeEnds::dones(&[false, true]);
/// compute_lambda_returns_time_major(&[1.0, 2.0], &[0.0; 2], ends, 2, &[8.0, 8.0], 0.5, 0.9, &mut returns)?;
/// assert_eq!(returns, [5.0, 2.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_lambda_returns_time_major<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
    num_envs: usize,
    last_values: &[T],
    gamma: f64,
    lambda: f64,
    returns: &mut [T],
) -> Result<()> {
    check_rows(rewards.len(), "num_envs", num_envs)?;
    check_len("last_values", last_values.len(), num_envs)?;
    compute_columns(&check(rewards, values, ends, gamma, lambda, returns.len())?, last_values, [returns])
}

/// Checks all arguments and returns the inputs of the recursion.
fn check<'a, T: Float>(
    rewards: &'a [T],
    values: &'a [T],
    ends: EpisodeEnds<'a, T>,
    gamma: f64,
    lambda: f64,
    out: usize,
) -> Result<LambdaReturns<'a, T>> {
    check_discount("gamma", gamma)?;
    check_discount("lambda", lambda)?;
    let len = rewards.len();
    check_len("values", values.len(), len)?;
    let finals = ends.check(len)?;
    check_len("returns", out, len)?;
    let steps = Steps { rewards, values, terminated: ends.terminated, finals };
    Ok(LambdaReturns { steps, gamma, lambda })
}

/// Inputs of the recursion over `G_t`.
struct LambdaReturns<'a, T> {
    steps: Steps<'a, T>,
    gamma: f64,
    lambda: f64,
}

impl<T: Float> Recursion<1> for LambdaReturns<'_, T> {
    type Float = T;
    type Cache<const N: usize> = ();
    type Ready<const N: usize> = ();

    #[inline(always)]
    fn steps(&self) -> Steps<'_, T> {
        self.steps
    }

    #[inline(always)]
    fn start(last_value: T) -> f64 {
        last_value.to_f64()
    }

    #[inline(always)]
    fn new_cache<const N: usize>() {}

    #[inline(always)]
    fn terms<const N: usize>(&self, index: usize, next: &[T; N], terms: Terms<'_, N>, (): &mut ()) {
        let following = self.steps.following(index, next);
        let rewards = array_at::<_, N>(self.steps.rewards, index);
        // The bootstrap value has the weight gamma at the end of an episode, else gamma * (1 -
        // lambda). With lambda = 1 within an episode, the value is ignored, even if it is NaN.
        let (share, trace) = (self.gamma * (1.0 - self.lambda), self.gamma * self.lambda);
        let has_bootstrap = self.lambda < 1.0;
        for (i, reward) in rewards.iter().enumerate() {
            let (bootstrap, open) = following.step(i);
            let weight = select(open, share, self.gamma);
            terms.offset[i] = reward.to_f64() + mask(has_bootstrap || !open, weight * bootstrap);
            terms.factor[i] = mask(open, trace);
        }
    }

    #[inline(always)]
    fn write<const N: usize>(&self, _: usize, (): &(), x: &[f64; N], _: &[f64; N], [returns]: [&mut [T; N]; 1]) {
        for i in 0..N {
            returns[i] = T::from_f64(x[i]);
        }
    }

    #[inline(always)]
    fn prepare<const N: usize>(&self, _: usize) {}

    #[inline(always)]
    fn block<S: F64s, const N: usize>(
        &self,
        index: usize,
        _: (&(), usize),
        _: S::Vector,
        next: S::Vector,
        window: &mut Window<S, true>,
        [returns]: [&mut [T; LANES]; 1],
    ) {
        let (simd, has_bootstrap) = (window.simd, self.lambda < 1.0);
        let (share, trace) = (simd.splat(self.gamma * (1.0 - self.lambda)), simd.splat(self.gamma * self.lambda));
        let (bootstrap, done) = self.steps.bootstrap_lanes(simd, index, next);
        let weighted = simd.mul(simd.select(done, simd.splat(self.gamma), share), bootstrap);
        let value = simd.mask_zero(done.map(|done| !(has_bootstrap || done)), weighted);
        let rewards = T::load(simd, array_at(self.steps.rewards, index));
        let x = window.step(simd.add(rewards, value), simd.mask_zero(done, trace));
        T::store(simd, x, returns);
    }
}
