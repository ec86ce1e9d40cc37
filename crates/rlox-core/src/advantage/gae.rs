//! Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16), with
//! bootstrapping at time limits.
//!
//! - `delta_t = r_t + gamma * (1 - terminated_t) * next_value_t - v_t`
//! - `A_t = delta_t + gamma * lambda * (1 - done_t) * A_{t+1}`, with `done = terminated | truncated`
//! - `returns = A + v`
//!
//! `v_t` is the value of the observation before step t. `next_value_t` is the value of the final
//! observation of the episode if step t was truncated, else `v_{t+1}`. Sums are computed in f64,
//! also for f32 inputs, and each result is rounded once. Values after the end of an episode are
//! ignored instead of multiplied by zero, so a NaN there has no effect on the episode.
//!
//! For a `[T, N]` grid, the elements (lanes) of a SIMD vector belong to one time step of adjacent
//! environments. For a single trajectory, they belong to adjacent steps; see `lanes.rs`.

#![expect(clippy::too_many_arguments, reason = "free functions on slices: inputs, settings and outputs")]
#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use std::ops::Range;

use super::lanes::{Window, array_at, array_at_mut, mask, select};
use super::{EpisodeEnds, check_discount, check_rows};
use crate::interrupt::{InterruptCheck, PollFn, reverse_chunks};
use crate::pool::{CHUNK_ELEMENTS, ColumnsMut, run_chunks, run_columns};
use crate::simd::f64x8::{F64s, on_f64s};
use crate::simd::{LANES, multiversion};
use crate::{Result, advantage::Float, error::check_len};

/// Computes advantages and returns of one trajectory of T steps.
///
/// All slices have length T. `advantages` and `returns` are overwritten. `last_value` is the value
/// of the observation after the last step, and is not used if that step ends an episode. For an
/// empty trajectory, nothing is written.
///
/// Terms are added in another order than in the formula. If sums overflow f64, other elements than
/// with the formula may therefore be infinite or NaN.
///
/// # Errors
/// - [`crate::Error::Shape`] if the length of a slice differs from that of `rewards`, or if a step
///   is truncated and not terminated but `final_values` is `None`;
/// - [`crate::Error::Config`] if `gamma` or `gae_lambda` is outside [0, 1].
///
/// Nothing is written if one of these errors occurs.
///
/// ```
/// use rlox_core::{advantage::EpisodeEnds, compute_gae};
///
/// let (rewards, values) = ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]);
/// let ends = EpisodeEnds {
///     terminated: &[false, false, false],
///     truncated: Some(&[false, true, false]),
///     final_values: Some(&[0.0, 2.0, 0.0]),
/// };
/// let (mut advantages, mut returns) = ([0.0; 3], [0.0; 3]);
/// compute_gae(&rewards, &values, ends, 4.0, 0.5, 0.5, &mut advantages, &mut returns)?;
/// // Step 2: 1 + 0.5 * 4 - 0.5. Step 1, truncated: 1 + 0.5 * 2 - 0.5.
/// // Step 0: 1 + 0.5 * 0.5 - 0.5 + 0.25 * 1.5, where 1.5 is the advantage of step 1.
/// assert_eq!(advantages, [1.125, 1.5, 2.5]);
/// assert_eq!(returns, [1.625, 2.0, 3.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_gae<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
    last_value: T,
    gamma: f64,
    gae_lambda: f64,
    advantages: &mut [T],
    returns: &mut [T],
) -> Result<()> {
    let rows = check(rewards, values, ends, gamma, gae_lambda, [advantages.len(), returns.len()])?;
    let mut interrupt = InterruptCheck::default();
    compute_trajectory(rows, last_value, advantages, returns, &mut || interrupt.check())
}

/// Computes advantages and returns of N environments over T steps, stored time-major.
///
/// Element `t * num_envs + n` of a slice belongs to step t of environment n. `last_values` has
/// length N, all other slices have length T * N. The results of each environment equal those of
/// [`compute_gae`] up to rounding.
///
/// # Errors
/// The errors of [`compute_gae`]. Also [`crate::Error::Shape`] if the length of `rewards` is not a
/// multiple of `num_envs`.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, compute_gae_time_major};
///
/// // Two environments, two steps; the second environment terminates at its first step.
/// let (rewards, values) = ([1.0_f32, 2.0, 3.0, 4.0], [0.0; 4]);
/// let ends = EpisodeEnds::dones(&[false, true, false, false]);
/// let (mut advantages, mut returns) = ([0.0; 4], [0.0; 4]);
/// compute_gae_time_major(&rewards, &values, ends, 2, &[8.0, 8.0], 0.5, 1.0, &mut advantages, &mut returns)?;
/// assert_eq!(advantages, [4.5, 2.0, 7.0, 8.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_gae_time_major<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
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
    compute_columns(rows, last_values, advantages, returns)
}

