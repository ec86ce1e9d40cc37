//! Kullback-Leibler divergence of a policy from a reference, per token.
//!
//! Let `x = ref - policy` be the difference of the log-probabilities of a token that was sampled
//! from the policy. Then each of `k1 = -x`, `k2 = x^2 / 2` and `k3 = e^x - 1 - x` estimates
//! KL(policy || ref) (Schulman 2020, <http://joschu.net/blog/kl-approx.html>). k1 and k3 are
//! unbiased. k3 has less variance than k1 and is never negative.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use crate::interrupt::{InterruptCheck, PollFn};
use crate::pool::{CHUNK_ELEMENTS, run_chunks, run_rows};
use crate::simd::{Isa, exp, isa, multiversion};
use crate::{Result, advantage::Float, error::check_len};

const LANES: usize = 16;

/// Number of tokens whose terms are computed before they are summed.
const BLOCK: usize = 256;

/// An estimator of KL(policy || ref). In the formulas, `policy` and `ref` are log-probabilities of
/// a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlEstimator {
    /// `policy - ref`: unbiased, may be negative.
    K1,
    /// `(policy - ref)^2 / 2`: biased if the two policies differ much.
    K2,
    /// `e^(ref - policy) - (ref - policy) - 1`: unbiased, never negative.
    K3,
    /// `e^policy * (policy - ref)`: the term of one token of the vocabulary in the exact
    /// divergence.
    ///
    /// The exact divergence is the sum over the whole vocabulary. Do not use this estimator for
    /// sampled tokens.
    Full,
}

/// Reduction over the tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum over the tokens.
    Sum,
    /// Mean over the tokens, or 0 if there are no tokens.
    Mean,
}

/// Computes the estimate of the divergence for each token. The estimate is 0 where `mask` is false,
/// even if a log-probability is NaN.
///
/// All slices have the same length. The kernel rounds the difference of the two log-probabilities.
/// The result is within 16 units in the last place of the exact estimate for this rounded
/// difference.
///
/// # Errors
/// [`crate::Error::Shape`] if the lengths differ. Nothing is written then.
///
/// ```
/// use rlox_core::llm::{KlEstimator, token_kl};
///
/// let mut kl = [9.0; 3];
/// let mask = [true, true, false];
/// token_kl(&[-1.0, -2.0, f64::NAN], &[-1.5, -2.0, 0.0], Some(&mask), KlEstimator::K3, &mut kl)?;
/// assert!((kl[0] - ((-0.5_f64).exp() + 0.5 - 1.0)).abs() < 1e-15);
/// assert_eq!(kl[1..], [0.0, 0.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn token_kl<T: Float>(
    log_probs: &[T],
    ref_log_probs: &[T],
    mask: Option<&[bool]>,
    estimator: KlEstimator,
    kl: &mut [T],
) -> Result<()> {
    let len = log_probs.len();
    check_len("ref_log_probs", ref_log_probs.len(), len)?;
    check_len("mask", mask.map_or(len, <[bool]>::len), len)?;
    check_len("kl", kl.len(), len)?;
    let piece = CHUNK_ELEMENTS / work::<T>(estimator);
    run_chunks([kl], piece, |i, [kl], _| {
        let range = i * piece..i * piece + kl.len();
        let mask = mask.map(|mask| &mask[range.clone()]);
        compute_terms(&log_probs[range.clone()], &ref_log_probs[range], mask, estimator, kl);
        Ok(())
    })
}

/// Computes the sum or mean of the estimates of the divergence over the selected tokens of each
/// sequence.
///
/// A token is selected if its `mask` is true. The inputs hold `kl.len()` sequences of equal length, one after the
/// other.
///
/// # Errors
/// [`crate::Error::Shape`] if the lengths do not match. Nothing is written then.
///
/// ```
/// use rlox_core::llm::{KlEstimator, Reduction, sequence_kl};
///
/// let mut kl = [0.0; 2];
/// let (policy, reference) = ([-1.0, -2.0, -3.0, -4.0], [-2.0, -4.0, -3.0, -3.0]);
/// sequence_kl(&policy, &reference, None, KlEstimator::K1, Reduction::Mean, &mut kl)?;
/// assert_eq!(kl, [1.5, -0.5]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn sequence_kl<T: Float>(
    log_probs: &[T],
    ref_log_probs: &[T],
    mask: Option<&[bool]>,
    estimator: KlEstimator,
    reduction: Reduction,
    kl: &mut [T],
) -> Result<()> {
    let len = log_probs.len();
    check_len("ref_log_probs", ref_log_probs.len(), len)?;
    check_len("mask", mask.map_or(len, <[bool]>::len), len)?;
    let tokens = len.checked_div(kl.len()).unwrap_or(0);
    check_len("log_probs", len, tokens * kl.len())?;
    run_rows(kl, tokens.saturating_mul(work::<T>(estimator)), |b, kl, poll| {
        let range = b * tokens..(b + 1) * tokens;
        let mask = mask.map(|mask| &mask[range.clone()]);
        let (policy, reference) = (&log_probs[range.clone()], &ref_log_probs[range]);
        let sum = if tokens <= InterruptCheck::POLL_ELEMENTS {
            total(policy, reference, mask, estimator, &mut [0.0; LANES])
        } else {
            long_total(policy, reference, mask, estimator, poll)?
        };
        let count = mask.map_or(tokens, |mask| mask.iter().filter(|keep| **keep).count());
        *kl = T::from_f64(if reduction == Reduction::Mean { sum / count.max(1) as f64 } else { sum });
        Ok(())
    })
}

