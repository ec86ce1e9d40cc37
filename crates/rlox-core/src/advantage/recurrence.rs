//! Backward recursions over time, compiled for each instruction set.
//!
//! The recursion is `x_t = offset_t + factor_t * x_{t+1}`. For a `[T, N]` grid, the elements
//! (lanes) of a SIMD vector belong to one time step of adjacent environments. For a single
//! trajectory, they belong to adjacent steps; see `lanes.rs`. All sums are computed in f64.
//!
//! A block is [`LANES`] (8) adjacent steps of a trajectory. A strip is a number of adjacent columns
//! of a grid.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use std::ops::Range;

use super::lanes::sealed::SimdFloat;
use super::lanes::{Window, array_at, array_at_mut, mask, select};
use crate::interrupt::{InterruptCheck, PollFn, reverse_chunks};
use crate::pool::{ColumnsMut, run_columns};
use crate::simd::f64x8::{F64s, on_f64s};
use crate::simd::{LANES, multiversion};
use crate::{Result, advantage::Float};

/// Number of steps of a trajectory whose exponentials are computed in one loop.
const CHUNK: usize = 64;

/// Inputs that every estimator has. All slices have the same length.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a, T> {
    pub(super) rewards: &'a [T],
    pub(super) values: &'a [T],
    pub(super) terminated: &'a [bool],
    /// Truncated flags and values of the final observations, or `None` if no such value is needed.
    pub(super) finals: Option<(&'a [bool], &'a [T])>,
}

/// Values and flags that determine the bootstrap values of N steps.
pub(super) struct Following<'a, T, const N: usize> {
    next: &'a [T; N],
    terminated: &'a [bool; N],
    finals: (bool, &'a [bool; N], &'a [T; N]),
}

impl<'a, T: Float> Steps<'a, T> {
    /// Returns the inputs of the bootstrap values of the N steps from `index` on. `next` holds the
    /// values of the next observations.
    #[inline(always)]
    pub(super) fn following<'b, const N: usize>(&self, index: usize, next: &'b [T; N]) -> Following<'b, T, N>
    where
        'a: 'b,
    {
        // Without final values, the arrays are unused placeholders.
        let (truncated, finals) = self.finals.unwrap_or((self.terminated, self.values));
        let finals = (self.finals.is_some(), array_at(truncated, index), array_at(finals, index));
        Following { next, terminated: array_at(self.terminated, index), finals }
    }

    /// Returns the bootstrap values of the block of steps from `index` on, and the `done` flags of
    /// these steps.
    ///
    /// `next` holds the values of the next observations. The bootstrap value of a terminated step is zero.
    #[inline(always)]
    pub(super) fn bootstrap_lanes<S: F64s>(
        &self,
        simd: S,
        index: usize,
        next: S::Vector,
    ) -> (S::Vector, [bool; LANES]) {
        let terminated = array_at::<_, LANES>(self.terminated, index);
        let Some((truncated, finals)) = self.finals else { return (simd.mask_zero(*terminated, next), *terminated) };
        let truncated = array_at::<_, LANES>(truncated, index);
        let value = simd.select(*truncated, T::load(simd, array_at(finals, index)), next);
        (simd.mask_zero(*terminated, value), std::array::from_fn(|i| terminated[i] | truncated[i]))
    }
}

impl<T: Float, const N: usize> Following<'_, T, N> {
    /// Returns the bootstrap value of step i, and true if the episode continues after the step. The
    /// bootstrap value of a terminated step is zero.
    #[inline(always)]
    pub(super) fn step(&self, i: usize) -> (f64, bool) {
        let (some, truncated, finals) = self.finals;
        let (terminated, cut) = (self.terminated[i], some & truncated[i]);
        (mask(!terminated, select(cut, finals[i].to_f64(), self.next[i].to_f64())), !(terminated | cut))
    }
}

/// Offsets and factors of the recursion for N steps.
pub(super) struct Terms<'a, const N: usize> {
    pub(super) offset: &'a mut [f64; N],
    pub(super) factor: &'a mut [f64; N],
}

/// Estimator with K output arrays. It computes the offsets and factors of its recursion, and its
/// outputs from the results `x` of the recursion.
pub(super) trait Recursion<const K: usize>: Sync {
    type Float: Float;
    /// Intermediate results of N steps that `terms` stores and `write` reads.
    type Cache<const N: usize>;
    /// Result of `prepare`: numbers of N steps that are computed in one loop, before the recursion
    /// over the steps.
    type Ready<const N: usize>;

