//! What is asked of sixteen numbers that lie side by side: their sum, their running sums, their least.
//!
//! The types of [`super::f64s`] stand for the instructions, and every one of them adds in the same order. All numbers
//! are taken to be 0 or positive and finite.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::f64s::Arrays;

/// How many numbers there are.
pub(crate) const SIXTEEN: usize = 16;

/// One implementation.
pub(crate) trait Sixteen: Copy {
    type Numbers: Copy;

    fn load_16(self, from: &[f64; SIXTEEN]) -> Self::Numbers;
    fn store_16(self, numbers: Self::Numbers, to: &mut [f64; SIXTEEN]);
    /// Widens each.
    fn load_16_f32(self, from: &[f32; SIXTEEN]) -> Self::Numbers;
    /// The sum: of those 8 apart, of these 4 apart, and so on.
    fn sum(self, numbers: Self::Numbers) -> f64;
    /// Each number with all before it: sums of two, of these four, eight and sixteen, where to all of the later half the
    /// last of the earlier one is added. So they never fall, and rise only at numbers above 0, however they are rounded.
    fn running(self, numbers: Self::Numbers) -> Self::Numbers;
    /// How many of them, which never fall, do not exceed `at`.
    fn at_most(self, sums: Self::Numbers, at: f64) -> usize;
    /// The least of those above 0; 0 if there is none.
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
    fn at_most(self, sums: Self::Numbers, at: f64) -> usize {
        sums.iter().map(|sum| usize::from(*sum <= at)).sum()
    }

    #[inline(always)]
    fn least(self, numbers: &[f32; SIXTEEN]) -> f32 {
        // The bits of such numbers rise with them; those of 0 are made the highest.
        let bits = numbers.iter().fold(u32::MAX, |least, x| least.min(x.to_bits().wrapping_sub(1)));
        f32::from_bits(bits.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::f64s::on_f64s;
    use crate::simd::tests::on_each_isa;

    /// What is found out about sixteen numbers.
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

    /// The same from every implementation, of f32 and f64.
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
    fn whole_numbers() {
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
    fn running_sums_rise_only_at_numbers_above_zero_however_far_these_are_apart() {
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
