//! Weighted sums of several reward functions.

use crate::interrupt::InterruptCheck;
use crate::simd::multiversion;
use crate::{Error, Result, advantage::Float, error::check_len};

/// Maximum magnitude of weights and rewards. Squares of such numbers can be summed without overflow.
const LIMIT: f64 = 1e140;

/// Returns the maximum magnitude of rewards of type `T`. Differences of such rewards do not
/// overflow `T`.
fn limit<T: Float>() -> f64 {
    if size_of::<T>() == 4 { 1e37 } else { LIMIT }
}

/// Computes, in f64, the weighted sum of the rewards that several reward functions gave to each
/// completion.
///
/// Row n of `rewards` holds the `weights.len()` rewards of completion n. A NaN means that a reward
/// function does not apply to the completion. NaNs are excluded from the sum. The sum is NaN if no
/// function applies.
///
/// # Errors
/// - [`Error::Shape`] if the length of `rewards` is not `combined.len() * weights.len()`;
/// - [`Error::Config`] if there are no weights, if a weight is NaN or its magnitude exceeds 1e140, or if the magnitude
///   of a reward or a sum exceeds 1e140 (f32 rewards: 1e37).
///
/// ```
/// let rewards = [1.0, 0.5, f64::NAN, 0.25, f64::NAN, f64::NAN];
/// let mut combined = [0.0; 3];
/// rlox_core::llm::combine_rewards(&rewards, &[1.0, 2.0], &mut combined)?;
/// assert_eq!(combined[..2], [2.0, 0.5]);
/// assert!(combined[2].is_nan());
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn combine_rewards<T: Float>(rewards: &[T], weights: &[f64], combined: &mut [f64]) -> Result<()> {
    check_weights(weights)?;
    check_len("rewards", rewards.len(), weights.len().saturating_mul(combined.len()))?;
    check_size("rewards", rewards)?;
    let (mut interrupt, rows) = (InterruptCheck::default(), (InterruptCheck::POLL_ELEMENTS / weights.len()).max(1));
    for (i, (combined, rewards)) in combined.chunks_mut(rows).zip(rewards.chunks(rows * weights.len())).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        for (sum, row) in combined.iter_mut().zip(rewards.chunks_exact(weights.len())) {
            *sum = weighted(row, weights, &mut interrupt)?;
            if sum.abs() > limit::<T>() {
                let (expected, got) = (format!("weighted sums of at most {:e}", limit::<T>()), format!("{sum:e}"));
                return Err(Error::config("weights", expected, got, "pass smaller weights"));
            }
        }
    }
    Ok(())
}

/// Returns the weighted sum of the rewards that are not NaN, or NaN if all are NaN.
fn weighted<T: Float>(row: &[T], weights: &[f64], interrupt: &mut InterruptCheck) -> Result<f64> {
    let (mut applies, mut total) = (false, 0.0);
    for (i, (row, weights)) in
        row.chunks(InterruptCheck::POLL_ELEMENTS).zip(weights.chunks(InterruptCheck::POLL_ELEMENTS)).enumerate()
    {
        if i > 0 {
            interrupt.check()?;
        }
        for (reward, weight) in row.iter().zip(weights) {
            let reward = reward.to_f64();
            if !reward.is_nan() {
                applies = true;
                total += weight * reward;
            }
        }
    }
    Ok(if applies { total } else { f64::NAN })
}

fn check_weights(weights: &[f64]) -> Result<()> {
    const EXPECTED: &str = "a finite weight of magnitude at most 1e140 for each reward function";
    let error = |got: String| Error::config("weights", EXPECTED, got, "correct it, or remove that reward function");
    if weights.is_empty() {
        return Err(error("none".into()));
    }
    let mut interrupt = InterruptCheck::default();
    for (i, chunk) in weights.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        if let Some(index) = chunk.iter().position(|weight| weight.is_nan() || weight.abs() > LIMIT) {
            return Err(error(format!("{:?}", chunk[index])).at_index(i * InterruptCheck::POLL_ELEMENTS + index));
        }
    }
    Ok(())
}

/// Rejects infinite rewards and rewards whose squares cannot be summed without overflow.
pub(super) fn check_size<T: Float>(argument: &'static str, numbers: &[T]) -> Result<()> {
    let mut interrupt = InterruptCheck::default();
    for (i, chunk) in numbers.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        if within_limit(chunk) {
            continue;
        }
        if let Some(index) = chunk.iter().position(|x| x.to_f64().abs() > limit::<T>()) {
            let expected = format!("magnitudes of at most {:e}, or NaN for missing rewards", limit::<T>());
            let got = format!("{:?}", chunk[index].to_f64());
            let error = Error::config(argument, expected, got, "clip the results of the reward functions");
            return Err(error.at_index(i * InterruptCheck::POLL_ELEMENTS + index));
        }
    }
    Ok(())
}

multiversion! {
    fn within_limit<T: Float>(numbers: &[T]) -> bool {
        let (most, least) = (T::from_f64(limit::<T>()), T::from_f64(-limit::<T>()));
        let mut large = false;
        for x in numbers {
            large |= *x > most;
            large |= *x < least;
        }
        !large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combine_rewards_rejects_wrong_lengths_and_weights() {
        assert!(combine_rewards(&[1.0; 3], &[1.0, 1.0], &mut [0.0; 2]).is_err());
        assert!(combine_rewards(&[1.0; 2], &[f64::NAN], &mut [0.0; 2]).is_err());
        assert!(combine_rewards::<f64>(&[], &[], &mut []).is_err());
        for (weight, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-1e141, "-1e141")] {
            let error = combine_rewards(&[1.0; 2], &[1.0, weight], &mut [0.0]).unwrap_err();
            let wrong = error.mismatch().unwrap();
            assert_eq!((&*wrong.argument, &*wrong.got, wrong.at.index), ("weights", shown, Some(1)));
            assert!(wrong.expected.ends_with("for each reward function"));
        }
        let error = combine_rewards(&[1e139], &[1e10], &mut [0.0]).unwrap_err();
        let wrong = error.mismatch().unwrap();
        assert_eq!((&*wrong.argument, &*wrong.expected), ("weights", "weighted sums of at most 1e140"));
        assert!(wrong.got.starts_with('1') && wrong.at.index.is_none(), "{wrong}");
        assert!(combine_rewards(&[2e37_f32], &[0.1], &mut [0.0]).is_err());
    }

    #[test]
    fn f32_rewards_are_summed_in_f64() {
        let mut combined = [0.0];
        combine_rewards(&[1e9_f32, 1.0], &[1.0, 1e-3], &mut combined).unwrap();
        assert_eq!(combined, [1e9 + 1e-3]);
    }
}
