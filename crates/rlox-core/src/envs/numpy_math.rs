//! Functions of NumPy whose results differ in some bits from those of Rust's operations.

use std::hint::black_box;

/// Returns `x ** 2` as NumPy computes it, with the function `pow` of libm.
///
/// The result may differ from `x * x` in the last bit. `black_box` hides the exponent from the
/// compiler, which would otherwise replace the call by a product.
pub(crate) fn square(x: f64) -> f64 {
    x.powf(black_box(2.0))
}

/// Returns `np.sin` of a float32, bit for bit: see [`quadrant`].
pub(crate) fn sin_f32(x: f32) -> f32 {
    // Comparisons with NaN are false, so libm handles NaN.
    if x.abs() <= 117_435.99 { quadrant(x, 0) } else { x.sin() }
}

/// Returns `np.cos` of a float32, bit for bit: see [`quadrant`].
pub(crate) fn cos_f32(x: f32) -> f32 {
    if x.abs() <= 71_476.06 { quadrant(x, 1) } else { x.cos() }
}

/// Returns the sine of `x + shift * pi / 2` with the rounding of NumPy 2.2 to 2.4.
///
/// NumPy returns these bits on processors with fused multiply-add. On other processors, NumPy calls
/// libm. NumPy 2.0 returns the same bits if |x| < 80.
///
/// The results of NumPy's float32 polynomials are up to 1.5 units in the last place from the true
/// value, whereas libm nearly always rounds correctly. The function subtracts the nearest multiple
/// of pi/2 in three parts (Cody and Waite 1980). It then evaluates a polynomial of the remainder
/// for sine or cosine. For equal bits, the coefficients and the order of operations are those of
/// NumPy.
fn quadrant(x: f32, shift: i32) -> f32 {
    const TWO_OVER_PI: f32 = std::f32::consts::FRAC_2_PI;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: f32 numbers of this size are integers
    const PI_2: [u32; 3] = [0x3fc9_0fd8, 0x34a8_885a, 0x27c2_34c4]; // f32 bits of pi/2 in three parts
    const SIN: [u32; 4] = [0x363e_9dde, 0xb950_35dd, 0x3c08_88cd, 0xbe2a_aaab]; // x^9, x^7, x^5, x^3
    const COS: [u32; 4] = [0x37cc_730b, 0xbab6_036e, 0x3d2a_aa9e, 0xbf00_0000]; // x^8, x^6, x^4, x^2
    let quarter_turns = x.mul_add(TWO_OVER_PI, ROUND) - ROUND;
    let rest = PI_2.iter().fold(x, |rest, part| quarter_turns.mul_add(-f32::from_bits(*part), rest));
    let squared = rest * rest;
    let horner = |bits: [u32; 4]| {
        let [first, others @ ..] = bits.map(f32::from_bits);
        others.iter().fold(first, |sum, next| sum.mul_add(squared, *next))
    };
    let which = quarter_turns as i32 + shift;
    let value = if which & 1 == 0 {
        horner(SIN).mul_add(squared, 0.0).mul_add(rest, rest)
    } else {
        horner(COS).mul_add(squared, 1.0)
    };
    if which & 2 == 0 { value } else { 0.0 - value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float32_sine_and_cosine_equal_numpy() {
        // Bits of x, np.sin(x) and np.cos(x) in NumPy 2.4. In the first six rows, libm's results
        // are different. In the next two rows, the nearest multiple of pi/2 depends on the fused
        // operation.
        for (x, sin, cos) in [
            (0x3dca_fa9e, 0x3dca_a596, 0x3f7e_be62),
            (0xbdc9_cb2e, 0xbdc9_77a1, 0x3f7e_c221),
            (0xc079_3a0a, 0x3f2e_fb31, 0xbf3a_dcc9),
            (0xbf84_626e, 0xbf5c_06f6, 0x3f02_dbdd),
            (0xc1db_24d8, 0xbf45_8736, 0xbf22_d86c),
            (0x461a_4496, 0x3f45_2ece, 0xbf23_436d),
            (0x42ae_5bc0, 0xbf35_04cf, 0x3f35_0517),
            (0x475b_cf6c, 0xbf35_149c, 0x3f34_f549),
            (0x8000_0000, 0x8000_0000, 0x3f80_0000),
            (0x478b_9a08, 0xbf7e_3e19, 0x3def_8fc6),
            (0x47c3_5000, 0x3d12_6d55, 0xbf7f_d61c),
            (0x47e5_5dff, 0xbdef_7be3, 0xbf7e_3e64),
            (0x47e5_5e01, 0xbe07_9def, 0xbf7d_beb5),
            (0x7217_7617, 0xbf76_6adc, 0xbe8a_c5c8),
        ] {
            let x = f32::from_bits(x);
            assert_eq!((sin_f32(x).to_bits(), cos_f32(x).to_bits()), (sin, cos), "{x}");
        }
        assert!(sin_f32(f32::NAN).is_nan() && cos_f32(f32::INFINITY).is_nan());
    }

    #[test]
    fn squares_equal_powers() {
        // NumPy's square of 7.964778909945345 differs from the product in the last bit.
        let x = f64::from_bits(0x401f_dbef_00a8_57d8);
        assert_eq!(square(x).to_bits(), 0x404f_b806_a798_3c37);
        assert_ne!(square(x), x * x);
        assert_eq!(square(-3.0), 9.0);
    }
}
