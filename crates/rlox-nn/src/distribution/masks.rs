//! Action masks: their width and the actions that they forbid.

use rlox_core::{Error, Result, Space};

/// Returns the number of flags of a mask row: one for each value of each integer, 0 for a Box.
///
/// # Errors
/// [`Error::Space`] for an invalid space or a space with too many values.
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
    // One less than the maximum: a shared network has a value output as well.
    let width = num_values.and_then(|count| usize::try_from(count).ok()).filter(|width| *width < isize::MAX as usize);
    width.ok_or_else(|| {
        let expected = format!("fewer than {} values in total", isize::MAX);
        Error::space(ACTION_SPACE, expected, format!("{space:?}"), "correct the definition of the space")
    })
}

/// Returns an error if an action is forbidden; `forbidden` is the index of the first forbidden action.
///
/// # Errors
/// [`Error::Action`] naming the action and its row of `choices` actions.
pub(super) fn check_allowed(actions: &[i64], choices: usize, forbidden: Option<usize>) -> Result<()> {
    let Some(index) = forbidden else { return Ok(()) };
    let (got, hint) = (actions[index].to_string(), "pass the masks under which the actions were chosen");
    Err(Error::action("actions", "actions that the masks allow", got, hint).at_row(index / choices))
}
