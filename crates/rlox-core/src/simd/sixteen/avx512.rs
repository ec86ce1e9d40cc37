//! Sixteen numbers in two AVX-512 registers, or in one if they are single.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "what is not inlined is not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics says nothing")]

use std::arch::x86_64::*;

use super::{SIXTEEN, Sixteen};
use crate::simd::f64s::Avx512;

/// Running sums within eight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn running(x: __m512d) -> __m512d {
    // What is not to change adds 0.
    let x = _mm512_add_pd(x, _mm512_unpacklo_pd(_mm512_setzero_pd(), x));
    let x = _mm512_add_pd(x, _mm512_maskz_permutex_pd::<0b0101_0101>(0b1100_1100, x));
    _mm512_add_pd(x, _mm512_maskz_permutexvar_pd(0b1111_0000, _mm512_set1_epi64(3), x))
}

impl Sixteen for Avx512 {
    type Numbers = [__m512d; 2];

    #[inline(always)]
    fn load_16(self, from: &[f64; SIXTEEN]) -> Self::Numbers {
        let (halves, _) = from.as_chunks::<8>();
        // SAFETY: the CPU has AVX-512, or there would be no `self`; each half holds eight numbers.
        unsafe { [_mm512_loadu_pd(halves[0].as_ptr()), _mm512_loadu_pd(halves[1].as_ptr())] }
    }

    #[inline(always)]
    fn load_16_f32(self, from: &[f32; SIXTEEN]) -> Self::Numbers {
        let (halves, _) = from.as_chunks::<8>();
        // SAFETY: as in `load_16`.
        unsafe {
            [_mm512_cvtps_pd(_mm256_loadu_ps(halves[0].as_ptr())), _mm512_cvtps_pd(_mm256_loadu_ps(halves[1].as_ptr()))]
        }
    }

    #[inline(always)]
    fn sum(self, [low, high]: Self::Numbers) -> f64 {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe {
            let x = _mm512_add_pd(low, high);
            let x = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x));
            let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
            _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
        }
    }

    #[inline(always)]
    fn running(self, [low, high]: Self::Numbers) -> Self::Numbers {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe {
            let low = running(low);
            [low, _mm512_add_pd(running(high), _mm512_permutexvar_pd(_mm512_set1_epi64(7), low))]
        }
    }

    #[inline(always)]
    fn store_16(self, [low, high]: Self::Numbers, to: &mut [f64; SIXTEEN]) {
        let (halves, _) = to.as_chunks_mut::<8>();
        // SAFETY: as in `load_16`.
        unsafe {
            _mm512_storeu_pd(halves[0].as_mut_ptr(), low);
            _mm512_storeu_pd(halves[1].as_mut_ptr(), high);
        }
    }

    #[inline(always)]
    fn at_most(self, [low, high]: Self::Numbers, at: f64) -> usize {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe {
            let at = _mm512_set1_pd(at);
            let low = _mm512_cmp_pd_mask::<_CMP_LE_OQ>(low, at);
            let high = _mm512_cmp_pd_mask::<_CMP_LE_OQ>(high, at);
            (u32::from(high) << 8 | u32::from(low)).trailing_ones() as usize
        }
    }

    #[inline(always)]
    fn least(self, numbers: &[f32; SIXTEEN]) -> f32 {
        // SAFETY: the CPU has AVX-512, or there would be no `self`; the array holds 16 numbers.
        unsafe {
            let x = _mm512_sub_epi32(_mm512_loadu_si512(numbers.as_ptr().cast()), _mm512_set1_epi32(1));
            let x = _mm256_min_epu32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
            let x = _mm_min_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_min_epu32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            let x = _mm_min_epu32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x));
            f32::from_bits(_mm_cvtsi128_si32(x).cast_unsigned().wrapping_add(1))
        }
    }
}
