//! SIMD vectors of [`LANES`] (8) f64, called lanes. Some operations between neighbouring lanes use
//! instructions that compilers do not generate from loops.
//!
//! A value of an [`F64s`] type exists only if the CPU has the instructions of the type, because
//! only `on_f64s!` creates such values, after a check of the CPU. All implementations return the
//! same bits.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;

use super::LANES;

/// Smallest positive f64, a subnormal number.
const LEAST: f64 = f64::from_bits(1);

/// Implementation of vectors with one instruction set.
pub trait F64s: Copy {
    type Vector: Copy;

    fn load(self, from: &[f64; LANES]) -> Self::Vector;
    fn load_f32(self, from: &[f32; LANES]) -> Self::Vector;
    fn store(self, vector: Self::Vector, to: &mut [f64; LANES]);
    /// Stores the numbers, rounded to the nearest f32.
    fn store_f32(self, vector: Self::Vector, to: &mut [f32; LANES]);
    /// Returns a vector with `number` in every lane.
    fn splat(self, number: f64) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a` in lanes in which `a < b`, else `b`. The result is NaN if `b` is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a` in lanes whose flag is set, else `b`.
    fn select(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns zero in lanes whose flag is set, else `x`.
    fn mask_zero(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector;
    /// Returns `sum + factor * x`. Both the product and the sum are rounded. If the factor is zero,
    /// the result is `sum`, even if `x` is NaN.
    fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// Returns `factor * x`, but never rounds a non-zero product to zero.
    ///
    /// The result is zero if an operand is zero, else at least the smallest positive number.
    /// Operands must not be negative, but may be NaN.
    fn blend(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// Returns `factor * x`. If the factor is zero, the result is zero, even if `x` is NaN.
    fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// Returns the lanes of `now` from lane `K` on, followed by the first `K` lanes of `next`. `K`
    /// is 1, 2 or 4.
    fn shift_lanes<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector;
}

/// Implementation with arrays, for every CPU.
#[derive(Clone, Copy)]
pub(crate) struct Arrays;

impl F64s for Arrays {
    type Vector = [f64; LANES];

    #[inline(always)]
    fn load(self, from: &[f64; LANES]) -> Self::Vector {
        *from
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f64; LANES]) {
        *to = vector;
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32; LANES]) -> Self::Vector {
        from.map(f64::from)
    }

    #[inline(always)]
    fn store_f32(self, vector: Self::Vector, to: &mut [f32; LANES]) {
        *to = vector.map(|x| x as f32);
    }

    #[inline(always)]
    fn splat(self, number: f64) -> Self::Vector {
        [number; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn select(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let masks = flags.map(|flag| u64::from(flag).wrapping_neg());
        std::array::from_fn(|i| f64::from_bits((masks[i] & a[i].to_bits()) | (!masks[i] & b[i].to_bits())))
    }

    #[inline(always)]
    fn mask_zero(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector {
        let masks = flags.map(|flag| u64::from(flag).wrapping_sub(1));
        std::array::from_fn(|i| f64::from_bits(masks[i] & x[i].to_bits()))
    }

    #[inline(always)]
    fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        let scaled = self.scaled(factor, x);
        std::array::from_fn(|i| sum[i] + scaled[i])
    }

    #[inline(always)]
    fn blend(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| {
            let product = factor[i] * x[i];
            let [factor_mask, x_mask] = [factor[i], x[i]].map(|number| u64::from(number != 0.0).wrapping_neg());
            f64::from_bits(factor_mask & x_mask & (if product < LEAST { LEAST } else { product }).to_bits())
        })
    }

    #[inline(always)]
    fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        let masks = factor.map(|factor| u64::from(factor != 0.0).wrapping_neg());
        std::array::from_fn(|i| f64::from_bits(masks[i] & (factor[i] * x[i]).to_bits()))
    }

    #[inline(always)]
    fn shift_lanes<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| if i + K < LANES { now[i + K] } else { next[i + K - LANES] })
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Eight f64 in two AVX2 registers.

