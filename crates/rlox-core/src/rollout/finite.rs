//! Refuses NaN and infinity, naming the argument, the environment and the step.

use std::fmt::Display;

use super::PolicySaid;
use crate::simd::multiversion;
use crate::{Actions, Error, FieldData, Result};

/// Up to how many numbers choosing an instruction set would take longer than looking at them.
const SHORT: usize = 64;

/// Numbers that may be too large, or none.
pub(super) trait Bounded: Copy + Display + PartialOrd {
    /// The largest finite number.
    const LARGEST: Self;

    /// Whether all numbers are at most so far from 0; NaN never is.
    fn all_within(numbers: &[Self], limit: Self) -> bool;

    /// Whether this number is.
    fn is_within(self, limit: Self) -> bool;
}

macro_rules! bounded {
    ($float:ident, $bits:ident) => {
        impl Bounded for $float {
            const LARGEST: Self = Self::MAX;

            // On the bits, which rise with the number: one that is too large carries over into the sign. So nothing
            // branches or is compared, and every instruction set has vectors for it.
            #[inline(always)]
            fn all_within(numbers: &[Self], limit: Self) -> bool {
                const POSITIVE: $bits = $bits::MAX >> 1;
                let room = POSITIVE - limit.to_bits();
                numbers.iter().fold(0, |over, x| over | ((x.to_bits() & POSITIVE) + room)) <= POSITIVE
            }

            fn is_within(self, limit: Self) -> bool {
                self.abs() <= limit
            }
        }
    };
}
bounded!(f32, u32);
bounded!(f64, u64);

multiversion! {
    fn many_within<T: Bounded>(numbers: &[T], limit: T) -> bool {
        T::all_within(numbers, limit)
    }
}

/// Checks rows of `width` numbers, one per environment from `first` on, of the step `t` if they belong to one.
pub(super) fn check_rows<T: Bounded>(
    argument: &'static str,
    rows: &[T],
    width: usize,
    first: usize,
    t: Option<usize>,
) -> Result<()> {
    let Some((env, got)) = outside(rows, T::LARGEST, width) else { return Ok(()) };
    let error = Error::not_finite(argument, "finite numbers", got.to_string(), "find out where it comes from");
    let error = error.at_env(first + env);
    Err(if let Some(t) = t { error.at_row(t) } else { error })
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

/// The first number of rows of `width` that is NaN or infinite, with its row.
pub(crate) fn first_not_finite(rows: FieldData<'_>, width: usize) -> Option<(usize, f64)> {
    match rows {
        FieldData::F32(rows) => outside(rows, f32::MAX, width).map(|(row, x)| (row, x.into())),
        FieldData::F64(rows) => outside(rows, f64::MAX, width),
        FieldData::I64(_) | FieldData::U8(_) | FieldData::Bool(_) => None,
    }
}

/// Checks the rewards of step `t`, which are to be kept as f32, unless they are `rescaled` before.
pub(super) fn check_rewards(rewards: &[f64], rescaled: bool, t: usize) -> Result<()> {
    let (largest, expected) =
        if rescaled { (f64::MAX, "finite numbers") } else { (f64::from(f32::MAX), "numbers finite in f32") };
    let Some((env, got)) = outside(rewards, largest, 1) else { return Ok(()) };
    let error = Error::not_finite("rewards", expected, got.to_string(), "find out where it comes from");
    Err(error.at_env(env).at_row(t))
}

/// Checks what a policy said before step `t`.
pub(super) fn check_said(said: PolicySaid<'_>, t: usize) -> Result<()> {
    if let Actions::Continuous(actions) = said.actions {
        let width = actions.len() / said.values.len().max(1);
        if let Some((env, got)) = outside(actions, f32::MAX, width) {
            let error = Error::not_finite("actions", "finite numbers", got.to_string(), "keep actions finite");
            return Err(error.at_env(env).at_row(t));
        }
    }
    check_rows("log_probs", said.log_probs, 1, 0, Some(t))?;
    check_rows("values", said.values, 1, 0, Some(t))
}

/// The first number outside, with its environment.
#[inline]
fn outside<T: Bounded>(rows: &[T], limit: T, width: usize) -> Option<(usize, T)> {
    let all = if rows.len() <= SHORT { T::all_within(rows, limit) } else { many_within(rows, limit) };
    if all { None } else { first_outside(rows, limit, width) }
}

#[cold]
fn first_outside<T: Bounded>(rows: &[T], limit: T, width: usize) -> Option<(usize, T)> {
    let at = rows.iter().position(|x| !x.is_within(limit))?;
    Some((at / width.max(1), rows[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_outside_is_found_on_every_instruction_set() {
        for len in [1, 7, 64, 65, 300] {
            for (limit, inside, bad) in [
                (f64::MAX, f64::MAX, [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -f64::NAN]),
                (f64::from(f32::MAX), f64::from(f32::MAX), [1e39, -1e39, f64::NAN, f64::INFINITY]),
            ] {
                let good: Vec<_> = (0..len).map(|i| if i % 2 == 0 { inside } else { -inside }).collect();
                for found in crate::simd::tests::on_each_isa(|| outside(&good, limit, 1).is_some()) {
                    assert!(!found);
                }
                for bad in bad {
                    let mut numbers = good.clone();
                    numbers[len - 1] = bad;
                    for found in crate::simd::tests::on_each_isa(|| outside(&numbers, limit, 2)) {
                        assert_eq!(found.map(|(env, x)| (env, x.to_bits())), Some(((len - 1) / 2, bad.to_bits())));
                    }
                }
            }
        }
        assert!(outside(&[f32::MAX, f32::MIN, -0.0], f32::MAX, 1).is_none());
        assert!(outside(&[0.0, f32::NAN], f32::MAX, 1).is_some_and(|(env, _)| env == 1));
    }
}
