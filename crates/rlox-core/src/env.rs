//! One environment: the trait a user implements.

mod action;
mod episodes;

pub use action::{Action, Actions, ActionsMut};
pub use episodes::EpisodeLog;

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
    pub fn check_known(&self, known: &[&str]) -> Result<()> {
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
        options.check_known(&[])
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