    #![expect(
        clippy::inline_always,
        unsafe_code,
        reason = "only inlined functions are compiled for these instructions, which are unsafe to call"
    )]
    #![allow(clippy::wildcard_imports, reason = "a list of intrinsics is uninformative")]

    use std::arch::x86_64::*;

    use super::{F64s, LANES, LEAST};

    /// Evaluates an expression for both registers of a vector. A closure would not be compiled for
    /// AVX2.
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

    /// Implementation with two AVX2 registers of four f64 each.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(());

    impl Avx2 {
        /// Creates a value, whose existence means that the CPU has AVX2.
        ///
        /// # Safety
        /// The CPU must have AVX2.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            Self(())
        }
    }

    /// Returns a mask whose bits are all 1 in lanes whose flag is false, else 0.
    #[inline(always)]
    fn unset(_: Avx2, flags: [bool; LANES]) -> [__m256d; 2] {
        let (halves, _) = flags.as_chunks::<4>();
        // SAFETY: an `Avx2` exists only if the CPU has AVX2.
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
            // SAFETY: `self` exists only if the CPU has AVX2; each half holds four numbers.
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
            // SAFETY: `self` exists only if the CPU has AVX2.
            [unsafe { _mm256_set1_pd(number) }; 2]
        }

        #[inline(always)]
        fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_add_pd(a[i], b[i]) })
        }

        #[inline(always)]
        fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_sub_pd(a[i], b[i]) })
        }

        #[inline(always)]
        fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_mul_pd(a[i], b[i]) })
        }

        #[inline(always)]
        fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_min_pd(a[i], b[i]) })
        }

        #[inline(always)]
        fn select(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector {
            let unset = unset(self, flags);
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_blendv_pd(a[i], b[i], unset[i]) })
        }

        #[inline(always)]
        fn mask_zero(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector {
            let unset = unset(self, flags);
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_and_pd(unset[i], x[i]) })
        }

        #[inline(always)]
        fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
            let scaled = self.scaled(factor, x);
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe { _mm256_add_pd(sum[i], scaled[i]) })
        }

        #[inline(always)]
        fn blend(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX2. If an operand of `max` is NaN, the
            // result is the second operand.
            both!(i => unsafe {
                let zero = _mm256_setzero_pd();
                let mask = _mm256_and_pd(
                    _mm256_cmp_pd::<_CMP_NEQ_UQ>(factor[i], zero),
                    _mm256_cmp_pd::<_CMP_NEQ_UQ>(x[i], zero),
                );
                let product = _mm256_max_pd(_mm256_set1_pd(LEAST), _mm256_mul_pd(factor[i], x[i]));
                _mm256_and_pd(mask, product)
            })
        }

        #[inline(always)]
        fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX2.
            both!(i => unsafe {
                let wanted = _mm256_cmp_pd::<_CMP_NEQ_UQ>(factor[i], _mm256_setzero_pd());
                _mm256_and_pd(wanted, _mm256_mul_pd(factor[i], x[i]))
            })
        }

        #[inline(always)]
        fn shift_lanes<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector {
            let ([a, b], [c, _]) = (now, next);
            // SAFETY: `self` exists only if the CPU has AVX2.
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
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    //! Eight f64 in one AVX-512 register.

    #![expect(
        clippy::inline_always,
        unsafe_code,
        reason = "only inlined functions are compiled for these instructions, which are unsafe to call"
    )]
    #![allow(clippy::wildcard_imports, reason = "a list of intrinsics is uninformative")]

    use std::arch::x86_64::*;

    use super::{F64s, LANES, LEAST};

    /// Implementation with one AVX-512 register of eight f64.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(());

    impl Avx512 {
        /// Creates a value, whose existence means that the CPU has AVX-512.
        ///
        /// # Safety
        /// The CPU must have AVX-512 F, BW, DQ and VL.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            Self(())
        }
    }

    /// Returns a mask whose bits are 1 for lanes whose flag is false, else 0.
    #[inline(always)]
    fn unset(_: Avx512, flags: [bool; LANES]) -> __mmask8 {
        let bytes = u64::from_le_bytes(flags.map(u8::from)).cast_signed();
        // SAFETY: an `Avx512` exists only if the CPU has AVX-512.
        unsafe {
            let bytes = _mm_cvtsi64_si128(bytes);
            _mm_testn_epi8_mask(bytes, bytes) as __mmask8
        }
    }

    impl F64s for Avx512 {
        type Vector = __m512d;

        #[inline(always)]
        fn load(self, from: &[f64; LANES]) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512; the array holds eight numbers.
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
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_set1_pd(number) }
        }

        #[inline(always)]
        fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_add_pd(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_sub_pd(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_mul_pd(a, b) }
        }

        #[inline(always)]
        fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_min_pd(a, b) }
        }

        #[inline(always)]
        fn select(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector {
            let unset = unset(self, flags);
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_mask_mov_pd(a, unset, b) }
        }

        #[inline(always)]
        fn mask_zero(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector {
            let unset = unset(self, flags);
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_maskz_mov_pd(unset, x) }
        }

        #[inline(always)]
        fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe { _mm512_add_pd(sum, self.scaled(factor, x)) }
        }

        #[inline(always)]
        fn blend(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512. If an operand of `max` is NaN, the
            // result is the second operand.
            unsafe {
                let zero = _mm512_setzero_pd();
                let mask = _mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(factor, zero);
                let mask = _mm512_mask_cmp_pd_mask::<_CMP_NEQ_UQ>(mask, x, zero);
                _mm512_maskz_max_pd(mask, _mm512_set1_pd(LEAST), _mm512_mul_pd(factor, x))
            }
        }

        #[inline(always)]
        fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe {
                let wanted = _mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(factor, _mm512_setzero_pd());
                _mm512_maskz_mul_pd(wanted, factor, x)
            }
        }

        #[inline(always)]
        fn shift_lanes<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector {
            // SAFETY: `self` exists only if the CPU has AVX-512.
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
}

