//! The blocks of a vectorised environment and what happens to them: starts, steps and ends of episodes.

use super::block::{LanesBlock, Rows, tally};
use super::kernel::{Lanes, LanesOut};
use crate::simd::BLOCK;
use crate::vector::{Phase, checks};
use crate::{AutoresetMode, EnvSpec, EpisodeLog, Error, Pcg64, ResetOptions, Result, memory};

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
}

impl<E: Lanes<K, D>, const K: usize, const D: usize> Batch<E, K, D> {
    pub(super) fn new(num_envs: usize, seed: Option<u64>, mode: AutoresetMode, env: E) -> Result<Self> {
        checks::num_envs(num_envs)?;
        if !env.has_lanes() {
            let (expected, got) = ("arguments that can be stepped as lanes", format!("{:?}", env.spec().id));
            return Err(Error::config("env", expected, got, "use VecEnv, which takes all arguments"));
        }
        let each = size_of::<LanesBlock<K, D>>() / BLOCK + size_of::<Pcg64>() + size_of::<Phase>();
        // Twice that, as callers hold spaces, observations and results for them, too.
        memory::check("num_envs", num_envs, 2 * each)?;
        let mut blocks = memory::reserved("num_envs", num_envs.div_ceil(BLOCK))?;
        blocks.resize_with(num_envs.div_ceil(BLOCK), LanesBlock::default);
        let mut phases = memory::reserved("num_envs", num_envs)?;
        phases.resize(num_envs, Phase::Unborn);
        let mut rngs = memory::reserved("num_envs", num_envs)?;
        rngs.extend(checks::streams(seed).take(num_envs));
        let (spec, log) = (env.spec().clone(), EpisodeLog::default());
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
        self.phases[index] = Phase::Running;
        self.blocks[index / BLOCK].put(index % BLOCK, self.env.columns(), self.now);
    }

    /// Steps the first `count` environments of block `index`. `final_obs` has a row for each of them, or none.
    pub(super) fn step_block(
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
        let limit = self.spec.max_episode_steps.unwrap_or(u32::MAX).max(1);
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
