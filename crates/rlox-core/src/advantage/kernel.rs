//! The loops of generalised advantage estimation, compiled for each instruction set.
//!
//! The recursion over time is a chain: each step waits for the next one's result. Over a `[T, N]` grid the lanes are
//! environments. Over a single trajectory a chunk of steps first sums each window of [`LANES`] steps by doubling, all
//! steps at once; then the chain advances by a whole window of lanes at a time.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use std::ops::Range;

use super::float::{either, only_if};
use crate::Float;
use crate::simd::multiversion;

const LANES: usize = 8;
const CHUNK: usize = 128;
const SMALL_CHUNK: usize = 32;

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

#[inline(always)]
pub(super) fn fixed<T, const N: usize>(slice: &[T], at: usize) -> &[T; N] {
    slice[at..].first_chunk().expect("the caller counted the rows")
}

#[inline(always)]
pub(super) fn fixed_mut<T, const N: usize>(slice: &mut [T], at: usize) -> &mut [T; N] {
    slice[at..].first_chunk_mut().expect("the caller counted the rows")
}

multiversion! {
    /// One trajectory.
    pub(super) fn trajectory<T: Float>(rows: Rows<'_, T>, last_value: T, advantages: &mut [T], returns: &mut [T]) {
        if rows.finals.is_some() {
            scan::<T, true>(&rows, last_value, advantages, returns);
        } else {
            scan::<T, false>(&rows, last_value, advantages, returns);
        }
    }
}

/// What a stretch of steps hands to the stretch before it: its first advantage and value.
#[derive(Clone, Copy)]
struct Carry {
    advantage: f64,
    value: f64,
}

#[inline(always)]
fn scan<T: Float, const FINALS: bool>(rows: &Rows<'_, T>, last_value: T, advantages: &mut [T], returns: &mut [T]) {
    let mut end = rows.rewards.len();
    let mut carry = Carry { advantage: 0.0, value: last_value.wide() };
    while end >= CHUNK {
        end -= CHUNK;
        carry = chunk::<T, FINALS, CHUNK>(rows, end, carry, advantages, returns);
    }
    while end >= SMALL_CHUNK {
        end -= SMALL_CHUNK;
        carry = chunk::<T, FINALS, SMALL_CHUNK>(rows, end, carry, advantages, returns);
    }
    for t in (0..end).rev() {
        let (delta, open) = rows.delta::<FINALS>(t, carry.value);
        let advantage = delta + only_if(open, rows.decay * carry.advantage);
        carry = Carry { advantage, value: rows.values[t].wide() };
        advantages[t] = T::of(advantage);
        returns[t] = T::of(advantage + carry.value);
    }
}

/// C steps from `at` on.
#[inline(always)]
fn chunk<T: Float, const FINALS: bool, const C: usize>(
    rows: &Rows<'_, T>,
    at: usize,
    carry: Carry,
    advantages: &mut [T],
    returns: &mut [T],
) -> Carry {
    // The padding lets windows reach over the end, where they add nothing.
    let mut sums = [0.0; CHUNK + LANES];
    let mut open = [true; CHUNK + LANES];
    deltas::<T, FINALS, C>(rows, at, carry.value, &mut sums, &mut open);
    let [g1, g2, g4, g8] = windows::<C>(rows.decay, &mut sums, &mut open);

    let values = fixed::<T, C>(rows.values, at);
    let (advantages, returns) = (fixed_mut::<T, C>(advantages, at), fixed_mut::<T, C>(returns, at));
    let g3 = g2 * g1;
    let mut lanes = [g8, g4 * g3, g4 * g2, g4 * g1, g4, g3, g2, g1].map(|power| power * carry.advantage);
    for block in (0..C / LANES).rev() {
        let t = block * LANES;
        for i in 0..LANES {
            lanes[i] = sums[t + i] + only_if(open[t + i], lanes[i]);
        }
        for i in 0..LANES {
            advantages[t + i] = T::of(lanes[i]);
            returns[t + i] = T::of(lanes[i] + values[t + i].wide());
        }
        if block > 0 {
            lanes = lanes.map(|advantage| g8 * advantage);
        }
    }
    Carry { advantage: lanes[0], value: values[0].wide() }
}

#[inline(always)]
fn deltas<T: Float, const FINALS: bool, const C: usize>(
    rows: &Rows<'_, T>,
    at: usize,
    last_value: f64,
    deltas: &mut [f64; CHUNK + LANES],
    open: &mut [bool; CHUNK + LANES],
) {
    let (rewards, values, terminated, truncated, finals) = rows.block::<C>(at);
    for i in 0..C - 1 {
        let (reward, value, next) = (rewards[i].wide(), values[i].wide(), values[i + 1].wide());
        let next = if FINALS { either(truncated[i], finals[i].wide(), next) } else { next };
        deltas[i] = reward + only_if(!terminated[i], rows.gamma * next) - value;
    }
    for i in 0..C {
        let cut = if FINALS { truncated[i] } else { false };
        open[i] = !(terminated[i] | cut);
    }
    deltas[C - 1] = rows.delta::<FINALS>(at + C - 1, last_value).0;
}

/// Sums the discounted deltas of each step and the `LANES - 1` after it, as far as its episode goes; `open` then says
/// whether the episode goes on after those. Returns the decay over 1, 2, 4 and 8 steps.
#[inline(always)]
fn windows<const C: usize>(decay: f64, sums: &mut [f64; CHUNK + LANES], open: &mut [bool; CHUNK + LANES]) -> [f64; 4] {
    let g2 = decay * decay;
    let g4 = g2 * g2;
    double::<C, 1>(decay, sums, open);
    double::<C, 2>(g2, sums, open);
    double::<C, 4>(g4, sums, open);
    [decay, g2, g4, g4 * g4]
}

/// Doubles windows of K steps. In rising order the step ahead is read before it changes.
#[inline(always)]
fn double<const C: usize, const K: usize>(
    decay: f64,
    sums: &mut [f64; CHUNK + LANES],
    open: &mut [bool; CHUNK + LANES],
) {
    for i in 0..C {
        sums[i] += only_if(open[i], decay * sums[i + K]);
    }
    for i in 0..C {
        open[i] &= open[i + K];
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
