//! Vectorised environments whose states are a structure of arrays, so that they are stepped with
//! SIMD instructions.
//!
//! A block is [`BLOCK`] (64) environments. Each number of the state has a column, an array with the
//! numbers of all environments of the block. Therefore one instruction works on several
//! environments. The position of an environment in its block is called its lane.
//!
//! Resets and other rare operations use the scalar environment, one environment at a time. Only the
//! step is implemented twice, with the same formulas. The instruction set is selected at run time
//! ([`crate::simd`]). The results are bit-equal on all instruction sets.

#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

use crate::interrupt::InterruptCheck;
use crate::pool::run_uninterrupted;
use crate::simd::{BLOCK, Bits, Block, LANES, lane_bits, multiversion, vectors, vectors_mut};
use crate::vector::{Phase, validate};
use crate::{
    Action, Actions, AutoresetMode, Env, EnvSpec, EpisodeLog, Error, Pcg64, ResetOptions, Result, Seeds, StepOut,
    VectorEnv, alloc, error::check_len, pool::num_threads, vector::EpisodeProgress,
};

/// Number of environments above which a reset checks for interruptions and therefore has two
/// stages. Resetting this number of environments takes about 10 ms.
const STAGED_RESET_ABOVE: usize = 1 << 16;

/// Largest number of threads that share a step.
const MAX_SHARDS: usize = 16;

/// An environment that can also step a block of environments at once. The state has `K` numbers,
/// the observation has `D` numbers.
pub trait LaneEnv<const K: usize, const D: usize>: Env + Clone {
    /// The type of one action: `i64` for a `Discrete` space, `f32` for a `Box` space of one number.
    type Number: Number;

    /// The workspace of a step, which is reused without clearing.
    type Scratch: Default + Send;

    /// Smallest number of environments for which [`SoaVecEnv`] is never slower than
    /// [`crate::VecEnv`].
    const MIN_ENVS: usize;

    /// Minimum number of environments per thread, about 20 us of work per step. With fewer
    /// environments, another thread does not make steps faster.
    const ENVS_PER_THREAD: usize;

    /// Returns true if [`LaneEnv::step_block`] supports the arguments of this environment.
    fn supports_lanes(&self) -> bool {
        true
    }

    /// Returns the state, one number per column.
    fn lane_state(&self) -> [f64; K];

    /// Restores a state of [`LaneEnv::lane_state`].
    fn set_lane_state(&mut self, columns: [f64; K]);

    /// Steps the first `out.count` environments of a block.
    ///
    /// For each lane, the result equals, bit for bit, that of [`Env::step`] for an environment with
    /// the arguments of `self` and the state of the lane. If `out.count` is not a multiple of
    /// [`crate::simd::LANES`], the remaining lanes of the last SIMD vector may be overwritten with
    /// any values. The function neither truncates episodes nor draws random numbers.
    fn step_block(
        &self,
        state: &mut [Block; K],
        actions: &[Self::Number; BLOCK],
        scratch: &mut Self::Scratch,
        out: LaneOut<'_, D>,
    );
}

/// Workspace of `N` columns.
#[derive(Debug)]
pub struct LaneScratch<const N: usize>(pub [Block; N]);

impl<const N: usize> Default for LaneScratch<N> {
    fn default() -> Self {
        Self([[0.0; BLOCK]; N])
    }
}

/// Output of [`LaneEnv::step_block`].
#[derive(Debug)]
pub struct LaneOut<'a, const D: usize> {
    /// The number of environments in the block, which are its first lanes.
    pub count: usize,
    /// The observations.
    pub obs: &'a mut [[f32; D]; BLOCK],
    /// The rewards.
    pub reward: &'a mut Block,
    /// Termination flags: the episode reached a terminal state of the task.
    pub terminated: &'a mut [bool; BLOCK],
}

