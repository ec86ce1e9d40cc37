//! The loops of generalised advantage estimation, compiled for each instruction set.
//!
//! Over a `[T, N]` grid the lanes are environments. Over a single trajectory they are steps, see `window.rs`.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use std::ops::Range;

use super::float::{either, only_if};
use super::rows::{fixed, fixed_mut};
use super::window::Window;
use crate::interrupt::{Pause, backwards};
use crate::pool::{ColumnsMut, run_columns};
use crate::simd::f64s::{F64s, on_f64s};
use crate::simd::{LANES, multiversion};
use crate::{Float, Result};

/// What is read, checked for equal lengths.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) rewards: &'a [T],
    pub(super) values: &'a [T],
    pub(super) terminated: &'a [bool],
    /// Truncated, and the values of final observations.
    pub(super) finals: Option<(&'a [bool], &'a [T])>,
    pub(super) gamma: f64,
    /// gamma * lambda
    pub(super) decay: f64,
}

/// Rewards, values, terminated, truncated, final values.
type Block<'a, T, const N: usize> = (&'a [T; N], &'a [T; N], &'a [bool; N], &'a [bool; N], &'a [T; N]);

impl<'a, T: Float> Rows<'a, T> {
    #[inline(always)]
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        let finals = self.finals.map(|(truncated, values)| (&truncated[range.clone()], &values[range.clone()]));
        Self {
            rewards: &self.rewards[range.clone()],
            values: &self.values[range.clone()],
            terminated: &self.terminated[range],
            finals,
            ..*self
        }
    }

    /// N steps from `at` on. Without final values, `truncated` and `finals` hold something else and do not count.
    #[inline(always)]
    fn block<const N: usize>(&self, at: usize) -> Block<'a, T, N> {
        let (truncated, finals) = self.finals.unwrap_or((self.terminated, self.values));
        (
            fixed(self.rewards, at),
            fixed(self.values, at),
            fixed(self.terminated, at),
            fixed(truncated, at),
            fixed(finals, at),
        )
    }

    /// One step's delta and whether the episode goes on after it, given the value of the observation after it.
    #[inline(always)]
    fn delta<const FINALS: bool>(&self, t: usize, next: f64) -> (f64, bool) {
        let ([reward], [value], [terminated], [truncated], [last]) = self.block::<1>(t);
        let cut = FINALS && *truncated;
        let bootstrap = only_if(!terminated, self.gamma * either(cut, last.wide(), next));
        (reward.wide() + bootstrap - value.wide(), self.decay != 0.0 && !(terminated | cut))
    }
}

/// One trajectory.
pub(super) fn trajectory<T: Float>(
    rows: Rows<'_, T>,
    last_value: T,
    advantages: &mut [T],
    returns: &mut [T],
    pause: Pause<'_>,
) -> Result<()> {
    let mut behind = (0.0, last_value);
    for range in backwards(rows.rewards.len(), 1) {
        let (start, out) = (range.start, (&mut advantages[range.clone()], &mut returns[range.clone()]));
        stretch(rows.slice(range), &mut behind, out.0, out.1);
        if start > 0 {
            pause()?;
        }
    }
    Ok(())
}

