//! Masks of actions: how wide they are, and what they forbid.

use rlox_core::{Error, Result, Space};

/// How many flags a row of a policy's masks has: one for each value of each integer; 0 for actions without.
///
/// # Errors
/// [`Error::Space`] for a space that makes no sense, or has more values than can be counted.
///
/// ```
/// use rlox_core::Space;
///
/// assert_eq!(rlox_nn::train::mask_width(&Space::MultiDiscrete { nvec: vec![2, 3] })?, 5);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn mask_width(space: &Space) -> Result<usize> {
    const ACTION_SPACE: &str = "action space";
    space.validate(ACTION_SPACE)?;
    let num_values = match space {
        Space::Discrete { n, .. } => Some(*n),
        Space::MultiDiscrete { nvec } => nvec.iter().try_fold(0, |sum: i64, n| sum.checked_add(*n)),
        Space::MultiBinary { n } => i64::try_from(*n).ok().and_then(|n| n.checked_mul(2)),
        Space::Box { .. } => Some(0),
    };
    // One less than the most, so that a value has room beside the outputs.
    let width = num_values.and_then(|count| usize::try_from(count).ok()).filter(|width| *width < isize::MAX as usize);
    width.ok_or_else(|| {
        let expected = format!("fewer than {} values in all", isize::MAX);
        Error::space(ACTION_SPACE, expected, format!("{space:?}"), "correct the space's definition")
    })
}

/// Checks that masks forbid none of the actions, in rows of so many: `forbidden` is where the first such is.
///
/// # Errors
/// [`Error::Action`] naming it and its row.
pub(super) fn check_allowed(actions: &[i64], choices: usize, forbidden: Option<usize>) -> Result<()> {
    let Some(index) = forbidden else { return Ok(()) };
    let (got, hint) = (actions[index].to_string(), "pass the masks they were chosen under");
    Err(Error::action("actions", "actions that the masks allow", got, hint).at_row(index / choices))
}
