//! Eight f64 in one AVX-512 register.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "what is not inlined is not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics says nothing")]

use std::arch::x86_64::*;

use super::{F64s, LANES, LEAST};

/// One vector of eight.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU has AVX-512 F, BW, DQ and VL.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// The lanes whose flags are not set.
#[inline(always)]
fn unset(_: Avx512, flags: [bool; LANES]) -> __mmask8 {
    let bytes = u64::from_le_bytes(flags.map(u8::from)).cast_signed();
    // SAFETY: the CPU has AVX-512, or there would be no `Avx512`.
    unsafe {
        let bytes = _mm_cvtsi64_si128(bytes);
        _mm_testn_epi8_mask(bytes, bytes) as __mmask8
    }
}

impl F64s for Avx512 {
    type Vector = __m512d;

    #[inline(always)]
    fn load(self, from: &[f64; LANES]) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`; the array holds eight numbers.
        unsafe { _mm512_loadu_pd(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f64; LANES]) {
        // SAFETY: as in `load`.
        unsafe { _mm512_storeu_pd(to.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32; LANES]) -> Self::Vector {
        // SAFETY: as in `load`.
        unsafe { _mm512_cvtps_pd(_mm256_loadu_ps(from.as_ptr())) }
    }

    #[inline(always)]
    fn store_f32(self, vector: Self::Vector, to: &mut [f32; LANES]) {
        // SAFETY: as in `load`.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm512_cvtpd_ps(vector)) }
    }

    #[inline(always)]
    fn splat(self, number: f64) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_set1_pd(number) }
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_add_pd(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_sub_pd(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_mul_pd(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_min_pd(a, b) }
    }

    #[inline(always)]
    fn either(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let unset = unset(self, flags);
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_mask_mov_pd(a, unset, b) }
    }

    #[inline(always)]
    fn unless(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector {
        let unset = unset(self, flags);
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_maskz_mov_pd(unset, x) }
    }

    #[inline(always)]
    fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe { _mm512_add_pd(sum, self.scaled(factor, x)) }
    }

    #[inline(always)]
    fn composed(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`. The second argument of `max` wins where it is NaN.
        unsafe {
            let zero = _mm512_setzero_pd();
            let kept = _mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(factor, zero);
            let kept = _mm512_mask_cmp_pd_mask::<_CMP_NEQ_UQ>(kept, x, zero);
            _mm512_maskz_max_pd(kept, _mm512_set1_pd(LEAST), _mm512_mul_pd(factor, x))
        }
    }

    #[inline(always)]
    fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe {
            let wanted = _mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(factor, _mm512_setzero_pd());
            _mm512_maskz_mul_pd(wanted, factor, x)
        }
    }

    #[inline(always)]
    fn ahead<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX-512, or there would be no `self`.
        unsafe {
            let (now, next) = (_mm512_castpd_si512(now), _mm512_castpd_si512(next));
            _mm512_castsi512_pd(match K {
                1 => _mm512_alignr_epi64::<1>(next, now),
                2 => _mm512_alignr_epi64::<2>(next, now),
                _ => _mm512_alignr_epi64::<4>(next, now),
            })
        }
    }
}