/// Defines a function as `multiversion!` does, with a body that is generic over the vector type.
///
/// The body gets the value `simd` as its first argument, an implementation of [`F64s`] and
/// [`super::f32x16::Sixteen`] for the selected instruction set.
macro_rules! on_f64s {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$t:ident: $bound:path $(, const $k:ident: usize)?>)? ($simd:ident: F64s, $($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$t: $bound $(, const $k: usize)?>)? ($($arg: $ty),*) {
            #[inline(always)]
            fn body $(<$t: $bound $(, const $k: usize)?>)? ($simd: impl $crate::simd::f64x8::F64s + $crate::simd::f32x16::Sixteen, $($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$t: $bound $(, const $k: usize)?>)? ($simd: $crate::simd::f64x8::Avx2, $($arg: $ty),*) { body($simd, $($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$t: $bound $(, const $k: usize)?>)? ($simd: $crate::simd::f64x8::Avx512, $($arg: $ty),*) { body($simd, $($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "a function compiled for more instructions than the target has is unsafe to call")]
            match $crate::simd::isa() {
                // SAFETY: isa() is Avx512 only if the CPU has every feature that avx512 enables.
                $crate::simd::Isa::Avx512 => unsafe { avx512($crate::simd::f64x8::Avx512::new(), $($arg),*) },
                // SAFETY: isa() is Avx2 or more only if the CPU has every feature that avx2 enables.
                $crate::simd::Isa::Avx2 => unsafe { avx2($crate::simd::f64x8::Avx2::new(), $($arg),*) },
                $crate::simd::Isa::Portable => body($crate::simd::f64x8::Arrays, $($arg),*),
            }
            #[cfg(not(target_arch = "x86_64"))]
            body($crate::simd::f64x8::Arrays, $($arg),*)
        }
    };
}
pub(crate) use on_f64s;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::on_each_isa;

    /// An operation that writes a vector.
    trait Operation {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]);
    }

    on_f64s! {
        fn run<O: Operation>(simd: F64s, operation: &O, out: &mut [f64; LANES]) {
            operation.write(simd, out);
        }
    }

    fn check<O: Operation>(operation: &O, expected: [f64; LANES]) {
        for result in on_each_isa(|| {
            let mut out = [f64::NAN; LANES];
            run(operation, &mut out);
            out
        }) {
            assert_eq!(result.map(f64::to_bits), expected.map(f64::to_bits), "{result:?}, not {expected:?}");
        }
    }

    const NOW: [f64; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    const NEXT: [f64; LANES] = [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    const FLAGS: [bool; LANES] = [true, false, false, true, true, false, true, false];

    const X: [f64; LANES] = [f64::NAN, 2.0, f64::INFINITY, -4.0, 0.1, f64::NAN, 1e300, 3.0];
    const FACTOR: [f64; LANES] = [0.0, 3.0, 0.0, -0.5, 0.1, 2.0, 1e300, -0.0];

    struct ShiftLanes<const K: usize>;
    impl<const K: usize> Operation for ShiftLanes<K> {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.shift_lanes::<K>(simd.load(&NOW), simd.load(&NEXT)), out);
        }
    }

    struct Select;
    impl Operation for Select {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.select(FLAGS, simd.load(&NOW), simd.load(&NEXT)), out);
        }
    }

    struct MaskZero;
    impl Operation for MaskZero {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            let x = FLAGS.map(|flag| if flag { f64::NAN } else { 3.0 });
            simd.store(simd.mask_zero(FLAGS, simd.load(&x)), out);
        }
    }

    struct Scaled;
    impl Operation for Scaled {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.scaled(simd.load(&FACTOR), simd.load(&X)), out);
        }
    }

    struct AddScaled;
    impl Operation for AddScaled {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.add_scaled(simd.splat(0.7), simd.load(&FACTOR), simd.load(&X)), out);
        }
    }

    struct Blend;
    impl Operation for Blend {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            let behind = [f64::NAN, 2.0, 1e-200, 0.0, 0.1, 3.0, 1e-300, 3.0];
            let factor = [0.0, 3.0, 1e-200, 0.5, 0.1, f64::NAN, 1e-300, 0.0];
            simd.store(simd.blend(simd.load(&factor), simd.load(&behind)), out);
        }
    }

    struct Min;
    impl Operation for Min {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.min(simd.load(&NOW), simd.load(&X)), out);
        }
    }

    struct F32RoundTrip;
    impl Operation for F32RoundTrip {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            let mut singles = [0.0; LANES];
            simd.store_f32(simd.mul(simd.load_f32(&[1.1; LANES]), simd.load(&NOW)), &mut singles);
            simd.store(simd.sub(simd.load_f32(&singles), simd.add(simd.splat(1.0), simd.splat(0.5))), out);
        }
    }

    #[test]
    fn shift_lanes_continues_with_the_next_block() {
        check(&ShiftLanes::<1>, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        check(&ShiftLanes::<2>, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        check(&ShiftLanes::<4>, [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn flags_select_each_lane() {
        check(&Select, [0.0, 9.0, 10.0, 3.0, 4.0, 13.0, 6.0, 15.0]);

        check(&MaskZero, FLAGS.map(|flag| if flag { 0.0 } else { 3.0 }));
    }

    #[test]
    fn a_factor_of_zero_masks_the_other_operand() {
        check(&Scaled, [0.0, 6.0, 0.0, 2.0, 0.1 * 0.1, f64::NAN, f64::INFINITY, 0.0]);

        // Both operations round. With a single rounding, 0.7 + 0.1 * 0.1 has other bits.
        check(&AddScaled, [0.7, 6.7, 0.7, 2.7, 0.7 + 0.1 * 0.1, f64::NAN, f64::INFINITY, 0.7]);
    }

    #[test]
    fn min_returns_nan_only_if_the_second_operand_is_nan() {
        check(&Min, [f64::NAN, 1.0, 2.0, -4.0, 0.1, f64::NAN, 6.0, 3.0]);
    }

    #[test]
    fn blend_is_zero_only_if_an_operand_is_zero() {
        check(&Blend, [0.0, 6.0, LEAST, 0.0, 0.1 * 0.1, f64::NAN, LEAST, 0.0]);
    }

    #[test]
    fn f32_numbers_are_widened_exactly_and_rounded_once() {
        check(&F32RoundTrip, NOW.map(|x| f64::from((f64::from(1.1_f32) * x) as f32) - 1.5));
    }
}
