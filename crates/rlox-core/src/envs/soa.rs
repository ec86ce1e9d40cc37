//! Environments as a structure of arrays, stepped by SIMD lanes behind the same trait as any other.
//!
//! The states of a block of environments lie column by column, so that one instruction works on several environments.
//! Everything an environment does rarely (resets, states for renderers) is done by the environment itself, one at a
//! time; only its step has a second form, made of the same formulas. Which instructions run is decided at run time
//! ([`crate::simd`]); the results are the same bits on all of them.

#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

use crate::interrupt::Watch;
use crate::pool::run_whole;
use crate::simd::{BLOCK, Bits, Block, LANES, lane_bits, multiversion, vectors, vectors_mut};
use crate::vector::{Phase, validate};
use crate::{
    Action, Actions, AutoresetMode, Env, EnvSpec, EpisodeLog, Error, Pcg64, Progress, ResetOptions, Result, Seeds,
    StepOut, VectorEnv, alloc, check_len, num_threads,
};

/// So many environments are reset in some 10 ms.
const MANY: usize = 1 << 16;

/// How many threads share a step at most.
const SHARES: usize = 16;

/// An environment that steps a block of its kind at once. `K` numbers are its state, `D` its observation.
pub trait Lanes<const K: usize, const D: usize>: Env + Clone {
    /// `i64` for Discrete, `f32` for Box action spaces of one number.
    type Number: Number;

    /// What a step works with, made once so that steps need not clear it.
    type Scratch: Default + Send;

    /// From how many environments on lanes are at least as fast as copies, on every instruction set.
    const FROM: usize;

    /// How many environments a thread of its own pays off for: some 20 us of work a step.
    const SHARE: usize;

    /// Whether environments with these arguments can be stepped as lanes.
    fn has_lanes(&self) -> bool {
        true
    }

    /// The state, one number a column.
    fn columns(&self) -> [f64; K];

    /// Puts back what [`Lanes::columns`] gave.
    fn set_columns(&mut self, columns: [f64; K]);

    /// Steps the first `out.count` environments: [`Env::step`], bit for bit, of an environment with `self`'s arguments
    /// and that column's state. It may write whatever it
    /// likes behind them, to places of the same vector of [`crate::simd::LANES`]. The environment truncates nothing itself
    /// and draws no random numbers.
    fn step_block(
        &self,
        state: &mut [Block; K],
        actions: &[Self::Number; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, D>,
    );
}

/// So many columns to work with.
#[derive(Debug)]
pub struct Columns<const N: usize>(pub [Block; N]);

impl<const N: usize> Default for Columns<N> {
    fn default() -> Self {
        Self([[0.0; BLOCK]; N])
    }
}

/// Where the step of a block writes to.
#[derive(Debug)]
pub struct LanesOut<'a, const D: usize> {
    /// How many environments of the block there are.
    pub count: usize,
    /// The observations.
    pub obs: &'a mut [[f32; D]; BLOCK],
    /// The rewards.
    pub reward: &'a mut Block,
    /// The task itself ended.
    pub terminated: &'a mut [bool; BLOCK],
}

