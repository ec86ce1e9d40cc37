//! `exp`, `ln`, `tanh` and `erf` of SIMD vectors, with errors of a few units in the last place.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use std::f32::consts::FRAC_2_SQRT_PI;

use crate::simd::{AlignedF32x16, F32s, LANES, on_f32s};

/// Smallest argument of [`exp`], which replaces smaller arguments by this number.
const MIN_ARGUMENT: f32 = -87.3;

/// Returns `e^x` of each number.
///
/// Arguments are clamped so that the result is at least the smallest normal number and at most
/// 2^127. Let `n` be the integer nearest to `x / ln 2`, and `r = x - n ln 2`. Then `e^x = 2^n e^r`.
/// `e^r` is computed by its Taylor polynomial of degree 7, whose remainder is below 1e-8 because
/// `|r| < 0.35`.
#[inline(always)]
pub(crate) fn exp<S: F32s>(s: S, x: S::Vector) -> S::Vector {
    // ln 2 is the sum of these parts. Products of the first part with integers are exact, because
    // it has few bits (Cody and Waite 1980).
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = s.min(s.splat(88.0), s.max(s.splat(MIN_ARGUMENT), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.sub_mul(n, s.splat(LN2[1]), s.sub_mul(n, s.splat(LN2[0]), x));
    let coefficients = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    s.mul(polynomial(s, &coefficients, r), s.power_of_two(n))
}

/// Returns `e^x` of each number, or 0 for `x <= MIN_ARGUMENT` and for NaN.
#[inline(always)]
fn exp_or_zero<S: F32s>(s: S, x: S::Vector) -> S::Vector {
    s.where_positive(s.sub(x, s.splat(MIN_ARGUMENT)), exp(s, x))
}

/// Returns `ln x` of each number, which must be positive and normal.
///
/// Let `x = m 2^e` and `t = (m - 1) / (m + 1)`. Then `ln x = e ln 2 + 2 atanh t`. The series
/// `atanh t = t + t^3/3 + ...` ends with `t^9/9`, because `|t| < 0.172`.
#[inline(always)]
pub(crate) fn ln<S: F32s>(s: S, x: S::Vector) -> S::Vector {
    let (m, e) = s.parts(x);
    let one = s.splat(1.0);
    let t = s.div(s.sub(m, one), s.add(m, one));
    let series = polynomial(s, &[2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0], s.mul(t, t));
    let series = s.mul(s.mul(series, s.mul(t, t)), t);
    let high = s.mul_add(e, s.splat(0.693_359_4), s.add(t, t));
    s.add(high, s.mul_add(e, s.splat(-2.121_944_4e-4), series))
}

/// Returns `tanh x` of each number, by a rational minimax approximation on [-9, 9] with a relative
/// error of 2e-8 before rounding.
#[inline(always)]
pub(crate) fn tanh<S: F32s>(s: S, x: S::Vector) -> S::Vector {
    const P: [f32; 5] = [1.335_283_8e-8, 2.060_81e-5, 3.495_545_4e-3, 0.133_809_97, 1.0];
    const Q: [f32; 5] = [7.775_906e-7, 3.285_552_4e-4, 2.587_683_9e-2, 0.467_143_12, 1.0];
    odd(s, &P, &Q, 9.0, x)
}

/// Returns `erf x` of each number, by a rational minimax approximation on [-4, 4] with a relative
/// error of 3e-8 before rounding.
#[inline(always)]
pub(crate) fn erf<S: F32s>(s: S, x: S::Vector) -> S::Vector {
    const P: [f32; 6] = [1.986_815e-6, 2.845_449_5e-4, 3.882_662_6e-3, 5.309_959e-2, 0.193_529_83, FRAC_2_SQRT_PI];
    const Q: [f32; 6] = [3.741_944_6e-5, 1.185_396_3e-3, 1.520_587_8e-2, 0.115_343_57, 0.504_843_9, 1.0];
    odd(s, &P, &Q, 4.0, x)
}

/// Returns `x P(x^2) / Q(x^2)` of each number, clamped to [-1, 1].
///
/// The arguments are clamped to `[-end, end]` first. NaN stays NaN.
#[inline(always)]
fn odd<S: F32s, const N: usize>(s: S, p: &[f32; N], q: &[f32; N], end: f32, x: S::Vector) -> S::Vector {
    // `min` and `max` return their second operand if either operand is NaN.
    let clamp = |end: f32, x| s.max(s.splat(-end), s.min(s.splat(end), x));
    let x = clamp(end, x);
    let square = s.mul(x, x);
    clamp(1.0, s.div(s.mul(x, polynomial(s, p, square)), polynomial(s, q, square)))
}

/// Evaluates a polynomial by Horner's scheme. The coefficient of the highest power is the first.
#[inline(always)]
fn polynomial<S: F32s>(s: S, coefficients: &[f32], x: S::Vector) -> S::Vector {
    let mut sum = s.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = s.mul_add(sum, x, s.splat(*coefficient));
    }
    sum
}

macro_rules! over_slices {
    ($($(#[$doc:meta])* $name:ident: $of:ident;)*) => {$(
        on_f32s! {
            $(#[$doc])*
            pub(crate) fn $name(s: F32s, x: &mut [f32]) {
                let (full, rest) = x.as_chunks_mut::<LANES>();
                let mut line = AlignedF32x16::ZERO;
                for chunk in full {
                    line.0 = *chunk;
                    s.store($of(s, s.load(&line)), &mut line);
                    *chunk = line.0;
                }
                if !rest.is_empty() {
                    line = AlignedF32x16([1.0; LANES]);
                    line.0[..rest.len()].copy_from_slice(rest);
                    s.store($of(s, s.load(&line)), &mut line);
                    rest.copy_from_slice(&line.0[..rest.len()]);
                }
            }
        }
    )*};
}
over_slices! {
    /// Replaces each number `x` by [`exp`] of `x`.
    exp_in_place: exp;
    /// Replaces each number `x` by [`exp_or_zero`] of `x`.
    exp_or_zero_in_place: exp_or_zero;
    /// Replaces each number `x` by [`ln`] of `x`.
    ln_in_place: ln;
    /// Replaces each number `x` by [`tanh`] of `x`.
    tanh_in_place: tanh;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::on_each_isa;

    over_slices! {
        erf_in_place: erf;
    }

    /// Returns the largest error of `f` compared with `exact`, relative to `scale(exact)`.
    fn worst(f: fn(&mut [f32]), exact: fn(f64) -> f64, scale: fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let count = 1 << 18;
        let arguments: Vec<f32> = (0..count).map(|i| from + (to - from) * i as f32 / count as f32).collect();
        let mut results = arguments.clone();
        f(&mut results);
        let errors = arguments.iter().zip(&results).map(|(x, y)| {
            let exact = exact(f64::from(*x));
            (f64::from(*y) - exact).abs() / scale(exact)
        });
        errors.fold(0.0, f64::max)
    }

    /// Returns `erf x` by Simpson's rule, which takes less code than series and continued
    /// fractions.
    fn erf_exact(x: f64) -> f64 {
        let steps = 2000;
        let h = x / f64::from(steps);
        let density = |t: f64| (-t * t).exp();
        let inner: f64 = (1..steps).map(|i| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        (density(0.0) + inner + density(x)) * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn functions_match_f64_functions() {
        on_each_isa(|isa| {
            let relative = f64::abs;
            assert!(worst(exp_in_place, f64::exp, relative, -87.0, 87.0) < 3e-7, "exp {isa:?}");
            assert!(worst(ln_in_place, f64::ln, |y| y.abs().max(1e-3), 1e-3, 2.0) < 3e-7, "ln {isa:?}");
            assert!(worst(ln_in_place, f64::ln, relative, 2.0, 1e30) < 2e-7, "ln {isa:?}");
            assert!(worst(tanh_in_place, f64::tanh, |y| y.abs().max(1e-30), -12.0, 12.0) < 4e-7, "tanh {isa:?}");
        });
    }

    #[test]
    fn erf_matches_numerical_integration() {
        let arguments: Vec<f32> = (0..160).map(|i| -4.5 + 9.0 * i as f32 / 160.0).collect();
        on_each_isa(|isa| {
            let mut results = arguments.clone();
            erf_in_place(&mut results);
            for (x, y) in arguments.iter().zip(&results) {
                assert!((f64::from(*y) - erf_exact(f64::from(*x))).abs() < 3e-7, "erf({x}) = {y} on {isa:?}");
            }
        });
    }

    #[test]
    fn nan_and_partial_vectors_are_handled() {
        on_each_isa(|isa| {
            let mut x = [f32::NAN; 19];
            x[18] = 0.0;
            tanh_in_place(&mut x);
            assert!(x[..18].iter().all(|x| x.is_nan()) && x[18] == 0.0, "{isa:?}");
            let mut x = [f32::NAN, 0.0, -1000.0, 1000.0];
            exp_in_place(&mut x);
            assert!(x[0].is_nan() && x[1] == 1.0 && x[2] < 1.3e-38 && x[3] > 1e38, "{isa:?}: {x:?}");
            let mut x = [0.0, -87.0, -88.0, f32::MIN, f32::NEG_INFINITY];
            exp_or_zero_in_place(&mut x);
            assert!(x[0] == 1.0 && x[1] > 1e-38 && x[2..] == [0.0; 3], "{isa:?}: {x:?}");
        });
    }
}
