//! Sines, cosines and squares of blocks of numbers with SIMD instructions. The results equal libm's
//! `f64::sin` and `f64::cos` and NumPy's `x ** 2` bit for bit.
//!
//! A lane is one number of a SIMD vector. An ulp is a unit in the last place of a result. A lane
//! computes a sine or cosine as a sum of two f64 (head and tail), with an error of some thousandths
//! of an ulp. It computes a square exactly, again as head and tail. NumPy calls libm's `pow` for
//! squares, which almost always rounds correctly. Each lane then rounds head + tail as follows.
//!
//! # Rounding
//! A libm does not round every result correctly, so an accurate result may still differ from that
//! of libm. Therefore each lane checks whether all numbers within [`WINDOW`] ulp of its result
//! round to the same f64 (the test of Ziv 1991, "Fast evaluation of elementary mathematical
//! functions with correctly rounded last bit"). If they do, every libm with an error below 0.5 +
//! `WINDOW` ulp returns the same f64. Otherwise the lane fails, and libm computes its result.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

#[cfg(test)]
mod tests;

use std::hint::black_box;

use super::{BLOCK, Block, Isa, LANES, isa, lane_bits, multiversion, vectors, vectors_mut};
use crate::envs::numpy_math;

/// Largest angle in rad for which [`any`] subtracts multiples of pi/2 with sufficient accuracy.
const FAR: f64 = 9e4;

/// Largest angle in rad for which the series of [`near_zero`] have sufficiently many terms.
const NEAR: f64 = 0.3;

/// Taylor coefficients of (sin x - x + x^3/6) / x^5, highest power first.
const SIN: [f64; 7] = [
    1.0 / 355_687_428_096_000.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 39_916_800.0,
    1.0 / 362_880.0,
    -1.0 / 5040.0,
    1.0 / 120.0,
];

/// Taylor coefficients of (cos x - 1 + x^2/2) / x^4, highest power first.
///
/// Only [`near_zero`] uses the last coefficient, 1/24.
const COS: [f64; 8] = [
    -1.0 / 6_402_373_705_728_000.0,
    1.0 / 20_922_789_888_000.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 479_001_600.0,
    -1.0 / 3_628_800.0,
    1.0 / 40_320.0,
    -1.0 / 720.0,
    1.0 / 24.0,
];

// 1/6 and 1/24, each as head and tail.
const SIXTH: (f64, f64) = (1.0 / 6.0, 9.251_858_538_542_97e-18);
const TWENTY_FOURTH: (f64, f64) = (1.0 / 24.0, 2.312_964_634_635_742_7e-18);

/// pi/2 as a sum of three numbers. The first two have 33 bits, so that their products with the
/// number of the quadrant are exact.
const HALF_PI: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];

/// Writes the sines and cosines of the first `count` angles in rad. All other elements of the
/// outputs are unspecified.
///
/// The results are correct for all angles. The function is fast for angles up to [`NEAR`].
#[inline]
pub(crate) fn sin_cos_near_zero(x: &Block, count: usize, sin: &mut Block, cos: &mut Block) {
    if !has_fast_lanes() {
        return by_libm(x, count, sin, cos);
    }
    let (mut sin_fails, mut cos_fails) = ([false; BLOCK], [false; BLOCK]);
    near_zero_block(x, count, sin, cos, &mut sin_fails, &mut cos_fails);
    recompute_failed(x, count, sin, &sin_fails, f64::sin);
    recompute_failed(x, count, cos, &cos_fails, f64::cos);
}

/// Writes the sines and cosines of the first `count` angles in rad. All other elements of the
/// outputs are unspecified.
///
/// The results are correct for all angles. The function is fast for angles up to [`FAR`].
#[inline]
pub(crate) fn sin_cos(x: &Block, count: usize, sin: &mut Block, cos: &mut Block) {
    if !has_fast_lanes() {
        return by_libm(x, count, sin, cos);
    }
    let (mut sin_fails, mut cos_fails) = ([false; BLOCK], [false; BLOCK]);
    any_block(x, count, sin, cos, &mut sin_fails, &mut cos_fails);
    recompute_failed(x, count, sin, &sin_fails, f64::sin);
    recompute_failed(x, count, cos, &cos_fails, f64::cos);
}

/// Writes the cosines of the first `count` angles, as [`sin_cos`] does.
#[inline]
pub(crate) fn cos(x: &Block, count: usize, cos: &mut Block) {
    let mut fails = [true; BLOCK];
    if has_fast_lanes() {
        cos_block(x, count, cos, &mut fails);
    }
    recompute_failed(x, count, cos, &fails, f64::cos);
}

fn by_libm(x: &Block, count: usize, sin: &mut Block, cos: &mut Block) {
    for (x, (sin, cos)) in x.iter().zip(sin.iter_mut().zip(cos)).take(count) {
        (*sin, *cos) = (x.sin(), x.cos());
    }
}

multiversion! {
    fn near_zero_block(
        x: &Block,
        count: usize,
        sin: &mut Block,
        cos: &mut Block,
        sin_fails: &mut [bool; BLOCK],
        cos_fails: &mut [bool; BLOCK],
    ) {
        evaluate(x, count, sin, cos, sin_fails, cos_fails, near_zero);
    }
}

