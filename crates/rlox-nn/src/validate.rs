//! Checks of slices of numbers: the number of rows, and that numbers are finite.

use rlox_core::{Error, Result};

/// Returns the number of rows in a slice whose rows have `dim` numbers.
///
/// # Errors
/// [`Error::Shape`] naming the argument if there are no rows or the last row is incomplete.
pub(crate) fn count_rows(name: &'static str, numbers: &[f32], dim: usize) -> Result<usize> {
    check_some(name, numbers.len())?;
    if !numbers.len().is_multiple_of(dim) {
        let expected = format!("rows of {dim} numbers");
        return Err(Error::shape(name, expected, format!("{} numbers", numbers.len()), "pass complete rows"));
    }
    Ok(numbers.len() / dim)
}

/// Checks that there are rows for a loss, which is a mean over rows.
///
/// # Errors
/// [`Error::Shape`] naming the argument if there are no rows.
pub(crate) fn check_some(name: &'static str, rows: usize) -> Result<()> {
    if rows > 0 {
        return Ok(());
    }
    Err(Error::shape(name, "at least one row", "none", "pass a batch that is not empty"))
}

/// Checks that the numbers of an argument are finite; rows have `dim` numbers.
///
/// # Errors
/// [`Error::NotFinite`] naming the first number that is not finite, and its row.
pub(crate) fn check_finite(name: &'static str, numbers: &[f32], dim: usize) -> Result<()> {
    let non_finite = first_not_finite(numbers, dim);
    let hint = "check the source of the numbers";
    non_finite.map_or(Ok(()), |(got, row)| Err(Error::not_finite(name, "finite numbers", got, hint).at_row(row)))
}

/// Checks that the outputs of a network are finite; rows have `dim` numbers.
///
/// # Errors
/// [`Error::NotFinite`] naming the first number that is not finite, and its row.
pub(crate) fn check_finite_outputs(name: &'static str, outputs: &[f32], dim: usize) -> Result<()> {
    const FIX: &str =
        "check observations and weights for extreme values, or load a checkpoint and lower the learning rate";
    let non_finite = first_not_finite(outputs, dim);
    non_finite.map_or(Ok(()), |(got, row)| Err(Error::not_finite(name, "finite numbers", got, FIX).at_row(row)))
}

/// Returns an error about `obs` instead of an error about non-finite outputs, if a number in `obs`
/// is not finite.
///
/// Rows of `obs` have `dim` numbers. Other errors are returned unchanged.
pub(crate) fn blame_input(error: Error, obs: &[f32], dim: usize) -> Error {
    if matches!(error, Error::NotFinite(_)) { check_finite("obs", obs, dim).err().unwrap_or(error) } else { error }
}

/// Returns the first number that is NaN or infinite, and the index of its row; rows have `dim`
/// numbers.
fn first_not_finite(numbers: &[f32], dim: usize) -> Option<(String, usize)> {
    // Compilers vectorize a loop that counts, but not a loop that ends early.
    if numbers.iter().filter(|x| !x.is_finite()).count() == 0 {
        return None;
    }
    let index = numbers.iter().position(|x| !x.is_finite())?;
    Some((numbers[index].to_string(), index / dim))
}

/// Checks that a number is finite and at least 0.
///
/// # Errors
/// [`Error::Config`] naming the argument.
pub(crate) fn check_not_negative(name: &'static str, number: f32) -> Result<()> {
    if number.is_finite() && number >= 0.0 {
        return Ok(());
    }
    Err(Error::config(name, "a finite number of at least 0", number.to_string(), "pass a number in that range"))
}
