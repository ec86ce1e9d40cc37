//! Actions of a batch of environments: borrowed views and the sealed trait of action types.

use std::ops::Range;

use crate::simd::multiversion;
use crate::{Error, Result, Space};

/// Actions of a batch of environments, row-major `[N, a]`: `a` numbers for each of N environments.
#[derive(Clone, Copy, Debug)]
pub enum Actions<'a> {
    /// Actions of a Discrete, MultiDiscrete or MultiBinary space.
    Discrete(&'a [i64]),
    /// Actions of a Box space.
    Continuous(&'a [f32]),
}

/// Output slice for the actions of a batch of environments, row-major `[N, a]`.
#[derive(Debug)]
pub enum ActionsMut<'a> {
    /// Actions of a Discrete, MultiDiscrete or MultiBinary space.
    ///
    /// Actions of a Discrete space are counted from 0, even if the `start` of the space is not 0.
    Discrete(&'a mut [i64]),
    /// Actions of a Box space. Values outside the bounds are clipped before the environment step.
    Continuous(&'a mut [f32]),
}

impl<'a> ActionsMut<'a> {
    /// Reborrows the elements in the range `numbers` of the slice.
    ///
    /// # Panics
    /// Panics if the range exceeds the slice.
    pub fn slice_mut(&mut self, numbers: Range<usize>) -> ActionsMut<'_> {
        match self {
            Self::Discrete(actions) => ActionsMut::Discrete(&mut actions[numbers]),
            Self::Continuous(actions) => ActionsMut::Continuous(&mut actions[numbers]),
        }
    }

    /// Converts the actions of a policy to valid actions of the environment, in place.
    ///
    /// For a Discrete space, the `start` of the space is added to each action. For a Box space,
    /// actions are clipped to the bounds.
    ///
    /// ```
    /// use rlox_core::{Actions, ActionsMut, Space};
    ///
    /// let mut actions = [0, 2];
    /// let env_actions = ActionsMut::Discrete(&mut actions).into_env_actions(&Space::Discrete { n: 3, start: 5 });
    /// assert!(matches!(env_actions, Actions::Discrete([5, 7])));
    /// ```
    pub fn into_env_actions(self, space: &Space) -> Actions<'a> {
        match (self, space) {
            (Self::Discrete(actions), Space::Discrete { start, .. }) if *start != 0 => {
                for action in &mut *actions {
                    *action = action.wrapping_add(*start);
                }
                Actions::Discrete(actions)
            }
            (Self::Continuous(actions), Space::Box { low, high, .. }) => {
                for row in actions.chunks_exact_mut(low.len().max(1)) {
                    row.iter_mut().zip(low.iter().zip(high)).for_each(|(x, (low, high))| *x = x.clamp(*low, *high));
                }
                Actions::Continuous(actions)
            }
            (Self::Discrete(actions), _) => Actions::Discrete(actions),
            (Self::Continuous(actions), _) => Actions::Continuous(actions),
        }
    }
}

/// Type of one action.
///
/// The trait is sealed, because the action spaces determine the possible types.
pub trait Action: sealed::Sealed + 'static {
    /// Checks a batch of actions against the space and returns an iterator over the N actions.
    ///
    /// # Errors
    /// [`Error::Space`] if the type of the actions does not match the space. [`Error::Shape`] if the number of values
    /// is wrong. [`Error::Action`] if a value is outside the space. [`Error::NotFinite`] if a value is NaN or infinite.
    /// `Error::Action` and `Error::NotFinite` carry the index of the environment.
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i64 {}
    impl Sealed for [i64] {}
    impl Sealed for [f32] {}
}

fn kind_mismatch(space: &Space, got: &'static str) -> Error {
    Error::space("actions", format!("actions of {space:?}"), got, "pass actions of the type of the action space")
}

fn count_mismatch(num_envs: usize, dim: usize, got: usize) -> Error {
    let expected = format!("{num_envs} actions of {dim} numbers each");
    Error::shape("actions", expected, format!("{got} numbers"), "pass one action per environment")
}

fn out_of_range(env: usize, expected: &str, got: &str) -> Error {
    Error::action("actions", expected, got, "keep actions inside the action space").at_env(env)
}

multiversion! {
    /// Returns true if any value is outside `start..start + n`.
    ///
    /// The loop has no branches, so that it vectorises.
    fn any_outside(values: &[i64], start: i64, n: i64) -> bool {
        values.iter().fold(false, |any, a| any | (a.wrapping_sub(start) as u64 >= n as u64))
    }
}