/// Returns the approximate time for the estimate of one token, in units of the time of a
/// subtraction.
fn work<T: Float>(estimator: KlEstimator) -> usize {
    match estimator {
        KlEstimator::K1 | KlEstimator::K2 => 1,
        KlEstimator::K3 | KlEstimator::Full => exp::cost::<T>(),
    }
}

/// Returns true if the instruction set has a fused multiply-add. Otherwise `mul_add` would call a
/// slow function.
fn fuses() -> bool {
    isa() >= Isa::Avx2
}

const K1: u8 = 1;
const K2: u8 = 2;
const K3: u8 = 3;
const FULL: u8 = 4;

#[inline(always)]
fn term<T: Float, const K: u8, const FUSED: bool>(policy: T, reference: T) -> T {
    match K {
        K1 => policy - reference,
        K2 => {
            let x = reference - policy;
            T::from_f64(0.5) * x * x
        }
        K3 => (reference - policy).exp_minus_1_minus_x::<FUSED>(),
        _ => {
            let p = policy.exp::<FUSED>();
            // A token of probability zero adds nothing, even if its reference log-probability is
            // minus infinity.
            (p * (policy - reference)).mask(p != T::from_f64(0.0))
        }
    }
}

multiversion! {
    fn compute_terms<T: Float>(
        log_probs: &[T],
        ref_log_probs: &[T],
        mask: Option<&[bool]>,
        estimator: KlEstimator,
        kl: &mut [T],
    ) {
        match (estimator, fuses()) {
            (KlEstimator::K1, _) => write::<T, K1, false>(log_probs, ref_log_probs, mask, kl),
            (KlEstimator::K2, _) => write::<T, K2, false>(log_probs, ref_log_probs, mask, kl),
            (KlEstimator::K3, false) => write::<T, K3, false>(log_probs, ref_log_probs, mask, kl),
            (KlEstimator::K3, true) => write::<T, K3, true>(log_probs, ref_log_probs, mask, kl),
            (KlEstimator::Full, false) => write::<T, FULL, false>(log_probs, ref_log_probs, mask, kl),
            (KlEstimator::Full, true) => write::<T, FULL, true>(log_probs, ref_log_probs, mask, kl),
        }
    }
}

#[inline(always)]
fn write<T: Float, const K: u8, const FUSED: bool>(
    log_probs: &[T],
    ref_log_probs: &[T],
    mask: Option<&[bool]>,
    kl: &mut [T],
) {
    let pairs = log_probs.iter().zip(ref_log_probs);
    if let Some(mask) = mask {
        for ((kl, keep), (policy, reference)) in kl.iter_mut().zip(mask).zip(pairs) {
            *kl = term::<T, K, FUSED>(*policy, *reference).mask(*keep);
        }
    } else {
        for (kl, (policy, reference)) in kl.iter_mut().zip(pairs) {
            *kl = term::<T, K, FUSED>(*policy, *reference);
        }
    }
}

/// Returns the sum of the estimates over a long sequence. Calls `poll` before each chunk of tokens.
fn long_total<T: Float>(
    log_probs: &[T],
    ref_log_probs: &[T],
    mask: Option<&[bool]>,
    estimator: KlEstimator,
    poll: PollFn<'_>,
) -> Result<f64> {
    let (mut sums, mut sum) = ([0.0; LANES], 0.0);
    for (i, (policy, reference)) in log_probs
        .chunks(InterruptCheck::POLL_ELEMENTS)
        .zip(ref_log_probs.chunks(InterruptCheck::POLL_ELEMENTS))
        .enumerate()
    {
        poll()?;
        let mask = mask.map(|mask| &mask[i * InterruptCheck::POLL_ELEMENTS..][..policy.len()]);
        sum = total(policy, reference, mask, estimator, &mut sums);
    }
    Ok(sum)
}

