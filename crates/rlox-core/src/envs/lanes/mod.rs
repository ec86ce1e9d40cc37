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

use std::sync::{Mutex, PoisonError};

use batch::Batch;
pub(super) use kernel::Lanes;
use kernel::{Columns, LanesOut, Number};

use crate::interrupt::Watch;
use crate::pool::run_whole;
use crate::simd::BLOCK;
use crate::vector::{Phase, checks};
use crate::{
    Action, Actions, AutoresetMode, EnvSpec, EpisodeLog, Error, Pcg64, Progress, ResetOptions, Result, Seeds, StepOut,
    VectorEnv, check_len, memory, num_threads,
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
    num_envs: usize,
    /// One for each thread, all but the last one of as many environments; never empty.
    batches: Vec<Batch<E, K, D>>,
    /// The episodes of all batches, if there are several.
    log: EpisodeLog,
}

/// So many environments are reset in some 10 ms.
const MANY: usize = 1 << 16;

/// A stream, a state and its observation.
type Start<const K: usize, const D: usize> = (Pcg64, [f64; K], [f32; D]);

/// How many threads share a step at most.
const SHARES: usize = 16;

impl<E: Lanes<K, D>, const K: usize, const D: usize> std::fmt::Debug for SoaVecEnv<E, K, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("SoaVecEnv");
        debug.field("id", &self.spec().id).field("num_envs", &self.num_envs).finish_non_exhaustive()
    }
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> SoaVecEnv<E, K, D> {
    /// `num_envs` environments with the arguments of `env`. Environment i draws from the seed `seed + i`; without a
    /// seed the streams come from the operating system. Where they are many, threads share each step.
    ///
    /// # Errors
    /// [`Error::Config`] if `num_envs` is 0 or the arguments are not for lanes (Acrobot's noise), [`Error::Memory`] if
    /// there is not enough memory.
    pub fn new(num_envs: usize, seed: Option<u64>, mode: AutoresetMode, env: E) -> Result<Self> {
        let shares = (num_envs / E::SHARE).clamp(1, num_threads().min(SHARES));
        Self::in_shares(shares, num_envs, seed, mode, env)
    }

    fn in_shares(shares: usize, num_envs: usize, seed: Option<u64>, mode: AutoresetMode, env: E) -> Result<Self> {
        checks::num_envs(num_envs)?;
        if !env.has_lanes() {
            let (expected, got) = ("arguments that can be stepped as lanes", format!("{:?}", env.spec().id));
            return Err(Error::config("env", expected, got, "use VecEnv, which takes all arguments"));
        }
        // Twice that, as callers hold spaces, observations and results for them, too.
        memory::check("num_envs", num_envs, 2 * Batch::<E, K, D>::EACH)?;
        let each = num_envs.div_ceil(shares).next_multiple_of(BLOCK);
        let mut streams = checks::streams(seed);
        let counts = (0..num_envs).step_by(each).map(|first| each.min(num_envs - first));
        let envs = std::iter::repeat_n(env, num_envs.div_ceil(each));
        let mut watch = Watch::default();
        let batch = |(count, env)| Batch::new(&mut streams, count, mode, env, &mut watch);
        let batches = counts.zip(envs).map(batch);
        let batches = batches.collect::<Result<_>>().map_err(|error| match error {
            Error::Memory(_) => memory::refused("num_envs", num_envs, Batch::<E, K, D>::EACH),
            other => other,
        })?;
        Ok(Self { num_envs, batches, log: EpisodeLog::reserved()? })
    }

    /// Replaces the time limit; `None` for none.
    #[must_use]
    pub fn with_max_episode_steps(mut self, limit: Option<u32>) -> Self {
        for batch in &mut self.batches {
            batch.spec.max_episode_steps = limit;
        }
        self
    }

    fn last_obs(&self) -> impl Iterator<Item = &[f32; D]> {
        // Only the last block of all may not be full.
        self.batches.iter().flat_map(|batch| &batch.blocks).flat_map(|block| &block.last_obs)
    }

    fn phases(&self) -> impl Iterator<Item = Phase> {
        self.batches.iter().flat_map(|batch| batch.phases.iter().copied())
    }

    /// How many environments were never reset.
    fn unborn(&self) -> usize {
        self.batches.iter().map(|batch| batch.unborn).sum()
    }

    /// In which batch an environment is, and where. The index is less than `num_envs`.
    fn place(&self, index: usize) -> (usize, usize) {
        let each = self.batches[0].rngs.len();
        (index / each, index % each)
    }

    /// The same for environments that may not be there.
    fn find(&self, index: usize) -> Result<(usize, usize)> {
        if index < self.num_envs { Ok(self.place(index)) } else { Err(checks::no_such_env(index, self.num_envs)) }
    }

    /// How environment `i` starts: its stream, its state and its observation.
    fn start_of(&mut self, i: usize, seeds: Seeds<'_>, options: &ResetOptions) -> Start<K, D> {
        let (share, at) = self.place(i);
        let batch = &mut self.batches[share];
        let (mut rng, mut first) = (batch.rngs[at].clone(), [0.0; D]);
        checks::reseed(&mut rng, seeds, i);
        batch.env.reset(&mut rng, options, &mut first);
        (rng, batch.env.columns(), first)
    }

    /// Starts it so.
    fn start(&mut self, i: usize, (rng, columns, first): Start<K, D>) {
        let (share, at) = self.place(i);
        let batch = &mut self.batches[share];
        batch.rngs[at] = rng;
        batch.start(at, columns);
        batch.blocks[at / BLOCK].last_obs[at % BLOCK] = first;
    }

    /// Resets the chosen ones: aside first, so that nothing has changed where that is interrupted.
    fn reset_aside(
        &mut self,
        seeds: Seeds<'_>,
        chosen: impl Iterator<Item = usize> + Clone,
        options: &ResetOptions,
    ) -> Result<()> {
        let (mut starts, mut watch) = (memory::reserved("num_envs", chosen.clone().count())?, Watch::default());
        for (n, i) in chosen.clone().enumerate() {
            if n.is_multiple_of(BLOCK) {
                watch.check()?;
            }
            starts.push(self.start_of(i, seeds, options));
        }
        chosen.zip(starts).for_each(|(i, start)| self.start(i, start));
        Ok(())
    }

    /// Steps all batches, each on a thread of its own if one is free.
    fn step_batches(&mut self, mut actions: &[E::Number], mut out: StepOut<'_>) -> Result<()> {
        let count = self.batches.len();
        let mut shares = [const { Mutex::new(None) }; SHARES];
        for (share, batch) in shares.iter_mut().zip(&mut self.batches) {
            let (mine, part);
            (mine, actions) = actions.split_at(batch.rngs.len());
            (part, out) = out.split(batch.rngs.len(), D);
            *share = Mutex::new(Some((batch, mine, part)));
        }
        run_whole(count, &|i, _| {
            let mut share = shares[i].lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((batch, actions, out)) = share.take() {
                batch.step(actions, out);
            }
            Ok(())
        })?;
        for batch in &mut self.batches {
            batch.log.pour_into(&mut self.log);
        }
        Ok(())
    }
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> VectorEnv for SoaVecEnv<E, K, D> {
    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn spec(&self) -> &EnvSpec {
        &self.batches[0].spec
    }

    fn autoreset_mode(&self) -> AutoresetMode {
        self.batches[0].mode
    }

    fn reset(
        &mut self,
        seeds: Seeds<'_>,
        mask: Option<&[bool]>,
        options: &ResetOptions,
        obs: &mut [f32],
    ) -> Result<()> {
        checks::reset((self.num_envs, D), obs, seeds, mask, self.phases())?;
        self.batches[0].env.check_options(options)?;
        let chosen = (0..self.num_envs).filter(|&i| mask.is_none_or(|mask| mask[i]));
        if self.num_envs > MANY {
            self.reset_aside(seeds, chosen, options)?;
        } else {
            for i in chosen {
                let start = self.start_of(i, seeds, options);
                self.start(i, start);
            }
        }
        self.batches.iter_mut().for_each(Batch::recount);
        self.observe(obs)
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        out.check(self.num_envs, D)?;
        checks::started(self.unborn(), "step")?;
        let finished = self.batches.iter().any(|batch| batch.finished > 0);
        if finished && self.autoreset_mode() == AutoresetMode::Disabled {
            let env = self.phases().position(|phase| phase == Phase::Finished).unwrap_or(0);
            return Err(checks::episode_over(env));
        }
        drop(E::Action::rows(actions, self.num_envs, &self.spec().action)?);
        let actions = E::Number::of(actions);
        if let [batch] = &mut self.batches[..] {
            batch.step(actions, out);
            return Ok(());
        }
        self.step_batches(actions, out)
    }

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        checks::started(self.unborn(), "observe")?;
        check_len("obs", obs.len(), self.num_envs * D)?;
        for (row, last) in obs.as_chunks_mut().0.iter_mut().zip(self.last_obs()) {
            *row = *last;
        }
        Ok(())
    }

    fn episodes(&mut self) -> &mut EpisodeLog {
        if let [batch] = &mut self.batches[..] { &mut batch.log } else { &mut self.log }
    }

    fn state(&self, index: usize) -> Option<Vec<f64>> {
        let (share, at) = self.find(index).ok()?;
        let batch = &self.batches[share];
        let mut env = batch.env.clone();
        env.set_columns(batch.blocks[at / BLOCK].columns(at % BLOCK));
        env.state()
    }

    fn check_state(&self, index: usize, state: &[f64], progress: Progress) -> Result<()> {
        self.find(index)?;
        self.batches[0]
            .env
            .check_state(state)
            .map_err(|error| error.rename_argument("state", "states").at_env(index))?;
        checks::progress(self.autoreset_mode(), index, progress)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        let (share, at) = self.find(index)?;
        let batch = &mut self.batches[share];
        let (block, lane) = (&mut batch.blocks[at / BLOCK], at % BLOCK);
        batch.env.set_columns(block.columns(lane));
        batch.env.set_state(state, &mut block.last_obs[lane])?;
        block.put(lane, batch.env.columns(), batch.now);
        batch.set_phase(at, Phase::Running);
        Ok(())
    }

    fn progress(&self, index: usize) -> Option<Progress> {
        let (share, at) = self.find(index).ok()?;
        let batch = &self.batches[share];
        let (phase, block) = (batch.phases[at], &batch.blocks[at / BLOCK]);
        Some(Progress {
            steps: batch.now.wrapping_sub(block.start[at % BLOCK]),
            episode_return: block.returns[at % BLOCK],
            finished: phase == Phase::Finished,
        })
    }

    fn set_progress(&mut self, index: usize, progress: Progress) -> Result<()> {
        let (share, at) = self.find(index)?;
        let batch = &mut self.batches[share];
        checks::progress(batch.mode, index, progress)?;
        let (block, lane) = (&mut batch.blocks[at / BLOCK], at % BLOCK);
        block.start[lane] = batch.now.wrapping_sub(progress.steps);
        block.returns[lane] = progress.episode_return;
        batch.set_phase(at, if progress.finished { Phase::Finished } else { Phase::Running });
        Ok(())
    }

    fn rngs(&self) -> Result<Vec<Pcg64>> {
        let mut rngs = memory::reserved("num_envs", self.num_envs)?;
        rngs.extend(self.batches.iter().flat_map(|batch| &batch.rngs).cloned());
        Ok(rngs)
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.num_envs)?;
        let each = self.batches[0].rngs.len();
        for (batch, rngs) in self.batches.iter_mut().zip(rngs.chunks(each)) {
            batch.rngs.clone_from_slice(rngs);
        }
        Ok(())
    }
}