/// Element type of actions.
pub trait Number: Copy + Default + Send + Sync {
    /// Returns the actions if they have this type, otherwise an empty slice.
    fn from_actions(actions: Actions<'_>) -> &[Self];
}

impl Number for i64 {
    fn from_actions(actions: Actions<'_>) -> &[Self] {
        if let Actions::Discrete(actions) = actions { actions } else { &[] }
    }
}

impl Number for f32 {
    fn from_actions(actions: Actions<'_>) -> &[Self] {
        if let Actions::Continuous(actions) = actions { actions } else { &[] }
    }
}

/// Vectorised environment of one native type, stored as a structure of arrays.
///
/// The results equal those of [`crate::VecEnv`], which is slower except for a small number of
/// environments. [`crate::envs::make`] selects the faster type.
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
pub struct SoaVecEnv<E: LaneEnv<K, D>, const K: usize, const D: usize> {
    num_envs: usize,
    /// The environments, one batch per thread. All batches but the last have the same size. There
    /// is at least one batch.
    batches: Vec<Batch<E, K, D>>,
    /// The finished episodes of all batches. Not used if there is only one batch.
    log: EpisodeLog,
}

/// Random generator, state and observation of an environment after a reset.
type ResetResult<const K: usize, const D: usize> = (Pcg64, [f64; K], [f32; D]);

impl<E: LaneEnv<K, D>, const K: usize, const D: usize> std::fmt::Debug for SoaVecEnv<E, K, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("SoaVecEnv");
        debug.field("id", &self.spec().id).field("num_envs", &self.num_envs).finish_non_exhaustive()
    }
}

impl<E: LaneEnv<K, D>, const K: usize, const D: usize> SoaVecEnv<E, K, D> {
    /// Creates `num_envs` environments with the arguments of `env`.
    ///
    /// Environment `i` is seeded with `seed + i`. Without a seed, the operating system provides the
    /// entropy. Steps of many environments are divided among several threads.
    ///
    /// # Errors
    /// [`Error::Config`] if `num_envs` is 0, or if `env` can only be stepped one at a time (Acrobot
    /// with torque noise). [`Error::Memory`] if memory is insufficient. [`Error::Interrupted`] if
    /// the function of [`crate::interrupt::set_interrupt_check`] returns true.
    pub fn new(num_envs: usize, seed: Option<u64>, mode: AutoresetMode, env: E) -> Result<Self> {
        let shards = (num_envs / E::ENVS_PER_THREAD).clamp(1, num_threads().min(MAX_SHARDS));
        Self::with_shards(shards, num_envs, seed, mode, env)
    }

    fn with_shards(shards: usize, num_envs: usize, seed: Option<u64>, mode: AutoresetMode, env: E) -> Result<Self> {
        validate::check_num_envs(num_envs)?;
        if !env.supports_lanes() {
            let (expected, got) = ("arguments that lanes support", format!("{:?}", env.spec().id));
            return Err(Error::config("env", expected, got, "use VecEnv, which supports all arguments"));
        }
        // Checks for twice the size, because callers also store observations and results of each
        // environment.
        alloc::check_available("num_envs", num_envs, 2 * Batch::<E, K, D>::BYTES_PER_ENV)?;
        let envs_per_shard = num_envs.div_ceil(shards).next_multiple_of(BLOCK);
        let mut streams = validate::spawn_streams(seed);
        let counts = (0..num_envs).step_by(envs_per_shard).map(|first| envs_per_shard.min(num_envs - first));
        let envs = std::iter::repeat_n(env, num_envs.div_ceil(envs_per_shard));
        let mut interrupt = InterruptCheck::default();
        let batch = |(count, env)| Batch::new(&mut streams, count, mode, env, &mut interrupt);
        let batches = counts.zip(envs).map(batch);
        let batches = batches.collect::<Result<_>>().map_err(|error| match error {
            Error::Memory(_) => alloc::out_of_memory("num_envs", num_envs, Batch::<E, K, D>::BYTES_PER_ENV),
            other => other,
        })?;
        Ok(Self { num_envs, batches, log: EpisodeLog::with_capacity()? })
    }

    /// Replaces the time limit in steps. `None` removes the limit.
    #[must_use]
    pub fn with_max_episode_steps(mut self, limit: Option<u32>) -> Self {
        for batch in &mut self.batches {
            batch.spec.max_episode_steps = limit;
        }
        self
    }

