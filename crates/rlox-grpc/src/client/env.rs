//! [`RemoteVecEnv`]: environments of several workers as a [`VectorEnv`].
//!
//! A shard is the part of the environments that one worker steps.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlox_core::{
    Action, Actions, AutoresetMode, EnvSpec, EpisodeLog, Error, Pcg64, ResetOptions, Result, Seeds, Space, StepOut,
    VectorEnv,
    error::check_len,
    vector::{EnvSnapshot, EpisodeProgress},
};

use super::context::{ClientContext, FaultCounts, Faults};
use super::failover::{Shard, has_same_spec};
use super::options::{ClientOptions, EnvOptions};
use crate::codec::{self, Slab};
use crate::proto::{self, reply, request};
use crate::worker::LARGEST_MESSAGE;

/// Environments that workers step; the same seeds give the same trajectories as local environments.
///
/// The environments are distributed evenly over the addresses, in order. After the loss of a
/// worker, another worker restores the last snapshot and repeats the steps since that snapshot. No
/// step is lost or made twice. If an interrupt leaves requests unanswered, the next call of any
/// method waits for the replies.
pub struct RemoteVecEnv {
    pub(super) spec: EnvSpec,
    pub(super) num_envs: usize,
    pub(super) mode: AutoresetMode,
    mask: usize,
    context: Arc<ClientContext>,
    /// The lock is needed because methods with `&self` send requests.
    pub(super) remote: Mutex<RemoteState>,
}

pub(super) struct RemoteState {
    pub(super) shards: Vec<Shard>,
    mode: AutoresetMode,
    pub(super) buffers: StepBuffers,
    /// True for environments whose episode has ended and that wait for a reset.
    pub(super) finished: Vec<bool>,
    /// True for environments that were reset or restored at least once.
    pub(super) was_reset: Vec<bool>,
    /// Values of `was_reset` and `finished` before the reset in progress.
    before_reset: Option<(Vec<bool>, Vec<bool>)>,
    /// Snapshot of all environments; `None` after a step or a reset.
    pub(super) cached_snapshot: Option<EnvSnapshot<'static>>,
    /// True if the client changed the cached snapshot, which has to be sent to the workers.
    pub(super) is_changed: bool,
    /// States of the last snapshot that the workers checked and accepted.
    pub(super) checked_states: Vec<f64>,
    /// True if the pending requests are steps.
    stepping: bool,
    /// Error after which the environments cannot continue; `None` without such an error.
    pub(super) broken: Option<String>,
}

impl std::fmt::Debug for RemoteVecEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("RemoteVecEnv");
        debug.field("id", &self.spec.id).field("num_envs", &self.num_envs).finish_non_exhaustive()
    }
}

impl RemoteVecEnv {
    /// Opens a session on each worker, and distributes the environments over them.
    ///
    /// # Errors
    /// - [`Error::Config`]: there are no addresses or fewer environments than workers, or a worker rejects the request,
    ///   the token or the protocol version.
    /// - [`Error::Backend`]: a worker cannot be reached; the error names the worker.
    /// - [`Error::Space`]: the workers' environments differ.
    pub fn new<S: AsRef<str>>(addresses: &[S], env: &EnvOptions, options: &ClientOptions) -> Result<Self> {
        let context = Arc::new(ClientContext::new(addresses, options)?);
        let workers = context.addresses.len();
        if env.num_envs < workers {
            let (expected, got) = (format!("at least {workers}, one per worker"), env.num_envs.to_string());
            return Err(Error::config("num_envs", expected, got, "use more environments or fewer workers"));
        }
        let (mut shards, mut first) = (Vec::<Shard>::with_capacity(workers), 0);
        for worker_index in 0..workers {
            let count = env.num_envs / workers + usize::from(worker_index < env.num_envs % workers);
            let shard = Shard::new(&context, worker_index, env.open(first, count)?, first)?;
            if shards.first().is_some_and(|first_shard| !has_same_spec(first_shard.opened(), shard.opened())) {
                let expected = format!("the spec of {}", context.addresses[0]);
                let fix = "start all workers with the same version and the same environments";
                return Err(
                    Error::space("spaces", expected, "another spec", fix).on_worker(&context.addresses[worker_index])
                );
            }
            first += count;
            shards.push(shard);
        }
        let opened = shards[0].opened().clone();
        let (n, mode, mask) = (env.num_envs, env.autoreset_mode, opened.mask as usize);
        let spec = codec::spec_from(opened)?;
        let buffers = StepBuffers::new(n, &spec, mode, mask)?;
        let remote = RemoteState {
            shards,
            mode,
            buffers,
            finished: vec![false; n],
            was_reset: vec![false; n],
            before_reset: None,
            cached_snapshot: None,
            is_changed: false,
            checked_states: Vec::new(),
            stepping: false,
            broken: None,
        };
        Ok(Self { spec, num_envs: n, mode, mask, context, remote: Mutex::new(remote) })
    }

