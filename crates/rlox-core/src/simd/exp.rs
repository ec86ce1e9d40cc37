//! The exponential function as plain arithmetic, so that the compiler vectorises loops that call
//! it.
//!
//! Let `n` be the integer nearest to `x / ln 2`, `r = x - n ln 2` and `q(r) = e^r - 1 - r`. Then
//! `e^x = 2^n (1 + r + q(r))`. Near 0, `n = 0` and `x = r`, so `e^x - 1 - x` is `q(r)` itself,
//! without cancellation.
//!
//! `FUSED` selects fused multiply-add instructions, which are faster but may change the last digits
//! of results. Without `FUSED`, results have the same bits on every instruction set. An ulp is a
//! unit in the last place.

/// Returns `e^x` within 1 ulp of libm in f64 and within 2 ulp in f32.
///
/// The bits are the same on every instruction set. The results for very small and very large `x`
/// are those of [`Exponential::exp`].
#[inline(always)]
pub(crate) fn exp<T: Exponential>(x: T) -> T {
    x.exp::<false>()
}

/// Returns the approximate time of an exponential, in units of the time of a subtraction of two
/// numbers in memory.
pub(crate) const fn cost<T: Exponential>() -> usize {
    size_of::<T>() / 2
}

/// Exponential functions of a float type. Both return NaN for NaN.
pub trait Exponential: Copy {
    /// Returns `e^x` within 2 units in the last place.
    ///
    /// The result is 0 below -707 (-86 in f32), where libm still returns tiny numbers, and infinity where libm returns
    /// infinity.
    fn exp<const FUSED: bool>(self) -> Self;

    /// Returns `e^x - 1 - x` within 16 units in the last place. The result is never negative.
    fn exp_minus_1_minus_x<const FUSED: bool>(self) -> Self;
}

macro_rules! exponential {
    ($float:ident, $smallest:expr, $largest:expr) => {
        // For x outside [smallest, largest], the computed result is meaningless and is replaced at
        // the end.
        impl Exponential for $float {
            #[inline(always)]
            fn exp<const FUSED: bool>(self) -> Self {
                let (half, r, q) = parts::$float::<FUSED>(self);
                let result = 2.0 * (1.0 + (r + q)) * half;
                let result = if self > $largest { $float::INFINITY } else { result };
                if self < $smallest { 0.0 } else { result }
            }

            #[inline(always)]
            fn exp_minus_1_minus_x<const FUSED: bool>(self) -> Self {
                // Below `smallest`, e^x is negligible compared with -1 - x.
                let clamped = if self < $smallest { $smallest } else { self };
                let (half, r, q) = parts::$float::<FUSED>(clamped);
                let result = 2.0 * (half * q + ((half - 0.5) + (half * r - 0.5 * self)));
                if self > $largest { $float::INFINITY } else { result }
            }
        }
    };
}
exponential!(f32, -86.0, 88.722_84);
exponential!(f64, -707.0, 709.782_712_893_384);

mod parts {
    macro_rules! parts {
        ($float:ident, $bits:ident, $digits:expr, $ln2:expr, |$r:ident, $fused:ident| $q:expr) => {
            /// Returns `2^(n - 1)`, `r` and `q(r)`. `2^n` itself could be `2^1024`, which is not finite.
            #[inline(always)]
            pub(super) fn $float<const FUSED: bool>(x: $float) -> ($float, $float, $float) {
                // Adding this number to a float rounds it to an integer, which the lowest bits of
                // the sum hold.
                const ROUND: $float = 1.5 * (1_u64 << $digits) as $float;
                const BIAS: $bits = ((1 as $bits) << ($bits::BITS - $digits - 2)) - 1;
                // ln 2 as a sum of two numbers. The first has so few bits that its products with n
                // are exact (Cody and Waite 1980).
                const LN2: [$float; 2] = $ln2;
                let $fused = |a: $float, b: $float, c: $float| if FUSED { a.mul_add(b, c) } else { a * b + c };
                let rounded = $fused(x, std::$float::consts::LOG2_E, ROUND);
                let n = rounded - ROUND;
                let $r = $fused(-n, LN2[1], $fused(-n, LN2[0], x));
                let half = $float::from_bits((rounded.to_bits() << $digits).wrapping_add((BIAS - 1) << $digits));
                (half, $r, $q)
            }
        };
    }

