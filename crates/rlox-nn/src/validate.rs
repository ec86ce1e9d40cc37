//! Checks of numbers in slices: how many rows they are, and whether they are finite.

use rlox_core::{Error, Result};

/// The number of rows of `dim` numbers in a slice.
///
/// # Errors
/// [`Error::Shape`] naming the argument if there is none, or a broken one.
pub(crate) fn count_rows(name: &'static str, numbers: &[f32], dim: usize) -> Result<usize> {
    check_some(name, numbers.len())?;
    if !numbers.len().is_multiple_of(dim) {
        let expected = format!("rows of {dim} numbers");
        return Err(Error::shape(name, expected, format!("{} numbers", numbers.len()), "pass whole rows"));
    }
    Ok(numbers.len() / dim)
}

/// Checks that there are rows, of which a loss takes the mean.
///
/// # Errors
/// [`Error::Shape`] naming the argument if there are none.
pub(crate) fn check_some(name: &'static str, rows: usize) -> Result<()> {
    if rows > 0 {
        return Ok(());
    }
    Err(Error::shape(name, "at least one row", "none", "pass a batch with something in it"))
}

/// Checks that numbers of the caller's, rows of `dim`, are finite.
///
/// # Errors
/// [`Error::NotFinite`] naming the first that is not, and its row.
pub(crate) fn check_finite(name: &'static str, numbers: &[f32], dim: usize) -> Result<()> {
    let non_finite = first_not_finite(numbers, dim);
    let hint = "look at where it comes from";
    non_finite.map_or(Ok(()), |(got, row)| Err(Error::not_finite(name, "finite numbers", got, hint).at_row(row)))
}

/// Checks that what a network said, rows of `dim`, is finite.
///
/// # Errors
/// [`Error::NotFinite`] naming the first number that is not, and its row.
pub(crate) fn check_finite_outputs(name: &'static str, outputs: &[f32], dim: usize) -> Result<()> {
    const FIX: &str =
        "look for extreme observations or weights, or go back to a checkpoint and lower the learning rate";
    let non_finite = first_not_finite(outputs, dim);
    non_finite.map_or(Ok(()), |(got, row)| Err(Error::not_finite(name, "finite numbers", got, FIX).at_row(row)))
}

/// Returns the error, or one about the observations, rows of `dim`, if outputs are not finite because those are not.
pub(crate) fn blame_input(error: Error, obs: &[f32], dim: usize) -> Error {
    if matches!(error, Error::NotFinite(_)) { check_finite("obs", obs, dim).err().unwrap_or(error) } else { error }
}

/// Returns the first number that is NaN or infinite, and its row.
fn first_not_finite(numbers: &[f32], dim: usize) -> Option<(String, usize)> {
    // Counts them all, which compilers make vectors of.
    if numbers.iter().filter(|x| !x.is_finite()).count() == 0 {
        return None;
    }
    let index = numbers.iter().position(|x| !x.is_finite())?;
    Some((numbers[index].to_string(), index / dim))
}

/// Checks a number that is to be finite and at least 0.
///
/// # Errors
/// [`Error::Config`] naming it.
pub(crate) fn check_not_negative(name: &'static str, number: f32) -> Result<()> {
    if number.is_finite() && number >= 0.0 {
        return Ok(());
    }
    Err(Error::config(name, "a finite number, at least 0", number.to_string(), "pass one in that range"))
}
