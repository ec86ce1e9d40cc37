//! Rows of numbers in slices.

use rlox_core::{Actions, Error, Pcg64, Result};

/// The number of rows of `dim` numbers in a slice.
///
/// # Errors
/// [`Error::Shape`] naming the argument if there is none, or a broken one.
pub(crate) fn count(name: &'static str, numbers: &[f32], dim: usize) -> Result<usize> {
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
/// [`Error::Config`] naming the first that is not, and its row.
pub(crate) fn check_finite(name: &'static str, numbers: &[f32], dim: usize) -> Result<()> {
    let wrong = first_not_finite(numbers, dim);
    wrong.map_or(Ok(()), |got| Err(Error::config(name, "finite numbers", got, "look at where it comes from")))
}

/// Checks that what a network said, rows of `dim`, is finite.
///
/// # Errors
/// [`Error::NotFinite`] naming the first number that is not, and its row.
pub(crate) fn check_said(name: &'static str, outputs: &[f32], dim: usize) -> Result<()> {
    const FIX: &str =
        "look for extreme observations or weights, or go back to a checkpoint and lower the learning rate";
    let wrong = first_not_finite(outputs, dim);
    wrong.map_or(Ok(()), |got| Err(Error::not_finite(name, "finite numbers", got, FIX)))
}

/// The same error, or where outputs are not finite because observations, rows of `dim`, are not, one that says so.
pub(crate) fn blame_obs(error: Error, obs: &[f32], dim: usize) -> Error {
    if matches!(error, Error::NotFinite(_)) { check_taken("obs", obs, dim).err().unwrap_or(error) } else { error }
}

/// Checks that what was taken from environments or computed before, rows of `dim`, is finite.
///
/// # Errors
/// [`Error::NotFinite`] naming the first number that is not, and its row.
pub(crate) fn check_taken(name: &'static str, numbers: &[f32], dim: usize) -> Result<()> {
    let wrong = first_not_finite(numbers, dim);
    wrong.map_or(Ok(()), |got| Err(Error::not_finite(name, "finite numbers", got, "look at where it comes from")))
}

/// Checks that actions that were chosen before, rows of `dim`, are finite.
///
/// # Errors
/// [`Error::NotFinite`] naming the first that is not, and its row.
pub(crate) fn check_actions(actions: Actions<'_>, dim: usize) -> Result<()> {
    if let Actions::Continuous(actions) = actions { check_taken("actions", actions, dim) } else { Ok(()) }
}

/// The first number that is NaN or infinite, and its row, in words.
fn first_not_finite(numbers: &[f32], dim: usize) -> Option<String> {
    // Counts them all, which compilers make vectors of.
    if numbers.iter().filter(|x| !x.is_finite()).count() == 0 {
        return None;
    }
    let at = numbers.iter().position(|x| !x.is_finite())?;
    Some(format!("{} in row {}", numbers[at], at / dim))
}

/// An error of a part of the rows that begins with row `from`, with the row that it names among all of them.
pub(crate) fn counted_from(mut error: Error, from: usize) -> Error {
    if let Some(wrong) = error.mismatch_mut()
        && let Some((before, named)) = wrong.got.split_once("in row ")
    {
        let end = named.find(|c: char| !c.is_ascii_digit()).unwrap_or(named.len());
        if let Ok(row) = named[..end].parse::<usize>() {
            wrong.got = format!("{before}in row {}{}", from + row, &named[end..]);
        }
    }
    error
}

/// Normal numbers of mean 0 and standard deviation 1, from one stream.
pub(crate) fn draw_normal(noise: &mut [f32], rng: &mut Pcg64) {
    for x in noise {
        *x = rand_distr::Distribution::sample(&rand_distr::StandardNormal, rng);
    }
}

/// The numbers of continuous actions.
///
/// # Errors
/// [`Error::Space`] for integers.
pub(crate) fn continuous(actions: Actions<'_>) -> Result<&[f32]> {
    match actions {
        Actions::Continuous(actions) => Ok(actions),
        Actions::Discrete(_) => Err(Error::space("actions", "f32 numbers", "integers", "use DQN, PPO or A2C")),
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
