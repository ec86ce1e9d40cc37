//! Recursions backwards over time whose factor changes from step to step, compiled for each instruction set.
//!
//! The recursion is `x_t = offset_t + factor_t * x_{t+1}`. Over a `[T, N]` grid the lanes are environments. Over a
//! single trajectory they are steps, see `window.rs`: terms and results of a chunk of steps are computed all at once. All
//! sums are kept in f64.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use super::float::{either, only_if};
use super::rows::{fixed, fixed_mut};
use super::window::Window;
use crate::Float;
use crate::simd::f64s::{F64s, on_f64s};
use crate::simd::{LANES, multiversion};

const CHUNK: usize = 64;

/// The steps every estimator reads, checked for equal lengths.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a, T> {
    pub(super) rewards: &'a [T],
    pub(super) values: &'a [T],
    pub(super) terminated: &'a [bool],
    /// Truncated, and the values of final observations.
    pub(super) finals: Option<(&'a [bool], &'a [T])>,
}

/// What follows after each of N steps.
pub(super) struct Following<'a, T, const N: usize> {
    next: &'a [T; N],
    terminated: &'a [bool; N],
    finals: (bool, &'a [bool; N], &'a [T; N]),
}

impl<'a, T: Float> Steps<'a, T> {
    /// What follows after the N steps from `at` on, given the values of the observations after them.
    #[inline(always)]
    pub(super) fn following<'b, const N: usize>(&self, at: usize, next: &'b [T; N]) -> Following<'b, T, N>
    where
        'a: 'b,
    {
        // Without final values something else is looked at, and not used.
        let (truncated, finals) = self.finals.unwrap_or((self.terminated, self.values));
        let finals = (self.finals.is_some(), fixed(truncated, at), fixed(finals, at));
        Following { next, terminated: fixed(self.terminated, at), finals }
    }
}

impl<T: Float, const N: usize> Following<'_, T, N> {
    /// The value to bootstrap after step i, zero behind a termination, and whether the episode goes on.
    #[inline(always)]
    pub(super) fn step(&self, i: usize) -> (f64, bool) {
        let (some, truncated, finals) = self.finals;
        let (terminated, cut) = (self.terminated[i], some & truncated[i]);
        (only_if(!terminated, either(cut, finals[i].wide(), self.next[i].wide())), !(terminated | cut))
    }
}

/// The recursion's terms for N steps.
pub(super) struct Terms<'a, const N: usize> {
    pub(super) offset: &'a mut [f64; N],
    pub(super) factor: &'a mut [f64; N],
}

/// One estimator: its terms, and what it makes of the sums.
pub(super) trait Recursion {
    type Float: Float;
    /// What is kept of N steps' terms for the results.
    type Kept<const N: usize>;

    fn steps(&self) -> Steps<'_, Self::Float>;
    fn kept<const N: usize>() -> Self::Kept<N>;
    /// `x` behind the last step, whose observation has this value.
    fn start(last_value: Self::Float) -> f64;
    /// For N steps from `at` on, given the values of the observations after them. A factor of zero cuts: what lies
    /// behind it is masked out, so that a NaN there stays there.
    fn terms<const N: usize>(&self, at: usize, next: &[Self::Float; N], terms: Terms<'_, N>, kept: &mut Self::Kept<N>);
    /// Writes N steps' results, given `x` at these steps and after them.
    fn write<const N: usize>(&mut self, at: usize, kept: &Self::Kept<N>, x: &[f64; N], after: &[f64; N]);
}

#[inline(always)]
fn behind(factor: f64, x: f64) -> f64 {
    only_if(factor != 0.0, factor * x)
}

/// What N steps at once, whose successors' `x` are known, are computed with.
struct Row<R: Recursion, const N: usize> {
    offset: [f64; N],
    factor: [f64; N],
    kept: R::Kept<N>,
    x: [f64; N],
}

impl<R: Recursion, const N: usize> Row<R, N> {
    #[inline(always)]
    fn new() -> Self {
        Self { offset: [0.0; N], factor: [0.0; N], kept: R::kept(), x: [0.0; N] }
    }

    #[inline(always)]
    fn step(&mut self, recursion: &mut R, at: usize, next: &[R::Float; N], after: &mut [f64; N]) {
        let Self { offset, factor, kept, x } = self;
        recursion.terms(at, next, Terms { offset, factor }, kept);
        for i in 0..N {
            x[i] = offset[i] + behind(factor[i], after[i]);
        }
        recursion.write(at, kept, x, after);
        *after = *x;
    }
}

on_f64s! {
    /// One trajectory.
    pub(super) fn trajectory<R: Recursion>(simd: F64s, recursion: &mut R, last_value: R::Float) {
        let mut end = recursion.steps().rewards.len();
        let (mut next, mut carry) = ([last_value], [R::start(last_value)]);
        let mut window = Window::new(simd, carry[0]);
        let mut chunk = Chunk::<R, CHUNK>::new(last_value);
        while end >= CHUNK {
            end -= CHUNK;
            chunk.step(recursion, end, &mut next, &mut carry, &mut window);
        }
        let mut chunk = Chunk::<R, LANES>::new(last_value);
        while end >= LANES {
            end -= LANES;
            chunk.step(recursion, end, &mut next, &mut carry, &mut window);
        }
        let mut row = Row::new();
        while end > 0 {
            end -= 1;
            row.step(recursion, end, &next, &mut carry);
            next = *fixed(recursion.steps().values, end);
        }
    }
}

/// What C steps after each other are computed with.
struct Chunk<R: Recursion, const C: usize> {
    offset: [f64; C],
    factor: [f64; C],
    next: [R::Float; C],
    kept: R::Kept<C>,
    x: [f64; C],
    after: [f64; C],
}

impl<R: Recursion, const C: usize> Chunk<R, C> {
    #[inline(always)]
    fn new(value: R::Float) -> Self {
        let [offset, factor, x, after] = [[0.0; C]; 4];
        Self { offset, factor, next: [value; C], kept: R::kept(), x, after }
    }