/// Computes advantages and returns of N trajectories of `n_steps` steps each, stored one after the
/// other.
///
/// Element `n * n_steps + t` of a slice belongs to step t of trajectory n. `last_values` has length
/// N, all other slices have length N * `n_steps`. The results of each trajectory equal those of
/// [`compute_gae`] bit for bit.
///
/// # Errors
/// The errors of [`compute_gae`]. Also [`crate::Error::Shape`] if the length of `rewards` is not a
/// multiple of `n_steps`.
///
/// ```
/// use rlox_core::{advantage::EpisodeEnds, compute_gae_batched};
///
/// let (rewards, values) = ([1.0_f32, 3.0, 2.0, 4.0], [0.0; 4]);
/// let ends = EpisodeEnds::dones(&[false, false, true, false]);
/// let (mut advantages, mut returns) = ([0.0; 4], [0.0; 4]);
/// compute_gae_batched(&rewards, &values, ends, &[8.0, 8.0], 2, 0.5, 1.0, &mut advantages, &mut returns)?;
/// assert_eq!(advantages, [4.5, 7.0, 2.0, 8.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_gae_batched<T: Float>(
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
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
    // If trajectories are short, a thread processes several of them at a time.
    let trajectories_per_chunk = CHUNK_ELEMENTS.div_ceil(n_steps.max(1));
    run_chunks([advantages, returns], trajectories_per_chunk * n_steps, |i, [advantages, returns], poll| {
        let out = advantages.chunks_exact_mut(n_steps).zip(returns.chunks_exact_mut(n_steps));
        (i * trajectories_per_chunk..).zip(out).try_for_each(|(n, (advantages, returns))| {
            compute_trajectory(rows.slice(n * n_steps..(n + 1) * n_steps), last_values[n], advantages, returns, poll)
        })
    })
}

/// Checks all arguments and returns the inputs of the kernels.
fn check<'a, T: Float>(
    rewards: &'a [T],
    values: &'a [T],
    ends: EpisodeEnds<'a, T>,
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

// The loops below are compiled for each instruction set.

/// Inputs of the kernels. All slices have the same length.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    rewards: &'a [T],
    values: &'a [T],
    terminated: &'a [bool],
    /// Truncated flags and values of the final observations, or `None` if no such value is needed.
    finals: Option<(&'a [bool], &'a [T])>,
    gamma: f64,
    /// Factor of the next advantage: `gamma * lambda`.
    decay: f64,
}

/// Rewards, values, terminated flags, truncated flags and final values of N elements.
type Block<'a, T, const N: usize> = (&'a [T; N], &'a [T; N], &'a [bool; N], &'a [bool; N], &'a [T; N]);

impl<'a, T: Float> Rows<'a, T> {
    #[inline(always)]
    fn slice(&self, range: Range<usize>) -> Self {
        let finals = self.finals.map(|(truncated, values)| (&truncated[range.clone()], &values[range.clone()]));
        Self {
            rewards: &self.rewards[range.clone()],
            values: &self.values[range.clone()],
            terminated: &self.terminated[range],
            finals,
            ..*self
        }
    }

    /// Returns the inputs of the N elements from `index` on. Without final values, the last two
    /// arrays are unused placeholders.
    #[inline(always)]
    fn block<const N: usize>(&self, index: usize) -> Block<'a, T, N> {
        let (truncated, finals) = self.finals.unwrap_or((self.terminated, self.values));
        (
            array_at(self.rewards, index),
            array_at(self.values, index),
            array_at(self.terminated, index),
            array_at(truncated, index),
            array_at(finals, index),
        )
    }

    /// Returns the delta of step t, and true if its advantage depends on the next advantage. `next`
    /// is the value of the next observation.
    #[inline(always)]
    fn delta<const FINALS: bool>(&self, t: usize, next: f64) -> (f64, bool) {
        let ([reward], [value], [terminated], [truncated], [last]) = self.block::<1>(t);
        let cut = FINALS && *truncated;
        let bootstrap = mask(!terminated, self.gamma * select(cut, last.to_f64(), next));
        (reward.to_f64() + bootstrap - value.to_f64(), self.decay != 0.0 && !(terminated | cut))
    }
}