    /// Returns the numbers of lost and restarted sessions so far.
    pub fn faults(&self) -> Faults {
        self.fault_counts().now()
    }

    /// Returns a handle from which the current numbers can be read later.
    pub fn fault_counts(&self) -> FaultCounts {
        self.context.fault_counts()
    }

    pub(super) fn remote(&self) -> MutexGuard<'_, RemoteState> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteState {
    fn check(&self) -> Result<()> {
        let Some(reason) = &self.broken else { return Ok(()) };
        let got = format!("environments that have failed: {reason}");
        Err(Error::closed("workers", "working environments", got, "make new environments"))
    }

    fn check_started(&self, argument: &'static str) -> Result<()> {
        if !self.was_reset.contains(&false) {
            return Ok(());
        }
        Err(Error::action(argument, "environments that have been reset", "a call before reset", "call reset first"))
    }

    /// Receives the replies to requests of an interrupted call, before other requests are sent.
    pub(super) fn receive_pending(&mut self) -> Result<()> {
        self.check()?;
        if self.shards.iter().any(Shard::is_pending) { self.receive_replies() } else { Ok(()) }
    }

    /// Waits for the pending replies and reads them.
    fn receive_replies(&mut self) -> Result<()> {
        let (is_step, mut first) = (self.stepping, 0);
        let mut failed = Vec::new();
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            if !shard.is_pending() {
                continue;
            }
            match shard.receive_reply(&|| false).and_then(|reply| self.buffers.read_reply(rows, reply, is_step)) {
                Ok(()) => {}
                Err(Error::Interrupted) => {
                    // Other shards have made the step that the failed shard has not made.
                    self.broken = failed.first().map(Error::to_string);
                    return Err(Error::Interrupted);
                }
                Err(error) => failed.push(error),
            }
        }
        let (all, before_reset) = (failed.len() == self.shards.len(), self.before_reset.take());
        let Some(error) = failed.into_iter().next() else {
            if is_step && self.mode == AutoresetMode::Disabled {
                self.finished
                    .iter_mut()
                    .zip(self.buffers.episode_ends())
                    .for_each(|(finished, ended)| *finished = ended);
            }
            return Ok(());
        };
        // If all workers reject a reset, nothing has changed.
        let is_rejected = !is_step && all && matches!(error, Error::Config(_) | Error::Action(_) | Error::Shape(_));
        if !is_rejected {
            self.broken = Some(error.to_string());
        } else if let Some(flags) = before_reset {
            (self.was_reset, self.finished) = flags;
        }
        Err(error)
    }
}

impl VectorEnv for RemoteVecEnv {
    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn autoreset_mode(&self) -> AutoresetMode {
        self.mode
    }

