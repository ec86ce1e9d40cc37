//! SIMD vectors of 16 f32 in one AVX-512 register.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "functions that are not inlined are not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics would add nothing")]

use std::arch::x86_64::*;

use super::{AlignedF32x16, F32s, LANES};

/// Proof that the CPU has AVX-512. A vector is one register of 16 f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Creates the proof.
    ///
    /// # Safety
    /// The CPU must have AVX-512 F, BW, DQ and VL, AVX2 and FMA.
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
            // SAFETY: `self` proves AVX-512; loads and stores access a full aligned line.
            unsafe { $($body)* }
        }
    )*};
}

type V = __m512;

impl F32s for Avx512 {
    type Vector = V;

    #[inline(always)]
    fn tile_rows(columns: usize) -> usize {
        // The sums of a tile, the vectors of a row of `b` and a factor share the 32 registers.
        match columns {
            4 => 6,
            _ => 12,
        }
    }

    #[inline(always)]
    fn strip(columns: usize) -> usize {
        // Divides the columns into as few strips of at most 16 vectors as possible, of about equal
        // width.
        if columns < 8 { 0 } else { columns.div_ceil(columns.div_ceil(16)) }
    }

    instructions! {
        load(from: &AlignedF32x16) -> V { _mm512_load_ps(from.0.as_ptr()) }
        store(vector: V, to: &mut AlignedF32x16) -> () { _mm512_store_ps(to.0.as_mut_ptr(), vector) }
        splat(number: f32) -> V { _mm512_set1_ps(number) }
        add(a: V, b: V) -> V { _mm512_add_ps(a, b) }
        sub(a: V, b: V) -> V { _mm512_sub_ps(a, b) }
        mul(a: V, b: V) -> V { _mm512_mul_ps(a, b) }
        div(a: V, b: V) -> V { _mm512_div_ps(a, b) }
        sqrt(a: V) -> V { _mm512_sqrt_ps(a) }
        min(a: V, b: V) -> V { _mm512_min_ps(a, b) }
        max(a: V, b: V) -> V { _mm512_max_ps(a, b) }
        mul_add(a: V, b: V, c: V) -> V { _mm512_fmadd_ps(a, b, c) }
        sub_mul(a: V, b: V, c: V) -> V { _mm512_fnmadd_ps(a, b, c) }
        where_positive(sign: V, x: V) -> V {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(sign, _mm512_setzero_ps()), x)
        }
        zero_if_tiny(x: V, least: V) -> V {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), least), x)
        }
        not_zero(x: V) -> u32 { u32::from(_mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(x, _mm512_setzero_ps())) }
        round(a: V) -> V { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        power_of_two(n: V) -> V { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
        parts(x: V) -> (V, V) {
            let bits = _mm512_castps_si512(x);
            let exponent = _mm512_srai_epi32::<23>(
                _mm512_sub_epi32(bits, _mm512_set1_epi32(super::ROOT_OF_HALF)));
            let mantissa = _mm512_sub_epi32(bits, _mm512_slli_epi32::<23>(exponent));
            (_mm512_castsi512_ps(mantissa), _mm512_cvtepi32_ps(exponent))
        }
        sum(a: V) -> f32 { _mm512_reduce_add_ps(a) }
        transpose(rows: [V; LANES]) -> [V; LANES] {
            // These are loops because a closure that is not inlined is not compiled for these
            // instructions.
            let mut pairs = rows;
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            // Quarter q of fours[4 i + j] is column 4 q + j of the four rows from 4 i on.
            let mut fours = rows;
            for i in 0..8 {
                let from = i / 2 * 4 + i % 2;
                let (a, b) = (_mm512_castps_pd(pairs[from]), _mm512_castps_pd(pairs[from + 2]));
                fours[2 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[2 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
            // eights[at] has quarters 0 and 2 of two vectors, and eights[at + 4] has quarters 1 and
            // 3.
            let mut eights = rows;
            for i in 0..8 {
                let at = i / 4 * 8 + i % 4;
                eights[at] = _mm512_shuffle_f32x4::<0x88>(fours[at], fours[at + 4]);
                eights[at + 4] = _mm512_shuffle_f32x4::<0xDD>(fours[at], fours[at + 4]);
            }
            let mut columns = rows;
            for i in 0..8 {
                columns[i] = _mm512_shuffle_f32x4::<0x88>(eights[i], eights[i + 8]);
                columns[i + 8] = _mm512_shuffle_f32x4::<0xDD>(eights[i], eights[i + 8]);
            }
            columns
        }
    }
}
