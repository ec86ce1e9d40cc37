//! The loops of generalised advantage estimation, compiled for each instruction set.
//!
//! Over a `[T, N]` grid the lanes are environments. Over a single trajectory they are steps, see `window.rs`.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use std::ops::Range;

use super::float::{either, only_if};
use super::rows::{fixed, fixed_mut};
use super::window::Window;
use crate::Float;
use crate::simd::f64s::{F64s, on_f64s};
use crate::simd::{LANES, multiversion};

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

    /// N steps from `at` on. Without final values, `truncated` and `finals` hold something else and are not read.
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
        (reward.wide() + bootstrap - value.wide(), !(terminated | cut))
    }
}

on_f64s! {
    /// One trajectory.
    pub(super) fn trajectory<T: Float>(simd: F64s, rows: Rows<'_, T>, last_value: T, advantages: &mut [T], returns: &mut [T]) {
        if rows.finals.is_some() {
            scan::<_, T, true>(simd, &rows, last_value, advantages, returns);
        } else {
            scan::<_, T, false>(simd, &rows, last_value, advantages, returns);
        }
    }
}

#[inline(always)]
fn scan<S: F64s, T: Float, const FINALS: bool>(
    simd: S,
    rows: &Rows<'_, T>,
    last_value: T,
    advantages: &mut [T],
    returns: &mut [T],
) {
    let (gamma, decay) = (simd.splat(rows.gamma), simd.splat(rows.decay));
    let mut window = Window::new(simd, 0.0);
    let mut values_behind = simd.splat(last_value.wide());
    let mut end = rows.rewards.len();
    let mut next = last_value;
    while end >= LANES {
        end -= LANES;
        let (rewards, values, terminated, truncated, finals) = rows.block::<LANES>(end);
        next = values[0];
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
    let (mut advantage, mut value) = (window.first(), next.wide());
    for t in (0..end).rev() {
        let (delta, open) = rows.delta::<FINALS>(t, value);
        advantage = delta + only_if(open, rows.decay * advantage);
        value = rows.values[t].wide();
        advantages[t] = T::of(advantage);
        returns[t] = T::of(advantage + value);
    }
}

multiversion! {
    /// A time-major grid, one column per environment.
    pub(super) fn columns<T: Float>(rows: Rows<'_, T>, last_values: &[T], advantages: &mut [T], returns: &mut [T]) {
        if rows.finals.is_some() {
            grid::<T, true>(&rows, last_values, advantages, returns);
        } else {
            grid::<T, false>(&rows, last_values, advantages, returns);
        }
    }
}

#[inline(always)]
fn grid<T: Float, const FINALS: bool>(rows: &Rows<'_, T>, last_values: &[T], advantages: &mut [T], returns: &mut [T]) {
    let mut first = 0;
    // Wide strips read and write memory in long runs, which counts once a rollout is larger than the caches.
    first = strips::<T, FINALS, 256>(rows, last_values, first, advantages, returns);
    first = strips::<T, FINALS, 64>(rows, last_values, first, advantages, returns);
    first = strips::<T, FINALS, 16>(rows, last_values, first, advantages, returns);
    first = strips::<T, FINALS, 8>(rows, last_values, first, advantages, returns);
    first = strips::<T, FINALS, 4>(rows, last_values, first, advantages, returns);
    strips::<T, FINALS, 1>(rows, last_values, first, advantages, returns);
}

/// As many strips of W columns as there are from column `first` on; returns the column after them.
#[inline(always)]
fn strips<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    mut first: usize,
    advantages: &mut [T],
    returns: &mut [T],
) -> usize {
    while last_values.len() - first >= W {
        strip::<T, FINALS, W>(rows, last_values, first, advantages, returns);
        first += W;
    }
    first
}

#[inline(always)]
fn strip<T: Float, const FINALS: bool, const W: usize>(
    rows: &Rows<'_, T>,
    last_values: &[T],
    first: usize,
    advantages: &mut [T],
    returns: &mut [T],
) {
    let width = last_values.len();
    let mut carry = [0.0; W];
    let mut next = fixed::<T, W>(last_values, first).map(T::wide);
    for t in (0..rows.rewards.len() / width).rev() {
        let at = t * width + first;
        let (rewards, values, terminated, truncated, finals) = rows.block::<W>(at);
        let (advantages, returns) = (fixed_mut::<T, W>(advantages, at), fixed_mut::<T, W>(returns, at));
        for i in 0..W {
            let (reward, value, last) = (rewards[i].wide(), values[i].wide(), finals[i].wide());
            let cut = FINALS && truncated[i];
            let after = if FINALS { either(cut, last, next[i]) } else { next[i] };
            let delta = reward + only_if(!terminated[i], rows.gamma * after) - value;
            carry[i] = delta + only_if(!(terminated[i] | cut), rows.decay * carry[i]);
            next[i] = value;
            advantages[i] = T::of(carry[i]);
            returns[i] = T::of(carry[i] + value);
        }
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
            columns(rows, &last_values, &mut advantages, &mut returns);
        } else {
            trajectory(rows, last_values[0], &mut advantages, &mut returns);
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
