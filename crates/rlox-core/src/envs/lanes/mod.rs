//! Environments as a structure of arrays, stepped by SIMD lanes behind the same trait as any other.
//!
//! The states of a block of environments lie column by column, so that one instruction works on several environments.
//! Everything an environment does rarely (resets, states for renderers) is done by the environment itself, one at a
//! time; only its step has a second form, made of the same formulas. Which instructions run is decided at run time
//! ([`crate::simd`]); the results are the same bits on all of them.

mod acrobot;
mod batch;
mod block;
mod cartpole;
mod kernel;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;
#[cfg(test)]
mod tests;

use batch::Batch;
use block::{Edge, Rows};
pub(super) use kernel::Lanes;
use kernel::{Columns, LanesOut, Number};

use crate::simd::BLOCK;
use crate::vector::{Phase, checks};
use crate::{
    Action, Actions, AutoresetMode, EnvSpec, EpisodeLog, Pcg64, Progress, ResetOptions, Result, Seeds, StepOut,
    VectorEnv, check_len,
};

/// N environments of one native kind as a structure of arrays: what [`crate::VecEnv`] does, faster from a handful of
/// environments on. [`crate::envs::make`] takes whichever is faster.
///
/// ```
/// use rlox_core::{AutoresetMode, ResetOptions, Seeds, VectorEnv, envs::{CartPole, SoaVecEnv}};
///
/// let mut env = SoaVecEnv::new(64, Some(42), AutoresetMode::SameStep, CartPole::default())?;
/// let mut obs = [0.0; 64 * 4];
/// env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs)?;
/// assert!(obs.iter().all(|x| x.abs() <= 0.05));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct SoaVecEnv<E: Lanes<K, D>, const K: usize, const D: usize> {
    batch: Batch<E, K, D>,
    edge: Box<Edge<E::Number, D>>,
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> std::fmt::Debug for SoaVecEnv<E, K, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let batch = &self.batch;
        let mut debug = f.debug_struct("SoaVecEnv");
        debug.field("id", &batch.spec.id).field("num_envs", &batch.rngs.len()).finish_non_exhaustive()
    }
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> SoaVecEnv<E, K, D> {
    /// `num_envs` environments with the arguments of `env`. Environment i draws from the seed `seed + i`; without a
    /// seed the streams come from the operating system.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if `num_envs` is 0 or the arguments are not for lanes (Acrobot's noise),
    /// [`crate::Error::Memory`] if there is not enough memory.
    pub fn new(num_envs: usize, seed: Option<u64>, mode: AutoresetMode, env: E) -> Result<Self> {
        Ok(Self { batch: Batch::new(num_envs, seed, mode, env)?, edge: Box::default() })
    }

    /// Replaces the time limit; `None` for none.
    #[must_use]
    pub fn with_max_episode_steps(mut self, limit: Option<u32>) -> Self {
        self.batch.spec.max_episode_steps = limit;
        self
    }

    fn last_obs(&self) -> impl Iterator<Item = &[f32; D]> {
        self.batch.blocks.iter().flat_map(|block| &block.last_obs)
    }

    /// Steps the environments of the last block if it is not full. The slices are what is left for it.
    fn step_edge(&mut self, actions: &[E::Number], rest: Rest<'_, D>) {
        let (edge, count) = (&mut *self.edge, actions.len());
        edge.actions[..count].copy_from_slice(actions);
        let rows = Rows {
            obs: &mut edge.obs,
            reward: &mut edge.reward,
            terminated: &mut edge.terminated,
            truncated: &mut edge.truncated,
        };
        self.batch.step_block(self.batch.blocks.len() - 1, count, &edge.actions, rows, rest.final_obs);
        let Rest { obs, reward, terminated, truncated, .. } = rest;
        obs.copy_from_slice(&edge.obs[..count]);
        reward.copy_from_slice(&edge.reward[..count]);
        terminated.copy_from_slice(&edge.terminated[..count]);
        truncated.copy_from_slice(&edge.truncated[..count]);
    }
}

