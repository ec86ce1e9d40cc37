//! A session of a worker: its environments, and the replies to its requests.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rlox_core::envs::MakeOptions;
use rlox_core::{
    Actions, EnvSpec, Error, Pcg64, ResetOptions, Result, Seeds, Space, StepOut, VectorEnv,
    vector::{EnvSnapshot, masked_actions},
};

use tokio::sync::OwnedSemaphorePermit;

use super::budget::MemoryBudget;
use super::metrics::Counters;
use super::options::{Limits, MakeEnv};
use super::rollout::RolloutWorker;
use crate::PROTOCOL;
use crate::codec::{self, Slab};
use crate::proto::{self, reply::What, request};

const LONGEST_ID: usize = 256;

/// Environments of a session, and the buffers of their replies.
pub(super) struct WorkerSession {
    env: Box<dyn VectorEnv>,
    rollouts: Option<RolloutWorker>,
    counters: Arc<Counters>,
    limits: Limits,
    /// Maximum bytes of a reply, except for the final observations and the episodes of a rollout,
    /// whose numbers are not known in advance.
    max_reply_bytes: usize,
    mask: usize,
    obs: Vec<f32>,
    final_obs: Vec<f32>,
    reward: Vec<f64>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    masks: Vec<bool>,
    final_masks: Vec<bool>,
    actions: Vec<i64>,
    continuous: Vec<f32>,
    returns: Vec<f64>,
    lengths: Vec<u32>,
    _memory_permit: OwnedSemaphorePermit,
}

impl WorkerSession {
    /// Creates the environments that the first request describes.
    pub(super) fn open(
        open: &proto::Open,
        make: &MakeEnv,
        limits: &Limits,
        memory_budget: &MemoryBudget,
        counters: Arc<Counters>,
    ) -> Result<(Self, proto::Opened)> {
        if open.protocol != PROTOCOL {
            let (expected, got) = (format!("version {PROTOCOL}"), format!("version {}", open.protocol));
            return Err(Error::config("protocol", expected, got, "install the same version of rlox on both sides"));
        }
        if open.env_id.len() > LONGEST_ID {
            let got = format!("{} bytes", open.env_id.len());
            return Err(Error::config("env_id", format!("at most {LONGEST_ID} bytes"), got, "correct it"));
        }
        let num_envs = open.num_envs as usize;
        if num_envs > limits.max_envs {
            let (expected, got) = (format!("at most {}", limits.max_envs), num_envs.to_string());
            return Err(Error::config(
                "num_envs",
                expected,
                got,
                "use fewer environments, or start the worker with a larger --max-envs",
            ));
        }
        let arguments = codec::arguments_from("arguments", &open.arguments)?;
        let options = MakeOptions {
            num_envs,
            seed: Some(open.seed),
            autoreset_mode: codec::mode_from(open.autoreset_mode)?,
            max_episode_steps: open.max_episode_steps.map(|limit| Some(limit).filter(|limit| *limit > 0)),
            arguments: &arguments,
        };
        let mut env = make(&open.env_id, &options)?;
        if let Some(snapshot) = &open.env_state {
            codec::snapshot_from(snapshot, num_envs)?.restore_into(env.as_mut())?;
        }
        let dim = env.spec().observation.dim();
        let mask = if env.has_action_masks() { masked_actions(&env.spec().action) } else { 0 };
        let stepped_bytes = num_envs.saturating_mul(dim * 8 + 2 * mask + 32);
        limits.check_message("num_envs", stepped_bytes)?;
        // The estimate covers the buffers of the session and the memory of the environments.
        let memory_permit = memory_budget.acquire("num_envs", num_envs.saturating_mul(dim * 16 + 4 * mask + 256))?;
        let rollouts =
            open.policy.as_ref().map(|policy| RolloutWorker::new(policy, env.as_ref(), limits, memory_budget));
        let rollouts = rollouts.transpose()?;
        let max_reply_bytes = rollouts.as_ref().map_or(0, RolloutWorker::bytes).max(stepped_bytes);
        let max_reply_bytes =
            max_reply_bytes + snapshot_bytes(env.as_ref()).filter(|it| limits.fits(max_reply_bytes + it)).unwrap_or(0);
        let opened = make_opened(env.spec(), mask, limits);
        let width = env.spec().action.dim() * num_envs;
        let discrete = !matches!(env.spec().action, Space::Box { .. });
        let session = Self {
            env,
            rollouts,
            counters,
            limits: *limits,
            max_reply_bytes,
            mask,
            obs: vec![0.0; num_envs * dim],
            final_obs: vec![0.0; num_envs * dim],
            reward: vec![0.0; num_envs],
            terminated: vec![false; num_envs],
            truncated: vec![false; num_envs],
            masks: vec![true; num_envs * mask],
            final_masks: vec![true; num_envs * mask],
            actions: vec![0; if discrete { width } else { 0 }],
            continuous: vec![0.0; if discrete { 0 } else { width }],
            returns: Vec::new(),
            lengths: Vec::new(),
            _memory_permit: memory_permit,
        };
        Ok((session, opened))
    }

