//! Refuses NaN and infinity, naming the argument, the environment and the step.

use super::PolicySaid;
use crate::simd::multiversion;
use crate::{Actions, Error, FieldData, Float, Result};

multiversion! {
    /// One pass without branches, so that it vectorises; the search for the culprit is for the unlucky case. NaN is in
    /// no range.
    fn all_within<T: Float>(numbers: &[T], low: T, high: T) -> bool {
        numbers.iter().fold(1, |all, x| all & u8::from(*x >= low) & u8::from(*x <= high)) == 1
    }
}

/// Checks rows of `width` numbers, one per environment from `first` on, of the step `t` if they belong to one.
pub(super) fn check_rows<T: Float>(
    argument: &'static str,
    rows: &[T],
    width: usize,
    first: usize,
    t: Option<usize>,
) -> Result<()> {
    let Some((env, got)) = outside(rows, T::of(-T::LARGEST.wide()), T::LARGEST, width) else { return Ok(()) };
    let got = format!("{got} from environment {}{}", first + env, at_step(t));
    Err(Error::space(argument, "finite numbers", got, "find out where it comes from"))
}

/// Checks observations as [`check_rows`] does, of which only floats can be anything but finite.
pub(super) fn check_obs(
    argument: &'static str,
    rows: FieldData<'_>,
    width: usize,
    first: usize,
    t: Option<usize>,
) -> Result<()> {
    match rows {
        FieldData::F32(rows) => check_rows(argument, rows, width, first, t),
        FieldData::F64(rows) => check_rows(argument, rows, width, first, t),
        FieldData::I64(_) | FieldData::U8(_) | FieldData::Bool(_) => Ok(()),
    }
}

/// Checks the rewards of step `t`, which are to be kept as f32, unless they are `rescaled` before.
pub(super) fn check_rewards(rewards: &[f64], rescaled: bool, t: usize) -> Result<()> {
    let (largest, expected) =
        if rescaled { (f64::MAX, "finite numbers") } else { (f64::from(f32::MAX), "numbers finite in f32") };
    let Some((env, got)) = outside(rewards, -largest, largest, 1) else { return Ok(()) };
    let got = format!("{got} from environment {env}{}", at_step(Some(t)));
    Err(Error::space("rewards", expected, got, "find out where it comes from"))
}

/// Checks what a policy said before step `t`.
pub(super) fn check_said(said: PolicySaid<'_>, t: usize) -> Result<()> {
    if let Actions::Continuous(actions) = said.actions {
        let width = actions.len() / said.values.len().max(1);
        if let Some((env, got)) = outside(actions, f32::MIN, f32::MAX, width) {
            let got = format!("{got} for environment {env}{}", at_step(Some(t)));
            return Err(Error::action("actions", "finite numbers", got, "keep actions finite"));
        }
    }
    check_rows("log_probs", said.log_probs, 1, 0, Some(t))?;
    check_rows("values", said.values, 1, 0, Some(t))
}

/// The first number outside, with its environment.
fn outside<T: Float>(rows: &[T], low: T, high: T, width: usize) -> Option<(usize, T)> {
    if all_within(rows, low, high) {
        return None;
    }
    let at = rows.iter().position(|x| !(*x >= low && *x <= high))?;
    Some((at / width.max(1), rows[at]))
}

fn at_step(t: Option<usize>) -> String {
    t.map_or_else(String::new, |t| format!(" at step {t}"))
}