multiversion! {
    fn any_block(
        x: &Block,
        count: usize,
        sin: &mut Block,
        cos: &mut Block,
        sin_fails: &mut [bool; BLOCK],
        cos_fails: &mut [bool; BLOCK],
    ) {
        evaluate(x, count, sin, cos, sin_fails, cos_fails, any);
    }
}

multiversion! {
    fn cos_block(x: &Block, count: usize, cos: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(x, count, cos, fails, |x| any(x)[1]);
    }
}

/// Applies `lane`, which computes sine and cosine of an angle, to the first `count` angles. See
/// also [`each_lane`].
#[inline(always)]
fn evaluate(
    x: &Block,
    count: usize,
    sin: &mut Block,
    cos: &mut Block,
    sin_fails: &mut [bool; BLOCK],
    cos_fails: &mut [bool; BLOCK],
    lane: impl Fn(f64) -> [Rounded<f64>; 2],
) {
    let results = vectors_mut(sin).zip(vectors_mut(cos));
    let fails = vectors_mut(sin_fails).zip(vectors_mut(cos_fails));
    let all = vectors(x).zip(results).zip(fails).take(count.div_ceil(LANES));
    for ((x, (sin, cos)), (sin_fails, cos_fails)) in all {
        for j in 0..LANES {
            let [s, c] = lane(x[j]);
            (sin[j], sin_fails[j]) = (s.value, s.fails);
            (cos[j], cos_fails[j]) = (c.value, c.fails);
        }
    }
}

#[inline(always)]
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| f64::mul_add(sum, x, *c))
}

/// Returns the square and the cube of `x + tail`, each as head and tail.
#[inline(always)]
fn powers(x: f64, tail: f64) -> ([f64; 2], [f64; 2]) {
    let square = x * x;
    let square_tail = (x + x).mul_add(tail, x.mul_add(x, -square));
    let cube = square * x;
    let cube_tail = square.mul_add(tail, square_tail.mul_add(x, square.mul_add(x, -cube)));
    ([square, square_tail], [cube, cube_tail])
}

/// Returns sin(x + tail) as head and tail. The terms x and x^3/6 are computed as head and tail, the
/// rest in f64.
#[inline(always)]
fn sine(x: f64, tail: f64, square: f64, cube: [f64; 2], series: &[f64]) -> (f64, f64) {
    let [cube, cube_tail] = cube;
    let third = cube * -SIXTH.0;
    let third_tail = cube.mul_add(-SIXTH.1, cube_tail.mul_add(-SIXTH.0, cube.mul_add(-SIXTH.0, -third)));
    let rest = (cube * square).mul_add(polynomial(series, square), third_tail + tail);
    let head = x + third;
    (head, ((x - head) + third) + rest)
}

/// Returns the sine and the cosine of x. Both fail if |x| > [`NEAR`].
#[inline(always)]
fn near_zero(x: f64) -> [Rounded<f64>; 2] {
    // For -0.0 both fail, so that libm returns the sine with the correct sign, -0.0.
    let in_range = x.abs() <= NEAR && x.to_bits() != 1 << 63;
    let ([square, square_tail], cube) = powers(x, 0.0);
    let (sin, sin_tail) = sine(x, 0.0, square, cube, &SIN[2..]);
    let half = 0.5 * square;
    let cos = 1.0 - half;
    let cos_tail = square_tail.mul_add(-0.5, (1.0 - cos) - half);
    let cos_tail = (square * square).mul_add(polynomial(&COS[2..], square), cos_tail);
    [round(sin, sin_tail, in_range), round(cos, cos_tail, in_range)]
}

/// Returns the sine and the cosine of x. Both fail if |x| > [`FAR`].
#[inline(always)]
fn any(x: f64) -> [Rounded<f64>; 2] {
    const TO_INTEGER: f64 = 1.5 * (1_u64 << 52) as f64;
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, TO_INTEGER);
    let quadrant = shifted - TO_INTEGER;
    let (odd, half_turn) = (shifted.to_bits() & 1 != 0, shifted.to_bits() & 2 != 0);
    // Subtract a multiple of pi/2 from x. The remainder in [-pi/4, pi/4] is computed as head `r`
    // and tail.
    let first = (-quadrant).mul_add(HALF_PI[0], x);
    let second = quadrant * HALF_PI[1];
    let difference = first - second;
    let delta = difference - first;
    let tail = (first - (difference - delta)) - (second + delta);
    let tail = (-quadrant).mul_add(HALF_PI[2], tail);
    let r = difference + tail;
    let tail = (difference - r) + tail;
    // Near a multiple of pi/2, the tail has too few bits. At x = 0, libm returns the correct sign
    // of zero.
    let in_range = x.abs() <= FAR && r.abs() >= 1e-9;

    let ([square, square_tail], cube) = powers(r, tail);
    let sin = sine(r, tail, square, cube, &SIN);
    let cos = cosine(square, square_tail);
    let ((sin, sin_tail), (cos, cos_tail)) = if odd { (cos, sin) } else { (sin, cos) };
    let sin_sign = if half_turn { -1.0 } else { 1.0 };
    let cos_sign = if half_turn ^ odd { -1.0 } else { 1.0 };
    [round(sin * sin_sign, sin_tail * sin_sign, in_range), round(cos * cos_sign, cos_tail * cos_sign, in_range)]
}

