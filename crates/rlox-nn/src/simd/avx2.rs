//! SIMD vectors of 16 f32 in two AVX2 registers.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "functions that are not inlined are not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics would add nothing")]

use std::arch::x86_64::*;

use super::{AlignedF32x16, F32s, LANES};

/// Proof that the CPU has AVX2 and FMA. A vector takes two registers of eight f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Creates the proof.
    ///
    /// # Safety
    /// The CPU must have AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// Defines methods of [`F32s`] whose bodies are these instructions.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $($body:tt)* })*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $ret {
            // SAFETY: `self` proves AVX2 and FMA; loads and stores access a full aligned line.
            unsafe { $($body)* }
        }
    )*};
}
/// Defines methods of [`F32s`] that apply the same instruction to each of the two registers.
macro_rules! halves {
    ($($name:ident($($arg:ident),*) $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: V),*) -> V {
            #[inline(always)]
            fn half($($arg: __m256),*) -> __m256 {
                // SAFETY: `self` of the caller proves AVX2 and FMA.
                unsafe { $body }
            }
            [half($($arg[0]),*), half($($arg[1]),*)]
        }
    )*};
}

type V = [__m256; 2];

/// Returns the transpose of the 8x8 matrix `rows`.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn eight_by_eight(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        // These are loops because a closure that is not inlined is not compiled for these
        // instructions.
        let (mut pairs, mut fours, mut columns) = (rows, rows, rows);
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        // fours[4 i + j] has columns j (low half) and j + 4 (high half) of the four rows from 4 i
        // on.
        for i in 0..4 {
            let from = i / 2 * 4 + i % 2;
            let (a, b) = (_mm256_castps_pd(pairs[from]), _mm256_castps_pd(pairs[from + 2]));
            fours[2 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            fours[2 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
        for i in 0..4 {
            columns[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
            columns[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        }
        columns
    }
}

impl F32s for Avx2 {
    type Vector = V;

    #[inline(always)]
    fn tile_rows(columns: usize) -> usize {
        // Six sums take 12 of the 16 registers; the others hold a vector of `b` and a factor.
        if columns == 1 { 6 } else { 0 }
    }

    #[inline(always)]
    fn strip(columns: usize) -> usize {
        if columns >= 4 { 4 } else { 0 }
    }

    instructions! {
        load(from: &AlignedF32x16) -> V { [_mm256_load_ps(from.0.as_ptr()), _mm256_load_ps(from.0[8..].as_ptr())] }
        store(vector: V, to: &mut AlignedF32x16) -> () {
            _mm256_store_ps(to.0.as_mut_ptr(), vector[0]);
            _mm256_store_ps(to.0[8..].as_mut_ptr(), vector[1]);
        }
        splat(number: f32) -> V { [_mm256_set1_ps(number); 2] }
        not_zero(x: V) -> u32 {
            let [low, high] = x.map(|x| {
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NEQ_UQ>(x, _mm256_setzero_ps())).cast_unsigned()
            });
            low | high << 8
        }
        parts(x: V) -> (V, V) {
            let parts = x.map(|x| {
                let bits = _mm256_castps_si256(x);
                let exponent = _mm256_srai_epi32::<23>(
                    _mm256_sub_epi32(bits, _mm256_set1_epi32(super::ROOT_OF_HALF)));
                let mantissa = _mm256_sub_epi32(bits, _mm256_slli_epi32::<23>(exponent));
                (_mm256_castsi256_ps(mantissa), _mm256_cvtepi32_ps(exponent))
            });
            (parts.map(|parts| parts.0), parts.map(|parts| parts.1))
        }
        sum(a: V) -> f32 {
            let eight = _mm256_add_ps(a[0], a[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
        transpose(rows: [V; LANES]) -> [V; LANES] {
            let mut columns = rows;
            for half in 0..2 {
                for side in 0..2 {
                    let mut block = [rows[0][0]; 8];
                    for i in 0..8 {
                        block[i] = rows[8 * side + i][half];
                    }
                    let block = eight_by_eight(block);
                    for i in 0..8 {
                        columns[8 * half + i][side] = block[i];
                    }
                }
            }
            columns
        }
    }

    halves! {
        add(a, b) _mm256_add_ps(a, b);
        sub(a, b) _mm256_sub_ps(a, b);
        mul(a, b) _mm256_mul_ps(a, b);
        div(a, b) _mm256_div_ps(a, b);
        sqrt(a) _mm256_sqrt_ps(a);
        min(a, b) _mm256_min_ps(a, b);
        max(a, b) _mm256_max_ps(a, b);
        mul_add(a, b, c) _mm256_fmadd_ps(a, b, c);
        sub_mul(a, b, c) _mm256_fnmadd_ps(a, b, c);
        where_positive(sign, x) _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(sign, _mm256_setzero_ps()), x);
        zero_if_tiny(x, least) _mm256_and_ps(
            _mm256_cmp_ps::<_CMP_NLT_UQ>(_mm256_andnot_ps(_mm256_set1_ps(-0.0), x), least), x);
        round(a) _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        power_of_two(n) _mm256_castsi256_ps(
            _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127))));
    }
}
