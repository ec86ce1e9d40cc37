//! The choice among actions: the best one, or any.

use rlox_core::{Error, Pcg64, Result, check_len};

/// Checks that there are masks for all rows, and that each allows something where a choice `matters`.
pub(super) fn check_masks(
    name: &'static str,
    masks: Option<&[bool]>,
    rows: usize,
    actions: usize,
    matters: impl Fn(usize) -> bool,
) -> Result<()> {
    let Some(masks) = masks else { return Ok(()) };
    check_len(name, masks.len(), rows.saturating_mul(actions))?;
    let mut rows = masks.chunks_exact(actions).enumerate();
    match rows.find(|(row, allowed)| !allowed.contains(&true) && matters(*row)) {
        None => Ok(()),
        Some((row, _)) => {
            Err(Error::action(name, "at least one allowed action a row", "none", "allow one").at_row(row))
        }
    }
}

/// The first action of the largest value among those allowed. A value that is not a number counts as the largest.
pub(super) fn best(values: &[f32], allowed: Option<&[bool]>) -> usize {
    let mut best: Option<usize> = None;
    for (action, value) in values.iter().enumerate() {
        let larger = best.is_none_or(|best| *value > values[best] || value.is_nan() && !values[best].is_nan());
        if larger && allowed.is_none_or(|allowed| allowed[action]) {
            best = Some(action);
        }
    }
    best.unwrap_or(0)
}

/// Any of the allowed actions, all alike.
pub(super) fn any(actions: usize, allowed: Option<&[bool]>, rng: &mut Pcg64) -> i64 {
    let Some(allowed) = allowed else { return rng.integers(0, actions as i64) };
    let count = allowed.iter().filter(|allowed| **allowed).count();
    let chosen = rng.integers(0, count as i64) as usize;
    allowed.iter().enumerate().filter(|(_, allowed)| **allowed).nth(chosen).map_or(0, |(action, _)| action as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_allowed_values_is_best() {
        assert_eq!(best(&[1.0, 3.0, 3.0], None), 1);
        assert_eq!(best(&[1.0, 3.0, 3.0], Some(&[true, false, true])), 2);
        assert_eq!(best(&[1.0, f32::NAN, 3.0, f32::NAN], None), 1);
        assert_eq!(best(&[f32::NEG_INFINITY; 2], Some(&[false, true])), 1);
    }

    #[test]
    fn any_allowed_action_is_as_likely() {
        let mut rng = Pcg64::seed_from(1);
        let mut counts = [0; 4];
        for _ in 0..3000 {
            counts[any(4, Some(&[true, false, true, true]), &mut rng) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!([0, 2, 3].iter().all(|i| (900..1100).contains(&counts[*i])), "{counts:?}");
    }
}
