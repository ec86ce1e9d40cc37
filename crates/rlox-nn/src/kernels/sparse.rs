//! Matrix products that skip the zeros of the first factor `a`, such as the outputs of a `ReLU`.
//!
//! As in [`super::gemm`], a line is 16 f32 in memory ([`AlignedF32x16`]), and column `j` of `b` and
//! `c` is the line `j` of each row. A strip is a group of columns; the sums of one row of a strip
//! fit into the registers.
//!
//! Each element is the same sum in the same order as in [`super::gemm`], because adding 0 changes
//! nothing. Results differ only if a 0 is multiplied by NaN or infinity.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use super::gemm::{Accumulate, Extent, Lines, Numbers, product_from, transposed_product_from};
use crate::simd::{AlignedF32x16, F32s, LANES, on_f32s};

/// Computes `c = accumulate + a b`; rows of `c` have `extent.columns` lines.
pub(crate) fn sparse_product(
    extent: Extent,
    a: Lines<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
) {
    let done = strips(extent, a, b, accumulate, c);
    product_from(done, extent, a.into(), b, accumulate, c);
}

/// Computes `c = accumulate + a^T b`; `a` is stored with `extent.inner` rows.
///
/// Row `i` of `c` is the product of `b` and the numbers with index `first + i` in the rows of `a`.
pub(crate) fn transposed_sparse_product(
    extent: Extent,
    a: Lines<'_>,
    first: usize,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
) {
    let done = transposed_strips(extent, a, first, b, accumulate, c);
    let a = Numbers::from(a);
    let a = Numbers { numbers: &a.numbers[first..], stride: a.stride };
    transposed_product_from(done, extent, a, b, accumulate, c);
}

on_f32s! {
    /// Computes the columns of the product for which strips are faster than tiles; returns their
    /// number.
    fn strips(s: F32s, extent: Extent, a: Lines<'_>, b: Lines<'_>, accumulate: Accumulate<'_>, c: &mut [AlignedF32x16]) -> usize {
        let mut j = 0;
        macro_rules! strip {
            ($($w:literal)*) => {
                match S::strip(extent.columns - j) {
                    $($w => strip::<S, $w>(s, extent, a, b, accumulate, c, j),)*
                    _ => return j,
                }
            };
        }
        loop {
            j += strip!(4 8 9 10 11 12 13 14 15 16);
        }
    }
}

on_f32s! {
    /// Computes the columns of the product for which strips are faster than tiles; returns their
    /// number.
    fn transposed_strips(
        s: F32s, extent: Extent, a: Lines<'_>, first: usize, b: Lines<'_>, accumulate: Accumulate<'_>, c: &mut [AlignedF32x16],
    ) -> usize {
        let mut j = 0;
        macro_rules! strip {
            ($($w:literal)*) => {
                match S::strip(extent.columns - j) {
                    $($w => transposed_strip::<S, $w>(s, extent, (a, first), b, accumulate, c, j),)*
                    _ => return j,
                }
            };
        }
        loop {
            j += strip!(4 8 9 10 11 12 13 14 15 16);
        }
    }
}

/// Number of lines of `a` per block. The rows of `b` that a block multiplies stay in the
/// first-level cache.
const BLOCK: usize = 2;

/// Computes all rows of the strip of `W` columns from column `j` on; returns `W`.
#[inline(always)]
fn strip<S: F32s, const W: usize>(
    s: S,
    extent: Extent,
    a: Lines<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
    j: usize,
) -> usize {
    for from in (0..extent.inner.max(1)).step_by(BLOCK * LANES) {
        let count = (extent.inner - from).min(BLOCK * LANES);
        let accumulate = if from == 0 { accumulate } else { Accumulate::Output };
        let rows = Lines { lines: &b.lines[from * b.stride + j..], stride: b.stride };
        for i in 0..extent.rows {
            let factors = &a.lines[i * a.stride + from / LANES..][..count.div_ceil(LANES)];
            add_rows::<S, W>(s, factors, count, rows, accumulate, j, &mut c[i * extent.columns + j..]);
        }
    }
    W
}

