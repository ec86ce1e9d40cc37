//! SIMD vectors of 16 f32 as arrays, for every CPU.

use super::{AlignedF32x16, F32s, LANES};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Vector = [f32; LANES];

#[inline(always)]
fn each(a: Vector, b: Vector, f: impl Fn(f32, f32) -> f32) -> Vector {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl F32s for Portable {
    type Vector = Vector;

    #[inline(always)]
    fn tile_rows(columns: usize) -> usize {
        // A vector takes four registers of four f32. Common CPUs have at least 16 such registers.
        if columns == 1 { 2 } else { 0 }
    }

    #[inline(always)]
    fn strip(_columns: usize) -> usize {
        0
    }

    #[inline(always)]
    fn load(self, from: &AlignedF32x16) -> Vector {
        from.0
    }

    #[inline(always)]
    fn store(self, vector: Vector, to: &mut AlignedF32x16) {
        to.0 = vector;
    }

    #[inline(always)]
    fn splat(self, number: f32) -> Vector {
        [number; LANES]
    }

    #[inline(always)]
    fn add(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn sqrt(self, a: Vector) -> Vector {
        a.map(f32::sqrt)
    }

    #[inline(always)]
    fn min(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Vector, b: Vector) -> Vector {
        each(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn mul_add(self, a: Vector, b: Vector, c: Vector) -> Vector {
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn sub_mul(self, a: Vector, b: Vector, c: Vector) -> Vector {
        self.sub(c, self.mul(a, b))
    }

    #[inline(always)]
    fn where_positive(self, sign: Vector, x: Vector) -> Vector {
        each(sign, x, |sign, x| if sign > 0.0 { x } else { 0.0 })
    }

    #[inline(always)]
    fn zero_if_tiny(self, x: Vector, least: Vector) -> Vector {
        each(x, least, |x, least| if x.abs() < least { 0.0 } else { x })
    }

    #[inline(always)]
    fn not_zero(self, x: Vector) -> u32 {
        x.iter().rev().fold(0, |bits, x| bits << 1 | u32::from(*x != 0.0))
    }

    #[inline(always)]
    fn round(self, a: Vector) -> Vector {
        // The spacing of f32 at this magnitude is 1, so that the addition rounds to the nearest
        // integer.
        const ROUND: f32 = 1.5 * (1 << 23) as f32;
        a.map(|a| (a + ROUND) - ROUND)
    }

    #[inline(always)]
    fn power_of_two(self, n: Vector) -> Vector {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23).cast_unsigned()))
    }

    #[inline(always)]
    fn parts(self, x: Vector) -> (Vector, Vector) {
        let exponents = x.map(|x| (x.to_bits().cast_signed() - super::ROOT_OF_HALF) >> 23);
        let mantissa = |i: usize| f32::from_bits((x[i].to_bits().cast_signed() - (exponents[i] << 23)).cast_unsigned());
        (std::array::from_fn(mantissa), exponents.map(|e| e as f32))
    }

    #[inline(always)]
    fn sum(self, a: Vector) -> f32 {
        let quarter: [f32; 4] = std::array::from_fn(|i| (a[i] + a[i + 8]) + (a[i + 4] + a[i + 12]));
        (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
    }

    #[inline(always)]
    fn transpose(self, rows: [Vector; LANES]) -> [Vector; LANES] {
        let mut columns = [[0.0; LANES]; LANES];
        for (i, row) in rows.iter().enumerate() {
            columns.iter_mut().zip(row).for_each(|(column, number)| column[i] = *number);
        }
        columns
    }
}
