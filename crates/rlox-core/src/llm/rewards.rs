//! Rewards of several functions as one.

use crate::simd::multiversion;
use crate::{Error, Float, Result, check_len};

/// Rewards must be smaller than this, so that squares can be summed.
const LIMIT: f64 = 1e140;

/// The weighted sum of several reward functions: row n of `rewards` holds what each of `weights.len()` functions gave
/// completion n.
///
/// NaN, for a function that does not apply, is left out of the sum; where no function applies the sum is NaN.
///
/// # Errors
/// [`Error::Shape`] if `rewards` does not hold one row for each element of `combined`; [`Error::Config`] if there are
/// no weights, or a weight or reward is infinite or beyond 1e140 in size, or a weight is NaN.
///
/// ```
/// let rewards = [1.0, 0.5, f64::NAN, 0.25, f64::NAN, f64::NAN];
/// let mut combined = [0.0; 3];
/// rlox_core::llm::combine_rewards(&rewards, &[1.0, 2.0], &mut combined)?;
/// assert_eq!(combined[..2], [2.0, 0.5]);
/// assert!(combined[2].is_nan());
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn combine_rewards<T: Float>(rewards: &[T], weights: &[f64], combined: &mut [T]) -> Result<()> {
    check_weights(weights)?;
    check_len("rewards", rewards.len(), weights.len().saturating_mul(combined.len()))?;
    check_size("rewards", rewards)?;
    for (sum, row) in combined.iter_mut().zip(rewards.chunks_exact(weights.len())) {
        let mut applies = false;
        let mut total = 0.0;
        for (reward, weight) in row.iter().zip(weights) {
            let reward = reward.wide();
            if !reward.is_nan() {
                applies = true;
                total += weight * reward;
            }
        }
        *sum = T::of(if applies { total } else { f64::NAN });
    }
    Ok(())
}

fn check_weights(weights: &[f64]) -> Result<()> {
    let strange = weights.iter().position(|weight| weight.is_nan() || weight.abs() > LIMIT);
    if strange.is_none() && !weights.is_empty() {
        return Ok(());
    }
    let got = strange.map_or_else(|| "none".into(), |at| format!("{:?} at element {at}", weights[at]));
    let fix = "correct it, or leave that reward function out";
    Err(Error::config("weights", "a finite number, of at most 1e140, for each reward function", got, fix))
}

/// Refuses what is infinite or so large that its squares cannot be summed.
pub(super) fn check_size<T: Float>(argument: &'static str, numbers: &[T]) -> Result<()> {
    if within_limit(numbers) {
        return Ok(());
    }
    let strange = numbers.iter().position(|x| x.wide().abs() > LIMIT);
    let got = strange.map_or_else(String::new, |at| format!("{:?} at element {at}", numbers[at].wide()));
    Err(Error::config(
        argument,
        "numbers of at most 1e140 in size, or NaN for missing ones",
        got,
        "clip what the reward functions return",
    ))
}

multiversion! {
    fn within_limit<T: Float>(numbers: &[T]) -> bool {
        let mut large = 0;
        for x in numbers {
            large |= u64::from(x.wide().abs() > LIMIT);
        }
        large == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_do_not_fit_are_refused() {
        assert!(combine_rewards(&[1.0; 3], &[1.0, 1.0], &mut [0.0; 2]).is_err());
        assert!(combine_rewards(&[1.0; 2], &[f64::NAN], &mut [0.0; 2]).is_err());
        assert!(combine_rewards::<f64>(&[], &[], &mut []).is_err());
        for (weight, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-1e141, "-1e141")] {
            let words = combine_rewards(&[1.0; 2], &[1.0, weight], &mut [0.0]).map_err(|error| error.to_string());
            let expected = format!("for each reward function, got {shown} at element 1; correct it");
            assert!(words.is_err_and(|words| words.starts_with("weights: ") && words.contains(&expected)));
        }
    }
}