on_f64s! {
    /// Steps of one trajectory, given the advantage and the value behind them, in whose place come those of the first.
    fn stretch<T: Float>(
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
    let mut values_behind = simd.splat(behind.1.wide());
    let mut end = rows.rewards.len();
    while end >= LANES {
        end -= LANES;
        let (rewards, values, terminated, truncated, finals) = rows.block::<LANES>(end);
        behind.1 = values[0];
        let (rewards, values) = (T::load(simd, rewards), T::load(simd, values));
        let (mut after, mut factor) = (simd.ahead::<1>(values, values_behind), decay);
        if FINALS {
            after = simd.either(*truncated, T::load(simd, finals), after);
            factor = simd.unless(*truncated, factor);
        }
        let bootstrap = simd.unless(*terminated, simd.mul(gamma, after));
        let delta = simd.sub(simd.add(rewards, bootstrap), values);
        let x = window.step(delta, simd.unless(*terminated, factor));
        T::store(simd, x, fixed_mut(advantages, end));
        T::store(simd, simd.add(x, values), fixed_mut(returns, end));
        values_behind = values;
    }
    behind.0 = window.first();
    for t in (0..end).rev() {
        let (delta, open) = rows.delta::<FINALS>(t, behind.1.wide());
        *behind = (delta + only_if(open, rows.decay * behind.0), rows.values[t]);
        advantages[t] = T::of(behind.0);
        returns[t] = T::of(behind.0 + behind.1.wide());
    }
}

/// A time-major grid, one column per environment.
pub(super) fn columns<T: Float>(
    rows: Rows<'_, T>,
    last_values: &[T],
    advantages: &mut [T],
    returns: &mut [T],
) -> Result<()> {
    run_columns([advantages, returns], last_values.len(), |columns, out, pause| {
        grid(rows, last_values, columns, out, pause)
    })
}

multiversion! {
    /// Some of the columns.
    fn grid<T: Float>(
        rows: Rows<'_, T>,
        last_values: &[T],
        columns: Range<usize>,
        out: [ColumnsMut<'_, T>; 2],
        pause: Pause<'_>,
    ) -> Result<()> {
        if rows.finals.is_some() {
            all_strips::<T, true>(&rows, last_values, columns, out, pause)
        } else {
            all_strips::<T, false>(&rows, last_values, columns, out, pause)
        }
    }
}

#[inline(always)]
fn all_strips<T: Float, const FINALS: bool>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    mut columns: Range<usize>,
    mut out: [ColumnsMut<'_, T>; 2],
    pause: Pause<'_>,
) -> Result<()> {
    // Wide strips read and write memory in long runs, which counts once a rollout is larger than the caches.
    strips::<T, FINALS, 256>(rows, last_values, &mut columns, &mut out, pause)?;
    strips::<T, FINALS, 64>(rows, last_values, &mut columns, &mut out, pause)?;
    strips::<T, FINALS, 16>(rows, last_values, &mut columns, &mut out, pause)?;
    strips::<T, FINALS, 8>(rows, last_values, &mut columns, &mut out, pause)?;
    strips::<T, FINALS, 4>(rows, last_values, &mut columns, &mut out, pause)?;
    strips::<T, FINALS, 1>(rows, last_values, &mut columns, &mut out, pause)
}

/// As many strips of W columns as there are; leaves the columns behind them.
#[inline(always)]
fn strips<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    columns: &mut Range<usize>,
    out: &mut [ColumnsMut<'_, T>; 2],
    pause: Pause<'_>,
) -> Result<()> {
    while columns.len() >= W {
        strip::<T, FINALS, W>(rows, last_values, columns.start, out, pause)?;
        columns.start += W;
    }
    Ok(())
}

#[inline(always)]
fn strip<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    first: usize,
    [advantages, returns]: &mut [ColumnsMut<'_, T>; 2],
    pause: Pause<'_>,
) -> Result<()> {
    let width = last_values.len();
    let mut carry = [0.0; W];
    let mut next = fixed::<T, W>(last_values, first).map(T::wide);
    for range in backwards(rows.rewards.len() / width, W) {
        for t in range.clone().rev() {
            let block = rows.block::<W>(t * width + first);
            let (advantages, returns) = (advantages.row(t, first), returns.row(t, first));
            step::<T, FINALS, W>(rows, block, &mut carry, &mut next, advantages, returns);
        }
        if range.start > 0 {
            pause()?;
        }
    }
    Ok(())
}

/// One step of W environments. A function of its own, because the compiler trusts only arguments not to overlap.
#[inline(always)]
fn step<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    (rewards, values, terminated, truncated, finals): Block<'_, T, W>,
    carry: &mut [f64; W],
    next: &mut [f64; W],
    advantages: &mut [T; W],
    returns: &mut [T; W],
) {
    let ends = rows.decay == 0.0;
    for i in 0..W {
        let (reward, value, last) = (rewards[i].wide(), values[i].wide(), finals[i].wide());
        let cut = FINALS && truncated[i];
        let after = if FINALS { either(cut, last, next[i]) } else { next[i] };
        let delta = reward + only_if(!terminated[i], rows.gamma * after) - value;
        carry[i] = delta + only_if(!(ends | terminated[i] | cut), rows.decay * carry[i]);
        next[i] = value;
        advantages[i] = T::of(carry[i]);
        returns[i] = T::of(carry[i] + value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::tests::on_each_isa;

    /// Advantages and returns of random rows with dense ends, as bits.
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
            columns(rows, &last_values, &mut advantages, &mut returns).unwrap();
        } else {
            trajectory(rows, last_values[0], &mut advantages, &mut returns, &mut || Ok(())).unwrap();
        }
        advantages.iter().chain(&returns).map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for (len, width) in [(1, None), (33, None), (500, None), (7 * 93, Some(93)), (64, Some(1))] {
            let results = on_each_isa(|| bits(len, width));
            assert!(results.iter().all(|result| *result == results[0]), "{len} rows, width {width:?}");
        }
    }
}