    // Taylor series of q. For |r| <= ln(2) / 2, the error is at most 3e-9 e^r.
    parts!(f32, u32, 23, [0.693_359_4, -2.121_944_4e-4], |r, fused| {
        const C: [f32; 7] = [0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0, 1.0 / 40_320.0];
        let p = fused(fused(C[6], r, C[5]), r, C[4]);
        let p = fused(fused(p, r, C[3]), r, C[2]);
        r * r * fused(fused(p, r, C[1]), r, C[0])
    });

    // Let R = r * (e^r + 1) / (e^r - 1) and c = r - (R - 2). Then q = r * c / (2 - c). The
    // polynomial P in r^2 interpolates (R - 2) / r^2 at the Chebyshev points of |r| <= ln(2) / 2,
    // with an error of 6e-17.
    parts!(f64, u64, 52, [f64::from_bits(0x3fe6_2e42_fee0_0000), f64::from_bits(0x3dea_39ef_3579_3c76)], |r, fused| {
        const P: [f64; 5] = [
            0.166_666_666_666_666_6,
            -0.002_777_777_777_756_440_4,
            6.613_756_471_622_828e-5,
            -1.653_406_003_383_645_6e-6,
            4.143_766_280_402_429_5e-8,
        ];
        let r2 = r * r;
        let r4 = r2 * r2;
        let p = fused(r4, fused(r4, P[4], fused(r2, P[3], P[2])), fused(r2, P[1], P[0]));
        let c = fused(-r2, p, r);
        r * c / (2.0 - c)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::multiversion;
    use crate::simd::tests::on_each_isa;

    multiversion! {
        fn all(x: &[f64]) -> Vec<f64> {
            x.iter().map(|x| exp(*x)).collect()
        }
    }

    #[test]
    fn exp_is_within_one_ulp_of_libm() {
        let mut rng = Pcg64::seed_from(1);
        for (low, high) in [(-0.01, 0.01), (-1.0, 1.0), (-30.0, 30.0), (-707.0, 709.78)] {
            let x: Vec<f64> = (0..1_000_000).map(|_| rng.uniform(low, high)).collect();
            let worst = all(&x).iter().zip(&x).map(|(y, x)| y.to_bits().abs_diff(x.exp().to_bits())).max();
            assert!(worst <= Some(1), "{worst:?} ulp in [{low}, {high}]");
        }
    }

    #[test]
    fn exp_of_integers_and_extremes_is_accurate() {
        assert_eq!([0.0, -0.0].map(exp), [1.0, 1.0]);
        for x in -707..=709 {
            let x = f64::from(x);
            assert!(exp(x).to_bits().abs_diff(x.exp().to_bits()) <= 1, "{x}");
        }
        assert!(exp(709.782_712_893_384) > 1.797e308 && exp(709.782_712_893_384_f64).is_finite());
        assert_eq!([709.79, 1e300, f64::INFINITY].map(exp), [f64::INFINITY; 3]);
        assert_eq!([-707.1, -746.0, -1e300, f64::NEG_INFINITY].map(exp), [0.0; 4]);
        assert!(exp(f64::NAN).is_nan());
        assert_eq!([f64::MIN_POSITIVE, -1e-300].map(exp), [1.0, 1.0]);
    }

    #[test]
    fn every_instruction_set_computes_the_same_bits() {
        let mut rng = Pcg64::seed_from(2);
        let x: Vec<f64> = (0..10_001).map(|_| rng.uniform(-720.0, 720.0)).collect();
        let results = on_each_isa(|| all(&x).into_iter().map(f64::to_bits).collect::<Vec<_>>());
        assert!(results.iter().all(|result| *result == results[0]));
    }

    /// Returns `e^x - 1 - x` in f64, by its series near 0.
    fn exact(x: f64) -> f64 {
        if x.abs() > 0.5 {
            return x.exp_m1() - x;
        }
        (2..30).rev().fold(0.0, |sum, k| (sum + 1.0) * x / f64::from(k)) * x
    }

    #[test]
    fn results_are_accurate_with_and_without_fused_instructions() {
        check_accuracy::<false>();
        check_accuracy::<true>();
    }

    fn check_accuracy<const FUSED: bool>() {
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
    fn limits_of_the_range_are_handled_in_both_widths() {
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