    fn last_obs(&self) -> impl Iterator<Item = &[f32; D]> {
        // Only the last block of all batches may be partial.
        self.batches.iter().flat_map(|batch| &batch.blocks).flat_map(|block| &block.last_obs)
    }

    fn phases(&self) -> impl Iterator<Item = Phase> {
        self.batches.iter().flat_map(|batch| batch.phases.iter().copied())
    }

    /// Returns the number of environments that have never been reset.
    fn never_reset(&self) -> usize {
        self.batches.iter().map(|batch| batch.never_reset).sum()
    }

    /// Returns the number of the batch of environment `index`, and the index of the environment
    /// within the batch. `index` must be below `num_envs`.
    fn locate(&self, index: usize) -> (usize, usize) {
        let envs_per_shard = self.batches[0].rngs.len();
        (index / envs_per_shard, index % envs_per_shard)
    }

    /// Returns the result of `locate`, or an error if `index` is out of range.
    fn try_locate(&self, index: usize) -> Result<(usize, usize)> {
        if index < self.num_envs { Ok(self.locate(index)) } else { Err(validate::no_such_env(index, self.num_envs)) }
    }

    /// Computes the reset of environment `i` without changing its random generator or its state.
    fn compute_reset(&mut self, i: usize, seeds: Seeds<'_>, options: &ResetOptions) -> ResetResult<K, D> {
        let (shard, index) = self.locate(i);
        let batch = &mut self.batches[shard];
        let (mut rng, mut first) = (batch.rngs[index].clone(), [0.0; D]);
        validate::reseed(&mut rng, seeds, i);
        batch.env.reset(&mut rng, options, &mut first);
        (rng, batch.env.lane_state(), first)
    }

    /// Applies a computed reset to environment `i`.
    fn apply_reset(&mut self, i: usize, (rng, state, first): ResetResult<K, D>) {
        let (shard, index) = self.locate(i);
        let batch = &mut self.batches[shard];
        batch.rngs[index] = rng;
        batch.begin_episode(index, state);
        batch.blocks[index / BLOCK].last_obs[index % BLOCK] = first;
    }

    /// Resets environments in two stages: all resets are computed before any is applied. Therefore
    /// an interrupted reset changes nothing.
    fn reset_staged(
        &mut self,
        seeds: Seeds<'_>,
        indices: impl Iterator<Item = usize> + Clone,
        options: &ResetOptions,
    ) -> Result<()> {
        let (mut starts, mut interrupt) =
            (alloc::with_capacity("num_envs", indices.clone().count())?, InterruptCheck::default());
        for (n, i) in indices.clone().enumerate() {
            if n.is_multiple_of(BLOCK) {
                interrupt.check()?;
            }
            starts.push(self.compute_reset(i, seeds, options));
        }
        indices.zip(starts).for_each(|(i, start)| self.apply_reset(i, start));
        Ok(())
    }

    /// Steps all batches, in parallel if the threads of the pool are free.
    fn step_batches(&mut self, mut actions: &[E::Number], mut out: StepOut<'_>) -> Result<()> {
        let count = self.batches.len();
        let mut shards = [const { Mutex::new(None) }; MAX_SHARDS];
        for (shard, batch) in shards.iter_mut().zip(&mut self.batches) {
            let (shard_actions, shard_out);
            (shard_actions, actions) = actions.split_at(batch.rngs.len());
            (shard_out, out) = out.split(batch.rngs.len(), D);
            *shard = Mutex::new(Some((batch, shard_actions, shard_out)));
        }
        run_uninterrupted(count, &|i, _| {
            let mut shard = shards[i].lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((batch, actions, out)) = shard.take() {
                batch.step(actions, out);
            }
            Ok(())
        })?;
        for batch in &mut self.batches {
            batch.log.append_to(&mut self.log);
        }
        Ok(())
    }
}