    fn reset(
        &mut self,
        seeds: Seeds<'_>,
        mask: Option<&[bool]>,
        options: &ResetOptions,
        obs: &mut [f32],
    ) -> Result<()> {
        check_len("obs", obs.len(), self.num_envs * self.spec.observation.dim())?;
        if let Seeds::Each(seeds) = seeds {
            check_len("seed", seeds.len(), self.num_envs)?;
        }
        check_len("reset_mask", mask.map_or(self.num_envs, <[bool]>::len), self.num_envs)?;
        if let Seeds::Base(base) = seeds
            && base.checked_add(self.num_envs as u64).is_none()
        {
            let expected = "at most 2**64 - num_envs";
            return Err(Error::config("seed", expected, base.to_string(), "pass a smaller seed"));
        }
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.receive_pending()?;
        remote.send_changes()?;
        if mask.is_some_and(|mask| mask.contains(&false)) {
            remote.check_started("reset_mask")?;
        }
        remote.cached_snapshot = None;
        let (mut first, options) = (0, codec::arguments_to("options", options.pairs())?);
        for shard in &mut remote.shards {
            let rows = first..first + shard.num_envs();
            let reset = proto::Reset {
                base: if let Seeds::Base(base) = seeds { Some(base + first as u64) } else { None },
                seeds: match seeds {
                    Seeds::Each(seeds) => codec::seeds_to(&seeds[rows.clone()]),
                    Seeds::Keep | Seeds::Base(_) => bytes::Bytes::new(),
                },
                mask: mask.map(|mask| codec::flags(&mask[rows.clone()]).to_vec().into()).unwrap_or_default(),
                options: options.clone(),
                snapshot: true,
            };
            shard.send_request(request::What::Reset(reset), true);
            first = rows.end;
        }
        remote.before_reset = Some((remote.was_reset.clone(), remote.finished.clone()));
        remote.stepping = false;
        remote.was_reset.fill(true);
        match mask {
            Some(mask) => remote.finished.iter_mut().zip(mask).for_each(|(finished, reset)| *finished &= !reset),
            None => remote.finished.fill(false),
        }
        remote.receive_replies()?;
        obs.copy_from_slice(&remote.buffers.obs);
        Ok(())
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        let (n, space, dim) = (self.num_envs, &self.spec.action, self.spec.observation.dim());
        // Actions are checked here. Otherwise some workers would step while another one rejects its
        // actions.
        match space {
            Space::Discrete { .. } => i64::rows(actions, n, space).map(|_| ())?,
            Space::MultiDiscrete { .. } | Space::MultiBinary { .. } => <[i64]>::rows(actions, n, space).map(|_| ())?,
            Space::Box { .. } => <[f32]>::rows(actions, n, space).map(|_| ())?,
        }
        check_len("obs", out.obs.len(), n * dim)?;
        check_len("rewards", out.reward.len(), n)?;
        check_len("terminated", out.terminated.len(), n)?;
        check_len("truncated", out.truncated.len(), n)?;
        if !out.final_obs.is_empty() {
            check_len("final_obs", out.final_obs.len(), n * dim)?;
        }
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.receive_pending()?;
        remote.send_changes()?;
        remote.check_started("step")?;
        if let Some(env) = remote.finished.iter().position(|finished| *finished) {
            let (got, hint) = ("an episode that is over", "reset it through reset_mask first");
            return Err(Error::action("step", "running environments", got, hint).at_env(env));
        }
        remote.cached_snapshot = None;
        let (mut first, width) = (0, self.spec.action.dim());
        for shard in &mut remote.shards {
            let numbers = first * width..(first + shard.num_envs()) * width;
            first += shard.num_envs();
            let mut slab = Vec::with_capacity(numbers.len() * 8);
            match actions {
                Actions::Discrete(actions) => codec::write_numbers(&mut slab, &actions[numbers]),
                Actions::Continuous(actions) => codec::write_numbers(&mut slab, &actions[numbers]),
            }
            let snapshot = shard.wants_snapshot();
            shard.send_request(request::What::Step(proto::Step { actions: slab.into(), snapshot }), true);
        }
        remote.stepping = true;
        remote.receive_replies()?;
        let buffers = &remote.buffers;
        out.obs.copy_from_slice(&buffers.obs);
        out.reward.copy_from_slice(&buffers.reward);
        out.terminated.copy_from_slice(&buffers.terminated);
        out.truncated.copy_from_slice(&buffers.truncated);
        if self.mode == AutoresetMode::SameStep && !out.final_obs.is_empty() {
            let rows = out.final_obs.chunks_exact_mut(dim).zip(buffers.final_obs.chunks_exact(dim));
            rows.zip(buffers.episode_ends())
                .filter(|(_, ended)| *ended)
                .for_each(|((to, from), _)| to.copy_from_slice(from));
        }
        Ok(())
    }

    fn has_action_masks(&self) -> bool {
        self.mask > 0
    }

    fn action_masks(&self, masks: &mut [bool]) -> Result<()> {
        if self.mask == 0 {
            masks.fill(true);
            return Ok(());
        }
        check_len("masks", masks.len(), self.num_envs * self.mask)?;
        let mut remote = self.remote();
        remote.receive_pending()?;
        remote.send_changes()?;
        masks.copy_from_slice(&remote.buffers.masks);
        Ok(())
    }