impl Action for i64 {
    #[inline]
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>> {
        let (Actions::Discrete(values), Space::Discrete { n, start }) = (actions, space) else {
            return Err(kind_mismatch(space, "actions of another type"));
        };
        if values.len() != num_envs {
            return Err(count_mismatch(num_envs, 1, values.len()));
        }
        if any_outside(values, *start, *n) {
            let env = values.iter().position(|a| a.wrapping_sub(*start) as u64 >= *n as u64).unwrap_or(0);
            return Err(out_of_range(
                env,
                &format!("integers in [{start}, {}]", start + n - 1),
                &values[env].to_string(),
            ));
        }
        Ok(values.iter())
    }
}

impl Action for [i64] {
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>> {
        let Actions::Discrete(values) = actions else {
            return Err(kind_mismatch(space, "floating-point actions"));
        };
        let limit: &dyn Fn(usize) -> i64 = match space {
            Space::MultiDiscrete { nvec } => &|i| nvec[i],
            Space::MultiBinary { .. } => &|_| 2,
            _ => return Err(kind_mismatch(space, "integer vectors")),
        };
        let dim = space.dim();
        if values.len() != num_envs * dim {
            return Err(count_mismatch(num_envs, dim, values.len()));
        }
        if let Some(index) = values.iter().enumerate().position(|(i, a)| *a < 0 || *a >= limit(i % dim)) {
            let expected = format!("integers in [0, {}]", limit(index % dim) - 1);
            return Err(out_of_range(index / dim, &expected, &values[index].to_string()).at_column(index % dim));
        }
        Ok(values.chunks_exact(dim))
    }
}

impl Action for [f32] {
    #[inline]
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>> {
        let (Actions::Continuous(values), Space::Box { .. }) = (actions, space) else {
            return Err(kind_mismatch(space, "actions of another type"));
        };
        let dim = space.dim();
        if values.len() != num_envs * dim {
            return Err(count_mismatch(num_envs, dim, values.len()));
        }
        if values.iter().fold(false, |any, a| any | !a.is_finite()) {
            let index = values.iter().position(|a| !a.is_finite()).unwrap_or(0);
            let (got, hint) = (values[index].to_string(), "keep actions finite");
            return Err(Error::not_finite("actions", "finite numbers", got, hint).at_env(index / dim));
        }
        Ok(values.chunks_exact(dim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Mismatch;
    use crate::testing::assert_rejects;

    fn outside<T: ?Sized + Action>(actions: &[i64], n: usize, space: &Space) -> Mismatch {
        assert_rejects(T::rows(Actions::Discrete(actions), n, space), Error::Action, "actions")
    }

    #[test]
    fn discrete_actions_outside_name_the_environment() {
        let space = Space::Discrete { n: 3, start: 5 };
        let rejected = outside::<i64>(&[5, 8], 2, &space);
        assert!(rejected.expected.contains("[5, 7]"), "{rejected}");
        assert_eq!((&rejected.got[..], rejected.at.env), ("8", Some(1)));
        assert_eq!(outside::<i64>(&[i64::MIN], 1, &space).at.env, Some(0));
        assert_rejects(i64::rows(Actions::Discrete(&[5]), 2, &space), Error::Shape, "actions");
        assert_rejects(i64::rows(Actions::Continuous(&[5.0]), 1, &space), Error::Space, "actions");
        assert_eq!(i64::rows(Actions::Discrete(&[5, 7]), 2, &space).unwrap().sum::<i64>(), 12);
    }

    #[test]
    fn vectors_of_integers_are_checked_by_component() {
        let space = Space::MultiDiscrete { nvec: vec![2, 4] };
        assert!(<[i64]>::rows(Actions::Discrete(&[1, 3, 0, 0]), 2, &space).is_ok());
        let rejected = outside::<[i64]>(&[1, 3, 2, 0], 2, &space);
        assert_eq!((&rejected.expected[..], &rejected.got[..]), ("integers in [0, 1]", "2"));
        assert_eq!((rejected.at.env, rejected.at.column), (Some(1), Some(0)));
        assert!(outside::<[i64]>(&[2], 1, &Space::MultiBinary { n: 1 }).expected.contains("[0, 1]"));
    }

    #[test]
    fn continuous_actions_must_be_finite() {
        let space = Space::uniform_box(-1.0, 1.0, &[2]);
        let result = <[f32]>::rows(Actions::Continuous(&[0.0, 0.0, 0.0, f32::NAN]), 2, &space);
        let rejected = assert_rejects(result, Error::NotFinite, "actions");
        assert_eq!((&rejected.got[..], rejected.at.env), ("NaN", Some(1)));
        assert!(
            <[f32]>::rows(Actions::Continuous(&[9.0, -9.0]), 1, &space).is_ok(),
            "values outside the bounds are accepted"
        );
    }
}