impl<E: LaneEnv<K, D>, const K: usize, const D: usize> VectorEnv for SoaVecEnv<E, K, D> {
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
        validate::check_reset((self.num_envs, D), obs, seeds, mask, self.phases())?;
        self.batches[0].env.check_options(options)?;
        let indices = (0..self.num_envs).filter(|&i| mask.is_none_or(|mask| mask[i]));
        if self.num_envs > STAGED_RESET_ABOVE {
            self.reset_staged(seeds, indices, options)?;
        } else {
            for i in indices {
                let start = self.compute_reset(i, seeds, options);
                self.apply_reset(i, start);
            }
        }
        self.batches.iter_mut().for_each(Batch::recount);
        self.observe(obs)
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        out.check(self.num_envs, D)?;
        validate::check_started(self.never_reset(), "step")?;
        let finished = self.batches.iter().any(|batch| batch.finished > 0);
        if finished && self.autoreset_mode() == AutoresetMode::Disabled {
            let env = self.phases().position(|phase| phase == Phase::Finished).unwrap_or(0);
            return Err(validate::episode_over(env));
        }
        drop(E::Action::rows(actions, self.num_envs, &self.spec().action)?);
        let actions = E::Number::from_actions(actions);
        if let [batch] = &mut self.batches[..] {
            batch.step(actions, out);
            return Ok(());
        }
        self.step_batches(actions, out)
    }

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        validate::check_started(self.never_reset(), "observe")?;
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
        let (shard, pos) = self.try_locate(index).ok()?;
        let batch = &self.batches[shard];
        let mut env = batch.env.clone();
        env.set_lane_state(batch.blocks[pos / BLOCK].lane_state(pos % BLOCK));
        env.state()
    }

    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()> {
        self.try_locate(index)?;
        self.batches[0]
            .env
            .check_state(state)
            .map_err(|error| error.rename_argument("state", "states").at_env(index))?;
        validate::check_progress(self.autoreset_mode(), index, progress)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        let (shard, pos) = self.try_locate(index)?;
        let batch = &mut self.batches[shard];
        let (block, lane) = (&mut batch.blocks[pos / BLOCK], pos % BLOCK);
        batch.env.set_lane_state(block.lane_state(lane));
        batch.env.set_state(state, &mut block.last_obs[lane])?;
        block.set_lane(lane, batch.env.lane_state(), batch.now);
        batch.set_phase(pos, Phase::Running);
        Ok(())
    }

    fn progress(&self, index: usize) -> Option<EpisodeProgress> {
        let (shard, pos) = self.try_locate(index).ok()?;
        let batch = &self.batches[shard];
        let (phase, block) = (batch.phases[pos], &batch.blocks[pos / BLOCK]);
        Some(EpisodeProgress {
            steps: batch.now.wrapping_sub(block.start[pos % BLOCK]),
            episode_return: block.returns[pos % BLOCK],
            finished: phase == Phase::Finished,
        })
    }

    fn set_progress(&mut self, index: usize, progress: EpisodeProgress) -> Result<()> {
        let (shard, pos) = self.try_locate(index)?;
        let batch = &mut self.batches[shard];
        validate::check_progress(batch.mode, index, progress)?;
        let (block, lane) = (&mut batch.blocks[pos / BLOCK], pos % BLOCK);
        block.start[lane] = batch.now.wrapping_sub(progress.steps);
        block.returns[lane] = progress.episode_return;
        batch.set_phase(pos, if progress.finished { Phase::Finished } else { Phase::Running });
        Ok(())
    }

    fn rngs(&self) -> Result<Vec<Pcg64>> {
        let mut rngs = alloc::with_capacity("num_envs", self.num_envs)?;
        rngs.extend(self.batches.iter().flat_map(|batch| &batch.rngs).cloned());
        Ok(rngs)
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.num_envs)?;
        let envs_per_shard = self.batches[0].rngs.len();
        for (batch, rngs) in self.batches.iter_mut().zip(rngs.chunks(envs_per_shard)) {
            batch.rngs.clone_from_slice(rngs);
        }
        Ok(())
    }
}

