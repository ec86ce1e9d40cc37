//! The exponential function as plain arithmetic, so that a loop over it becomes vector code.

/// `e^x` within 1 ulp of libm, the same bits on every instruction set.
///
/// 0 below -707, where libm still gives the smallest numbers (1e-307 and less); infinity above 709.78; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    // Adding it leaves the nearest integer in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    // ln 2 in two parts, the first short enough for its products with integers to be exact (Cody and Waite 1980).
    const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    // (R(r) - 2) / r^2 in powers of r^2, where R(r) = r * (e^r + 1) / (e^r - 1): interpolated at Chebyshev's points of
    // |r| <= ln(2) / 2, error 6e-17. With c = r - (R - 2), e^r = 1 + r + r * c / (2 - c).
    const P: [f64; 5] = [
        0.166_666_666_666_666_6,
        -0.002_777_777_777_756_440_4,
        6.613_756_471_622_828e-5,
        -1.653_406_003_383_645_6e-6,
        4.143_766_280_402_429_5e-8,
    ];
    const LARGEST: f64 = 709.782_712_893_384;
    const SMALLEST: f64 = -707.0;

    // Outside [SMALLEST, LARGEST] what is computed means nothing and is replaced at the end.
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let r = x - power * LN2_HIGH - power * LN2_LOW;
    let r2 = r * r;
    let r4 = r2 * r2;
    let p = (P[0] + r2 * P[1]) + r4 * ((P[2] + r2 * P[3]) + r4 * P[4]);
    let c = r - r2 * p;
    let mantissa = 1.0 + (r + r * c / (2.0 - c));
    // 2^(power - 1): the largest results need 2^1024, which is no finite number.
    let half = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1022 << 52));
    let result = 2.0 * mantissa * half;
    let result = if x > LARGEST { f64::INFINITY } else { result };
    if x < SMALLEST { 0.0 } else { result }
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
    fn within_one_ulp_of_libm() {
        let mut rng = Pcg64::seed_from(1);
        for (low, high) in [(-0.01, 0.01), (-1.0, 1.0), (-30.0, 30.0), (-707.0, 709.78)] {
            let x: Vec<f64> = (0..1_000_000).map(|_| rng.uniform(low, high)).collect();
            let worst = all(&x).iter().zip(&x).map(|(y, x)| y.to_bits().abs_diff(x.exp().to_bits())).max();
            assert!(worst <= Some(1), "{worst:?} ulp in [{low}, {high}]");
        }
    }

    #[test]
    fn whole_and_extreme_numbers() {
        assert_eq!([0.0, -0.0].map(exp), [1.0, 1.0]);
        for x in -707..=709 {
            let x = f64::from(x);
            assert!(exp(x).to_bits().abs_diff(x.exp().to_bits()) <= 1, "{x}");
        }
        assert!(exp(709.782_712_893_384) > 1.797e308 && exp(709.782_712_893_384).is_finite());
        assert_eq!([709.79, 1e300, f64::INFINITY].map(exp), [f64::INFINITY; 3]);
        assert_eq!([-707.1, -746.0, -1e300, f64::NEG_INFINITY].map(exp), [0.0; 4]);
        assert!(exp(f64::NAN).is_nan());
        assert_eq!([f64::MIN_POSITIVE, -1e-300].map(exp), [1.0, 1.0]);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let mut rng = Pcg64::seed_from(2);
        let x: Vec<f64> = (0..10_001).map(|_| rng.uniform(-720.0, 720.0)).collect();
        let results = on_each_isa(|| all(&x).into_iter().map(f64::to_bits).collect::<Vec<_>>());
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