    fn final_action_masks(&self, masks: &mut [bool]) -> Result<()> {
        check_len("masks", masks.len(), self.num_envs * self.mask)?;
        let mut remote = self.remote();
        remote.receive_pending()?;
        masks.copy_from_slice(&remote.buffers.final_masks);
        Ok(())
    }

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        check_len("obs", obs.len(), self.num_envs * self.spec.observation.dim())?;
        let mut remote = self.remote();
        remote.receive_pending()?;
        remote.check_started("observe")?;
        remote.send_changes()?;
        obs.copy_from_slice(&remote.buffers.obs);
        Ok(())
    }

    fn episodes(&mut self) -> &mut EpisodeLog {
        &mut self.remote.get_mut().unwrap_or_else(PoisonError::into_inner).buffers.episodes
    }

    fn state(&self, index: usize) -> Option<Vec<f64>> {
        self.state_of(index)
    }

    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()> {
        self.check_state_of(index, state, progress)
    }

    fn snapshot(&self) -> Result<Option<EnvSnapshot<'static>>> {
        Ok(self.remote().snapshot()?.cloned())
    }

    fn check_snapshot(&self, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        let mut remote = self.remote();
        remote.receive_pending()?;
        remote.check_snapshot(snapshot)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        self.set_state_of(index, state)
    }

    fn progress(&self, index: usize) -> Option<EpisodeProgress> {
        self.progress_of(index)
    }

    fn set_progress(&mut self, index: usize, progress: EpisodeProgress) -> Result<()> {
        self.set_progress_of(index, progress)
    }

    fn rngs(&self) -> Result<Vec<Pcg64>> {
        self.streams()
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        self.set_streams(rngs)
    }
}

/// Data of all environments that workers sent in their last replies.
pub(super) struct StepBuffers {
    dim: usize,
    mask: usize,
    mode: AutoresetMode,
    obs: Vec<f32>,
    masks: Vec<bool>,
    final_masks: Vec<bool>,
    reward: Vec<f64>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    final_obs: Vec<f32>,
    episodes: EpisodeLog,
}

impl StepBuffers {
    /// Allocates the buffers. Returns an error if their size exceeds that of a message.
    fn new(n: usize, spec: &EnvSpec, mode: AutoresetMode, mask: usize) -> Result<Self> {
        let dim = spec.observation.dim();
        let bytes = n.saturating_mul(dim.saturating_mul(8).saturating_add(2 * mask));
        if bytes > LARGEST_MESSAGE {
            let expected = format!("observations and masks of at most {LARGEST_MESSAGE} bytes");
            let fix = "ask for fewer environments, or name more workers";
            return Err(Error::config("num_envs", expected, format!("{bytes} bytes of {n}"), fix));
        }
        Ok(Self {
            dim,
            mask,
            mode,
            obs: vec![0.0; n * dim],
            masks: vec![true; n * mask],
            final_masks: vec![false; n * mask],
            reward: vec![0.0; n],
            terminated: vec![false; n],
            truncated: vec![false; n],
            final_obs: vec![0.0; n * dim],
            episodes: EpisodeLog::default(),
        })
    }

    /// Returns true for each environment whose episode ended in the last step.
    fn episode_ends(&self) -> impl Iterator<Item = bool> {
        self.terminated.iter().zip(&self.truncated).map(|(terminated, truncated)| *terminated || *truncated)
    }

    /// Copies a worker's reply into the rows of its environments. `is_step` is true for the reply
    /// to a step.
    pub(super) fn read_reply(&mut self, rows: Range<usize>, reply: reply::What, is_step: bool) -> Result<()> {
        let reply::What::Stepped(stepped) = reply else {
            let fix = "install the same version of rlox on both sides";
            return Err(Error::config("reply", "observations", "another reply", fix));
        };
        let mut slab = Slab::new("a worker's reply", &stepped.slab);
        slab.read(&mut self.obs[rows.start * self.dim..rows.end * self.dim])?;
        if is_step {
            slab.read(&mut self.reward[rows.clone()])?;
            slab.flags(&mut self.terminated[rows.clone()])?;
            slab.flags(&mut self.truncated[rows.clone()])?;
            self.read_final_obs(rows.clone(), stepped.finals, &mut slab)?;
            let returns: Vec<f64> = slab.vec(stepped.episodes as usize)?;
            let lengths: Vec<u32> = slab.vec(stepped.episodes as usize)?;
            returns.iter().zip(&lengths).for_each(|(total, length)| self.episodes.push(*total, *length));
        }
        slab.flags(&mut self.masks[rows.start * self.mask..rows.end * self.mask])?;
        if is_step {
            for row in codec::truncated_rows(&self.terminated[rows.clone()], &self.truncated[rows.clone()]) {
                slab.flags(&mut self.final_masks[(rows.start + row) * self.mask..][..self.mask])?;
            }
        }
        slab.finish()
    }