/// What full blocks leave of the caller's slices.
struct Rest<'a, const D: usize> {
    obs: &'a mut [[f32; D]],
    reward: &'a mut [f64],
    terminated: &'a mut [bool],
    truncated: &'a mut [bool],
    final_obs: &'a mut [[f32; D]],
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> VectorEnv for SoaVecEnv<E, K, D> {
    fn num_envs(&self) -> usize {
        self.batch.rngs.len()
    }

    fn spec(&self) -> &EnvSpec {
        &self.batch.spec
    }

    fn autoreset_mode(&self) -> AutoresetMode {
        self.batch.mode
    }

    fn reset(
        &mut self,
        seeds: Seeds<'_>,
        mask: Option<&[bool]>,
        options: &ResetOptions,
        obs: &mut [f32],
    ) -> Result<()> {
        let num_envs = self.num_envs();
        checks::reset((num_envs, D), obs, seeds, mask, self.batch.phases.iter().copied())?;
        self.batch.env.check_options(options)?;
        for i in (0..num_envs).filter(|&i| mask.is_none_or(|mask| mask[i])) {
            checks::reseed(&mut self.batch.rngs[i], seeds, i);
            let mut first = [0.0; D];
            self.batch.restart(i, options, &mut first);
            self.batch.blocks[i / BLOCK].last_obs[i % BLOCK] = first;
        }
        self.batch.recount();
        self.observe(obs)
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        let batch = &mut self.batch;
        out.check(batch.rngs.len(), D)?;
        checks::started(batch.unborn, "step")?;
        if batch.mode == AutoresetMode::Disabled && batch.finished > 0 {
            let env = batch.phases.iter().position(|&phase| phase == Phase::Finished).unwrap_or(0);
            return Err(checks::episode_over(env));
        }
        drop(E::Action::rows(actions, batch.rngs.len(), &batch.spec.action)?);
        batch.now = batch.now.wrapping_add(1);

        let (actions, actions_left) = E::Number::of(actions).as_chunks();
        let (obs, obs_left) = out.obs.as_chunks_mut().0.as_chunks_mut();
        let (reward, reward_left) = out.reward.as_chunks_mut();
        let (terminated, terminated_left) = out.terminated.as_chunks_mut();
        let (truncated, truncated_left) = out.truncated.as_chunks_mut();
        let mut final_obs = out.final_obs.as_chunks_mut().0;
        let columns = obs.iter_mut().zip(reward).zip(terminated.iter_mut().zip(truncated));
        for (index, (actions, ((obs, reward), (terminated, truncated)))) in actions.iter().zip(columns).enumerate() {
            let wanted = BLOCK.min(final_obs.len());
            let last = final_obs.split_off_mut(..wanted).unwrap_or_default();
            batch.step_block(index, BLOCK, actions, Rows { obs, reward, terminated, truncated }, last);
        }
        if !actions_left.is_empty() {
            let rest = Rest {
                obs: obs_left,
                reward: reward_left,
                terminated: terminated_left,
                truncated: truncated_left,
                final_obs,
            };
            self.step_edge(actions_left, rest);
        }
        Ok(())
    }

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        checks::started(self.batch.unborn, "observe")?;
        check_len("obs", obs.len(), self.num_envs() * D)?;
        for (row, last) in obs.as_chunks_mut().0.iter_mut().zip(self.last_obs()) {
            *row = *last;
        }
        Ok(())
    }

    fn episodes(&mut self) -> &mut EpisodeLog {
        &mut self.batch.log
    }

    fn state(&self, index: usize) -> Option<Vec<f64>> {
        let in_range = index < self.num_envs();
        let block = self.batch.blocks.get(index / BLOCK).filter(|_| in_range)?;
        let mut env = self.batch.env.clone();
        env.set_columns(block.columns(index % BLOCK));
        env.state()
    }

    fn check_state(&self, index: usize, state: &[f64], progress: Progress) -> Result<()> {
        if index >= self.num_envs() {
            return Err(checks::no_such_env(index, self.num_envs()));
        }
        self.batch.env.check_state(state).map_err(|error| checks::of_env(error, index))?;
        checks::progress(self.batch.mode, index, progress)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        let (num_envs, batch) = (self.num_envs(), &mut self.batch);
        if index >= num_envs {
            return Err(checks::no_such_env(index, num_envs));
        }
        let (block, lane) = (&mut batch.blocks[index / BLOCK], index % BLOCK);
        batch.env.set_columns(block.columns(lane));
        batch.env.set_state(state, &mut block.last_obs[lane])?;
        block.put(lane, batch.env.columns(), batch.now);
        batch.set_phase(index, Phase::Running);
        Ok(())
    }

    fn progress(&self, index: usize) -> Option<Progress> {
        let (phase, block) = (self.batch.phases.get(index)?, &self.batch.blocks[index / BLOCK]);
        Some(Progress {
            steps: self.batch.now.wrapping_sub(block.start[index % BLOCK]),
            episode_return: block.returns[index % BLOCK],
            finished: *phase == Phase::Finished,
        })
    }

    fn set_progress(&mut self, index: usize, progress: Progress) -> Result<()> {
        let (num_envs, batch) = (self.num_envs(), &mut self.batch);
        if index >= num_envs {
            return Err(checks::no_such_env(index, num_envs));
        }
        checks::progress(batch.mode, index, progress)?;
        let (block, lane) = (&mut batch.blocks[index / BLOCK], index % BLOCK);
        block.start[lane] = batch.now.wrapping_sub(progress.steps);
        block.returns[lane] = progress.episode_return;
        batch.set_phase(index, if progress.finished { Phase::Finished } else { Phase::Running });
        Ok(())
    }

    fn rngs(&self) -> Vec<Pcg64> {
        self.batch.rngs.clone()
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.num_envs())?;
        self.batch.rngs.clone_from_slice(rngs);
        Ok(())
    }
}