/// Works as [`strip`] with the transpose of `a`.
///
/// Row `i` of the product belongs to the numbers with index `first + i` in the rows of `a`.
#[inline(always)]
fn transposed_strip<S: F32s, const W: usize>(
    s: S,
    extent: Extent,
    (a, first): (Lines<'_>, usize),
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
    j: usize,
) -> usize {
    let mut block = [[AlignedF32x16::ZERO; BLOCK]; LANES];
    for from in (0..extent.inner.max(1)).step_by(BLOCK * LANES) {
        let count = (extent.inner - from).min(BLOCK * LANES);
        let accumulate = if from == 0 { accumulate } else { Accumulate::Output };
        let rows = Lines { lines: &b.lines[from * b.stride + j..], stride: b.stride };
        for k in first / LANES..(first + extent.rows).div_ceil(LANES) {
            for part in 0..BLOCK {
                let mut lines = [s.splat(0.0); LANES];
                for (p, line) in lines.iter_mut().enumerate().take(count.saturating_sub(part * LANES)) {
                    *line = s.load(&a.lines[(from + part * LANES + p) * a.stride + k]);
                }
                for (row, line) in block.iter_mut().zip(s.transpose(lines)) {
                    s.store(line, &mut row[part]);
                }
            }
            for (m, factors) in block.iter().enumerate() {
                let i = (k * LANES + m).wrapping_sub(first);
                if i < extent.rows {
                    add_rows::<S, W>(s, factors, count, rows, accumulate, j, &mut c[i * extent.columns + j..]);
                }
            }
        }
    }
    W
}

/// Multiplies each of the first `count` rows of `b` by its factor and adds the products to `W`
/// lines of `c`.
///
/// `b` and `c` start at column `j` of their rows.
#[inline(always)]
fn add_rows<S: F32s, const W: usize>(
    s: S,
    factors: &[AlignedF32x16],
    count: usize,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    j: usize,
    c: &mut [AlignedF32x16],
) {
    let mut remaining = 0_u64;
    for (part, line) in factors.iter().enumerate() {
        remaining |= u64::from(s.not_zero(s.load(line))) << (part * LANES);
    }
    remaining &= (1 << count) - 1;
    let c = &mut c[..W];
    let mut sums = [s.splat(0.0); W];
    let initial = match accumulate {
        Accumulate::Zero => None,
        Accumulate::Bias(bias) => Some(&bias[j..][..W]),
        Accumulate::Output if remaining == 0 => return,
        Accumulate::Output => Some(&*c),
    };
    if let Some(initial) = initial {
        for (sum, line) in sums.iter_mut().zip(initial) {
            *sum = s.load(line);
        }
    }
    while remaining != 0 {
        let p = remaining.trailing_zeros() as usize;
        remaining &= remaining - 1;
        let factor = s.splat(factors[p / LANES].0[p % LANES]);
        let row = &b.lines[p * b.stride..][..W];
        for (sum, line) in sums.iter_mut().zip(row) {
            *sum = s.mul_add(factor, s.load(line), *sum);
        }
    }
    for (line, sum) in c.iter_mut().zip(sums) {
        s.store(sum, line);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::gemm::tests::matrix;
    use super::super::gemm::{product, transposed_product};
    use super::*;
    use crate::simd::numbers;
    use crate::simd::tests::on_each_isa;

    /// Returns a matrix in which about half of the numbers, and all numbers beyond `width`, are 0.
    fn halved(rows: usize, width: usize, seed: u32) -> Vec<AlignedF32x16> {
        let stride = width.div_ceil(LANES);
        let mut all = matrix(rows, stride, seed);
        for (at, line) in all.iter_mut().enumerate() {
            let from = at % stride * LANES;
            let is_active = |lane: usize, x: &f32| from + lane < width && *x > 0.0;
            line.0.iter_mut().enumerate().for_each(|(lane, x)| *x = if is_active(lane, x) { *x } else { 0.0 });
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn sparse_products_equal_dense_products(
            rows in 1_usize..40, inner in 1_usize..40, columns in 1_usize..30, first in 0_usize..20, seed: u32,
        ) {
            let (bias, initial) = (matrix(1, columns, 7), matrix(rows, columns, 8));
            let extent = Extent { rows, inner, columns };
            let (a, b) = (halved(rows, inner, seed), matrix(inner, columns, seed ^ 1));
            let a = Lines { lines: &a, stride: inner.div_ceil(LANES) };
            let b = Lines { lines: &b, stride: columns };
            let transposed = halved(inner, first + rows, seed ^ 2);
            let transposed = Lines { lines: &transposed, stride: (first + rows).div_ceil(LANES) };
            on_each_isa(|isa| {
                for accumulate in [Accumulate::Zero, Accumulate::Bias(&bias), Accumulate::Output] {
                    let (mut c, mut expected) = (initial.clone(), initial.clone());
                    sparse_product(extent, a, b, accumulate, &mut c);
                    product(extent, a.into(), b, accumulate, &mut expected);
                    assert_eq!(numbers(&c), numbers(&expected), "{isa:?} {accumulate:?}");
                    let (mut c, mut expected) = (initial.clone(), initial.clone());
                    transposed_sparse_product(extent, transposed, first, b, accumulate, &mut c);
                    let all = Numbers::from(transposed);
                    let all = Numbers { numbers: &all.numbers[first..], stride: all.stride };
                    transposed_product(extent, all, b, accumulate, &mut expected);
                    assert_eq!(numbers(&c), numbers(&expected), "{isa:?} {accumulate:?}, transposed");
                }
            });
        }
    }

    #[test]
    fn nan_in_padding_is_ignored() {
        let mut a = halved(1, 3, 1);
        a[0].0[3..].fill(f32::NAN);
        let b = matrix(3, 16, 2);
        let (a, b) = (Lines { lines: &a, stride: 1 }, Lines { lines: &b, stride: 16 });
        on_each_isa(|isa| {
            let mut c = vec![AlignedF32x16::ZERO; 16];
            sparse_product(Extent { rows: 1, inner: 3, columns: 16 }, a, b, Accumulate::Zero, &mut c);
            assert!(numbers(&c).iter().all(|x| x.is_finite()), "{isa:?}");
        });
    }
}
