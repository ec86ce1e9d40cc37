//! Vectorised environments: the object-safe trait [`VectorEnv`] and its argument types.

mod snapshot;
pub(crate) mod validate;
mod vec_env;

pub use snapshot::{EnvSnapshot, streams_from_array, streams_to_array};
pub use validate::masked_actions;
pub use vec_env::VecEnv;

use crate::{Actions, EnvSpec, EpisodeLog, Pcg64, ResetOptions, Result, error::check_len};

/// Time of the reset after an episode ends, with the names of Gymnasium 1.x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoresetMode {
    /// The step after the end resets the environment.
    ///
    /// That step ignores the action, which must still be in the space. The step returns the first observation, reward 0
    /// and no flags.
    NextStep,
    /// The step that ends an episode returns the next first observation. The true last one is `final_obs`.
    SameStep,
    /// Finished environments wait for a reset by mask. Stepping them is an error.
    Disabled,
}

/// Seeding of a reset.
#[derive(Clone, Copy, Debug)]
pub enum Seeds<'a> {
    /// Every environment continues its random stream.
    Keep,
    /// Environment `i` is seeded with `base + i`, as in Gymnasium.
    Base(u64),
    /// Seeds per environment. An environment with `None` continues its random stream.
    Each(&'a [Option<u64>]),
}

/// Output slices of a step, `[N, d]` and `[N]`.
#[derive(Debug)]
pub struct StepOut<'a> {
    /// The observations for the next actions, `[N, d]`.
    pub obs: &'a mut [f32],
    /// The rewards, `[N]`.
    pub reward: &'a mut [f64],
    /// Termination flags, `[N]`: the episode reached a terminal state of the task.
    pub terminated: &'a mut [bool],
    /// Truncation flags, `[N]`: the time limit or the environment cut the episode.
    pub truncated: &'a mut [bool],
    /// The last observations of episodes that ended in this step, `[N, d]`.
    ///
    /// Only rows of ended episodes are written, and only in [`AutoresetMode::SameStep`]. The slice may be empty if the
    /// caller does not need them.
    pub final_obs: &'a mut [f32],
}

impl StepOut<'_> {
    /// Splits the slices after the first `count` environments. Observations have `dim` numbers.
    pub(crate) fn split(self, count: usize, dim: usize) -> (Self, Self) {
        let (obs, obs_rest) = self.obs.split_at_mut(count * dim);
        let (reward, reward_rest) = self.reward.split_at_mut(count);
        let (terminated, terminated_rest) = self.terminated.split_at_mut(count);
        let (truncated, truncated_rest) = self.truncated.split_at_mut(count);
        let (final_obs, final_obs_rest) = self.final_obs.split_at_mut(self.final_obs.len().min(count * dim));
        (
            Self { obs, reward, terminated, truncated, final_obs },
            Self {
                obs: obs_rest,
                reward: reward_rest,
                terminated: terminated_rest,
                truncated: truncated_rest,
                final_obs: final_obs_rest,
            },
        )
    }

    pub(crate) fn check(&self, num_envs: usize, dim: usize) -> Result<()> {
        check_len("obs", self.obs.len(), num_envs * dim)?;
        check_len("rewards", self.reward.len(), num_envs)?;
        check_len("terminated", self.terminated.len(), num_envs)?;
        check_len("truncated", self.truncated.len(), num_envs)?;
        if self.final_obs.is_empty() { Ok(()) } else { check_len("final_obs", self.final_obs.len(), num_envs * dim) }
    }
}

/// Progress of an environment within an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpisodeProgress {
    /// The number of steps taken.
    pub steps: u32,
    /// The sum of the rewards.
    pub episode_return: f64,
    /// True if the episode is over and the next one has not started.
    pub finished: bool,
}

/// N environments of one type. Each call is dispatched once per batch, not per environment.
pub trait VectorEnv: Send {
    /// Returns the number of environments.
    fn num_envs(&self) -> usize;

    /// Returns the description that all environments share.
    fn spec(&self) -> &EnvSpec;

    /// Returns the autoreset mode.
    fn autoreset_mode(&self) -> AutoresetMode;

