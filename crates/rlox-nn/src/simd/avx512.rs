//! Sixteen f32 in one AVX-512 register.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "what is not inlined is not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics says nothing")]

use std::arch::x86_64::*;

use super::{F32s, LANES, Line};

/// One vector of sixteen.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU has AVX-512 F, BW, DQ and VL, AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// Methods that are a few instructions.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $($body:tt)* })*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $ret {
            // SAFETY: the CPU has AVX-512, or there would be no `self`; what is loaded or stored is a whole line.
            unsafe { $($body)* }
        }
    )*};
}

type V = __m512;

impl F32s for Avx512 {
    type Vector = V;

    #[inline(always)]
    fn tile_rows(columns: usize) -> usize {
        // Of 32 registers, one column of B and one factor stay beside the sums.
        match columns {
            4 => 6,
            _ => 12,
        }
    }

    instructions! {
        load(from: &Line) -> V { _mm512_load_ps(from.0.as_ptr()) }
        store(vector: V, to: &mut Line) -> () { _mm512_store_ps(to.0.as_mut_ptr(), vector) }
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
        unless_tiny(x: V, least: V) -> V {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), least), x)
        }
        round(a: V) -> V { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
        power_of_two(n: V) -> V { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
        parts(x: V) -> (V, V) {
            let bits = _mm512_castps_si512(x);
            let exponent = _mm512_srai_epi32::<23>(
                _mm512_sub_epi32(bits, _mm512_set1_epi32(super::elementary::ROOT_OF_HALF)));
            let mantissa = _mm512_sub_epi32(bits, _mm512_slli_epi32::<23>(exponent));
            (_mm512_castsi512_ps(mantissa), _mm512_cvtepi32_ps(exponent))
        }
        sum(a: V) -> f32 { _mm512_reduce_add_ps(a) }
        transpose(rows: [V; LANES]) -> [V; LANES] {
            let pairs: [V; LANES] = std::array::from_fn(|i| {
                let (a, b) = (rows[i & !1], rows[i | 1]);
                if i % 2 == 0 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) }
            });
            // A quarter of the vector 4 i + j is, of four rows from 4 i on, the column j of that quarter.
            let fours: [V; LANES] = std::array::from_fn(|i| {
                let from = (i & !3) + i % 4 / 2;
                let (a, b) = (_mm512_castps_pd(pairs[from]), _mm512_castps_pd(pairs[from + 2]));
                _mm512_castpd_ps(if i % 2 == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) })
            });
            // Of two such vectors the quarters 0 and 2, or 1 and 3.
            let eights: [V; LANES] = std::array::from_fn(|i| {
                let (a, b) = (fours[i & !4], fours[i | 4]);
                if i & 4 == 0 { _mm512_shuffle_f32x4::<0x88>(a, b) } else { _mm512_shuffle_f32x4::<0xDD>(a, b) }
            });
            std::array::from_fn(|i| {
                let (a, b) = (eights[i & !8], eights[i | 8]);
                if i & 8 == 0 { _mm512_shuffle_f32x4::<0x88>(a, b) } else { _mm512_shuffle_f32x4::<0xDD>(a, b) }
            })
        }
    }
}
