//! Sixteen numbers in four AVX2 registers, or in two if they are single.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "what is not inlined is not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics says nothing")]

use std::arch::x86_64::*;

use super::{SIXTEEN, Sixteen};
use crate::simd::f64s::Avx2;

/// Running sums within four.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn running(x: __m256d) -> __m256d {
    let zero = _mm256_setzero_pd();
    // What is not to change adds 0.
    let x = _mm256_add_pd(x, _mm256_unpacklo_pd(zero, x));
    let second = _mm256_permute4x64_pd::<0b0101_0101>(x);
    _mm256_add_pd(x, _mm256_blend_pd::<0b1100>(zero, second))
}

/// Running sums of what follows those of `before`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn after(before: __m256d, x: __m256d) -> __m256d {
    _mm256_add_pd(x, _mm256_permute4x64_pd::<0b1111_1111>(before))
}

impl Sixteen for Avx2 {
    type Numbers = [__m256d; 4];

    #[inline(always)]
    fn load_16(self, from: &[f64; SIXTEEN]) -> Self::Numbers {
        let (four, _) = from.as_chunks::<4>();
        // SAFETY: the CPU has AVX2, or there would be no `self`; each of the arrays holds four numbers.
        unsafe {
            [
                _mm256_loadu_pd(four[0].as_ptr()),
                _mm256_loadu_pd(four[1].as_ptr()),
                _mm256_loadu_pd(four[2].as_ptr()),
                _mm256_loadu_pd(four[3].as_ptr()),
            ]
        }
    }

    #[inline(always)]
    fn load_16_f32(self, from: &[f32; SIXTEEN]) -> Self::Numbers {
        let (four, _) = from.as_chunks::<4>();
        // SAFETY: as in `load_16`.
        unsafe {
            [
                _mm256_cvtps_pd(_mm_loadu_ps(four[0].as_ptr())),
                _mm256_cvtps_pd(_mm_loadu_ps(four[1].as_ptr())),
                _mm256_cvtps_pd(_mm_loadu_ps(four[2].as_ptr())),
                _mm256_cvtps_pd(_mm_loadu_ps(four[3].as_ptr())),
            ]
        }
    }

    #[inline(always)]
    fn sum(self, [a, b, c, d]: Self::Numbers) -> f64 {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        unsafe {
            let x = _mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d));
            let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
            _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
        }
    }

    #[inline(always)]
    fn running(self, [a, b, c, d]: Self::Numbers) -> Self::Numbers {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        unsafe {
            let (a, c) = (running(a), running(c));
            let (b, d) = (after(a, running(b)), after(c, running(d)));
            [a, b, after(b, c), after(b, d)]
        }
    }

    #[inline(always)]
    fn store_16(self, [a, b, c, d]: Self::Numbers, to: &mut [f64; SIXTEEN]) {
        let (four, _) = to.as_chunks_mut::<4>();
        // SAFETY: as in `load_16`.
        unsafe {
            _mm256_storeu_pd(four[0].as_mut_ptr(), a);
            _mm256_storeu_pd(four[1].as_mut_ptr(), b);
            _mm256_storeu_pd(four[2].as_mut_ptr(), c);
            _mm256_storeu_pd(four[3].as_mut_ptr(), d);
        }
    }

    #[inline(always)]
    fn at_most(self, [a, b, c, d]: Self::Numbers, at: f64) -> usize {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        let bits = unsafe {
            let at = _mm256_set1_pd(at);
            let a = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(a, at));
            let b = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(b, at));
            let c = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(c, at));
            let d = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(d, at));
            a | b << 4 | c << 8 | d << 12
        };
        bits.trailing_ones() as usize
    }

    #[inline(always)]
    fn least(self, numbers: &[f32; SIXTEEN]) -> f32 {
        let (eight, _) = numbers.as_chunks::<8>();
        // SAFETY: the CPU has AVX2, or there would be no `self`; each half holds eight numbers.
        unsafe {
            let one = _mm256_set1_epi32(1);
            let low = _mm256_sub_epi32(_mm256_loadu_si256(eight[0].as_ptr().cast()), one);
            let high = _mm256_sub_epi32(_mm256_loadu_si256(eight[1].as_ptr().cast()), one);
            let x = _mm256_min_epu32(low, high);
            let x = _mm_min_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_min_epu32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            let x = _mm_min_epu32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x));
            f32::from_bits(_mm_cvtsi128_si32(x).cast_unsigned().wrapping_add(1))
        }
    }
}
