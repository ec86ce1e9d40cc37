//! One environment: the trait a user implements, and the sealed kinds of actions.

use crate::simd::multiversion;
use crate::{Error, Pcg64, Result, Space};

/// What an environment is: its id, spaces and time limit.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvSpec {
    /// The name it is known under, such as `CartPole-v1`.
    pub id: String,
    /// The observation space; observations are flattened to f32.
    pub observation: Space,
    /// The action space.
    pub action: Space,
    /// After how many steps an episode is truncated; `None` for never.
    pub max_episode_steps: Option<u32>,
}

/// What one step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The reward, in f64 as Gymnasium's.
    pub reward: f64,
    /// The episode reached an end of the task itself.
    pub terminated: bool,
    /// The environment cut the episode for another reason. The time limit is not the environment's business.
    pub truncated: bool,
}

/// Named numbers that change how an environment starts, Gymnasium's `options`.
///
/// ```
/// use rlox_core::ResetOptions;
///
/// let options = ResetOptions::new([("low", -0.1), ("high", 0.1)]);
/// assert_eq!(options.get("low"), Some(-0.1));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResetOptions(Vec<(String, f64)>);

impl ResetOptions {
    /// Options from pairs of name and value.
    pub fn new<S: Into<String>>(options: impl IntoIterator<Item = (S, f64)>) -> Self {
        Self(options.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// The value of one option.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// All of them, as they were given.
    pub fn pairs(&self) -> &[(String, f64)] {
        &self.0
    }

    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that every option is one of `known` and not NaN.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        for (name, value) in &self.0 {
            if !known.contains(&name.as_str()) {
                let expected =
                    if known.is_empty() { "no options".into() } else { format!("only {}", known.join(", ")) };
                return Err(Error::config("options", expected, format!("{name:?}"), "remove or rename it"));
            }
            if value.is_nan() {
                return Err(Error::config("options", format!("a number as {name:?}"), "NaN", "pass a number"));
            }
        }
        Ok(())
    }
}

/// One environment. It writes its observation into the caller's slice and allocates nothing.
///
/// Randomness comes only from the generator it is handed, so that a seed decides everything. The vectorised form
/// ([`crate::VecEnv`]) adds time limit, autoreset, statistics and argument checks.
///
/// ```
/// use rlox_core::{Env, EnvSpec, Pcg64, ResetOptions, Space, Step};
///
/// /// Reach 3 by steps of one.
/// struct Counter { at: f32, spec: EnvSpec }
///
/// impl Env for Counter {
///     type Action = i64;
///     fn spec(&self) -> &EnvSpec { &self.spec }
///     fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
///         self.at = 0.0;
///         obs[0] = self.at;
///     }
///     fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
///         self.at += *action as f32;
///         obs[0] = self.at;
///         Step { reward: -1.0, terminated: self.at >= 3.0, truncated: false }
///     }
/// }
/// ```
pub trait Env: Send {
    /// `i64` (Discrete), `[i64]` (MultiDiscrete, MultiBinary) or `[f32]` (Box).
    type Action: Action + ?Sized;

    /// What this environment is.
    fn spec(&self) -> &EnvSpec;

    /// Starts an episode and writes its first observation. Options were accepted by [`Env::check_options`].
    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]);

    /// Takes one step and writes the observation. The action is inside the action space.
    fn step(&mut self, action: &Self::Action, rng: &mut Pcg64, obs: &mut [f32]) -> Step;

    /// Writes which actions are allowed now, one flag for each action of a Discrete space, the smallest first; by default
    /// all of them. Policies honour it; what a forbidden action does is the environment's own affair.
    ///
    /// ```
    /// use rlox_core::{Env, EnvSpec, Pcg64, ResetOptions, Space, Step};
    ///
    /// /// A corridor of three cells: 0 goes left, 1 goes right, and no way leads through the walls.
    /// struct Corridor { at: usize, spec: EnvSpec }
    ///
    /// impl Env for Corridor {
    ///     type Action = i64;
    ///     fn spec(&self) -> &EnvSpec { &self.spec }
    ///     fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
    ///         self.at = 0;
    ///         obs[0] = 0.0;
    ///     }
    ///     fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
    ///         self.at = if *action == 0 { self.at.saturating_sub(1) } else { (self.at + 1).min(2) };
    ///         obs[0] = self.at as f32;
    ///         Step { reward: -1.0, terminated: false, truncated: false }
    ///     }
    ///     fn has_action_mask(&self) -> bool { true }
    ///     fn action_mask(&self, mask: &mut [bool]) {
    ///         mask.copy_from_slice(&[self.at > 0, self.at < 2]);
    ///     }
    /// }
    /// ```
    fn action_mask(&self, mask: &mut [bool]) {
        mask.fill(true);
    }

    /// Whether [`Env::action_mask`] may forbid anything, so that it is asked; by default not. The same for all copies.
    fn has_action_mask(&self) -> bool {
        false
    }

    /// Refuses reset options it does not understand; by default all of them.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        options.only(&[])
    }

    /// What the dynamics remember, for renderers and checkpoints; `None` if it cannot be told.
    fn state(&self) -> Option<Vec<f64>> {
        None
    }

    /// Refuses what [`Env::state`] never gives. Environments that can be restored say here what they cannot take, so
    /// that all of a batch is looked at before any of it changes; by default nothing is refused.
    ///
    /// # Errors
    /// [`Error::Config`] for numbers that make no sense, [`Error::Shape`] if the length is wrong.
    fn check_state(&self, _state: &[f64]) -> Result<()> {
        Ok(())
    }

    /// Puts back what [`Env::state`] gave and [`Env::check_state`] accepted, and writes the observation of that state.
    ///
    /// # Errors
    /// [`Error::Config`] if it cannot be restored, [`Error::Shape`] if the length is wrong.
    fn set_state(&mut self, _state: &[f64], _obs: &mut [f32]) -> Result<()> {
        Err(Error::config("state", "an environment that can be restored", self.spec().id.clone(), "reset it instead"))
    }
}