    /// Returns the maximum bytes of a reply, except for the final observations and the episodes of
    /// a rollout.
    pub(super) fn max_reply_bytes(&self) -> usize {
        self.max_reply_bytes
    }

    /// Handles a request and returns the reply. A rollout ends early if `stop` returns true.
    pub(super) fn handle(&mut self, what: request::What, stop: &dyn Fn() -> bool) -> Result<What> {
        match what {
            request::What::Open(_) => {
                let got = "a second open request";
                Err(Error::config("open", "the first request of the session only", got, "open another session"))
            }
            request::What::Reset(reset) => self.reset(&reset).map(What::Stepped),
            request::What::Step(step) => self.step(&step).map(What::Stepped),
            request::What::Snapshot(proto::Snapshot {}) => self.snapshot(0).map(What::EnvState),
            request::What::Restore(restore) => self.restore(&restore),
            request::What::Collect(collect) => {
                let Some(rollouts) = &mut self.rollouts else {
                    let got = "a session without a policy";
                    return Err(Error::config("collect", "a session with a policy", got, "set the policy in Open"));
                };
                let rollout = rollouts.collect(self.env.as_mut(), &collect, &self.limits, stop)?;
                self.counters.steps.fetch_add(rollouts.steps(), Relaxed);
                let env_snapshot = Some(self.snapshot(rollout.steps.len() + rollout.episodes.len())?);
                Ok(What::Rollout(proto::Rollout { env_state: env_snapshot, ..rollout }))
            }
        }
    }

    fn reset(&mut self, reset: &proto::Reset) -> Result<proto::Stepped> {
        let n = self.env.num_envs();
        let each = if reset.seeds.is_empty() { Vec::new() } else { codec::seeds_from(&reset.seeds, n)? };
        let seeds = match reset.base {
            Some(base) => Seeds::Base(base),
            None if each.is_empty() => Seeds::Keep,
            None => Seeds::Each(&each),
        };
        let mut mask = vec![false; n];
        if !reset.mask.is_empty() {
            let mut slab = Slab::new("reset_mask", &reset.mask);
            slab.flags(&mut mask)?;
            slab.finish()?;
        }
        let mask = (!reset.mask.is_empty()).then_some(&mask[..]);
        let options = ResetOptions::new(codec::arguments_from("options", &reset.options)?);
        self.env.reset(seeds, mask, &options, &mut self.obs)?;
        self.observation_reply(reset.snapshot)
    }

    fn restore(&mut self, restore: &proto::Restore) -> Result<What> {
        let missing =
            || Error::config("env_state", "a snapshot", "no snapshot", "send the reply to a snapshot request");
        let encoded = restore.env_state.as_ref().ok_or_else(missing)?;
        let snapshot = codec::snapshot_from(encoded, self.env.num_envs())?;
        if restore.only_check {
            snapshot.check(self.env.as_ref())?;
            return Ok(What::Done(proto::Done {}));
        }
        snapshot.restore_into(self.env.as_mut())?;
        drop(snapshot);
        self.env.observe(&mut self.obs)?;
        self.observation_reply(false).map(What::Stepped)
    }

    /// Returns a reply with the current observations and action masks.
    fn observation_reply(&mut self, snapshot: bool) -> Result<proto::Stepped> {
        let mut slab = Vec::with_capacity(self.obs.len() * 4 + self.masks.len());
        codec::write_numbers(&mut slab, &self.obs);
        self.write_masks(&mut slab)?;
        let env_snapshot = if snapshot { Some(self.snapshot(slab.len())?) } else { None };
        Ok(proto::Stepped { slab: slab.into(), finals: 0, episodes: 0, env_state: env_snapshot })
    }