/// State of the environments that one thread steps.
struct Batch<E: LaneEnv<K, D>, const K: usize, const D: usize> {
    /// Scalar environment with the arguments of all environments. Its own state has no meaning
    /// between calls.
    env: E,
    scratch: Box<E::Scratch>,
    blocks: Vec<LaneBlock<K, D>>,
    rngs: Vec<Pcg64>,
    phases: Vec<Phase>,
    never_reset: usize,
    finished: usize,
    /// The number of steps so far, modulo 2^32. Episodes are shorter, so their lengths are exact
    /// differences.
    now: u32,
    spec: EnvSpec,
    mode: AutoresetMode,
    log: EpisodeLog,
    /// Inputs and outputs of the last block if it is partial. `None` during a step of that block.
    partial_block: Option<Box<PartialBlock<E::Number, D>>>,
}

impl<E: LaneEnv<K, D>, const K: usize, const D: usize> Batch<E, K, D> {
    /// Memory per environment in bytes.
    const BYTES_PER_ENV: usize = size_of::<LaneBlock<K, D>>() / BLOCK + size_of::<Pcg64>() + size_of::<Phase>();

    fn new(
        streams: &mut impl Iterator<Item = Pcg64>,
        num_envs: usize,
        mode: AutoresetMode,
        env: E,
        interrupt: &mut InterruptCheck,
    ) -> Result<Self> {
        let mut blocks = alloc::with_capacity("num_envs", num_envs.div_ceil(BLOCK))?;
        for i in 0..num_envs.div_ceil(BLOCK) {
            if i.is_multiple_of(BLOCK) {
                interrupt.check()?;
            }
            blocks.push(LaneBlock::default());
        }
        let mut phases = alloc::with_capacity("num_envs", num_envs)?;
        phases.resize(num_envs, Phase::NeverReset);
        let mut rngs = alloc::with_capacity("num_envs", num_envs)?;
        for (i, stream) in streams.take(num_envs).enumerate() {
            if i.is_multiple_of(BLOCK) {
                interrupt.check()?;
            }
            rngs.push(stream);
        }
        let (spec, log) = (env.spec().clone(), EpisodeLog::with_capacity()?);
        Ok(Self {
            env,
            scratch: Box::default(),
            blocks,
            rngs,
            phases,
            never_reset: num_envs,
            finished: 0,
            now: 0,
            spec,
            mode,
            log,
            partial_block: Some(Box::default()),
        })
    }

    fn recount(&mut self) {
        let count = |phase| self.phases.iter().filter(|&&p| p == phase).count();
        (self.never_reset, self.finished) = (count(Phase::NeverReset), count(Phase::Finished));
    }

    fn set_phase(&mut self, index: usize, phase: Phase) {
        let before = std::mem::replace(&mut self.phases[index], phase);
        self.never_reset -= usize::from(before == Phase::NeverReset);
        self.finished = self.finished - usize::from(before == Phase::Finished) + usize::from(phase == Phase::Finished);
    }

    /// Starts an episode in environment `index` and writes the first observation.
    fn restart(&mut self, index: usize, options: &ResetOptions, obs: &mut [f32; D]) {
        self.env.reset(&mut self.rngs[index], options, obs);
        self.begin_episode(index, self.env.lane_state());
    }

    /// Starts an episode in environment `index` with the given state.
    fn begin_episode(&mut self, index: usize, state: [f64; K]) {
        self.phases[index] = Phase::Running;
        self.blocks[index / BLOCK].set_lane(index % BLOCK, state, self.now);
    }

    /// Steps all environments. The caller has checked the lengths of the slices. `final_obs` may be empty.
    fn step(&mut self, actions: &[E::Number], out: StepOut<'_>) {
        self.now = self.now.wrapping_add(1);
        let StepOut { obs, reward, terminated, truncated, final_obs } = out;
        let (actions, actions_remainder) = actions.as_chunks();
        let (obs, obs_remainder) = obs.as_chunks_mut().0.as_chunks_mut();
        let (reward, reward_remainder) = reward.as_chunks_mut();
        let (terminated, terminated_remainder) = terminated.as_chunks_mut();
        let (truncated, truncated_remainder) = truncated.as_chunks_mut();
        let mut final_obs = final_obs.as_chunks_mut().0;
        let outputs = obs.iter_mut().zip(reward).zip(terminated.iter_mut().zip(truncated));
        for (index, (actions, ((obs, reward), (terminated, truncated)))) in actions.iter().zip(outputs).enumerate() {
            let wanted = BLOCK.min(final_obs.len());
            let last = final_obs.split_off_mut(..wanted).unwrap_or_default();
            self.step_block(index, BLOCK, actions, Rows { obs, reward, terminated, truncated }, last);
        }
        if !actions_remainder.is_empty() {
            let remainder = Remainder {
                obs: obs_remainder,
                reward: reward_remainder,
                terminated: terminated_remainder,
                truncated: truncated_remainder,
                final_obs,
            };
            self.step_partial_block(actions_remainder, remainder);
        }
    }

