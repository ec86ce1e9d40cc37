//! Importance ratios: probabilities of tokens under the current policy, divided by those under the
//! policy that sampled the tokens.
//!
//! Ratios are per token (PPO, Schulman et al. 2017, arXiv:1707.06347) or per sequence (GSPO, Zheng et al. 2025,
//! arXiv:2507.18071).

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use crate::interrupt::InterruptCheck;
use crate::pool::{CHUNK_ELEMENTS, run_chunks, run_rows};
use crate::simd::{Isa, exp, isa, multiversion};
use crate::{Error, Result, advantage::Float, error::check_len};

/// Computes the importance ratio `e^(log_prob - old_log_prob)` of each token. The ratio is 1 where
/// `mask` is false.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ. Nothing is written then.
///
/// ```
/// let mut ratios = [0.0; 2];
/// rlox_core::llm::policy_ratios(&[-1.0, f64::NAN], &[-1.0, 0.0], Some(&[true, false]), &mut ratios)?;
/// assert_eq!(ratios, [1.0, 1.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn policy_ratios<T: Float>(
    log_probs: &[T],
    old_log_probs: &[T],
    mask: Option<&[bool]>,
    ratios: &mut [T],
) -> Result<()> {
    check_tokens(log_probs, old_log_probs, mask)?;
    check_len("ratios", ratios.len(), log_probs.len())?;
    let piece = CHUNK_ELEMENTS / exp::cost::<T>();
    run_chunks([ratios], piece, |i, [ratios], _| {
        let range = i * piece..i * piece + ratios.len();
        let mask = mask.map(|mask| &mask[range.clone()]);
        compute_ratios(&log_probs[range.clone()], &old_log_probs[range], mask, ratios);
        Ok(())
    })
}

/// Computes the importance ratio of each sequence, `e^mean(log_prob - old_log_prob)` over its
/// selected tokens.
///
/// A token is selected if its `mask` is true. The ratio of a sequence without selected tokens is 1. The inputs hold
/// `ratios.len()` sequences of equal length, one after the other.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not match. Nothing is written then.
///
/// ```
/// let mut ratios = [0.0; 2];
/// rlox_core::llm::sequence_ratios(&[-1.0, -2.0, 0.0, 0.0], &[-2.0, -1.0, 0.0, 0.0], None, &mut ratios)?;
/// assert_eq!(ratios, [1.0, 1.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn sequence_ratios<T: Float>(
    log_probs: &[T],
    old_log_probs: &[T],
    mask: Option<&[bool]>,
    ratios: &mut [T],
) -> Result<()> {
    check_tokens(log_probs, old_log_probs, mask)?;
    let tokens = log_probs.len().checked_div(ratios.len()).unwrap_or(0);
    check_len("log_probs", log_probs.len(), tokens * ratios.len())?;
    run_rows(ratios, tokens, |b, ratio, poll| {
        let index = b * tokens;
        let (mut sum, mut count) = (0.0, 0.0_f64);
        for start in (index..index + tokens).step_by(InterruptCheck::POLL_ELEMENTS) {
            if start > index {
                poll()?;
            }
            for t in start..(start + InterruptCheck::POLL_ELEMENTS).min(index + tokens) {
                if mask.is_none_or(|mask| mask[t]) {
                    sum += log_probs[t].to_f64() - old_log_probs[t].to_f64();
                    count += 1.0;
                }
            }
        }
        *ratio = T::from_f64((sum / count.max(1.0)).exp());
        Ok(())
    })
}

/// Statistics of the importance ratios of the selected tokens of a batch.
///
/// If no token is selected, fractions and `approx_kl` are 0, and mean, minimum and maximum are 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioStats {
    /// Number of selected tokens.
    pub count: usize,
    /// Mean ratio.
    pub mean: f64,
    /// Smallest ratio.
    pub min: f64,
    /// Largest ratio.
    pub max: f64,
    /// Fraction of the selected tokens with a ratio below `1 - clip_low`. If advantages were given,
    /// only tokens with a negative advantage count as clipped.
    pub clip_fraction_low: f64,
    /// Fraction of the selected tokens with a ratio above `1 + clip_high`. If advantages were
    /// given, only tokens with a positive advantage count as clipped.
    pub clip_fraction_high: f64,
    /// Mean of `(ratio - 1) - ln ratio`, an estimate of KL(old || new).
    pub approx_kl: f64,
}

