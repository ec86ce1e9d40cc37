//! Eight f64 in two AVX2 registers.

#![expect(
    clippy::inline_always,
    unsafe_code,
    reason = "what is not inlined is not compiled for these instructions, which are unsafe to call"
)]
#![allow(clippy::wildcard_imports, reason = "a list of intrinsics says nothing")]

use std::arch::x86_64::*;

use super::{F64s, LANES, LEAST};

/// The same for both halves. A closure would be a function of its own, compiled without these instructions.
macro_rules! both {
    ($i:ident => $half:expr) => {
        [
            {
                let $i = 0;
                $half
            },
            {
                let $i = 1;
                $half
            },
        ]
    };
}

/// Two vectors of four.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The CPU has AVX2.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// All bits of the lanes whose flags are not set.
#[inline(always)]
fn unset(_: Avx2, flags: [bool; LANES]) -> [__m256d; 2] {
    let (halves, _) = flags.as_chunks::<4>();
    // SAFETY: the CPU has AVX2, or there would be no `Avx2`.
    both!(i => unsafe {
        let bytes = _mm_cvtsi32_si128(i32::from_le_bytes(halves[i].map(u8::from)));
        _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_cvtepu8_epi64(bytes), _mm256_setzero_si256()))
    })
}

impl F64s for Avx2 {
    type Vector = [__m256d; 2];

    #[inline(always)]
    fn load(self, from: &[f64; LANES]) -> Self::Vector {
        let (halves, _) = from.as_chunks::<4>();
        // SAFETY: the CPU has AVX2, or there would be no `self`; each half holds four numbers.
        both!(i => unsafe { _mm256_loadu_pd(halves[i].as_ptr()) })
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f64; LANES]) {
        for (half, numbers) in vector.iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: as in `load`.
            unsafe { _mm256_storeu_pd(numbers.as_mut_ptr(), *half) }
        }
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32; LANES]) -> Self::Vector {
        let (halves, _) = from.as_chunks::<4>();
        // SAFETY: as in `load`.
        both!(i => unsafe { _mm256_cvtps_pd(_mm_loadu_ps(halves[i].as_ptr())) })
    }

    #[inline(always)]
    fn store_f32(self, vector: Self::Vector, to: &mut [f32; LANES]) {
        for (half, numbers) in vector.iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: as in `load`.
            unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), _mm256_cvtpd_ps(*half)) }
        }
    }

    #[inline(always)]
    fn splat(self, number: f64) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        [unsafe { _mm256_set1_pd(number) }; 2]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_add_pd(a[i], b[i]) })
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_sub_pd(a[i], b[i]) })
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_mul_pd(a[i], b[i]) })
    }

    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_min_pd(a[i], b[i]) })
    }

    #[inline(always)]
    fn either(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let unset = unset(self, flags);
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_blendv_pd(a[i], b[i], unset[i]) })
    }

    #[inline(always)]
    fn unless(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector {
        let unset = unset(self, flags);
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_and_pd(unset[i], x[i]) })
    }

    #[inline(always)]
    fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        let scaled = self.scaled(factor, x);
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe { _mm256_add_pd(sum[i], scaled[i]) })
    }

    #[inline(always)]
    fn composed(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`. The second argument of `max` wins where it is NaN.
        both!(i => unsafe {
            let zero = _mm256_setzero_pd();
            let kept = _mm256_and_pd(
                _mm256_cmp_pd::<_CMP_NEQ_UQ>(factor[i], zero),
                _mm256_cmp_pd::<_CMP_NEQ_UQ>(x[i], zero),
            );
            let product = _mm256_max_pd(_mm256_set1_pd(LEAST), _mm256_mul_pd(factor[i], x[i]));
            _mm256_and_pd(kept, product)
        })
    }

    #[inline(always)]
    fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        both!(i => unsafe {
            let wanted = _mm256_cmp_pd::<_CMP_NEQ_UQ>(factor[i], _mm256_setzero_pd());
            _mm256_and_pd(wanted, _mm256_mul_pd(factor[i], x[i]))
        })
    }

    #[inline(always)]
    fn ahead<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector {
        let ([a, b], [c, _]) = (now, next);
        // SAFETY: the CPU has AVX2, or there would be no `self`.
        unsafe {
            let (ab, bc) = (_mm256_permute2f128_pd::<0x21>(a, b), _mm256_permute2f128_pd::<0x21>(b, c));
            match K {
                1 => [_mm256_shuffle_pd::<0b0101>(a, ab), _mm256_shuffle_pd::<0b0101>(b, bc)],
                2 => [ab, bc],
                _ => [b, c],
            }
        }
    }
}