/// The numbers that actions are made of.
pub trait Number: Copy + Default + Send + Sync {
    /// The actions, if they are of this kind; none otherwise.
    fn of(actions: Actions<'_>) -> &[Self];
}

impl Number for i64 {
    fn of(actions: Actions<'_>) -> &[Self] {
        if let Actions::Discrete(actions) = actions { actions } else { &[] }
    }
}

impl Number for f32 {
    fn of(actions: Actions<'_>) -> &[Self] {
        if let Actions::Continuous(actions) = actions { actions } else { &[] }
    }
}

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

/// A stream, a state and its observation.
type Start<const K: usize, const D: usize> = (Pcg64, [f64; K], [f32; D]);

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
        validate::num_envs(num_envs)?;
        if !env.has_lanes() {
            let (expected, got) = ("arguments that can be stepped as lanes", format!("{:?}", env.spec().id));
            return Err(Error::config("env", expected, got, "use VecEnv, which takes all arguments"));
        }
        // Twice that, as callers hold spaces, observations and results for them, too.
        alloc::check("num_envs", num_envs, 2 * Batch::<E, K, D>::EACH)?;
        let each = num_envs.div_ceil(shares).next_multiple_of(BLOCK);
        let mut streams = validate::streams(seed);
        let counts = (0..num_envs).step_by(each).map(|first| each.min(num_envs - first));
        let envs = std::iter::repeat_n(env, num_envs.div_ceil(each));
        let mut watch = Watch::default();
        let batch = |(count, env)| Batch::new(&mut streams, count, mode, env, &mut watch);
        let batches = counts.zip(envs).map(batch);
        let batches = batches.collect::<Result<_>>().map_err(|error| match error {
            Error::Memory(_) => alloc::refused("num_envs", num_envs, Batch::<E, K, D>::EACH),
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
        if index < self.num_envs { Ok(self.place(index)) } else { Err(validate::no_such_env(index, self.num_envs)) }
    }

    /// How environment `i` starts: its stream, its state and its observation.
    fn start_of(&mut self, i: usize, seeds: Seeds<'_>, options: &ResetOptions) -> Start<K, D> {
        let (share, at) = self.place(i);
        let batch = &mut self.batches[share];
        let (mut rng, mut first) = (batch.rngs[at].clone(), [0.0; D]);
        validate::reseed(&mut rng, seeds, i);
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
        let (mut starts, mut watch) = (alloc::reserved("num_envs", chosen.clone().count())?, Watch::default());
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
        validate::reset((self.num_envs, D), obs, seeds, mask, self.phases())?;
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
        validate::started(self.unborn(), "step")?;
        let finished = self.batches.iter().any(|batch| batch.finished > 0);
        if finished && self.autoreset_mode() == AutoresetMode::Disabled {
            let env = self.phases().position(|phase| phase == Phase::Finished).unwrap_or(0);
            return Err(validate::episode_over(env));
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
        validate::started(self.unborn(), "observe")?;
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
        validate::progress(self.autoreset_mode(), index, progress)
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
        validate::progress(batch.mode, index, progress)?;
        let (block, lane) = (&mut batch.blocks[at / BLOCK], at % BLOCK);
        block.start[lane] = batch.now.wrapping_sub(progress.steps);
        block.returns[lane] = progress.episode_return;
        batch.set_phase(at, if progress.finished { Phase::Finished } else { Phase::Running });
        Ok(())
    }

    fn rngs(&self) -> Result<Vec<Pcg64>> {
        let mut rngs = alloc::reserved("num_envs", self.num_envs)?;
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

/// All that N environments remember.
struct Batch<E: Lanes<K, D>, const K: usize, const D: usize> {
    /// The arguments of all environments; its own state is whatever was last loaded into it.
    env: E,
    scratch: Box<E::Scratch>,
    blocks: Vec<LanesBlock<K, D>>,
    rngs: Vec<Pcg64>,
    phases: Vec<Phase>,
    unborn: usize,
    finished: usize,
    /// Steps so far, modulo 2^32, which no episode exceeds.
    now: u32,
    spec: EnvSpec,
    mode: AutoresetMode,
    log: EpisodeLog,
    /// None while it is being stepped.
    edge: Option<Box<Edge<E::Number, D>>>,
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> Batch<E, K, D> {
    /// What an environment takes, in bytes.
    const EACH: usize = size_of::<LanesBlock<K, D>>() / BLOCK + size_of::<Pcg64>() + size_of::<Phase>();

    fn new(
        streams: &mut impl Iterator<Item = Pcg64>,
        num_envs: usize,
        mode: AutoresetMode,
        env: E,
        watch: &mut Watch,
    ) -> Result<Self> {
        let mut blocks = alloc::reserved("num_envs", num_envs.div_ceil(BLOCK))?;
        for i in 0..num_envs.div_ceil(BLOCK) {
            if i.is_multiple_of(BLOCK) {
                watch.check()?;
            }
            blocks.push(LanesBlock::default());
        }
        let mut phases = alloc::reserved("num_envs", num_envs)?;
        phases.resize(num_envs, Phase::Unborn);
        let mut rngs = alloc::reserved("num_envs", num_envs)?;
        for (i, stream) in streams.take(num_envs).enumerate() {
            if i.is_multiple_of(BLOCK) {
                watch.check()?;
            }
            rngs.push(stream);
        }
        let (spec, log) = (env.spec().clone(), EpisodeLog::reserved()?);
        Ok(Self {
            env,
            scratch: Box::default(),
            blocks,
            rngs,
            phases,
            unborn: num_envs,
            finished: 0,
            now: 0,
            spec,
            mode,
            log,
            edge: Some(Box::default()),
        })
    }

    fn recount(&mut self) {
        let count = |phase| self.phases.iter().filter(|&&p| p == phase).count();
        (self.unborn, self.finished) = (count(Phase::Unborn), count(Phase::Finished));
    }

    fn set_phase(&mut self, index: usize, phase: Phase) {
        let before = std::mem::replace(&mut self.phases[index], phase);
        self.unborn -= usize::from(before == Phase::Unborn);
        self.finished = self.finished - usize::from(before == Phase::Finished) + usize::from(phase == Phase::Finished);
    }

    /// Starts an episode in environment `index` and writes its observation.
    fn restart(&mut self, index: usize, options: &ResetOptions, obs: &mut [f32; D]) {
        self.env.reset(&mut self.rngs[index], options, obs);
        self.start(index, self.env.columns());
    }

    /// Starts an episode in environment `index` with this state.
    fn start(&mut self, index: usize, columns: [f64; K]) {
        self.phases[index] = Phase::Running;
        self.blocks[index / BLOCK].put(index % BLOCK, columns, self.now);
    }

    /// Steps all environments; the slices have their lengths. `final_obs` may be empty.
    fn step(&mut self, actions: &[E::Number], out: StepOut<'_>) {
        self.now = self.now.wrapping_add(1);
        let StepOut { obs, reward, terminated, truncated, final_obs } = out;
        let (actions, actions_left) = actions.as_chunks();
        let (obs, obs_left) = obs.as_chunks_mut().0.as_chunks_mut();
        let (reward, reward_left) = reward.as_chunks_mut();
        let (terminated, terminated_left) = terminated.as_chunks_mut();
        let (truncated, truncated_left) = truncated.as_chunks_mut();
        let mut final_obs = final_obs.as_chunks_mut().0;
        let columns = obs.iter_mut().zip(reward).zip(terminated.iter_mut().zip(truncated));
        for (index, (actions, ((obs, reward), (terminated, truncated)))) in actions.iter().zip(columns).enumerate() {
            let wanted = BLOCK.min(final_obs.len());
            let last = final_obs.split_off_mut(..wanted).unwrap_or_default();
            self.step_block(index, BLOCK, actions, Rows { obs, reward, terminated, truncated }, last);
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
    }

    /// Steps the environments of the last block, which is not full. The slices are what is left for it.
    fn step_edge(&mut self, actions: &[E::Number], rest: Rest<'_, D>) {
        let (mut edge, count) = (self.edge.take().unwrap_or_default(), actions.len());
        edge.actions[..count].copy_from_slice(actions);
        let rows = Rows {
            obs: &mut edge.obs,
            reward: &mut edge.reward,
            terminated: &mut edge.terminated,
            truncated: &mut edge.truncated,
        };
        let Rest { obs, reward, terminated, truncated, final_obs } = rest;
        self.step_block(self.blocks.len() - 1, count, &edge.actions, rows, final_obs);
        obs.copy_from_slice(&edge.obs[..count]);
        reward.copy_from_slice(&edge.reward[..count]);
        terminated.copy_from_slice(&edge.terminated[..count]);
        truncated.copy_from_slice(&edge.truncated[..count]);
        self.edge = Some(edge);
    }

    /// Steps the first `count` environments of block `index`. `final_obs` has a row for each of them, or none.
    fn step_block(
        &mut self,
        index: usize,
        count: usize,
        actions: &[E::Number; BLOCK],
        mut rows: Rows<'_, D>,
        final_obs: &mut [[f32; D]],
    ) {
        let (block, first) = (&mut self.blocks[index], index * BLOCK);
        let out = LanesOut { count, obs: rows.obs, reward: rows.reward, terminated: rows.terminated };
        self.env.step_block(&mut block.state, actions, &mut self.scratch, out);
        block.clear_behind(count);
        if self.finished > 0 {
            self.start_next(first, count, &mut rows);
        }
        // A limit of 0 ends an episode at its first step, as 1 does.
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

    /// Resets the finished environments among `first..first + count`; for them this step is the reset.
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

/// What full blocks leave of the caller's slices.
struct Rest<'a, const D: usize> {
    obs: &'a mut [[f32; D]],
    reward: &'a mut [f64],
    terminated: &'a mut [bool],
    truncated: &'a mut [bool],
    final_obs: &'a mut [[f32; D]],
}

/// What [`BLOCK`] environments remember. Places without an environment hold zeros.
#[derive(Clone, Debug)]
struct LanesBlock<const K: usize, const D: usize> {
    state: [Block; K],
    /// The rewards of the episode so far.
    returns: Block,
    /// The time of the reset.
    start: [u32; BLOCK],
    last_obs: [[f32; D]; BLOCK],
}

impl<const K: usize, const D: usize> Default for LanesBlock<K, D> {
    fn default() -> Self {
        Self { state: [[0.0; BLOCK]; K], returns: [0.0; BLOCK], start: [0; BLOCK], last_obs: [[0.0; D]; BLOCK] }
    }
}

impl<const K: usize, const D: usize> LanesBlock<K, D> {
    /// Starts an episode with `state` at the time `now`.
    fn put(&mut self, lane: usize, state: [f64; K], now: u32) {
        for (column, value) in self.state.iter_mut().zip(state) {
            column[lane] = value;
        }
        (self.returns[lane], self.start[lane]) = (0.0, now);
    }

    /// The state of one environment.
    fn columns(&self, lane: usize) -> [f64; K] {
        std::array::from_fn(|column| self.state[column][lane])
    }

    /// Zeroes what a step of the first `count` environments has written behind them, lest it wander off to where steps
    /// are slow.
    fn clear_behind(&mut self, count: usize) {
        for column in &mut self.state {
            column[count..count.next_multiple_of(LANES)].fill(0.0);
        }
    }
}

/// What a step writes about a block.
#[derive(Debug)]
struct Rows<'a, const D: usize> {
    obs: &'a mut [[f32; D]; BLOCK],
    reward: &'a mut Block,
    terminated: &'a mut [bool; BLOCK],
    truncated: &'a mut [bool; BLOCK],
}

/// Where the last block reads from and writes to if it is not full.
#[derive(Debug)]
struct Edge<N, const D: usize> {
    actions: [N; BLOCK],
    obs: [[f32; D]; BLOCK],
    reward: Block,
    terminated: [bool; BLOCK],
    truncated: [bool; BLOCK],
}

impl<N: Copy + Default, const D: usize> Default for Edge<N, D> {
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

/// Adds the rewards to the returns, truncates episodes of `limit` steps, if there is one, and gives the environments
/// whose episode ended.
fn tally<const K: usize, const D: usize>(
    block: &mut LanesBlock<K, D>,
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
        let counted = vectors_mut(returns).zip(vectors(reward)).zip(vectors(start));
        let flags = vectors(terminated).zip(vectors_mut(truncated)).zip(vectors_mut(ended));
        let all = counted.zip(flags).take(count.div_ceil(LANES));
        for (((returns, reward), start), ((terminated, truncated), ended)) in all {
            for i in 0..LANES {
                returns[i] += reward[i];
                truncated[i] = limited & (now.wrapping_sub(start[i]) >= limit);
                ended[i] = terminated[i] | truncated[i];
            }
        }
    }
}
