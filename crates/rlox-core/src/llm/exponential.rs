//! `e^x` and `e^x - 1 - x` as plain arithmetic, so that a loop over them becomes vector code.
//!
//! With `n` the integer nearest to `x / ln 2`, `r = x - n ln 2` and `q(r) = e^r - 1 - r = r^2 (1/2 + r/6 + ...)`:
//! `e^x = 2^n (1 + r + q)`. Near 0, where `n = 0` and `x = r`, `e^x - 1 - x` is `q` itself, so no digits cancel.
//!
//! `FUSED` is for processors that multiply and add in one instruction: half the instructions, other last digits.

/// Exponentials of a width of number. `e^x` is within 2 units in the last place and `e^x - 1 - x` within 16, for `x`
/// from `-LARGE` up; further down `e^x` is 0. NaN stays NaN.
pub trait Exponential: Copy {
    /// `e^x`
    fn exp<const FUSED: bool>(self) -> Self;
    /// `e^x - 1 - x`, which is never negative.
    fn exp_minus_1_minus_x<const FUSED: bool>(self) -> Self;
    /// This number, or zero.
    fn only_if(self, keep: bool) -> Self;
}

macro_rules! exponential {
    ($float:ident, $bits:ident, $large:expr, $infinite:expr) => {
        impl Exponential for $float {
            #[inline(always)]
            fn exp<const FUSED: bool>(self) -> Self {
                let (half, r, q) = reduce::$float::<FUSED>(self);
                let result = 2.0 * (half + half * (r + q));
                let result = if self > $infinite { $float::INFINITY } else { result };
                if self < -$large { 0.0 } else { result }
            }

            #[inline(always)]
            fn exp_minus_1_minus_x<const FUSED: bool>(self) -> Self {
                let clamped = if self < -$large { -$large } else { self };
                let (half, r, q) = reduce::$float::<FUSED>(clamped);
                // Halves, as the largest results need a power of 2 that is no finite number.
                let result = 2.0 * (half * q + ((half - 0.5) + (half * r - 0.5 * self)));
                if self > $infinite { $float::INFINITY } else { result }
            }

            #[inline(always)]
            fn only_if(self, keep: bool) -> Self {
                Self::from_bits(self.to_bits() & $bits::from(keep).wrapping_neg())
            }
        }
    };
}

mod reduce {
    macro_rules! reduce {
        ($float:ident, $bits:ident, $digits:expr, $ln2_high:expr, $ln2_low:expr, [$first:expr, $($c:expr),*]) => {
            /// `2^(n - 1)`, `r` and `q(r)`.
            #[inline(always)]
            pub(super) fn $float<const FUSED: bool>(x: $float) -> ($float, $float, $float) {
                // Adding it leaves the nearest integer in the lowest bits.
                const ROUND: $float = 1.5 * (1_u64 << $digits) as $float;
                const BIAS: $bits = ((1 as $bits) << ($bits::BITS - $digits - 2)) - 1;
                let fused = |a: $float, b: $float, c: $float| if FUSED { a.mul_add(b, c) } else { a * b + c };
                let rounded = fused(x, std::$float::consts::LOG2_E, ROUND);
                let n = rounded - ROUND;
                // ln 2 in two parts, the first short enough for its products with integers to be exact.
                let r = fused(-n, $ln2_low, fused(-n, $ln2_high, x));
                let half = $float::from_bits((rounded.to_bits() << $digits).wrapping_add((BIAS - 1) << $digits));
                let mut p: $float = $first;
                $(p = fused(p, r, $c);)*
                (half, r, r * r * p)
            }
        };
    }
    // Taylor's coefficients 1 / k!, the highest first: |r| <= ln(2) / 2 leaves an error of 3e-9, and of 5e-18.
    reduce!(
        f32,
        u32,
        23,
        0.693_359_4,
        -2.121_944_4e-4,
        [1.0 / 40_320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5]
    );
    reduce!(
        f64,
        u64,
        52,
        f64::from_bits(0x3fe6_2e42_fee0_0000),
        f64::from_bits(0x3dea_39ef_3579_3c76),
        [
            1.0 / 87_178_291_200.0,
            1.0 / 6_227_020_800.0,
            1.0 / 479_001_600.0,
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5
        ]
    );
}

exponential!(f32, u32, 86.0, 88.722_84);
exponential!(f64, u64, 707.0, 709.782_712_893_384);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;

    /// `e^x - 1 - x` in f64, by its series near 0.
    fn exact(x: f64) -> f64 {
        if x.abs() > 0.5 {
            return x.exp_m1() - x;
        }
        (2..30).rev().fold(0.0, |sum, k| (sum + 1.0) * x / f64::from(k)) * x
    }

    #[test]
    fn near_the_exact_values_whether_fused_or_not() {
        near_the_exact::<false>();
        near_the_exact::<true>();
    }

    fn near_the_exact<const FUSED: bool>() {
        let mut rng = Pcg64::seed_from(1);
        for (low, high) in [(-1e-6, 1e-6), (-0.01, 0.01), (-1.0, 1.0), (-20.0, 20.0), (-85.9, 88.7)] {
            for _ in 0..200_000 {
                let x = rng.uniform(low, high);
                let single = x as f32;
                let wide = f64::from(single);
                let error = |got: f64, expected: f64, ulp: f64| ((got - expected) / (expected * ulp)).abs();
                let ulp = f64::from(f32::EPSILON);
                assert!(error(Exponential::exp::<FUSED>(single).into(), wide.exp(), ulp) < 2.0, "f32 e^{single}");
                let got = single.exp_minus_1_minus_x::<FUSED>();
                assert!(error(got.into(), exact(wide), ulp) < 16.0, "f32 {single}: {got} {}", exact(wide));
                assert!(error(Exponential::exp::<FUSED>(x), x.exp(), f64::EPSILON) < 2.0, "f64 e^{x}");
                let got = x.exp_minus_1_minus_x::<FUSED>();
                assert!(error(got, exact(x), f64::EPSILON) < 16.0, "f64 {x}: {got} {}", exact(x));
                assert!(got >= 0.0 && single.exp_minus_1_minus_x::<FUSED>() >= 0.0);
            }
        }
    }

    #[test]
    fn extremes() {
        assert_eq!([0.0_f32, -0.0].map(Exponential::exp::<false>), [1.0; 2]);
        assert_eq!([0.0_f64, -0.0].map(Exponential::exp_minus_1_minus_x::<false>), [0.0; 2]);
        assert_eq!([88.8_f32, 1e30, f32::INFINITY].map(Exponential::exp::<false>), [f32::INFINITY; 3]);
        assert_eq!([709.8_f64, f64::INFINITY].map(Exponential::exp_minus_1_minus_x::<false>), [f64::INFINITY; 2]);
        assert_eq!([-200.0_f32, f32::NEG_INFINITY].map(Exponential::exp::<false>), [0.0; 2]);
        assert_eq!((-200.0_f32).exp_minus_1_minus_x::<false>(), 199.0);
        assert_eq!((-1e5_f64).exp_minus_1_minus_x::<false>(), 99_999.0);
        assert_eq!(f64::NEG_INFINITY.exp_minus_1_minus_x::<false>(), f64::INFINITY);
        assert!(Exponential::exp::<false>(f32::NAN).is_nan() && f64::NAN.exp_minus_1_minus_x::<false>().is_nan());
        assert!(
            Exponential::exp::<false>(88.7_f32).is_finite() && 709.7_f64.exp_minus_1_minus_x::<false>().is_finite()
        );
    }
}