/// Returns the cosine as head and tail, from the square of the angle.
///
/// The terms 1, x^2/2 and x^4/24 are computed as head and tail, the rest of the series in f64.
#[inline(always)]
fn cosine(square: f64, square_tail: f64) -> (f64, f64) {
    let fourth = square * square;
    let fourth_tail = (square + square).mul_add(square_tail, square.mul_add(square, -fourth));
    let term = fourth * TWENTY_FOURTH.0;
    let term_tail = fourth_tail.mul_add(TWENTY_FOURTH.0, fourth.mul_add(TWENTY_FOURTH.0, -term));
    let term_tail = fourth.mul_add(TWENTY_FOURTH.1, term_tail);
    let rest = (fourth * square).mul_add(polynomial(&COS[..7], square), term_tail);
    let half = 0.5 * square;
    let first = 1.0 - half;
    let first_tail = square_tail.mul_add(-0.5, (1.0 - first) - half);
    let head = first + term;
    (head, ((first - head) + term) + (first_tail + rest))
}

// Squares.

/// Window of the rounding test for squares of f32, in ulp of f32.
///
/// The error of glibc's `powf(x, 2)` is at most 0.5017 ulp for all f32 with a normal square.
const WINDOW_F32: f64 = 0.02;

/// Writes the squares of the first `count` numbers. All other elements of the output are
/// unspecified.
#[inline]
pub(crate) fn square(x: &Block, count: usize, squares: &mut Block) {
    let mut fails = [true; BLOCK];
    if has_fast_lanes() {
        square_block(x, count, squares, &mut fails);
    }
    recompute_failed(x, count, squares, &fails, numpy_math::square);
}

/// Writes the squares of the first `count` numbers. All other elements of the output are
/// unspecified.
#[inline]
pub(crate) fn square_f32(x: &[f32; BLOCK], count: usize, squares: &mut [f32; BLOCK]) {
    let mut fails = [true; BLOCK];
    if has_fast_lanes() {
        square_f32_block(x, count, squares, &mut fails);
    }
    recompute_failed(x, count, squares, &fails, |x| x.powf(black_box(2.0)));
}

multiversion! {
    fn square_block(x: &Block, count: usize, squares: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(x, count, squares, fails, |x| {
            let square = x * x;
            // In this range, both the square and its tail are normal numbers.
            let in_range = (1e-50..=1e50).contains(&x.abs());
            round(square, x.mul_add(x, -square), in_range)
        });
    }
}

multiversion! {
    fn square_f32_block(x: &[f32; BLOCK], count: usize, squares: &mut [f32; BLOCK], fails: &mut [bool; BLOCK]) {
        each_lane(x, count, squares, fails, |x| {
            const WINDOW: f64 = WINDOW_F32 * f32::EPSILON as f64;
            let exact = f64::from(x) * f64::from(x);
            let (low, high) = ((exact - WINDOW * exact) as f32, (exact + WINDOW * exact) as f32);
            let in_range = (1e-18..=1e18).contains(&x.abs());
            Rounded { value: low, fails: low != high || !in_range }
        });
    }
}

// Rounding, as described in the module documentation.

/// Window of the rounding test, in ulp. glibc documents errors of at most 0.518 ulp for sine,
/// cosine and small powers.
///
/// Versions of glibc before 2.28 round correctly.
const WINDOW: f64 = 0.04;

/// A rounded result, and a flag that is true if libm may round differently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounded<T> {
    pub(crate) value: T,
    pub(crate) fails: bool,
}

/// Rounds head + tail to f64.
///
/// The result fails if numbers within the window round to different f64, or if `in_range` is false.
#[inline(always)]
fn round(head: f64, tail: f64, in_range: bool) -> Rounded<f64> {
    const EXPONENT: u64 = 0x7ff << 52;
    let window = f64::from_bits(head.to_bits() & EXPONENT) * (WINDOW * f64::EPSILON);
    let (low, high) = (head + (tail - window), head + (tail + window));
    Rounded { value: low, fails: low != high || !in_range }
}

/// Returns true if the SIMD functions return the results of libm and are faster than libm.
///
/// On CPUs without fused multiply-add, libm is faster. Other libms than glibc do not guarantee the
/// accuracy that the rounding test needs.
#[inline]
pub(crate) fn has_fast_lanes() -> bool {
    cfg!(all(target_os = "linux", target_env = "gnu")) && isa() > Isa::Portable
}

/// Applies `lane` to the first `count` numbers.
///
/// The inner loop has the constant length of a SIMD vector, so that the compiler vectorises it
/// without a loop for remaining numbers.
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

/// Replaces the results of the failed lanes among the first `count` by those of `libm`.
pub(crate) fn recompute_failed<T: Copy>(
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
