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
