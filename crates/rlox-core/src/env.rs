//! Environments: the trait [`Env`] and the types of actions, steps and episodes.

mod action;
mod episodes;

pub use action::{Action, Actions, ActionsMut};
pub use episodes::EpisodeLog;

use crate::{Error, Pcg64, Result, Space};

/// Description of an environment: id, spaces and time limit.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvSpec {
    /// The id, such as `CartPole-v1`.
    pub id: String,
    /// The observation space. Observations are flattened to f32.
    pub observation: Space,
    /// The action space.
    pub action: Space,
    /// The number of steps after which an episode is truncated, or `None` for no limit.
    pub max_episode_steps: Option<u32>,
}

/// Result of one step of an environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The reward, in f64 as in Gymnasium.
    pub reward: f64,
    /// True if the episode reached a terminal state of the task.
    pub terminated: bool,
    /// True if the environment itself truncated the episode.
    ///
    /// The time limit is applied by [`crate::VecEnv`].
    pub truncated: bool,
}

/// Named numbers that change the start of an episode: Gymnasium's `options`.
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
    /// Creates options from pairs of name and value.
    pub fn new<S: Into<String>>(options: impl IntoIterator<Item = (S, f64)>) -> Self {
        Self(options.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// Returns the value of the option `name`, or `None` if the option is not set.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Returns all options in the order of construction.
    pub fn pairs(&self) -> &[(String, f64)] {
        &self.0
    }

    /// Returns true if no option is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that every option is in `known` and is not NaN.
    ///
    /// # Errors
    /// [`Error::Config`] if an option is unknown or NaN; `got` or `expected` contains the option's name.
    pub fn check_known(&self, known: &[&str]) -> Result<()> {
        for (name, value) in &self.0 {
            if !known.contains(&name.as_str()) {
                let expected =
                    if known.is_empty() { "no options".into() } else { format!("only {}", known.join(", ")) };
                return Err(Error::config("options", expected, format!("{name:?}"), "remove or rename it"));
            }
            if value.is_nan() {
                return Err(Error::config("options", format!("a number for option {name:?}"), "NaN", "pass a number"));
            }
        }
        Ok(())
    }
}

/// A single environment that writes observations into the caller's slice.
///
/// Implementations draw random numbers only from the generator passed to each call. Therefore a
/// seed determines every episode. [`crate::VecEnv`] adds the time limit, autoreset, episode
/// statistics and argument checks.
///
/// ```
/// use rlox_core::{Env, EnvSpec, Pcg64, ResetOptions, Space, Step};
///
/// /// Reaches 3 by adding the actions.
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
    /// The type of one action: `i64` (Discrete), `[i64]` (MultiDiscrete, MultiBinary) or `[f32]` (Box).
    type Action: Action + ?Sized;

    /// Returns the description of the environment.
    fn spec(&self) -> &EnvSpec;

    /// Starts an episode and writes the first observation.
    ///
    /// The caller has checked `options` with [`Env::check_options`].
    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]);

    /// Takes one step and writes the observation.
    ///
    /// The caller has checked that `action` is in the action space.
    fn step(&mut self, action: &Self::Action, rng: &mut Pcg64, obs: &mut [f32]) -> Step;

    /// Writes the action mask: one flag per action of a Discrete space, true if the action is
    /// allowed.
    ///
    /// The flags are in ascending order of the actions. By default, all actions are allowed.
    /// Policies draw only allowed actions. The environment defines the effect of a masked action.
    ///
    /// ```
    /// use rlox_core::{Env, EnvSpec, Pcg64, ResetOptions, Space, Step};
    ///
    /// /// A corridor of three cells: 0 moves left, 1 moves right. Moves into a wall are masked.
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

    /// Returns true if [`Env::action_mask`] can mask an action.
    ///
    /// All environments of a [`crate::VecEnv`] must return the same value.
    fn has_action_mask(&self) -> bool {
        false
    }

    /// Checks the reset options. By default, no option is accepted.
    ///
    /// # Errors
    /// [`Error::Config`] if an option is unknown or has an invalid value.
    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        options.check_known(&[])
    }

    /// Returns the state of the dynamics, or `None` if the environment does not expose a state.
    ///
    /// Renderers and checkpoints use the state.
    fn state(&self) -> Option<Vec<f64>> {
        None
    }

    /// Checks a state for [`Env::set_state`] without changing the environment.
    ///
    /// By default, every state is accepted. A restorable environment rejects invalid states in this
    /// method. Callers check the states of all environments before they change any environment.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length is wrong, [`Error::NotFinite`] or [`Error::Config`] if a value is invalid.
    fn check_state(&self, _state: &[f64]) -> Result<()> {
        Ok(())
    }

    /// Restores a state of [`Env::state`] and writes the observation of that state.
    ///
    /// The caller has checked `state` with [`Env::check_state`].
    ///
    /// # Errors
    /// [`Error::Config`] if the environment does not support restoring. Also the errors of
    /// [`Env::check_state`].
    fn set_state(&mut self, _state: &[f64], _obs: &mut [f32]) -> Result<()> {
        Err(Error::config(
            "state",
            "an environment that supports set_state",
            self.spec().id.clone(),
            "reset the environment, or implement set_state",
        ))
    }
}
