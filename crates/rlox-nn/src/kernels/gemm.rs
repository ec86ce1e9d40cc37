//! Products of matrices whose rows are padded to full lines.
//!
//! A line is 16 f32 in memory ([`AlignedF32x16`]), which is one SIMD vector. Column `j` of `b`, `c`
//! and the biases is the line `j` of each row, which is 16 numbers wide. A tile is a block of rows
//! and columns of `c` whose sums fit into the registers. `accumulate` selects the initial values of
//! the sums.
//!
//! Each element of a product is one sum over the inner index, in increasing order, for tiles of any
//! size. Therefore results do not depend on the number of rows or on the thread that computes a
//! row.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use crate::simd::{AlignedF32x16, F32s, LANES, numbers, on_f32s};

/// A matrix whose rows are padded to `stride` lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines<'a> {
    pub(crate) lines: &'a [AlignedF32x16],
    pub(crate) stride: usize,
}

/// A matrix whose rows have `stride` numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers<'a> {
    pub(crate) numbers: &'a [f32],
    pub(crate) stride: usize,
}

impl<'a> From<Lines<'a>> for Numbers<'a> {
    fn from(matrix: Lines<'a>) -> Self {
        Self { numbers: numbers(matrix.lines), stride: matrix.stride * LANES }
    }
}

/// Initial values of the sums of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accumulate<'a> {
    Zero,
    /// One row of biases, the same for all rows of the product.
    Bias(&'a [AlignedF32x16]),
    /// The current contents of the output `c`.
    Output,
}

/// Size of a product of a matrix of `rows x inner` numbers and a matrix of `inner x columns` lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
}

/// Computes `c = accumulate + a b`; rows of `c` have `extent.columns` lines.
pub(crate) fn product(
    extent: Extent,
    a: Numbers<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
) {
    product_from(0, extent, a, b, accumulate, c);
}

/// Computes `c = accumulate + a^T b`; `a` is stored as `inner x rows`.
pub(crate) fn transposed_product(
    extent: Extent,
    a: Numbers<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
) {
    transposed_product_from(0, extent, a, b, accumulate, c);
}

on_f32s! {
    /// Computes the columns of `c = accumulate + a b` from column `j` on; rows of `c` have
    /// `extent.columns` lines.
    pub(super) fn product_from(
        s: F32s, j: usize, extent: Extent, a: Numbers<'_>, b: Lines<'_>, accumulate: Accumulate<'_>, c: &mut [AlignedF32x16],
    ) {
        multiply_columns::<_, false>(s, extent, a, b, accumulate, c, j);
    }
}

on_f32s! {
    /// Computes the columns of `c = accumulate + a^T b` from column `j` on; `a` is stored as
    /// `inner x rows`.
    pub(super) fn transposed_product_from(
        s: F32s, j: usize, extent: Extent, a: Numbers<'_>, b: Lines<'_>, accumulate: Accumulate<'_>, c: &mut [AlignedF32x16],
    ) {
        multiply_columns::<_, true>(s, extent, a, b, accumulate, c, j);
    }
}

/// Computes the columns of the product from column `j` on, in groups as wide as the registers
/// allow.
///
/// `T` is true to multiply by the transpose of `a`.
#[inline(always)]
fn multiply_columns<S: F32s, const T: bool>(
    s: S,
    extent: Extent,
    a: Numbers<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
    mut j: usize,
) {
    while j < extent.columns {
        let remaining = extent.columns - j;
        if S::tile_rows(4) > 0 && remaining >= 4 {
            j += multiply_rows::<S, 4, T>(s, extent, a, b, accumulate, c, j);
        } else if S::tile_rows(2) > 0 && remaining >= 2 {
            j += multiply_rows::<S, 2, T>(s, extent, a, b, accumulate, c, j);
        } else {
            j += multiply_rows::<S, 1, T>(s, extent, a, b, accumulate, c, j);
        }
    }
}

/// Computes `N` columns of the product from column `j` on, tile by tile; returns `N`.
#[inline(always)]
fn multiply_rows<S: F32s, const N: usize, const T: bool>(
    s: S,
    extent: Extent,
    a: Numbers<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
    j: usize,
) -> usize {
    let most = S::tile_rows(N);
    let mut i = 0;
    macro_rules! tiles {
        ($($m:literal)*) => {$(
            while most >= $m && extent.rows - i >= $m {
                multiply_tile::<S, $m, N, T>(s, extent, a, b, accumulate, c, [i, j]);
                i += $m;
            }
        )*};
    }
    tiles!(12 6 4 2 1);
    N
}