/// The actions of a whole batch, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Actions<'a> {
    /// For Discrete, MultiDiscrete and MultiBinary spaces.
    Discrete(&'a [i64]),
    /// For Box spaces.
    Continuous(&'a [f32]),
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i64 {}
    impl Sealed for [i64] {}
    impl Sealed for [f32] {}
}

/// A kind of action. Sealed: the action spaces decide which kinds there are.
pub trait Action: sealed::Sealed + 'static {
    /// Checks a batch against the space and gives its rows, one per environment.
    ///
    /// # Errors
    /// [`Error::Action`] if a value is outside the space, [`Error::NotFinite`] if a value is NaN or infinite (both with the
    /// index of the environment), [`Error::Shape`] if the number of values is wrong, [`Error::Space`] if the batch is of
    /// another kind than the space.
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>>;
}

fn wrong_kind(space: &Space, got: &'static str) -> Error {
    Error::space("actions", format!("actions of {space:?}"), got, "pass the kind of action the space names")
}

fn wrong_count(num_envs: usize, dim: usize, got: usize) -> Error {
    let expected = format!("{num_envs} actions of {dim} numbers each");
    Error::shape("actions", expected, format!("{got} numbers"), "pass one action per environment")
}

fn outside(env: usize, expected: &str, got: &str) -> Error {
    Error::action("actions", expected, got, "keep actions inside the action space").at_env(env)
}

multiversion! {
    /// One pass without branches, so that it vectorises; the search for the culprit is for the unlucky case.
    fn any_outside(values: &[i64], start: i64, n: i64) -> bool {
        values.iter().fold(false, |any, a| any | (a.wrapping_sub(start) as u64 >= n as u64))
    }
}

impl Action for i64 {
    #[inline]
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>> {
        let (Actions::Discrete(values), Space::Discrete { n, start }) = (actions, space) else {
            return Err(wrong_kind(space, "actions of another kind"));
        };
        if values.len() != num_envs {
            return Err(wrong_count(num_envs, 1, values.len()));
        }
        if any_outside(values, *start, *n) {
            let env = values.iter().position(|a| a.wrapping_sub(*start) as u64 >= *n as u64).unwrap_or(0);
            return Err(outside(env, &format!("integers in [{start}, {}]", start + n - 1), &values[env].to_string()));
        }
        Ok(values.iter())
    }
}

impl Action for [i64] {
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>> {
        let Actions::Discrete(values) = actions else {
            return Err(wrong_kind(space, "floating-point actions"));
        };
        let limit: &dyn Fn(usize) -> i64 = match space {
            Space::MultiDiscrete { nvec } => &|i| nvec[i],
            Space::MultiBinary { .. } => &|_| 2,
            _ => return Err(wrong_kind(space, "vectors of integers")),
        };
        let dim = space.dim();
        if values.len() != num_envs * dim {
            return Err(wrong_count(num_envs, dim, values.len()));
        }
        if let Some(at) = values.iter().enumerate().position(|(i, a)| *a < 0 || *a >= limit(i % dim)) {
            let expected = format!("integers in [0, {}]", limit(at % dim) - 1);
            return Err(outside(at / dim, &expected, &values[at].to_string()).at_column(at % dim));
        }
        Ok(values.chunks_exact(dim))
    }
}

impl Action for [f32] {
    #[inline]
    fn rows<'a>(actions: Actions<'a>, num_envs: usize, space: &Space) -> Result<impl Iterator<Item = &'a Self>> {
        let (Actions::Continuous(values), Space::Box { .. }) = (actions, space) else {
            return Err(wrong_kind(space, "actions of another kind"));
        };
        let dim = space.dim();
        if values.len() != num_envs * dim {
            return Err(wrong_count(num_envs, dim, values.len()));
        }
        if values.iter().fold(false, |any, a| any | !a.is_finite()) {
            let at = values.iter().position(|a| !a.is_finite()).unwrap_or(0);
            let (got, fix) = (values[at].to_string(), "keep actions finite");
            return Err(Error::not_finite("actions", "finite numbers", got, fix).at_env(at / dim));
        }
        Ok(values.chunks_exact(dim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mismatch;
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
        assert!(<[f32]>::rows(Actions::Continuous(&[9.0, -9.0]), 1, &space).is_ok(), "bounds are the env's affair");
    }
}
