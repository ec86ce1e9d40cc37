//! When a lane may round by itself and when it must ask libm, so that both give the same bits.
//!
//! A libm is not rounded correctly everywhere, so equality cannot come from accuracy alone. A lane that knows its
//! result much better than to an ulp asks whether everything within [`WINDOW`] of it rounds to the same number (the
//! test of Ziv 1991, "Fast evaluation of elementary mathematical functions with correctly rounded last bit"). Then
//! every libm whose error is below 0.5 + `WINDOW` ulp gives that number too. The other lanes call libm.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use super::{BLOCK, Isa, LANES, isa, lane_bits, vectors, vectors_mut};

/// In ulp. glibc documents errors of at most 0.518 ulp for sine, cosine and small powers; before 2.28 they were rounded
/// correctly.
pub(super) const WINDOW: f64 = 0.04;

/// A rounded result, and whether libm may have rounded it otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounded<T> {
    pub(crate) value: T,
    pub(crate) fails: bool,
}

/// Rounds head + tail, and tells if not everything within the window rounds alike,
/// or if the arguments were not `in_range`.
#[inline(always)]
pub(super) fn round(head: f64, tail: f64, in_range: bool) -> Rounded<f64> {
    const EXPONENT: u64 = 0x7ff << 52;
    let window = f64::from_bits(head.to_bits() & EXPONENT) * (WINDOW * f64::EPSILON);
    let (low, high) = (head + (tail - window), head + (tail + window));
    Rounded { value: low, fails: low != high || !in_range }
}

/// Whether lanes are right and faster: without a fused multiply-add libm is faster, and other libms than glibc promise
/// less.
#[inline]
pub(crate) fn lanes_pay() -> bool {
    cfg!(all(target_os = "linux", target_env = "gnu")) && isa() > Isa::Portable
}

/// Applies `lane` to the first `count` numbers. The inner loop has a fixed length, so that it becomes whole vectors
/// without a remainder.
#[inline(always)]
pub(crate) fn each_lane<T: Copy>(
    x: &[T; BLOCK],
    count: usize,
    y: &mut [T; BLOCK],
    fails: &mut [bool; BLOCK],
    lane: impl Fn(T) -> Rounded<T>,
) {
    let all = vectors(x).zip(vectors_mut(y).zip(vectors_mut(fails))).take(count.div_ceil(LANES));
    for (x, (y, fails)) in all {
        for i in 0..LANES {
            let rounded = lane(x[i]);
            (y[i], fails[i]) = (rounded.value, rounded.fails);
        }
    }
}

/// Calls `libm` for those of the first `count` lanes that could not round.
pub(crate) fn mend<T: Copy>(
    x: &[T; BLOCK],
    count: usize,
    y: &mut [T; BLOCK],
    fails: &[bool; BLOCK],
    libm: impl Fn(T) -> T,
) {
    for i in lane_bits(fails, count) {
        y[i] = libm(x[i]);
    }
}