/// Computes the outputs of one trajectory, and calls `poll` between ranges of steps.
fn compute_trajectory<T: Float>(
    rows: Rows<'_, T>,
    last_value: T,
    advantages: &mut [T],
    returns: &mut [T],
    poll: PollFn<'_>,
) -> Result<()> {
    let mut behind = (0.0, last_value);
    for range in reverse_chunks(rows.rewards.len(), 1) {
        let (start, out) = (range.start, (&mut advantages[range.clone()], &mut returns[range.clone()]));
        compute_chunk(rows.slice(range), &mut behind, out.0, out.1);
        if start > 0 {
            poll()?;
        }
    }
    Ok(())
}

on_f64s! {
    /// Computes the outputs of the steps `rows` of one trajectory.
    ///
    /// `behind` holds the advantage and the value of the step after these steps. The function
    /// replaces them by those of the first of these steps.
    fn compute_chunk<T: Float>(
        simd: F64s,
        rows: Rows<'_, T>,
        behind: &mut (f64, T),
        advantages: &mut [T],
        returns: &mut [T],
    ) {
        let tiny = rows.decay > 0.0 && rows.decay.powi(LANES as i32) < f64::MIN_POSITIVE;
        match (rows.finals.is_some(), tiny) {
            (true, true) => scan::<_, T, true, true>(simd, &rows, behind, advantages, returns),
            (true, false) => scan::<_, T, true, false>(simd, &rows, behind, advantages, returns),
            (false, true) => scan::<_, T, false, true>(simd, &rows, behind, advantages, returns),
            (false, false) => scan::<_, T, false, false>(simd, &rows, behind, advantages, returns),
        }
    }
}

/// Computes steps of one trajectory from the last step to the first, [`LANES`] steps at a time.
#[inline(always)]
fn scan<S: F64s, T: Float, const FINALS: bool, const TINY: bool>(
    simd: S,
    rows: &Rows<'_, T>,
    behind: &mut (f64, T),
    advantages: &mut [T],
    returns: &mut [T],
) {
    let (gamma, decay) = (simd.splat(rows.gamma), simd.splat(rows.decay));
    let mut window = Window::<_, TINY>::new(simd, behind.0);
    let mut values_behind = simd.splat(behind.1.to_f64());
    let mut end = rows.rewards.len();
    while end >= LANES {
        end -= LANES;
        let (rewards, values, terminated, truncated, finals) = rows.block::<LANES>(end);
        behind.1 = values[0];
        let (rewards, values) = (T::load(simd, rewards), T::load(simd, values));
        let (mut after, mut factor) = (simd.shift_lanes::<1>(values, values_behind), decay);
        if FINALS {
            after = simd.select(*truncated, T::load(simd, finals), after);
            factor = simd.mask_zero(*truncated, factor);
        }
        let bootstrap = simd.mask_zero(*terminated, simd.mul(gamma, after));
        let delta = simd.sub(simd.add(rewards, bootstrap), values);
        let x = window.step(delta, simd.mask_zero(*terminated, factor));
        T::store(simd, x, array_at_mut(advantages, end));
        T::store(simd, simd.add(x, values), array_at_mut(returns, end));
        values_behind = values;
    }
    behind.0 = window.first();
    for t in (0..end).rev() {
        let (delta, open) = rows.delta::<FINALS>(t, behind.1.to_f64());
        *behind = (delta + mask(open, rows.decay * behind.0), rows.values[t]);
        advantages[t] = T::from_f64(behind.0);
        returns[t] = T::from_f64(behind.0 + behind.1.to_f64());
    }
}

/// Computes the outputs of a time-major `[T, N]` grid, which has one column per environment.
fn compute_columns<T: Float>(
    rows: Rows<'_, T>,
    last_values: &[T],
    advantages: &mut [T],
    returns: &mut [T],
) -> Result<()> {
    run_columns([advantages, returns], last_values.len(), |columns, out, poll| {
        compute_grid(rows, last_values, columns, out, poll)
    })
}