    fn steps(&self) -> Steps<'_, Self::Float>;
    fn new_cache<const N: usize>() -> Self::Cache<N>;
    /// Returns the `x` that follows the last step. `last_value` is the value of the observation
    /// after the last step.
    fn start(last_value: Self::Float) -> f64;
    /// Computes the offsets and factors of the N steps from `index` on. `next` holds the values of
    /// the next observations.
    ///
    /// A factor of zero ends an episode. The `x` of the following step is then ignored, even if it
    /// is NaN.
    fn terms<const N: usize>(
        &self,
        index: usize,
        next: &[Self::Float; N],
        terms: Terms<'_, N>,
        cache: &mut Self::Cache<N>,
    );
    /// Writes the outputs of the N steps from `index` on. `x` holds the results of these steps,
    /// `after` those of the steps that follow them.
    fn write<const N: usize>(
        &self,
        index: usize,
        cache: &Self::Cache<N>,
        x: &[f64; N],
        after: &[f64; N],
        out: [&mut [Self::Float; N]; K],
    );
    /// Computes the numbers of the N steps from `index` on that [`Recursion::block`] reads.
    fn prepare<const N: usize>(&self, index: usize) -> Self::Ready<N>;
    /// Computes the recursion and the outputs of the block of steps from `index` on.
    ///
    /// `values` holds the values of the observations before the steps, `next` those of the
    /// observations after the steps. `ready` holds the result of `prepare` and the position of the
    /// block in this result.
    fn block<S: F64s, const N: usize>(
        &self,
        index: usize,
        ready: (&Self::Ready<N>, usize),
        values: S::Vector,
        next: S::Vector,
        window: &mut Window<S, true>,
        out: [&mut [Self::Float; LANES]; K],
    );
}

/// Returns `factor * x`, or zero if the factor is zero, even if `x` is NaN.
#[inline(always)]
fn behind(factor: f64, x: f64) -> f64 {
    mask(factor != 0.0, factor * x)
}

/// Work arrays for one time step of N environments.
struct Row<R: Recursion<K>, const K: usize, const N: usize> {
    offset: [f64; N],
    factor: [f64; N],
    cache: R::Cache<N>,
    x: [f64; N],
}

impl<R: Recursion<K>, const K: usize, const N: usize> Row<R, K, N> {
    #[inline(always)]
    fn new() -> Self {
        Self { offset: [0.0; N], factor: [0.0; N], cache: R::new_cache(), x: [0.0; N] }
    }

    #[inline(always)]
    fn step(
        &mut self,
        recursion: &R,
        index: usize,
        next: &[R::Float; N],
        after: &mut [f64; N],
        out: [&mut [R::Float; N]; K],
    ) {
        let Self { offset, factor, cache, x } = self;
        recursion.terms(index, next, Terms { offset, factor }, cache);
        for i in 0..N {
            x[i] = offset[i] + behind(factor[i], after[i]);
        }
        recursion.write(index, cache, x, after, out);
        *after = *x;
    }
}

/// Value and `x` of the step that follows a range of steps.
struct Behind<T> {
    value: [T; 1],
    x: [f64; 1],
}

/// Computes the outputs of one trajectory, with interruption checks between ranges of steps.
pub(super) fn compute_trajectory<R: Recursion<K>, const K: usize>(
    recursion: &R,
    last_value: R::Float,
    mut out: [&mut [R::Float]; K],
) -> Result<()> {
    let mut behind = Behind { value: [last_value], x: [R::start(last_value)] };
    let mut interrupt = InterruptCheck::default();
    for range in reverse_chunks(recursion.steps().rewards.len(), 1) {
        compute_chunk(recursion, range.clone(), &mut behind, &mut out);
        if range.start > 0 {
            interrupt.check()?;
        }
    }
    Ok(())
}

on_f64s! {
    /// Computes the outputs of the steps `range` of one trajectory.
    ///
    /// `behind` holds the value and `x` of the step after the range. The function replaces them by
    /// those of the first step of the range.
    fn compute_chunk<R: Recursion<K>, const K: usize>(
        simd: F64s,
        recursion: &R,
        range: Range<usize>,
        behind: &mut Behind<R::Float>,
        out: &mut [&mut [R::Float]; K],
    ) {
        let mut end = range.end;
        let mut blocks = Blocks::new(simd, behind);
        while end - range.start >= CHUNK {
            end -= CHUNK;
            blocks.chunk::<R, K, CHUNK>(recursion, end, out);
        }
        while end - range.start >= LANES {
            end -= LANES;
            blocks.chunk::<R, K, LANES>(recursion, end, out);
        }
        if end < range.end {
            *behind = Behind { value: *array_at(recursion.steps().values, end), x: [blocks.window.first()] };
        }
        let mut row = Row::new();
        while end > range.start {
            end -= 1;
            row.step(recursion, end, &behind.value, &mut behind.x, out.each_mut().map(|out| array_at_mut(out, end)));
            behind.value = *array_at(recursion.steps().values, end);
        }
    }
}

/// State of the recursion between two blocks of a trajectory.
struct Blocks<S: F64s> {
    window: Window<S, true>,
    values: S::Vector,
}

impl<S: F64s> Blocks<S> {
    #[inline(always)]
    fn new<T: Float>(simd: S, behind: &Behind<T>) -> Self {
        Self { window: Window::new(simd, behind.x[0]), values: simd.splat(behind.value[0].to_f64()) }
    }