    /// Reads the last observations of the episodes that ended.
    fn read_final_obs(&mut self, rows: Range<usize>, num_finals: u32, slab: &mut Slab<'_>) -> Result<()> {
        let ended = |row: &usize| self.terminated[*row] || self.truncated[*row];
        let num_ended = if self.mode == AutoresetMode::SameStep { rows.clone().filter(ended).count() } else { 0 };
        if num_finals as usize != num_ended {
            let (expected, got) = (format!("{num_ended}, one per ended episode"), num_finals.to_string());
            let fix = "install the same version of rlox on both sides";
            return Err(Error::corrupt("last observations", expected, got, fix));
        }
        for row in rows {
            if num_ended > 0 && (self.terminated[row] || self.truncated[row]) {
                slab.read(&mut self.final_obs[row * self.dim..(row + 1) * self.dim])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rlox_core::envs::MakeOptions;
    use rlox_core::{Env, Step};

    use super::*;
    use crate::{MakeEnv, Worker, WorkerOptions};

    /// Environment that counts its steps. The parity of the count is the only allowed action. A
    /// count of 5 is terminal.
    #[derive(Clone)]
    struct Parity {
        count: usize,
        spec: EnvSpec,
    }

    impl Env for Parity {
        type Action = i64;
        fn spec(&self) -> &EnvSpec {
            &self.spec
        }
        fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
            self.count = rng.integers(0, 3) as usize;
            obs[0] = self.count as f32;
        }
        fn step(&mut self, _: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
            self.count += 1;
            obs[0] = self.count as f32;
            Step { reward: 0.0, terminated: self.count == 5, truncated: false }
        }
        fn has_action_mask(&self) -> bool {
            true
        }
        fn action_mask(&self, mask: &mut [bool]) {
            mask.copy_from_slice(&[self.count.is_multiple_of(2), !self.count.is_multiple_of(2)]);
        }
    }

    fn make(_: &str, options: &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> {
        let (id, observation, action) = ("Parity".into(), Space::uniform_box(0.0, 9.0, &[1]), Space::discrete(2));
        options
            .build_vec_env(Parity { count: 0, spec: EnvSpec { id, observation, action, max_episode_steps: Some(3) } })
    }

    #[test]
    fn final_masks_equal_those_of_local_environments() {
        let make_env: MakeEnv = Arc::new(make);
        let workers = [(); 2].map(|()| {
            Worker::start(WorkerOptions { make: Arc::clone(&make_env), ..WorkerOptions::default() }).unwrap()
        });
        let addresses = workers.each_ref().map(Worker::address);
        for autoreset_mode in [AutoresetMode::SameStep, AutoresetMode::NextStep] {
            let env_options = EnvOptions { autoreset_mode, ..EnvOptions::new("Parity", 5, 0) };
            let there = RemoteVecEnv::new(&addresses, &env_options, &ClientOptions::default()).unwrap();
            let (num_envs, seed) = (5, Some(0));
            let options = MakeOptions { num_envs, seed, autoreset_mode, ..Default::default() };
            let mask_rows =
                [Box::new(there) as Box<dyn VectorEnv>, make("Parity", &options).unwrap()].map(|mut env| {
                    let (mut obs, mut reward, mut masks) = ([0.0; 5], [0.0; 5], [false; 10]);
                    env.reset(Seeds::Base(1), None, &ResetOptions::default(), &mut obs).unwrap();
                    let mut truncated_masks = Vec::new();
                    for _ in 0..12 {
                        let (mut terminated, mut truncated) = ([false; 5], [false; 5]);
                        let out = StepOut {
                            obs: &mut obs,
                            reward: &mut reward,
                            terminated: &mut terminated,
                            truncated: &mut truncated,
                            final_obs: &mut [],
                        };
                        env.step(Actions::Discrete(&[0; 5]), out).unwrap();
                        env.final_action_masks(&mut masks).unwrap();
                        let rows = masks.chunks_exact(2).enumerate().filter(|(i, _)| truncated[*i] && !terminated[*i]);
                        truncated_masks.push(rows.map(|(i, row)| (i, row.to_vec())).collect::<Vec<_>>());
                    }
                    truncated_masks
                });
            assert_eq!(mask_rows[0], mask_rows[1]);
            let masks: Vec<_> = mask_rows[0].iter().flatten().map(|(_, mask)| mask[0]).collect();
            assert!(masks.contains(&true) && masks.len() > 4, "{masks:?}");
        }
    }
}