/// Computes statistics of the importance ratios of the selected tokens, which are those whose
/// `mask` is true.
///
/// `advantages` holds one number per token, or one per sequence if all sequences have equal length.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not match; [`Error::Config`] if a clip range is negative or NaN.
///
/// ```
/// use rlox_core::llm::ratio_stats;
///
/// let (new, old) = ([0.5_f64.ln(), 1.1_f64.ln(), 1.5_f64.ln(), 0.0], [0.0; 4]);
/// let stats = ratio_stats(&new, &old, None, 0.2, 0.2, None)?;
/// assert_eq!((stats.clip_fraction_low, stats.clip_fraction_high), (0.25, 0.25));
/// // PPO clips only ratios that moved too far in the direction of the advantage.
/// let stats = ratio_stats(&new, &old, None, 0.2, 0.2, Some(&[1.0]))?;
/// assert_eq!((stats.clip_fraction_low, stats.clip_fraction_high), (0.0, 0.25));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn ratio_stats<T: Float>(
    log_probs: &[T],
    old_log_probs: &[T],
    mask: Option<&[bool]>,
    clip_low: f64,
    clip_high: f64,
    advantages: Option<&[T]>,
) -> Result<RatioStats> {
    let len = log_probs.len();
    check_tokens(log_probs, old_log_probs, mask)?;
    for (name, clip) in [("clip_low", clip_low), ("clip_high", clip_high)] {
        if clip.is_nan() || clip < 0.0 {
            let hint = "pass the distance from 1, such as 0.2";
            return Err(Error::config(name, "a number that is not negative", clip.to_string(), hint));
        }
    }
    let per = advantages.map_or(1, |advantages| len.checked_div(advantages.len()).unwrap_or(0));
    check_len("advantages", advantages.map_or(len, |advantages| advantages.len() * per), len)?;
    let mut tally = Tally { count: 0, sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY, low: 0, high: 0, kl: 0.0 };
    let mut buffer = [T::from_f64(0.0); 2 * BLOCK];
    let (mut start, mut interrupt) = (0, InterruptCheck::default());
    while start < len {
        if start.is_multiple_of(CHUNK_ELEMENTS) && start > 0 {
            interrupt.check()?;
        }
        let end = len.min(start + BLOCK);
        let both = &mut buffer[..2 * (end - start)];
        let (ratios, kl) = both.split_at_mut(end - start);
        terms(&log_probs[start..end], &old_log_probs[start..end], ratios, kl);
        for (i, (ratio, kl)) in ratios.iter().zip(kl.iter()).enumerate() {
            if mask.is_none_or(|mask| mask[start + i]) {
                let advantage = advantages.map(|advantages| advantages[(start + i) / per].to_f64());
                tally.add(ratio.to_f64(), kl.to_f64(), [clip_low, clip_high], advantage);
            }
        }
        start = end;
    }
    Ok(tally.stats())
}

const BLOCK: usize = 512;

struct Tally {
    count: usize,
    sum: f64,
    min: f64,
    max: f64,
    low: usize,
    high: usize,
    kl: f64,
}

impl Tally {
    #[inline(always)]
    fn add(&mut self, ratio: f64, kl: f64, [clip_low, clip_high]: [f64; 2], advantage: Option<f64>) {
        self.count += 1;
        self.sum += ratio;
        self.kl += kl;
        // A NaN ratio makes both the minimum and the maximum NaN.
        self.min = if self.min <= ratio || self.min.is_nan() { self.min } else { ratio };
        self.max = if self.max >= ratio || self.max.is_nan() { self.max } else { ratio };
        self.low += usize::from(ratio < 1.0 - clip_low && advantage.is_none_or(|advantage| advantage < 0.0));
        self.high += usize::from(ratio > 1.0 + clip_high && advantage.is_none_or(|advantage| advantage > 0.0));
    }

    fn stats(self) -> RatioStats {
        let Self { count, sum, min, max, low, high, kl } = self;
        let n = count.max(1) as f64;
        let [mean, min, max] = if count == 0 { [1.0; 3] } else { [sum / n, min, max] };
        let (low, high) = (low as f64 / n, high as f64 / n);
        RatioStats { count, mean, min, max, clip_fraction_low: low, clip_fraction_high: high, approx_kl: kl / n }
    }
}

fn check_tokens<T: Float>(log_probs: &[T], old_log_probs: &[T], mask: Option<&[bool]>) -> Result<()> {
    let len = log_probs.len();
    check_len("old_log_probs", old_log_probs.len(), len)?;
    check_len("mask", mask.map_or(len, <[bool]>::len), len)
}

#[inline(always)]
fn ratio<T: Float>(x: T, fused: bool) -> T {
    if fused { x.exp::<true>() } else { x.exp::<false>() }
}

multiversion! {
    fn compute_ratios<T: Float>(log_probs: &[T], old_log_probs: &[T], mask: Option<&[bool]>, ratios: &mut [T]) {
        let fused = isa() >= Isa::Avx2;
        let pairs = log_probs.iter().zip(old_log_probs);
        if let Some(mask) = mask {
            for ((out, keep), (new, old)) in ratios.iter_mut().zip(mask).zip(pairs) {
                *out = ratio((*new - *old).mask(*keep), fused);
            }
        } else {
            for (out, (new, old)) in ratios.iter_mut().zip(pairs) {
                *out = ratio(*new - *old, fused);
            }
        }
    }
}