multiversion! {
    /// Computes the outputs of a range of columns.
    fn compute_grid<T: Float>(
        rows: Rows<'_, T>,
        last_values: &[T],
        columns: Range<usize>,
        out: [ColumnsMut<'_, T>; 2],
        poll: PollFn<'_>,
    ) -> Result<()> {
        if rows.finals.is_some() {
            compute_all_strips::<T, true>(&rows, last_values, columns, out, poll)
        } else {
            compute_all_strips::<T, false>(&rows, last_values, columns, out, poll)
        }
    }
}

#[inline(always)]
fn compute_all_strips<T: Float, const FINALS: bool>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    mut columns: Range<usize>,
    mut out: [ColumnsMut<'_, T>; 2],
    poll: PollFn<'_>,
) -> Result<()> {
    // A strip is a number of adjacent columns. Rows of wide strips are longer contiguous pieces of
    // memory, which is faster once a rollout exceeds the caches.
    compute_strips::<T, FINALS, 256>(rows, last_values, &mut columns, &mut out, poll)?;
    compute_strips::<T, FINALS, 64>(rows, last_values, &mut columns, &mut out, poll)?;
    compute_strips::<T, FINALS, 16>(rows, last_values, &mut columns, &mut out, poll)?;
    compute_strips::<T, FINALS, 8>(rows, last_values, &mut columns, &mut out, poll)?;
    compute_strips::<T, FINALS, 4>(rows, last_values, &mut columns, &mut out, poll)?;
    compute_strips::<T, FINALS, 1>(rows, last_values, &mut columns, &mut out, poll)
}

/// Computes strips of W columns while at least W columns remain. Removes the computed columns from
/// `columns`.
#[inline(always)]
fn compute_strips<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    columns: &mut Range<usize>,
    out: &mut [ColumnsMut<'_, T>; 2],
    poll: PollFn<'_>,
) -> Result<()> {
    while columns.len() >= W {
        compute_strip::<T, FINALS, W>(rows, last_values, columns.start, out, poll)?;
        columns.start += W;
    }
    Ok(())
}

#[inline(always)]
fn compute_strip<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    first: usize,
    [advantages, returns]: &mut [ColumnsMut<'_, T>; 2],
    poll: PollFn<'_>,
) -> Result<()> {
    let width = last_values.len();
    let mut carry = [0.0; W];
    let mut next = array_at::<T, W>(last_values, first).map(T::to_f64);
    for range in reverse_chunks(rows.rewards.len() / width, W) {
        for t in range.clone().rev() {
            let block = rows.block::<W>(t * width + first);
            let (advantages, returns) = (advantages.row(t, first), returns.row(t, first));
            step::<T, FINALS, W>(rows, block, &mut carry, &mut next, advantages, returns);
        }
        if range.start > 0 {
            poll()?;
        }
    }
    Ok(())
}

/// Computes one time step of W environments.
///
/// This is a separate function, because only for function arguments does the compiler assume that
/// slices do not overlap.
#[inline(always)]
fn step<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    (rewards, values, terminated, truncated, finals): Block<'_, T, W>,
    carry: &mut [f64; W],
    next: &mut [f64; W],
    advantages: &mut [T; W],
    returns: &mut [T; W],
) {
    let no_decay = rows.decay == 0.0;
    for i in 0..W {
        let (reward, value, last) = (rewards[i].to_f64(), values[i].to_f64(), finals[i].to_f64());
        let cut = FINALS && truncated[i];
        let after = if FINALS { select(cut, last, next[i]) } else { next[i] };
        let delta = reward + mask(!terminated[i], rows.gamma * after) - value;
        carry[i] = delta + mask(!(no_decay | terminated[i] | cut), rows.decay * carry[i]);
        next[i] = value;
        advantages[i] = T::from_f64(carry[i]);
        returns[i] = T::from_f64(carry[i] + value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::tests::on_each_isa;

    /// Returns the bits of advantages and returns of random steps with frequent episode ends.
    fn bits(len: usize, width: Option<usize>) -> Vec<u64> {
        let mut rng = Pcg64::seed_from(len as u128);
        let mut draw = |n: usize| (0..n).map(|_| rng.uniform(-1.0, 1.0)).collect::<Vec<f64>>();
        let (rewards, values, finals, last_values) = (draw(len), draw(len), draw(len), draw(width.unwrap_or(1)));
        let [terminated, truncated] = [(); 2].map(|()| draw(len).iter().map(|x| *x > 0.8).collect::<Vec<_>>());
        let rows = Rows {
            rewards: &rewards,
            values: &values,
            terminated: &terminated,
            finals: Some((&truncated, &finals)),
            gamma: 0.99,
            decay: 0.95,
        };
        let (mut advantages, mut returns) = (vec![0.0; len], vec![0.0; len]);
        if width.is_some() {
            compute_columns(rows, &last_values, &mut advantages, &mut returns).unwrap();
        } else {
            compute_trajectory(rows, last_values[0], &mut advantages, &mut returns, &mut || Ok(())).unwrap();
        }
        advantages.iter().chain(&returns).map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_computes_the_same_bits() {
        for (len, width) in [(1, None), (33, None), (500, None), (7 * 93, Some(93)), (64, Some(1))] {
            let results = on_each_isa(|| bits(len, width));
            assert!(results.iter().all(|result| *result == results[0]), "{len} rows, width {width:?}");
        }
    }
}
