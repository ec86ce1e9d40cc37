//! N environments behind one object-safe trait.

mod snapshot;
pub(crate) mod validate;
mod vec_env;

pub use snapshot::{EnvSnapshot, streams_from_array, streams_to_array};
pub use validate::masked_actions;
pub use vec_env::VecEnv;

use crate::{Actions, EnvSpec, EpisodeLog, Pcg64, ResetOptions, Result, check_len};

/// When a finished environment starts its next episode, as Gymnasium 1.x names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoresetMode {
    /// The step after the end does nothing with its action, which has to be in the space, and gives the first observation,
    /// reward 0 and no flags.
    NextStep,
    /// The step that ends an episode gives the next episode's first observation; the true last one is `final_obs`.
    SameStep,
    /// Finished environments wait for a reset by mask; stepping them is an error.
    Disabled,
}

/// Where a reset takes its randomness from.
#[derive(Clone, Copy, Debug)]
pub enum Seeds<'a> {
    /// Each environment's stream goes on.
    Keep,
    /// Environment i is seeded with `base + i`, as Gymnasium does.
    Base(u64),
    /// One seed per environment; `None` lets that stream go on.
    Each(&'a [Option<u64>]),
}

/// Where a step writes to: the caller's slices, `[N, d]` and `[N]`.
#[derive(Debug)]
pub struct StepOut<'a> {
    /// The observations to act on next.
    pub obs: &'a mut [f32],
    /// The rewards.
    pub reward: &'a mut [f64],
    /// The task itself ended.
    pub terminated: &'a mut [bool],
    /// The episode was cut, by the time limit or by the environment.
    pub truncated: &'a mut [bool],
    /// The last observation of episodes that ended in this step. Only those rows are written, only in
    /// [`AutoresetMode::SameStep`]. May be empty if nobody wants it.
    pub final_obs: &'a mut [f32],
}

impl StepOut<'_> {
    /// The places of the first `count` environments, whose observations have `dim` numbers, and those of the others.
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

/// Where an environment stands in its episode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpisodeProgress {
    /// Steps made.
    pub steps: u32,
    /// The sum of their rewards.
    pub episode_return: f64,
    /// The episode is over, and the next one has not begun.
    pub finished: bool,
}

/// N environments of one kind. One dynamic call per batch, never per environment.
pub trait VectorEnv: Send {
    /// How many environments there are.
    fn num_envs(&self) -> usize;

    /// What each environment is.
    fn spec(&self) -> &EnvSpec;

    /// When finished environments are reset.
    fn autoreset_mode(&self) -> AutoresetMode;

    /// Starts episodes where `mask` is true (everywhere without one) and writes all current observations, `[N, d]`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for slices of the wrong length, [`crate::Error::Config`] for options that the
    /// environment refuses, [`crate::Error::Action`] if an environment outside the mask has never been reset. Nothing
    /// has changed then.
    fn reset(&mut self, seeds: Seeds<'_>, mask: Option<&[bool]>, options: &ResetOptions, obs: &mut [f32])
    -> Result<()>;

    /// Steps all environments.
    ///
    /// # Errors
    /// Those of [`crate::Action::rows`] for the actions, [`crate::Error::Shape`] for slices of the wrong length,
    /// [`crate::Error::Action`] before the first reset, or for finished environments in [`AutoresetMode::Disabled`].
    /// Nothing has changed then.
    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()>;

    /// Whether [`VectorEnv::action_masks`] may forbid anything; by default not.
    fn has_action_masks(&self) -> bool {
        false
    }

    /// Writes which actions are allowed now, `[N, n]` for the `n` actions of a Discrete space. Environments whose episode
    /// is over allow all, as they take none.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a slice of the wrong length.
    fn action_masks(&self, masks: &mut [bool]) -> Result<()> {
        masks.fill(true);
        Ok(())
    }

    /// Writes which actions are allowed in the last state of each episode that the last step truncated, `[N, n]`, in all
    /// autoreset modes. The contents of other rows are unspecified. A row without an allowed action means that the mask
    /// is not known, which is the default; off-policy trainers leave its transition out of their minibatches.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a slice of the wrong length.
    fn final_action_masks(&self, masks: &mut [bool]) -> Result<()> {
        masks.fill(false);
        Ok(())
    }

    /// Writes the current observations, `[N, d]`, without stepping.
    ///
    /// # Errors
    /// [`crate::Error::Action`] before the first reset, [`crate::Error::Shape`] for a slice of the wrong length.
    fn observe(&self, obs: &mut [f32]) -> Result<()>;

    /// The episodes finished since the log was last drained.
    fn episodes(&mut self) -> &mut EpisodeLog;

    /// What environment `index` remembers ([`crate::Env::state`]); `None` if it cannot be told or there is no such index.
    fn state(&self, index: usize) -> Option<Vec<f64>>;

    /// Refuses what [`VectorEnv::set_state`] and [`VectorEnv::set_progress`] would refuse for environment `index`.
    ///
    /// # Errors
    /// Those of [`crate::Env::check_state`], [`crate::Error::Config`] for a progress that no environment of this mode makes,
    /// [`crate::Error::Shape`] if there is no such index.
    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()>;

    /// Where all capture them stand, as [`EnvSnapshot::capture`] tells it; some can ask for all at once, and say why they could not.
    ///
    /// # Errors
    /// Those capture [`EnvSnapshot::capture`].
    fn snapshot(&self) -> Result<Option<EnvSnapshot<'static>>> {
        EnvSnapshot::collect_from(self)
    }

    /// As [`VectorEnv::check_state`] for all environments, which some can ask at once; the columns fit already.
    ///
    /// # Errors
    /// Those of [`VectorEnv::check_state`], and [`crate::Error::Interrupted`] if that is asked for.
    fn check_snapshot(&self, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        snapshot.for_each(|index, state, progress| self.check_state(index, state, progress))
    }

    /// Puts a state back, as if environment `index` had just been reset to it.
    ///
    /// # Errors
    /// Those of [`crate::Env::set_state`], [`crate::Error::Shape`] if there is no such index.
    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()>;

    /// Where environment `index` stands in its episode; `None` if there is no such index.
    fn progress(&self, index: usize) -> Option<EpisodeProgress>;

    /// Puts environment `index` where it stood in an episode, after [`VectorEnv::set_state`].
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if there is no such index, [`crate::Error::Config`] for a return that is not finite, or an
    /// environment that is finished where none stays so ([`AutoresetMode::SameStep`]).
    fn set_progress(&mut self, index: usize, progress: EpisodeProgress) -> Result<()>;

    /// The random streams, one per environment.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no memory for them.
    fn rngs(&self) -> Result<Vec<Pcg64>>;

    /// Replaces the random streams.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if their number is wrong.
    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()>;
}

/// Where an environment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Never reset.
    NeverReset,
    /// In an episode.
    Running,
    /// Its episode is over and no reset has followed.
    Finished,
}