multiversion! {
    /// Writes the ratio and `(ratio - 1) - ln ratio` of each token.
    fn terms<T: Float>(log_probs: &[T], old_log_probs: &[T], ratios: &mut [T], kl: &mut [T]) {
        compute_ratios(log_probs, old_log_probs, None, ratios);
        let fused = isa() >= Isa::Avx2;
        for (out, (new, old)) in kl.iter_mut().zip(log_probs.iter().zip(old_log_probs)) {
            let x = *new - *old;
            *out = if fused { x.exp_minus_1_minus_x::<true>() } else { x.exp_minus_1_minus_x::<false>() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::tests::on_each_isa;

    #[test]
    fn ratio_stats_equals_the_formulas_on_every_instruction_set() {
        let mut rng = Pcg64::seed_from(5);
        let n = 2 * 700;
        let new: Vec<f64> = (0..n).map(|_| rng.uniform(-3.0, 0.0)).collect();
        let old: Vec<f64> = new.iter().map(|x| x + rng.uniform(-0.6, 0.6)).collect();
        let mask: Vec<bool> = (0..n).map(|_| rng.uniform(0.0, 1.0) < 0.7).collect();
        let selected: Vec<f64> = (0..n).filter(|&i| mask[i]).map(|i| (new[i] - old[i]).exp()).collect();
        let share = |f: &dyn Fn(f64) -> bool| selected.iter().filter(|x| f(**x)).count() as f64 / selected.len() as f64;
        let mean = |f: &dyn Fn(f64) -> f64| selected.iter().map(|x| f(*x)).sum::<f64>() / selected.len() as f64;
        for stats in on_each_isa(|| ratio_stats(&new, &old, Some(&mask), 0.2, 0.3, None).unwrap()) {
            assert_eq!(stats.count, selected.len());
            assert!((stats.mean - mean(&|x| x)).abs() < 1e-12);
            assert!((stats.approx_kl - mean(&|x| x - 1.0 - x.ln())).abs() < 1e-12);
            assert_eq!(stats.clip_fraction_low, share(&|x| x < 0.8));
            assert_eq!(stats.clip_fraction_high, share(&|x| x > 1.3));
            assert!((stats.min - selected.iter().copied().fold(9.0, f64::min)).abs() < 1e-14);
            assert!((stats.max - selected.iter().copied().fold(0.0, f64::max)).abs() < 1e-14);
        }
        let mut advantages = [1.0, -1.0];
        let both = ratio_stats(&new, &old, Some(&mask), 0.2, 0.3, Some(&advantages)).unwrap();
        advantages.reverse();
        let other = ratio_stats(&new, &old, Some(&mask), 0.2, 0.3, Some(&advantages)).unwrap();
        assert!((both.clip_fraction_low + other.clip_fraction_low - share(&|x| x < 0.8)).abs() < 1e-12);
        assert!(both.clip_fraction_high > 0.0 && other.clip_fraction_high > 0.0);
    }

    #[test]
    fn empty_selections_nan_and_wrong_lengths_are_handled() {
        let stats = ratio_stats(&[f32::NAN; 3], &[0.0; 3], Some(&[false; 3]), 0.2, 0.2, None).unwrap();
        assert_eq!((stats.count, stats.mean, stats.min, stats.max, stats.approx_kl), (0, 1.0, 1.0, 1.0, 0.0));
        let stats = ratio_stats(&[0.0, f64::NAN, 0.0], &[0.0; 3], None, 0.2, 0.2, None).unwrap();
        assert!(stats.mean.is_nan() && stats.min.is_nan() && stats.max.is_nan() && stats.approx_kl.is_nan());
        let mut ratios = [0.0; 1];
        sequence_ratios(&[-1.0, -2.0, f64::NAN], &[-1.5, -3.0, 0.0], Some(&[true, true, false]), &mut ratios).unwrap();
        assert_eq!(ratios, [0.75_f64.exp()]);
        assert!(sequence_ratios::<f64>(&[0.0; 3], &[0.0; 3], None, &mut [0.0; 2]).is_err());
        assert!(ratio_stats(&[0.0; 2], &[0.0; 2], None, -0.1, 0.2, None).is_err());
        assert!(ratio_stats(&[0.0; 4], &[0.0; 4], None, 0.2, 0.2, Some(&[1.0; 3])).is_err());
        assert!(policy_ratios(&[0.0; 2], &[0.0; 3], None, &mut [0.0; 2]).is_err());
    }
}
