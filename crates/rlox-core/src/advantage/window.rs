//! The recursion `x_t = offset_t + factor_t * x_{t+1}` over one trajectory, backwards, [`LANES`] steps at a time.
//!
//! It is a chain: each step waits for the next one's result. Here each step is first composed with the seven after it by
//! doubling, all in registers, which waits for nothing; then the chain advances by a whole block.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use crate::simd::LANES;
use crate::simd::f64s::F64s;

/// What a block of [`LANES`] steps hands to the block before it: offsets and factors composed over 1, 2 and 4 steps, and
/// `x`. Behind the last step nothing is added and nothing changes. `TINY` says that factors of several steps
/// may be too small for a number, which must not look like an episode's end.
pub(super) struct Window<S: F64s, const TINY: bool> {
    pub(super) simd: S,
    offsets: [S::Vector; 3],
    factors: [S::Vector; 3],
    /// Of the block that came last.
    pub(super) x: S::Vector,
}

impl<S: F64s, const TINY: bool> Window<S, TINY> {
    #[inline(always)]
    pub(super) fn new(simd: S, x: f64) -> Self {
        Self { simd, offsets: [simd.splat(0.0); 3], factors: [simd.splat(1.0); 3], x: simd.splat(x) }
    }

    /// `x` of a block. Each composition of K steps with the K after them reads the block behind where it reaches over.
    #[inline(always)]
    pub(super) fn step(&mut self, offset: S::Vector, factor: S::Vector) -> S::Vector {
        let (offset, factor) = self.double::<1>(0, offset, factor);
        let (offset, factor) = self.double::<2>(1, offset, factor);
        let (offset, factor) = self.double::<4>(2, offset, factor);
        self.x = self.simd.add_scaled(offset, factor, self.x);
        self.x
    }

    /// `x` of the first step so far.
    #[inline(always)]
    pub(super) fn first(&self) -> f64 {
        let mut lanes = [0.0; LANES];
        self.simd.store(self.x, &mut lanes);
        lanes[0]
    }

    #[inline(always)]
    fn double<const K: usize>(&mut self, at: usize, offset: S::Vector, factor: S::Vector) -> (S::Vector, S::Vector) {
        let simd = self.simd;
        let offset_behind = simd.ahead::<K>(offset, std::mem::replace(&mut self.offsets[at], offset));
        let factor_behind = simd.ahead::<K>(factor, std::mem::replace(&mut self.factors[at], factor));
        let composed = if TINY { simd.composed(factor, factor_behind) } else { simd.scaled(factor, factor_behind) };
        (simd.add_scaled(offset, factor, offset_behind), composed)
    }
}
