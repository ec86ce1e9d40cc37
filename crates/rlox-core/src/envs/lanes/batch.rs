//! Environments that one thread steps, in blocks, and what happens to them: starts, steps and ends of episodes.

use super::block::{Edge, LanesBlock, Rows, tally};
use super::kernel::{Lanes, LanesOut};
use crate::interrupt::Watch;
use crate::simd::BLOCK;
use crate::vector::Phase;
use crate::{AutoresetMode, EnvSpec, EpisodeLog, Pcg64, ResetOptions, Result, StepOut, memory};

/// All that N environments remember.
pub(super) struct Batch<E: Lanes<K, D>, const K: usize, const D: usize> {
    /// The arguments of all environments; its own state is whatever was last loaded into it.
    pub(super) env: E,
    scratch: Box<E::Scratch>,
    pub(super) blocks: Vec<LanesBlock<K, D>>,
    pub(super) rngs: Vec<Pcg64>,
    pub(super) phases: Vec<Phase>,
    pub(super) unborn: usize,
    pub(super) finished: usize,
    /// Steps so far, modulo 2^32, which no episode exceeds.
    pub(super) now: u32,
    pub(super) spec: EnvSpec,
    pub(super) mode: AutoresetMode,
    pub(super) log: EpisodeLog,
    /// None while it is being stepped.
    edge: Option<Box<Edge<E::Number, D>>>,
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> Batch<E, K, D> {
    /// What an environment takes, in bytes.
    pub(super) const EACH: usize = size_of::<LanesBlock<K, D>>() / BLOCK + size_of::<Pcg64>() + size_of::<Phase>();

    pub(super) fn new(
        streams: &mut impl Iterator<Item = Pcg64>,
        num_envs: usize,
        mode: AutoresetMode,
        env: E,
        watch: &mut Watch,
    ) -> Result<Self> {
        let mut blocks = memory::reserved("num_envs", num_envs.div_ceil(BLOCK))?;
        for i in 0..num_envs.div_ceil(BLOCK) {
            if i.is_multiple_of(BLOCK) {
                watch.check()?;
            }
            blocks.push(LanesBlock::default());
        }
        let mut phases = memory::reserved("num_envs", num_envs)?;
        phases.resize(num_envs, Phase::Unborn);
        let mut rngs = memory::reserved("num_envs", num_envs)?;
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

    pub(super) fn recount(&mut self) {
        let count = |phase| self.phases.iter().filter(|&&p| p == phase).count();
        (self.unborn, self.finished) = (count(Phase::Unborn), count(Phase::Finished));
    }

    pub(super) fn set_phase(&mut self, index: usize, phase: Phase) {
        let before = std::mem::replace(&mut self.phases[index], phase);
        self.unborn -= usize::from(before == Phase::Unborn);
        self.finished = self.finished - usize::from(before == Phase::Finished) + usize::from(phase == Phase::Finished);
    }

    /// Starts an episode in environment `index` and writes its observation.
    pub(super) fn restart(&mut self, index: usize, options: &ResetOptions, obs: &mut [f32; D]) {
        self.env.reset(&mut self.rngs[index], options, obs);
        self.start(index, self.env.columns());
    }

    /// Starts an episode in environment `index` with this state.
    pub(super) fn start(&mut self, index: usize, columns: [f64; K]) {
        self.phases[index] = Phase::Running;
        self.blocks[index / BLOCK].put(index % BLOCK, columns, self.now);
    }

    /// Steps all environments; the slices have their lengths. `final_obs` may be empty.
    pub(super) fn step(&mut self, actions: &[E::Number], out: StepOut<'_>) {
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