    /// Starts episodes where `mask` is true, or everywhere without a mask.
    ///
    /// Writes all current observations, `[N, d]`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if a slice has the wrong length. [`crate::Error::Config`] if the environment rejects an
    /// option. [`crate::Error::Action`] if an environment outside the mask has never been reset. Nothing has changed
    /// after these errors. [`crate::Error::Interrupted`] if the interrupt check requests it; some environments may have
    /// been reset then.
    fn reset(&mut self, seeds: Seeds<'_>, mask: Option<&[bool]>, options: &ResetOptions, obs: &mut [f32])
    -> Result<()>;

    /// Steps all environments.
    ///
    /// # Errors
    /// The errors of [`crate::Action::rows`] for the actions. [`crate::Error::Shape`] if a slice has the wrong length.
    /// [`crate::Error::Action`] before the first reset, or for finished environments in [`AutoresetMode::Disabled`].
    /// Nothing has changed after an error.
    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()>;

    /// Returns true if [`VectorEnv::action_masks`] can mask an action. The default is false.
    fn has_action_masks(&self) -> bool {
        false
    }

    /// Writes the masks of allowed actions, `[N, n]` for the `n` actions of a Discrete space.
    ///
    /// A finished environment allows all actions, since its next step ignores the action.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the slice has the wrong length.
    fn action_masks(&self, masks: &mut [bool]) -> Result<()> {
        masks.fill(true);
        Ok(())
    }

    /// Writes the masks of the last states of episodes that the last step truncated, `[N, n]`.
    ///
    /// The masks are available in all autoreset modes. The contents of other rows are unspecified. A row without an
    /// allowed action means that the mask is unknown, which is the default. Off-policy trainers exclude such
    /// transitions from minibatches.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the slice has the wrong length.
    fn final_action_masks(&self, masks: &mut [bool]) -> Result<()> {
        masks.fill(false);
        Ok(())
    }

    /// Writes the current observations, `[N, d]`, without a step.
    ///
    /// # Errors
    /// [`crate::Error::Action`] before the first reset, [`crate::Error::Shape`] if the slice has the wrong length.
    fn observe(&self, obs: &mut [f32]) -> Result<()>;

    /// Returns the log of the episodes that finished since the last drain.
    fn episodes(&mut self) -> &mut EpisodeLog;

    /// Returns the state of environment `index` ([`crate::Env::state`]).
    ///
    /// Returns `None` if the state is unavailable or the index is out of range.
    fn state(&self, index: usize) -> Option<Vec<f64>>;

    /// Checks a state and a progress for environment `index` without changing the environment.
    ///
    /// [`VectorEnv::set_state`] and [`VectorEnv::set_progress`] accept the checked values.
    ///
    /// # Errors
    /// The errors of [`crate::Env::check_state`]. [`crate::Error::NotFinite`] if the return is not finite.
    /// [`crate::Error::Config`] if the environment is finished in [`AutoresetMode::SameStep`]. [`crate::Error::Shape`]
    /// if the index is out of range.
    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()>;

    /// Returns a snapshot of all environments, see [`EnvSnapshot::capture`].
    ///
    /// Returns `None` if the states are unavailable. Remote environments override this method to fetch all states in
    /// one request.
    ///
    /// # Errors
    /// The errors of [`EnvSnapshot::capture`].
    fn snapshot(&self) -> Result<Option<EnvSnapshot<'static>>> {
        EnvSnapshot::collect_from(self)
    }

    /// Checks all environments of a snapshot as [`VectorEnv::check_state`] does.
    ///
    /// The caller has checked the lengths of the columns. Remote environments override this method to check all states
    /// in one request.
    ///
    /// # Errors
    /// The errors of [`VectorEnv::check_state`], and [`crate::Error::Interrupted`] if the interrupt check requests it.
    fn check_snapshot(&self, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        snapshot.for_each(|index, state, progress| self.check_state(index, state, progress))
    }

    /// Restores the state of environment `index` and starts an episode there.
    ///
    /// # Errors
    /// The errors of [`crate::Env::set_state`], [`crate::Error::Shape`] if the index is out of range.
    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()>;

    /// Returns the progress of environment `index`, or `None` if the index is out of range.
    fn progress(&self, index: usize) -> Option<EpisodeProgress>;

    /// Sets the progress of environment `index`, after [`VectorEnv::set_state`].
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the index is out of range. [`crate::Error::NotFinite`] if the return is not finite.
    /// [`crate::Error::Config`] if the environment is finished in [`AutoresetMode::SameStep`].
    fn set_progress(&mut self, index: usize, progress: EpisodeProgress) -> Result<()>;

    /// Returns the random streams, one per environment.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if the streams do not fit into memory.
    fn rngs(&self) -> Result<Vec<Pcg64>>;

    /// Replaces the random streams, one per environment.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the number of streams is wrong.
    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()>;
}

/// Phase of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The environment has never been reset.
    NeverReset,
    /// An episode is running.
    Running,
    /// The episode is over and the environment has not been reset.
    Finished,
}
