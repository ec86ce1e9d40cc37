//! Rows of numbers in slices.

use rlox_core::{Error, Pcg64, Result};

/// The number of rows of `dim` numbers in a slice.
///
/// # Errors
/// [`Error::Shape`] naming the argument if there is none, or a broken one.
pub(crate) fn count(name: &'static str, numbers: &[f32], dim: usize) -> Result<usize> {
    if numbers.is_empty() || !numbers.len().is_multiple_of(dim) {
        let expected = format!("rows of {dim} numbers");
        return Err(Error::shape(name, expected, format!("{} numbers", numbers.len()), "pass whole rows"));
    }
    Ok(numbers.len() / dim)
}

/// Checks that all numbers of rows of `dim` are finite.
///
/// # Errors
/// [`Error::Config`] naming the first that is not, and its row.
pub(crate) fn check_finite(name: &'static str, numbers: &[f32], dim: usize, fix: &'static str) -> Result<()> {
    // Looks at all of them, which compilers make vectors of.
    if numbers.iter().fold(true, |finite, x| finite & x.is_finite()) {
        return Ok(());
    }
    Err(not_finite(name, numbers, dim, fix))
}

#[cold]
fn not_finite(name: &'static str, numbers: &[f32], dim: usize, fix: &'static str) -> Error {
    let at = numbers.iter().position(|x| !x.is_finite()).unwrap_or(0);
    Error::config(name, "finite numbers", format!("{} in row {}", numbers[at], at / dim), fix)
}

/// What to do about a number of the caller's that is NaN or infinite.
pub(crate) const SOURCE: &str = "look at where it comes from";

/// What to do about a network that says NaN or infinity.
pub(crate) const SPOILT: &str =
    "look for extreme observations or weights, or go back to a checkpoint and lower the learning rate";

/// Normal numbers of mean 0 and standard deviation 1, from one stream.
pub(crate) fn draw_normal(noise: &mut [f32], rng: &mut Pcg64) {
    for x in noise {
        *x = rand_distr::Distribution::sample(&rand_distr::StandardNormal, rng);
    }
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