/// Computes one tile of the product: `M` rows from row `i` on and `N` columns from column `j` on.
#[inline(always)]
fn multiply_tile<S: F32s, const M: usize, const N: usize, const T: bool>(
    s: S,
    extent: Extent,
    a: Numbers<'_>,
    b: Lines<'_>,
    accumulate: Accumulate<'_>,
    c: &mut [AlignedF32x16],
    [i, j]: [usize; 2],
) {
    let mut sums = [[s.splat(0.0); N]; M];
    match accumulate {
        Accumulate::Zero => {}
        Accumulate::Bias(bias) => {
            for (line, column) in bias[j..][..N].iter().enumerate().map(|(n, line)| (line, n)) {
                let bias = s.load(line);
                for row in &mut sums {
                    row[column] = bias;
                }
            }
        }
        Accumulate::Output => {
            for (m, row) in sums.iter_mut().enumerate() {
                let current = &c[(i + m) * extent.columns + j..][..N];
                row.iter_mut().zip(current).for_each(|(sum, line)| *sum = s.load(line));
            }
        }
    }
    let from: [&[f32]; M] =
        std::array::from_fn(|m| if T { &[] } else { &a.numbers[(i + m) * a.stride..][..extent.inner] });
    for p in 0..extent.inner {
        // This is a loop because `map` of an array is a function call in crates that are built
        // without LTO.
        let mut columns = [s.splat(0.0); N];
        for (column, line) in columns.iter_mut().zip(&b.lines[p * b.stride + j..][..N]) {
            *column = s.load(line);
        }
        let across = if T { &a.numbers[p * a.stride + i..][..M] } else { &[] };
        for (m, (row, from)) in sums.iter_mut().zip(from).enumerate() {
            let factor = s.splat(if T { across[m] } else { from[p] });
            for (sum, column) in row.iter_mut().zip(columns) {
                *sum = s.mul_add(factor, column, *sum);
            }
        }
    }
    for (m, row) in sums.iter().enumerate() {
        let out = &mut c[(i + m) * extent.columns + j..][..N];
        out.iter_mut().zip(row).for_each(|(line, sum)| s.store(*sum, line));
    }
}

on_f32s! {
    /// Computes `y = x w^T + bias` for a layer with few outputs.
    ///
    /// Rows of `x` and `w` have `columns` lines. `y` is not padded.
    pub(crate) fn narrow_product(s: F32s, columns: usize, x: &[AlignedF32x16], w: &[AlignedF32x16], bias: &[f32], y: &mut [f32]) {
        for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(bias.len())) {
            for ((w, bias), y) in w.chunks_exact(columns).zip(bias).zip(y) {
                let mut sums = [s.splat(0.0); 2];
                for (k, (x, w)) in x.iter().zip(w).enumerate() {
                    sums[k % 2] = s.mul_add(s.load(x), s.load(w), sums[k % 2]);
                }
                *y = s.sum(s.add(sums[0], sums[1])) + bias;
            }
        }
    }
}

on_f32s! {
    /// Sums the matrix `d` over its rows; `sums` receives one sum per column and is as long as a
    /// row.
    ///
    /// If `add` is true, the sums are added to the previous contents of `sums`. `d` is split by
    /// rows into two parts. The first part must have an even number of rows unless the second part
    /// is empty. Even and odd rows are summed separately, so that the split does not change the
    /// result.
    pub(crate) fn column_sums(s: F32s, d: [&[AlignedF32x16]; 2], add: bool, sums: &mut [AlignedF32x16]) {
        let stride = sums.len();
        for (j, out) in sums.iter_mut().enumerate() {
            let mut halves = [if add { s.load(out) } else { s.splat(0.0) }, s.splat(0.0)];
            for part in d {
                for (i, line) in part.iter().skip(j).step_by(stride).enumerate() {
                    halves[i % 2] = s.add(halves[i % 2], s.load(line));
                }
            }
            s.store(s.add(halves[0], halves[1]), out);
        }
    }
}

