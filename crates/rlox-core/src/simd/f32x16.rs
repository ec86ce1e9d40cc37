//! Sum, running sums and minimum of sixteen adjacent numbers in memory.
//!
//! The types of [`super::f64x8`] select the instruction set. All implementations add in the same
//! order, so their results are equal. All numbers must be finite and at least 0.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use super::f64x8::Arrays;

/// Number of numbers that an operation processes.
pub(crate) const SIXTEEN: usize = 16;

/// Implementation with one instruction set.
pub(crate) trait Sixteen: Copy {
    type Numbers: Copy;

    fn load_16(self, from: &[f64; SIXTEEN]) -> Self::Numbers;
    fn store_16(self, numbers: Self::Numbers, to: &mut [f64; SIXTEEN]);
    /// Loads the numbers and converts them to f64.
    fn load_16_f32(self, from: &[f32; SIXTEEN]) -> Self::Numbers;
    /// Returns the sum. Numbers i and i + 8 are added first, then sums i and i + 4, and so on.
    fn sum(self, numbers: Self::Numbers) -> f64;
    /// Returns the running sums. Element i is the sum of the numbers 0 to i.
    ///
    /// Running sums of two numbers are combined to those of four, eight and sixteen: the last sum
    /// of the first half is added to every sum of the second half. Therefore, with any rounding,
    /// the running sums never decrease, and they increase only at positive numbers.
    fn running(self, numbers: Self::Numbers) -> Self::Numbers;
    /// Returns the number of elements of `sums` that are at most `bound`. `sums` must be in
    /// ascending order.
    fn at_most(self, sums: Self::Numbers, bound: f64) -> usize;
    /// Returns the smallest positive number, or 0 if no number is positive.
    fn least(self, numbers: &[f32; SIXTEEN]) -> f32;
}

impl Sixteen for Arrays {
    type Numbers = [f64; SIXTEEN];

    #[inline(always)]
    fn load_16(self, from: &[f64; SIXTEEN]) -> Self::Numbers {
        *from
    }

    #[inline(always)]
    fn load_16_f32(self, from: &[f32; SIXTEEN]) -> Self::Numbers {
        from.map(f64::from)
    }

    #[inline(always)]
    fn sum(self, x: Self::Numbers) -> f64 {
        let x: [f64; 8] = std::array::from_fn(|i| x[i] + x[i + 8]);
        let x: [f64; 4] = std::array::from_fn(|i| x[i] + x[i + 4]);
        (x[0] + x[2]) + (x[1] + x[3])
    }

    #[inline(always)]
    fn running(self, mut x: Self::Numbers) -> Self::Numbers {
        for half in [1, 2, 4, 8] {
            for both in x.chunks_exact_mut(2 * half) {
                let (earlier, later) = both.split_at_mut(half);
                for x in later {
                    *x += earlier[half - 1];
                }
            }
        }
        x
    }

    #[inline(always)]
    fn store_16(self, numbers: Self::Numbers, to: &mut [f64; SIXTEEN]) {
        *to = numbers;
    }

    #[inline(always)]
    fn at_most(self, sums: Self::Numbers, bound: f64) -> usize {
        sums.iter().map(|sum| usize::from(*sum <= bound)).sum()
    }

