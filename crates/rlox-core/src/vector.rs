//! Vectorised environments: the object-safe trait [`VectorEnv`] and its argument types.
//!
//! Shapes use these letters: N environments, `d` numbers per observation, and `n` actions of a
//! Discrete space.

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
    /// The step after the end of an episode resets the environment.
    ///
    /// That step ignores its action, but the action must be in the action space. The step returns
    /// the first observation of the next episode, reward 0, and false flags.
    NextStep,
    /// The step that ends an episode also resets the environment.
    ///
    /// That step returns the first observation of the next episode. The last observation of the
    /// ended episode is in [`StepOut::final_obs`].
    SameStep,
    /// The caller resets finished environments by a mask. A step with a finished environment is an
    /// error.
    Disabled,
}

/// Seeding of a reset.
#[derive(Clone, Copy, Debug)]
pub enum Seeds<'a> {
    /// Every environment continues its random stream.
    Keep,
    /// Environment `i` is seeded with `base + i`, as in Gymnasium.
    Base(u64),
    /// One seed per environment. An environment with `None` continues its random stream.
    Each(&'a [Option<u64>]),
}

/// Output slices of one step of N environments.
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
    /// Only rows of ended episodes are written, and only in [`AutoresetMode::SameStep`]. Callers
    /// that do not need these observations may pass an empty slice.
    pub final_obs: &'a mut [f32],
}

impl StepOut<'_> {
    /// Splits each slice into the part of the first `count` environments and the part of the
    /// others.
    ///
    /// `dim` is the number of numbers per observation.
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
    /// The number of steps taken in the episode.
    pub steps: u32,
    /// The sum of the rewards of these steps.
    pub episode_return: f64,
    /// True if the episode is over and the next one has not started.
    pub finished: bool,
}

/// N environments of one type, stepped by one call.
///
/// A call through `dyn VectorEnv` is dispatched once for all environments, not once per
/// environment.
pub trait VectorEnv: Send {
    /// Returns the number of environments.
    fn num_envs(&self) -> usize;

    /// Returns the description that all environments share.
    fn spec(&self) -> &EnvSpec;

    /// Returns the autoreset mode.
    fn autoreset_mode(&self) -> AutoresetMode;

    /// Starts an episode in each environment whose `mask` is true, or in all environments without a
    /// mask.
    ///
    /// Writes the current observations of all environments, `[N, d]`, to `obs`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if a slice has the wrong length. [`crate::Error::Config`] if the
    /// environment rejects an option. [`crate::Error::Action`] if an environment outside the mask
    /// has never been reset. The environments are unchanged after these errors.
    ///
    /// [`crate::Error::Interrupted`] if the interrupt check ([`crate::interrupt`]) returns true.
    /// Some environments may have been reset after this error.
    fn reset(&mut self, seeds: Seeds<'_>, mask: Option<&[bool]>, options: &ResetOptions, obs: &mut [f32])
    -> Result<()>;

    /// Steps all environments and writes the results to `out`.
    ///
    /// # Errors
    /// The errors of [`crate::Action::rows`] for the actions. [`crate::Error::Shape`] if a slice
    /// has the wrong length. [`crate::Error::Action`] if an environment has never been reset, or is
    /// finished in [`AutoresetMode::Disabled`]. The environments are unchanged after an error.
    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()>;

    /// Returns true if [`VectorEnv::action_masks`] can mask an action. The default is false.
    fn has_action_masks(&self) -> bool {
        false
    }

    /// Writes the action masks, `[N, n]`: true for each allowed action of a Discrete space.
    ///
    /// For a finished environment, all actions are allowed, because no action is taken in its last
    /// state.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the slice has the wrong length.
    fn action_masks(&self, masks: &mut [bool]) -> Result<()> {
        masks.fill(true);
        Ok(())
    }

    /// Writes the action masks of the last states of truncated episodes, `[N, n]`.
    ///
    /// Only the rows of episodes that the last step truncated, and did not terminate, are
    /// meaningful, in every autoreset mode. The contents of the other rows are unspecified.
    ///
    /// A row without an allowed action means that the mask is unknown. The default implementation
    /// returns such rows. Off-policy trainers exclude the transitions of these rows from
    /// minibatches.
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

    /// Returns the log of the episodes that finished since the caller last drained the log.
    fn episodes(&mut self) -> &mut EpisodeLog;

    /// Returns the state of environment `index` ([`crate::Env::state`]).
    ///
    /// Returns `None` if the state is unavailable or the index is out of range.
    fn state(&self, index: usize) -> Option<Vec<f64>>;

    /// Checks that a state and a progress can be set in environment `index`.
    ///
    /// [`VectorEnv::set_state`] and [`VectorEnv::set_progress`] accept the checked values. The
    /// environment is unchanged.
    ///
    /// # Errors
    /// The errors of [`crate::Env::check_state`]. [`crate::Error::NotFinite`] if the return is not
    /// finite. [`crate::Error::Config`] if `progress.finished` is true in
    /// [`AutoresetMode::SameStep`], where no environment is finished between steps.
    /// [`crate::Error::Shape`] if the index is out of range.
    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()>;

    /// Returns a snapshot of all environments, see [`EnvSnapshot::capture`].
    ///
    /// Returns `None` if the states are unavailable. Remote environments override this method to
    /// fetch all states by one request.
    ///
    /// # Errors
    /// The errors of [`EnvSnapshot::capture`].
    fn snapshot(&self) -> Result<Option<EnvSnapshot<'static>>> {
        EnvSnapshot::collect_from(self)
    }

    /// Checks each environment of a snapshot as [`VectorEnv::check_state`] does.
    ///
    /// The caller has checked the lengths of the snapshot's arrays. Remote environments override
    /// this method to check all states by one request.
    ///
    /// # Errors
    /// The errors of [`VectorEnv::check_state`]. [`crate::Error::Interrupted`] if the interrupt
    /// check ([`crate::interrupt`]) returns true.
    fn check_snapshot(&self, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        snapshot.for_each(|index, state, progress| self.check_state(index, state, progress))
    }

    /// Restores the state of environment `index` and starts an episode of 0 steps in this state.
    ///
    /// # Errors
    /// The errors of [`crate::Env::set_state`], [`crate::Error::Shape`] if the index is out of range.
    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()>;

    /// Returns the progress of environment `index`, or `None` if the index is out of range.
    fn progress(&self, index: usize) -> Option<EpisodeProgress>;

    /// Sets the progress of environment `index`, after [`VectorEnv::set_state`].
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the index is out of range. [`crate::Error::NotFinite`] if the
    /// return is not finite. [`crate::Error::Config`] if `progress.finished` is true in
    /// [`AutoresetMode::SameStep`].
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