    /// C steps from `at` on, given the value and `x` behind them, in whose place come those of the first of them.
    #[inline(always)]
    fn step<S: F64s>(
        &mut self,
        recursion: &mut R,
        at: usize,
        value: &mut [R::Float; 1],
        carry: &mut [f64; 1],
        window: &mut Window<S>,
    ) {
        let Self { offset, factor, next, kept, x, after } = self;
        let values = *fixed::<_, C>(recursion.steps().values, at);
        next[..C - 1].copy_from_slice(&values[1..]);
        [next[C - 1]] = *value;
        value[0] = values[0];
        recursion.terms::<C>(at, next, Terms { offset, factor }, kept);
        for block in (0..C / LANES).rev() {
            let t = block * LANES;
            let x_behind = window.x;
            let simd = window.simd;
            let now = window.step(simd.load(fixed(offset, t)), simd.load(fixed(factor, t)));
            simd.store(now, fixed_mut(x, t));
            simd.store(simd.ahead::<1>(now, x_behind), fixed_mut(after, t));
        }
        recursion.write(at, kept, x, after);
        carry[0] = x[0];
    }
}

multiversion! {
    /// A time-major grid, one column per environment.
    pub(super) fn columns<R: Recursion>(recursion: &mut R, last_values: &[R::Float]) {
        let mut first = 0;
        // Wide strips read and write memory in long runs, which counts once a rollout is larger than the caches.
        first = strips::<R, 64>(recursion, last_values, first);
        first = strips::<R, 16>(recursion, last_values, first);
        first = strips::<R, 8>(recursion, last_values, first);
        first = strips::<R, 4>(recursion, last_values, first);
        strips::<R, 1>(recursion, last_values, first);
    }
}

/// As many strips of W columns as there are from column `first` on; returns the column after them.
#[inline(always)]
fn strips<R: Recursion, const W: usize>(recursion: &mut R, last_values: &[R::Float], mut first: usize) -> usize {
    let width = last_values.len();
    let mut row = Row::<R, W>::new();
    while width - first >= W {
        let mut next = *fixed::<_, W>(last_values, first);
        let mut carry = next.map(R::start);
        for t in (0..recursion.steps().rewards.len() / width).rev() {
            let at = t * width + first;
            row.step(recursion, at, &next, &mut carry);
            next = *fixed(recursion.steps().values, at);
        }
        first += W;
    }
    first
}

#[cfg(test)]
mod tests {
    use crate::simd::tests::on_each_isa;
    use crate::{Ends, Pcg64, Vtrace, compute_lambda_returns_time_major, compute_vtrace, compute_vtrace_time_major};

    /// Results on random rows with dense ends, as bits.
    fn bits(len: usize, width: usize) -> Vec<u64> {
        let mut rng = Pcg64::seed_from(len as u128);
        let mut draw = |n: usize| (0..n).map(|_| rng.uniform(-1.0, 1.0)).collect::<Vec<f64>>();
        let (log_rhos, rewards, values, finals, last) = (draw(len), draw(len), draw(len), draw(len), draw(width));
        let [terminated, truncated] = [(); 2].map(|()| draw(len).iter().map(|x| *x > 0.8).collect::<Vec<_>>());
        let ends = Ends { terminated: &terminated, truncated: Some(&truncated), final_values: Some(&finals) };
        let settings = Vtrace { lambda: 0.9, ..Vtrace::default() };
        let [mut vs, mut pg, mut returns] = [(); 3].map(|()| vec![0.0; len]);
        let (x, y) = (&mut vs, &mut pg);
        if width == 1 {
            compute_vtrace(&log_rhos, &rewards, &values, ends, last[0], settings, x, y).unwrap();
        } else {
            compute_vtrace_time_major(&log_rhos, &rewards, &values, ends, width, &last, settings, x, y).unwrap();
        }
        compute_lambda_returns_time_major(&rewards, &values, ends, width, &last, 0.99, 0.95, &mut returns).unwrap();
        vs.iter().chain(&pg).chain(&returns).map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for (len, width) in [(1, 1), (33, 1), (500, 1), (7 * 93, 93), (5 * 29, 29)] {
            let results = on_each_isa(|| bits(len, width));
            assert!(results.iter().all(|result| *result == results[0]), "{len} rows, width {width}");
        }
    }
}