    /// Steps the environments of the partial last block. The slices have one row per environment.
    fn step_partial_block(&mut self, actions: &[E::Number], remainder: Remainder<'_, D>) {
        let (mut partial_block, count) = (self.partial_block.take().unwrap_or_default(), actions.len());
        partial_block.actions[..count].copy_from_slice(actions);
        let rows = Rows {
            obs: &mut partial_block.obs,
            reward: &mut partial_block.reward,
            terminated: &mut partial_block.terminated,
            truncated: &mut partial_block.truncated,
        };
        let Remainder { obs, reward, terminated, truncated, final_obs } = remainder;
        self.step_block(self.blocks.len() - 1, count, &partial_block.actions, rows, final_obs);
        obs.copy_from_slice(&partial_block.obs[..count]);
        reward.copy_from_slice(&partial_block.reward[..count]);
        terminated.copy_from_slice(&partial_block.terminated[..count]);
        truncated.copy_from_slice(&partial_block.truncated[..count]);
        self.partial_block = Some(partial_block);
    }

    /// Steps the first `count` environments of block `index`. `final_obs` has one row per environment or is empty.
    fn step_block(
        &mut self,
        index: usize,
        count: usize,
        actions: &[E::Number; BLOCK],
        mut rows: Rows<'_, D>,
        final_obs: &mut [[f32; D]],
    ) {
        let (block, first) = (&mut self.blocks[index], index * BLOCK);
        let out = LaneOut { count, obs: rows.obs, reward: rows.reward, terminated: rows.terminated };
        self.env.step_block(&mut block.state, actions, &mut self.scratch, out);
        block.zero_padding(count);
        if self.finished > 0 {
            self.start_next(first, count, &mut rows);
        }
        // A limit of 0 ends an episode at its first step, as a limit of 1 does.
        let limit = self.spec.max_episode_steps.map(|limit| limit.max(1));
        for i in tally(&mut self.blocks[index], count, (self.now, limit), &mut rows) {
            let block = &self.blocks[index];
            self.log.push(block.returns[i], self.now.wrapping_sub(block.start[i]));
            if self.mode == AutoresetMode::SameStep {
                if let Some(last) = final_obs.get_mut(i) {
                    *last = rows.obs[i];
                }
                self.restart(first + i, &ResetOptions::default(), &mut rows.obs[i]);
            } else {
                self.phases[first + i] = Phase::Finished;
                self.finished += 1;
            }
        }
        self.blocks[index].last_obs[..count].copy_from_slice(&rows.obs[..count]);
    }

    /// Resets the finished environments among `first..first + count`. With
    /// [`AutoresetMode::NextStep`], the step after the end of an episode consists of this reset.
    fn start_next(&mut self, first: usize, count: usize, rows: &mut Rows<'_, D>) {
        for i in 0..count {
            if self.phases[first + i] == Phase::Finished {
                self.restart(first + i, &ResetOptions::default(), &mut rows.obs[i]);
                self.finished -= 1;
                (rows.reward[i], rows.terminated[i]) = (0.0, false);
            }
        }
    }
}

/// The parts of the caller's slices that belong to the partial last block.
struct Remainder<'a, const D: usize> {
    obs: &'a mut [[f32; D]],
    reward: &'a mut [f64],
    terminated: &'a mut [bool],
    truncated: &'a mut [bool],
    final_obs: &'a mut [[f32; D]],
}