    fn write_masks(&mut self, slab: &mut Vec<u8>) -> Result<()> {
        if self.mask > 0 {
            self.env.action_masks(&mut self.masks)?;
            codec::write_numbers(slab, codec::flags(&self.masks));
        }
        Ok(())
    }

    fn write_final_masks(&mut self, slab: &mut Vec<u8>) -> Result<()> {
        let mut rows = codec::truncated_rows(&self.terminated, &self.truncated).peekable();
        if self.mask == 0 || rows.peek().is_none() {
            return Ok(());
        }
        self.env.final_action_masks(&mut self.final_masks)?;
        rows.for_each(|row| {
            codec::write_numbers(slab, codec::flags(&self.final_masks[row * self.mask..][..self.mask]));
        });
        Ok(())
    }

    fn step(&mut self, step: &proto::Step) -> Result<proto::Stepped> {
        let mut slab = Slab::new("actions", &step.actions);
        let actions = if self.actions.is_empty() {
            slab.read(&mut self.continuous)?;
            Actions::Continuous(&self.continuous)
        } else {
            slab.read(&mut self.actions)?;
            Actions::Discrete(&self.actions)
        };
        slab.finish()?;
        let out = StepOut {
            obs: &mut self.obs,
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            final_obs: &mut self.final_obs,
        };
        self.env.step(actions, out)?;
        let n = self.reward.len();
        self.counters.steps.fetch_add(n as u64, Relaxed);
        let mut slab = Vec::with_capacity(self.obs.len() * 4 + n * 10 + self.masks.len());
        codec::write_numbers(&mut slab, &self.obs);
        codec::write_numbers(&mut slab, &self.reward);
        codec::write_numbers(&mut slab, codec::flags(&self.terminated));
        codec::write_numbers(&mut slab, codec::flags(&self.truncated));
        let mut finals = 0;
        if self.env.autoreset_mode() == rlox_core::AutoresetMode::SameStep {
            let dim = self.obs.len() / n;
            let ended_flags = self.terminated.iter().zip(&self.truncated).map(|(a, b)| *a || *b);
            for (row, _) in self.final_obs.chunks_exact(dim).zip(ended_flags).filter(|(_, ended)| *ended) {
                codec::write_numbers(&mut slab, row);
                finals += 1;
            }
        }
        self.returns.clear();
        self.lengths.clear();
        self.env.episodes().drain(&mut self.returns, &mut self.lengths);
        codec::write_numbers(&mut slab, &self.returns);
        codec::write_numbers(&mut slab, &self.lengths);
        self.write_masks(&mut slab)?;
        self.write_final_masks(&mut slab)?;
        let env_snapshot = if step.snapshot { Some(self.snapshot(slab.len())?) } else { None };
        Ok(proto::Stepped { slab: slab.into(), finals, episodes: self.returns.len() as u32, env_state: env_snapshot })
    }

    /// Returns a snapshot of the environments.
    ///
    /// The snapshot is empty if the environments do not support snapshots, or if it does not fit into the reply.
    fn snapshot(&self, other_bytes: usize) -> Result<proto::EnvState> {
        let env = self.env.as_ref();
        if !snapshot_bytes(env).is_some_and(|bytes| self.limits.fits(other_bytes.saturating_add(bytes))) {
            return Ok(proto::EnvState::default());
        }
        Ok(EnvSnapshot::capture(env)?.as_ref().map(codec::snapshot_to).unwrap_or_default())
    }
}

/// Returns the number of bytes of a snapshot; `None` if the environments do not support snapshots.
///
/// All states are assumed to have the length of the first one.
fn snapshot_bytes(env: &dyn VectorEnv) -> Option<usize> {
    let state = env.state(0)?.len();
    Some(env.num_envs().saturating_mul(8 * (state + 2 + Pcg64::STATE_LEN) + 1))
}

fn make_opened(spec: &EnvSpec, mask: usize, limits: &Limits) -> proto::Opened {
    proto::Opened {
        credits: limits.credits,
        env_id: spec.id.clone(),
        observation: Some(codec::space_to(&spec.observation)),
        action: Some(codec::space_to(&spec.action)),
        max_episode_steps: spec.max_episode_steps.unwrap_or(0),
        mask: mask as u32,
        max_message_bytes: limits.max_message_bytes as u64,
    }
}