    #[inline(always)]
    fn least(self, numbers: &[f32; SIXTEEN]) -> f32 {
        // The bits of positive floats, read as integers, are ordered like the floats. Subtracting 1
        // wraps the bits of 0 to the largest integer.
        let bits = numbers.iter().fold(u32::MAX, |least, x| least.min(x.to_bits().wrapping_sub(1)));
        f32::from_bits(bits.wrapping_add(1))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Sixteen f64 in four AVX2 registers, or sixteen f32 in two.

    #![expect(
        clippy::inline_always,
        unsafe_code,
        reason = "only inlined functions are compiled for these instructions, which are unsafe to call"
    )]
    #![allow(clippy::wildcard_imports, reason = "a list of intrinsics is uninformative")]

    use std::arch::x86_64::*;

    use super::{SIXTEEN, Sixteen};
    use crate::simd::f64x8::Avx2;

    /// Returns the running sums of four numbers.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn running(x: __m256d) -> __m256d {
        let zero = _mm256_setzero_pd();
        // In lanes that must not change, 0 is added.
        let x = _mm256_add_pd(x, _mm256_unpacklo_pd(zero, x));
        let second = _mm256_permute4x64_pd::<0b0101_0101>(x);
        _mm256_add_pd(x, _mm256_blend_pd::<0b1100>(zero, second))
    }

    /// Adds the last running sum of `before` to each running sum of `x`.
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
            // SAFETY: `self` exists only if the CPU has AVX2; each of the arrays holds four numbers.
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
            // SAFETY: `self` exists only if the CPU has AVX2.
            unsafe {
                let x = _mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d));
                let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
                _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
            }
        }

        #[inline(always)]
        fn running(self, [a, b, c, d]: Self::Numbers) -> Self::Numbers {
            // SAFETY: `self` exists only if the CPU has AVX2.
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
        fn at_most(self, [a, b, c, d]: Self::Numbers, bound: f64) -> usize {
            // SAFETY: `self` exists only if the CPU has AVX2.
            let bits = unsafe {
                let bound = _mm256_set1_pd(bound);
                let a = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(a, bound));
                let b = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(b, bound));
                let c = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(c, bound));
                let d = _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(d, bound));
                a | b << 4 | c << 8 | d << 12
            };
            bits.trailing_ones() as usize
        }

        #[inline(always)]
        fn least(self, numbers: &[f32; SIXTEEN]) -> f32 {
            let (eight, _) = numbers.as_chunks::<8>();
            // SAFETY: `self` exists only if the CPU has AVX2; each half holds eight numbers.
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
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    //! Sixteen f64 in two AVX-512 registers, or sixteen f32 in one.

    #![expect(
        clippy::inline_always,
        unsafe_code,
        reason = "only inlined functions are compiled for these instructions, which are unsafe to call"
    )]
    #![allow(clippy::wildcard_imports, reason = "a list of intrinsics is uninformative")]

    use std::arch::x86_64::*;

    use super::{SIXTEEN, Sixteen};
    use crate::simd::f64x8::Avx512;

    /// Returns the running sums of eight numbers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn running(x: __m512d) -> __m512d {
        // In lanes that must not change, 0 is added.
        let x = _mm512_add_pd(x, _mm512_unpacklo_pd(_mm512_setzero_pd(), x));
        let x = _mm512_add_pd(x, _mm512_maskz_permutex_pd::<0b0101_0101>(0b1100_1100, x));
        _mm512_add_pd(x, _mm512_maskz_permutexvar_pd(0b1111_0000, _mm512_set1_epi64(3), x))
    }

    impl Sixteen for Avx512 {
        type Numbers = [__m512d; 2];

        #[inline(always)]
        fn load_16(self, from: &[f64; SIXTEEN]) -> Self::Numbers {
            let (halves, _) = from.as_chunks::<8>();
            // SAFETY: `self` exists only if the CPU has AVX-512; each half holds eight numbers.
            unsafe { [_mm512_loadu_pd(halves[0].as_ptr()), _mm512_loadu_pd(halves[1].as_ptr())] }
        }

        #[inline(always)]
        fn load_16_f32(self, from: &[f32; SIXTEEN]) -> Self::Numbers {
            let (halves, _) = from.as_chunks::<8>();
            // SAFETY: as in `load_16`.
            unsafe {
                [
                    _mm512_cvtps_pd(_mm256_loadu_ps(halves[0].as_ptr())),
                    _mm512_cvtps_pd(_mm256_loadu_ps(halves[1].as_ptr())),
                ]
            }
        }

        #[inline(always)]
        fn sum(self, [low, high]: Self::Numbers) -> f64 {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe {
                let x = _mm512_add_pd(low, high);
                let x = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x));
                let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
                _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
            }
        }

        #[inline(always)]
        fn running(self, [low, high]: Self::Numbers) -> Self::Numbers {
            // SAFETY: `self` exists only if the CPU has AVX-512.
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
        fn at_most(self, [low, high]: Self::Numbers, bound: f64) -> usize {
            // SAFETY: `self` exists only if the CPU has AVX-512.
            unsafe {
                let bound = _mm512_set1_pd(bound);
                let low = _mm512_cmp_pd_mask::<_CMP_LE_OQ>(low, bound);
                let high = _mm512_cmp_pd_mask::<_CMP_LE_OQ>(high, bound);
                (u32::from(high) << 8 | u32::from(low)).trailing_ones() as usize
            }
        }

        #[inline(always)]
        fn least(self, numbers: &[f32; SIXTEEN]) -> f32 {
            // SAFETY: `self` exists only if the CPU has AVX-512; the array holds 16 numbers.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::f64x8::on_f64s;
    use crate::simd::tests::on_each_isa;

    /// Results of all operations on sixteen numbers.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Found {
        sum: f64,
        running: [f64; SIXTEEN],
        at_most: usize,
        least: f32,
    }

    on_f64s! {
        fn find(simd: F64s, singles: &[f32; SIXTEEN], at: f64, found: &mut [Found; 2]) {
            let doubles = singles.map(f64::from);
            for (found, numbers) in found.iter_mut().zip([simd.load_16(&doubles), simd.load_16_f32(singles)]) {
                let running = simd.running(numbers);
                simd.store_16(running, &mut found.running);
                found.sum = simd.sum(numbers);
                found.at_most = simd.at_most(running, at);
                found.least = simd.least(singles);
            }
        }
    }

    /// Returns the results, after a check that they are equal for all implementations and for f32
    /// and f64.
    fn found(numbers: &[f32; SIXTEEN], at: f64) -> Found {
        let results = on_each_isa(|| {
            let mut found = [Found::default(); 2];
            find(numbers, at, &mut found);
            found
        });
        let first = results[0][0];
        assert!(results.iter().flatten().all(|found| *found == first), "{numbers:?} {at}: {results:?}");
        first
    }

    #[test]
    fn results_for_integers_are_exact() {
        let numbers = std::array::from_fn(|i| i as f32);
        let running = std::array::from_fn(|i| (i * (i + 1) / 2) as f64);
        assert_eq!(found(&numbers, 9.5), Found { sum: 120.0, running, at_most: 4, least: 1.0 });
        assert_eq!(found(&numbers, 10.0).at_most, 5);
        assert_eq!(found(&numbers, -1.0).at_most, 0);
        assert_eq!(found(&numbers, 119.5).at_most, 15);
        assert_eq!(found(&numbers, 120.0).at_most, 16);
        assert_eq!(found(&[0.0; SIXTEEN], 0.0), Found { at_most: 16, ..Found::default() });
        for i in 0..SIXTEEN {
            let mut numbers = [f32::MAX; SIXTEEN];
            numbers[i] = f32::MIN_POSITIVE;
            assert_eq!(found(&numbers, 0.0).least, f32::MIN_POSITIVE);
        }
    }

    #[test]
    fn running_sums_increase_only_at_positive_numbers() {
        let mut rng = Pcg64::seed_from(1);
        for spread in [1.0, 10.0, 80.0] {
            for _ in 0..2000 {
                let numbers: [f32; SIXTEEN] = std::array::from_fn(|_| {
                    let positive = 2.0_f64.powf(rng.uniform(-spread, spread)) as f32;
                    if rng.random() < 0.4 { 0.0 } else { positive }
                });
                let exact = numbers.map(f64::from).iter().sum::<f64>();
                let Found { sum, running, at_most, least } = found(&numbers, exact * rng.random());
                assert!((sum - exact).abs() <= 16.0 * f64::EPSILON * exact);
                assert!((running[15] - exact).abs() <= 16.0 * f64::EPSILON * exact);
                for i in 1..SIXTEEN {
                    assert!(running[i] >= running[i - 1] && (numbers[i] > 0.0 || running[i] == running[i - 1]));
                }
                assert!(at_most == SIXTEEN || numbers[at_most] > 0.0);
                let positive = numbers.into_iter().filter(|x| *x > 0.0).reduce(f32::min);
                assert_eq!(least, positive.unwrap_or(0.0));
            }
        }
    }
}