/// State of [`BLOCK`] environments. Unused lanes hold zeros.
#[derive(Clone, Debug)]
struct LaneBlock<const K: usize, const D: usize> {
    state: [Block; K],
    /// The sum of the rewards of the current episode.
    returns: Block,
    /// The step count of the batch at the start of the current episode.
    start: [u32; BLOCK],
    last_obs: [[f32; D]; BLOCK],
}

impl<const K: usize, const D: usize> Default for LaneBlock<K, D> {
    fn default() -> Self {
        Self { state: [[0.0; BLOCK]; K], returns: [0.0; BLOCK], start: [0; BLOCK], last_obs: [[0.0; D]; BLOCK] }
    }
}

impl<const K: usize, const D: usize> LaneBlock<K, D> {
    /// Starts an episode with `state` at step count `now`.
    fn set_lane(&mut self, lane: usize, state: [f64; K], now: u32) {
        for (column, value) in self.state.iter_mut().zip(state) {
            column[lane] = value;
        }
        (self.returns[lane], self.start[lane]) = (0.0, now);
    }

    /// Returns the state of one environment.
    fn lane_state(&self, lane: usize) -> [f64; K] {
        std::array::from_fn(|column| self.state[column][lane])
    }

    /// Clears the unused lanes that a step of the first `count` environments has overwritten.
    ///
    /// Otherwise these lanes could reach numbers with slow arithmetic, such as subnormal numbers.
    fn zero_padding(&mut self, count: usize) {
        for column in &mut self.state {
            column[count..count.next_multiple_of(LANES)].fill(0.0);
        }
    }
}

/// Results of a step of a block.
#[derive(Debug)]
struct Rows<'a, const D: usize> {
    obs: &'a mut [[f32; D]; BLOCK],
    reward: &'a mut Block,
    terminated: &'a mut [bool; BLOCK],
    truncated: &'a mut [bool; BLOCK],
}

/// Padded inputs and outputs of the partial last block.
#[derive(Debug)]
struct PartialBlock<N, const D: usize> {
    actions: [N; BLOCK],
    obs: [[f32; D]; BLOCK],
    reward: Block,
    terminated: [bool; BLOCK],
    truncated: [bool; BLOCK],
}

impl<N: Copy + Default, const D: usize> Default for PartialBlock<N, D> {
    fn default() -> Self {
        Self {
            actions: [N::default(); BLOCK],
            obs: [[0.0; D]; BLOCK],
            reward: [0.0; BLOCK],
            terminated: [false; BLOCK],
            truncated: [false; BLOCK],
        }
    }
}

/// Adds the rewards to the returns of the episodes and truncates episodes of `limit` steps.
///
/// Returns the lanes of the environments whose episode ended.
fn tally<const K: usize, const D: usize>(
    block: &mut LaneBlock<K, D>,
    count: usize,
    (now, limit): (u32, Option<u32>),
    rows: &mut Rows<'_, D>,
) -> Bits {
    let mut ended = [false; BLOCK];
    count_block(
        &mut block.returns,
        rows.reward,
        &block.start,
        now,
        limit,
        count,
        rows.terminated,
        rows.truncated,
        &mut ended,
    );
    lane_bits(&ended, count)
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "columns of one table")]
    fn count_block(
        returns: &mut Block,
        reward: &Block,
        start: &[u32; BLOCK],
        now: u32,
        limit: Option<u32>,
        count: usize,
        terminated: &[bool; BLOCK],
        truncated: &mut [bool; BLOCK],
        ended: &mut [bool; BLOCK],
    ) {
        let (limited, limit) = (limit.is_some(), limit.unwrap_or(0));
        let inputs = vectors_mut(returns).zip(vectors(reward)).zip(vectors(start));
        let flags = vectors(terminated).zip(vectors_mut(truncated)).zip(vectors_mut(ended));
        let all = inputs.zip(flags).take(count.div_ceil(LANES));
        for (((returns, reward), start), ((terminated, truncated), ended)) in all {
            for i in 0..LANES {
                returns[i] += reward[i];
                truncated[i] = limited & (now.wrapping_sub(start[i]) >= limit);
                ended[i] = terminated[i] | truncated[i];
            }
        }
    }
}