on_f32s! {
    /// Transposes `a`, of which `rows` rows and `columns` numbers per row are read, into `out`.
    ///
    /// `out` has `columns` rows of `stride` lines, padded with 0.
    pub(crate) fn transpose(s: F32s, a: Lines<'_>, rows: usize, columns: usize, out: &mut [AlignedF32x16], stride: usize) {
        for (j, out) in out[..columns * stride].chunks_mut(LANES * stride).enumerate() {
            for p in 0..stride {
                let mut block = [s.splat(0.0); LANES];
                for (row, i) in block.iter_mut().zip(p * LANES..rows) {
                    *row = s.load(&a.lines[i * a.stride + j]);
                }
                for (out, line) in out.chunks_exact_mut(stride).zip(s.transpose(block)) {
                    s.store(line, &mut out[p]);
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::lines;
    use crate::simd::tests::on_each_isa;

    pub(in crate::kernels) fn matrix(rows: usize, columns: usize, seed: u32) -> Vec<AlignedF32x16> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..rows * columns).map(|_| AlignedF32x16(std::array::from_fn(|_| number()))).collect()
    }

    fn expected(
        extent: Extent,
        a: impl Fn(usize, usize) -> f32,
        b: &[AlignedF32x16],
        start: impl Fn(usize, usize) -> f32,
    ) -> Vec<f64> {
        let width = extent.columns * LANES;
        let at = |i: usize, j: usize| {
            let b = |p: usize| f64::from(b[p * extent.columns + j / LANES].0[j % LANES]);
            (0..extent.inner).fold(f64::from(start(i, j)), |sum, p| sum + f64::from(a(i, p)) * b(p))
        };
        (0..extent.rows * width).map(|index| at(index / width, index % width)).collect()
    }

    fn near(got: &[AlignedF32x16], expected: &[f64]) -> bool {
        numbers(got).iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn products_match_sums_in_f64(rows in 0_usize..30, inner in 0_usize..40, columns in 1_usize..8, seed: u32) {
            let extent = Extent { rows, inner, columns };
            let (b, bias, initial) = (matrix(inner, columns, seed), matrix(1, columns, 7), matrix(rows, columns, 8));
            let b = Lines { lines: &b, stride: columns };
            let a: Vec<f32> = numbers(&matrix(1, lines(rows * inner), 9))[..rows * inner].to_vec();
            let plain = Numbers { numbers: &a, stride: inner };
            let across = Numbers { numbers: &a, stride: rows };
            on_each_isa(|isa| {
                let mut c = initial.clone();
                product(extent, plain, b, Accumulate::Bias(&bias), &mut c);
                let expected_sums = expected(extent, |i, p| a[i * inner + p], b.lines, |_, j| numbers(&bias)[j]);
                assert!(near(&c, &expected_sums), "{isa:?}");
                let mut c = initial.clone();
                transposed_product(extent, across, b, Accumulate::Output, &mut c);
                let start = |i: usize, j: usize| numbers(&initial)[i * columns * LANES + j];
                assert!(near(&c, &expected(extent, |i, p| a[p * rows + i], b.lines, start)), "{isa:?}");
                let mut sums = bias.clone();
                let part = rows / 4 * 2 * columns;
                column_sums([&initial[..part], &initial[part..]], true, &mut sums);
                let ones = Extent { rows: 1, inner: rows, columns };
                let expected_sums = expected(ones, |_, _| 1.0, &initial, |_, j| numbers(&bias)[j]);
                assert!(near(&sums, &expected_sums), "{isa:?}");
            });
        }

        #[test]
        fn narrow_products_are_dot_products(rows in 0_usize..9, columns in 1_usize..6, outputs in 1_usize..9, seed: u32) {
            let (x, w) = (matrix(rows, columns, seed), matrix(outputs, columns, seed ^ 1));
            let bias: Vec<f32> = (0..outputs).map(|i| i as f32).collect();
            on_each_isa(|isa| {
                let mut y = vec![f32::NAN; rows * outputs];
                narrow_product(columns, &x, &w, &bias, &mut y);
                for (index, y) in y.iter().enumerate() {
                    let row = |of: &[AlignedF32x16], i: usize| numbers(of)[i * columns * LANES..][..columns * LANES].to_vec();
                    let pairs = row(&x, index / outputs).into_iter().zip(row(&w, index % outputs));
                    let dot: f64 = pairs.map(|(x, w)| f64::from(x) * f64::from(w)).sum();
                    assert!((f64::from(*y) - dot - (index % outputs) as f64).abs() < 1e-4, "{isa:?}");
                }
            });
        }
    }

    #[test]
    fn rows_of_a_product_are_independent() {
        let (a, b, bias) = (matrix(29, 3, 1), matrix(48, 5, 2), matrix(1, 5, 3));
        let b = Lines { lines: &b, stride: 5 };
        on_each_isa(|isa| {
            let run = |rows: usize, a: &[AlignedF32x16]| {
                let mut c = vec![AlignedF32x16::ZERO; rows * 5];
                let a = Numbers::from(Lines { lines: a, stride: 3 });
                product(Extent { rows, inner: 48, columns: 5 }, a, b, Accumulate::Bias(&bias), &mut c);
                c
            };
            let all = run(29, &a);
            for i in 0..29 {
                assert_eq!(numbers(&run(1, &a[i * 3..][..3])), numbers(&all[i * 5..][..5]), "row {i} on {isa:?}");
            }
        });
    }

    #[test]
    fn transposes_and_pads_with_zeros() {
        let a = matrix(19, 2, 4);
        on_each_isa(|isa| {
            let mut out = vec![AlignedF32x16([9.0; LANES]); 21 * 2];
            transpose(Lines { lines: &a, stride: 2 }, 19, 21, &mut out, 2);
            let (a, out) = (numbers(&a), numbers(&out));
            for j in 0..21 {
                for i in 0..32 {
                    assert_eq!(out[j * 32 + i], if i < 19 { a[i * 32 + j] } else { 0.0 }, "{isa:?}");
                }
            }
        });
    }
}