multiversion! {
    fn total<T: Float>(
        log_probs: &[T],
        ref_log_probs: &[T],
        mask: Option<&[bool]>,
        estimator: KlEstimator,
        sums: &mut [f64; LANES],
    ) -> f64 {
        match (estimator, fuses()) {
            (KlEstimator::K1, _) => sum::<T, K1, false>(log_probs, ref_log_probs, mask, sums),
            (KlEstimator::K2, _) => sum::<T, K2, false>(log_probs, ref_log_probs, mask, sums),
            (KlEstimator::K3, false) => sum::<T, K3, false>(log_probs, ref_log_probs, mask, sums),
            (KlEstimator::K3, true) => sum::<T, K3, true>(log_probs, ref_log_probs, mask, sums),
            (KlEstimator::Full, false) => sum::<T, FULL, false>(log_probs, ref_log_probs, mask, sums),
            (KlEstimator::Full, true) => sum::<T, FULL, true>(log_probs, ref_log_probs, mask, sums),
        }
        sums.iter().sum()
    }
}

#[inline(always)]
fn sum<T: Float, const K: u8, const FUSED: bool>(
    log_probs: &[T],
    ref_log_probs: &[T],
    mask: Option<&[bool]>,
    all: &mut [f64; LANES],
) {
    // Terms and sums have separate loops, so that the compiler can vectorise the terms in `T`.
    let mut terms = [T::from_f64(0.0); BLOCK];
    let mut sums = *all;
    for (b, (policy, reference)) in log_probs.chunks(BLOCK).zip(ref_log_probs.chunks(BLOCK)).enumerate() {
        let terms = &mut terms[..policy.len()];
        let mask = mask.map(|mask| &mask[b * BLOCK..][..policy.len()]);
        write::<T, K, FUSED>(policy, reference, mask, terms);
        let (blocks, rest) = terms.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                sums[i] += block[i].to_f64();
            }
        }
        for (sum, term) in sums.iter_mut().zip(rest) {
            *sum += term.to_f64();
        }
    }
    *all = sums;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::tests::on_each_isa;
    use crate::testing::assert_rejects;
    use crate::{Error, Pcg64};

    const ALL: [KlEstimator; 4] = [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3, KlEstimator::Full];

    fn slow(policy: f64, reference: f64, estimator: KlEstimator) -> f64 {
        let x = reference - policy;
        match estimator {
            KlEstimator::K1 => -x,
            KlEstimator::K2 => x * x / 2.0,
            KlEstimator::K3 => x.exp_m1() - x,
            KlEstimator::Full => policy.exp() * -x,
        }
    }

    /// Checks that over samples of the policy, k1 and k3 estimate KL(policy || ref), not KL(ref || policy).
    ///
    /// The vocabulary has 5 tokens. The standard error is computed from the means of 50 groups of
    /// 20,000 tokens.
    #[test]
    fn sample_means_of_k1_and_k3_equal_the_exact_divergence() {
        let (policy, reference) = ([0.6, 0.2, 0.1, 0.08, 0.02], [0.1, 0.2, 0.3, 0.2, 0.2_f64]);
        let exact = |p: [f64; 5], q: [f64; 5]| (0..5).map(|i| p[i] * (p[i] / q[i]).ln()).sum::<f64>();
        let (forward, backward) = (exact(policy, reference), exact(reference, policy));
        assert!((forward - backward).abs() > 0.05);
        let mut rng = Pcg64::seed_from(7);
        let (mut log_probs, mut ref_log_probs) = (vec![], vec![]);
        for _ in 0..50 * 20_000 {
            let mut u = rng.uniform(0.0, 1.0);
            let token = policy
                .iter()
                .position(|p| {
                    u -= p;
                    u < 0.0
                })
                .unwrap_or(4);
            log_probs.push(policy[token].ln());
            ref_log_probs.push(reference[token].ln());
        }
        let means = |estimator| {
            let mut kl = [0.0; 50];
            sequence_kl(&log_probs, &ref_log_probs, None, estimator, Reduction::Mean, &mut kl).unwrap();
            let mean = kl.iter().sum::<f64>() / 50.0;
            let variance = kl.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 49.0;
            (mean, (variance / 50.0).sqrt())
        };
        let (k1, k3) = (means(KlEstimator::K1), means(KlEstimator::K3));
        for (mean, error) in [k1, k3] {
            assert!((mean - forward).abs() < 4.0 * error && error < 0.01, "{mean} +- {error}, exact {forward}");
            assert!((mean - backward).abs() > 10.0 * error);
        }
        let vocabulary = [policy.map(f64::ln), reference.map(f64::ln)];
        let mut full = [0.0];
        sequence_kl(&vocabulary[0], &vocabulary[1], None, KlEstimator::Full, Reduction::Sum, &mut full).unwrap();
        assert!((full[0] - forward).abs() < 1e-15);
    }

    #[test]
    fn k3_is_accurate_for_tiny_differences() {
        let policy = vec![-1.0_f32; 300];
        let reference: Vec<f32> = (0..300_u16).map(|i| -1.0 + f32::from(i) * f32::EPSILON).collect();
        let mut kl = vec![0.0; 300];
        token_kl(&policy, &reference, None, KlEstimator::K3, &mut kl).unwrap();
        for i in 0..300 {
            let x = f64::from(reference[i]) - f64::from(policy[i]);
            let exact = x * x / 2.0 * (1.0 + x / 3.0);
            assert!((f64::from(kl[i]) - exact).abs() <= 1e-6 * exact, "{i}: {} {exact}", kl[i]);
        }
    }

    #[test]
    fn masked_tokens_do_not_contribute() {
        let log_probs = [f32::NAN, -1.0, f32::NEG_INFINITY, f32::INFINITY];
        for estimator in ALL {
            let mut kl = [9.0; 4];
            token_kl(&log_probs, &[-1.0; 4], Some(&[false; 4]), estimator, &mut kl).unwrap();
            assert_eq!(kl, [0.0; 4]);
            let mut mean = [9.0; 2];
            let mask = [false, true, false, false];
            sequence_kl(&log_probs, &[-2.0; 4], Some(&mask), estimator, Reduction::Mean, &mut mean).unwrap();
            let expected = slow(-1.0, -2.0, estimator) as f32;
            assert!((mean[0] - expected).abs() < 1e-6, "{estimator:?}");
            assert_eq!(mean[1], 0.0);
        }
        let mut kl = [0.0];
        token_kl(&[f64::NAN], &[0.0], None, KlEstimator::K3, &mut kl).unwrap();
        assert!(kl[0].is_nan());
        token_kl(&[f64::NEG_INFINITY], &[f64::NEG_INFINITY], None, KlEstimator::Full, &mut kl).unwrap();
        assert_eq!(kl, [0.0]);
    }

    #[test]
    fn mismatched_lengths_are_rejected() {
        let (three, two) = ([0.0; 3], [0.0; 2]);
        let token = |reference: &[f64], mask: Option<&[bool]>, kl: &mut [f64]| {
            token_kl(&three, reference, mask, KlEstimator::K1, kl)
        };
        assert_rejects(token(&two, None, &mut [0.0; 3]), Error::Shape, "ref_log_probs");
        assert_rejects(token(&three, Some(&[true]), &mut [0.0; 3]), Error::Shape, "mask");
        assert_rejects(token(&three, None, &mut [0.0; 2]), Error::Shape, "kl");
        let sum = |kl: &mut [f64]| sequence_kl(&three, &three, None, KlEstimator::K1, Reduction::Sum, kl);
        assert_rejects(sum(&mut [0.0; 2]), Error::Shape, "log_probs");
        assert_rejects(sum(&mut []), Error::Shape, "log_probs");
        sequence_kl::<f64>(&[], &[], None, KlEstimator::K1, Reduction::Mean, &mut [9.0; 2]).unwrap();
    }

    proptest! {
        #[test]
        fn sequence_kl_equals_the_scalar_formula(
            rows in prop::collection::vec((-8.0..0.0_f64, -8.0..0.0_f64, any::<bool>()), 1..700),
            masked: bool,
        ) {
            let policy: Vec<f64> = rows.iter().map(|row| row.0).collect();
            let reference: Vec<f64> = rows.iter().map(|row| row.1).collect();
            let mask: Vec<bool> = rows.iter().map(|row| row.2).collect();
            for estimator in ALL {
                let expected: f64 = rows
                    .iter()
                    .filter(|row| row.2 || !masked)
                    .map(|row| slow(row.0, row.1, estimator))
                    .sum();
                let single = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
                let wide = || {
                    let (mut sum, mut short) = ([0.0], [0.0_f32]);
                    let mask = masked.then_some(&mask[..]);
                    sequence_kl(&policy, &reference, mask, estimator, Reduction::Sum, &mut sum).unwrap();
                    let (p, r) = (single(&policy), single(&reference));
                    sequence_kl(&p, &r, mask, estimator, Reduction::Sum, &mut short).unwrap();
                    (sum[0], f64::from(short[0]))
                };
                for (sum, short) in on_each_isa(wide) {
                    prop_assert!((sum - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{:?}", estimator);
                    let scale = rows.len() as f64 * 1e-5 + expected.abs() * 1e-4;
                    prop_assert!((short - expected).abs() <= scale, "{:?} {} {}", estimator, short, expected);
                }
            }
        }
    }
}