    /// Computes the outputs of the C steps from `index` on, block by block.
    #[inline(always)]
    fn chunk<R: Recursion<K>, const K: usize, const C: usize>(
        &mut self,
        recursion: &R,
        index: usize,
        out: &mut [&mut [R::Float]; K],
    ) {
        let (simd, steps, ready) = (self.window.simd, recursion.steps(), recursion.prepare::<C>(index));
        for t in (0..C / LANES).rev().map(|block| block * LANES) {
            let values = R::Float::load(simd, array_at(steps.values, index + t));
            let next = simd.shift_lanes::<1>(values, std::mem::replace(&mut self.values, values));
            let out = out.each_mut().map(|out| array_at_mut(out, index + t));
            recursion.block(index + t, (&ready, t), values, next, &mut self.window, out);
        }
    }
}

/// Computes the outputs of a time-major `[T, N]` grid, which has one column per environment.
pub(super) fn compute_columns<R: Recursion<K>, const K: usize>(
    recursion: &R,
    last_values: &[R::Float],
    out: [&mut [R::Float]; K],
) -> Result<()> {
    run_columns(out, last_values.len(), |columns, out, poll| compute_grid(recursion, last_values, columns, out, poll))
}

multiversion! {
    /// Computes the outputs of a range of columns in strips, the widest strips first.
    fn compute_grid<R: Recursion<K>, const K: usize>(
        recursion: &R,
        last_values: &[R::Float],
        columns: Range<usize>,
        out: [ColumnsMut<'_, R::Float>; K],
        poll: PollFn<'_>,
    ) -> Result<()> {
        let (mut columns, mut out) = (columns, out);
        compute_strips::<R, K, 64>(recursion, last_values, &mut columns, &mut out, poll)?;
        compute_strips::<R, K, 16>(recursion, last_values, &mut columns, &mut out, poll)?;
        compute_strips::<R, K, 8>(recursion, last_values, &mut columns, &mut out, poll)?;
        compute_strips::<R, K, 4>(recursion, last_values, &mut columns, &mut out, poll)?;
        compute_strips::<R, K, 1>(recursion, last_values, &mut columns, &mut out, poll)
    }
}

/// Computes strips of W columns while at least W columns remain. Removes the computed columns from
/// `columns`.
#[inline(always)]
fn compute_strips<R: Recursion<K>, const K: usize, const W: usize>(
    recursion: &R,
    last_values: &[R::Float],
    columns: &mut Range<usize>,
    out: &mut [ColumnsMut<'_, R::Float>; K],
    poll: PollFn<'_>,
) -> Result<()> {
    let width = last_values.len();
    let mut row = Row::<R, K, W>::new();
    while columns.len() >= W {
        let first = columns.start;
        let mut next = *array_at::<_, W>(last_values, first);
        let mut carry = next.map(R::start);
        for range in reverse_chunks(recursion.steps().rewards.len() / width, W) {
            for t in range.clone().rev() {
                let index = t * width + first;
                row.step(recursion, index, &next, &mut carry, out.each_mut().map(|out| out.row(t, first)));
                next = *array_at(recursion.steps().values, index);
            }
            if range.start > 0 {
                poll()?;
            }
        }
        columns.start += W;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::on_each_isa;
    use crate::{
        Pcg64,
        advantage::{
            EpisodeEnds, VtraceConfig, compute_lambda_returns_time_major, compute_vtrace, compute_vtrace_time_major,
        },
    };

    /// Returns the bits of the results for random steps with frequent episode ends.
    fn bits<T: Float>(len: usize, width: usize) -> Vec<u64> {
        let mut rng = Pcg64::seed_from(len as u128);
        let mut draw = |n: usize| (0..n).map(|_| T::from_f64(rng.uniform(-1.0, 1.0))).collect::<Vec<T>>();
        let (log_rhos, rewards, values, finals, last) = (draw(len), draw(len), draw(len), draw(len), draw(width));
        let [terminated, truncated] = [(); 2].map(|()| draw(len).iter().map(|x| x.to_f64() > 0.8).collect::<Vec<_>>());
        let ends = EpisodeEnds { terminated: &terminated, truncated: Some(&truncated), final_values: Some(&finals) };
        let settings = VtraceConfig { lambda: 0.9, ..VtraceConfig::default() };
        let [mut vs, mut pg, mut returns] = [(); 3].map(|()| vec![T::from_f64(0.0); len]);
        let (x, y) = (&mut vs, &mut pg);
        if width == 1 {
            compute_vtrace(&log_rhos, &rewards, &values, ends, last[0], settings, x, y).unwrap();
        } else {
            compute_vtrace_time_major(&log_rhos, &rewards, &values, ends, width, &last, settings, x, y).unwrap();
        }
        compute_lambda_returns_time_major(&rewards, &values, ends, width, &last, 0.99, 0.95, &mut returns).unwrap();
        vs.iter().chain(&pg).chain(&returns).map(|x| x.to_f64().to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_computes_the_same_bits() {
        for (len, width) in [(1, 1), (33, 1), (500, 1), (7 * 93, 93), (5 * 29, 29)] {
            let results = on_each_isa(|| [bits::<f32>(len, width), bits::<f64>(len, width)]);
            assert!(results.iter().all(|result| *result == results[0]), "{len} rows, width {width}");
        }
    }
}
