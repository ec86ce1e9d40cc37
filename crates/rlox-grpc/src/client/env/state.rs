//! Where remote environments stand: asked, changed here, and told.

use std::sync::PoisonError;

use rlox_core::{Error, Pcg64, Progress, Result, Standing, check_len, stream_words, streams_of};

use super::{Remote, RemoteVecEnv, parts};
use crate::v1::{reply, request};
use crate::{v1, wire};

impl Remote {
    pub(super) fn check_started(&self, doing: &'static str) -> Result<()> {
        if self.started {
            return Ok(());
        }
        Err(Error::action(doing, "environments that have been reset", "a call before reset", "call reset first"))
    }

    /// Where all environments stand; `None` where they cannot tell.
    /// Refuses questions while an interrupted call's answers are due.
    fn expect_settled(&self) -> Result<()> {
        if !self.shards.iter().any(super::Shard::is_asked) {
            return Ok(());
        }
        let (expected, got) = ("environments between two steps", "ones in a step that was interrupted");
        Err(Error::action("state", expected, got, "reset or step them first"))
    }

    fn standing(&mut self) -> Result<Option<&mut Standing<'static>>> {
        self.check()?;
        if self.known.is_none() {
            self.expect_settled()?;
            self.known = self.asked().inspect_err(|_| self.abandon())?;
        }
        Ok(self.known.as_mut())
    }

    /// Leaves what was not waited for.
    fn abandon(&mut self) {
        self.shards.iter_mut().for_each(super::Shard::abandon);
    }

    /// Where all environments stand, from their workers.
    fn asked(&mut self) -> Result<Option<Standing<'static>>> {
        self.shards.iter_mut().for_each(|shard| shard.ask(request::What::Snapshot(v1::Snapshot {}), false));
        let mut all: Option<Standing<'static>> = None;
        for shard in &mut self.shards {
            let n = shard.num_envs();
            let reply::What::Standing(part) = shard.answer(&|| false)? else { return Ok(None) };
            if part.slab.is_empty() {
                // The others' answers are not needed.
                self.abandon();
                return Ok(None);
            }
            let part = wire::standing_from(&part, n)?;
            match &mut all {
                None => all = Some(part),
                Some(all) => {
                    all.states.to_mut().extend_from_slice(&part.states);
                    all.episode_returns.to_mut().extend_from_slice(&part.episode_returns);
                    all.episode_steps.to_mut().extend_from_slice(&part.episode_steps);
                    all.finished.to_mut().extend_from_slice(&part.finished);
                    all.streams.to_mut().extend_from_slice(&part.streams);
                }
            }
        }
        Ok(all)
    }
}

impl RemoteVecEnv {
    /// The observations and masks of now; asked for where the state was changed here.
    pub(super) fn seen(&self, take: impl FnOnce(&[f32], &[bool])) -> Result<()> {
        let mut remote = self.remote();
        remote.check()?;
        if !remote.changed {
            take(&self.obs, &self.masks);
            return Ok(());
        }
        let (mut obs, mut masks) = (vec![0.0; self.obs.len()], vec![true; self.masks.len()]);
        self.restore(&mut remote, &mut obs, &mut masks)?;
        take(&obs, &masks);
        // What is kept here is behind: it is asked for again by who may change it.
        remote.changed = true;
        Ok(())
    }

    /// Tells workers what was changed here, and takes in what is seen there then.
    pub(super) fn tell(&mut self) -> Result<()> {
        let remote = self.remote();
        if !remote.changed {
            return Ok(());
        }
        drop(remote);
        let (mut obs, mut masks) = (std::mem::take(&mut self.obs), std::mem::take(&mut self.masks));
        let mut remote = self.remote();
        let told = self.restore(&mut remote, &mut obs, &mut masks);
        if told.is_ok() {
            remote.changed = false;
        }
        drop(remote);
        (self.obs, self.masks) = (obs, masks);
        told
    }

    fn restore(&self, remote: &mut Remote, obs: &mut [f32], masks: &mut [bool]) -> Result<()> {
        let Remote { shards, known: Some(known), .. } = remote else { return Ok(()) };
        let (n, width) = (self.num_envs, known.states.len() / self.num_envs);
        let mut first = 0;
        for shard in &mut *shards {
            let rows = first..first + shard.num_envs();
            let part = Standing {
                states: known.states[rows.start * width..rows.end * width].into(),
                episode_returns: known.episode_returns[rows.clone()].into(),
                episode_steps: known.episode_steps[rows.clone()].into(),
                finished: known.finished[rows.clone()].into(),
                streams: known.streams[rows.start * Pcg64::WORDS..rows.end * Pcg64::WORDS].into(),
            };
            first = rows.end;
            let standing = Some(wire::standing_to(&part));
            shard.ask(request::What::Restore(v1::Restore { standing, only_check: false }), true);
        }
        let (mut first, dim) = (0, obs.len() / n);
        for shard in &mut remote.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            let into = parts::Rows {
                obs: &mut obs[rows.start * dim..rows.end * dim],
                final_obs: &mut [],
                masks: &mut masks[rows.start * self.mask..rows.end * self.mask],
                reward: &mut [],
                terminated: &mut [],
                truncated: &mut [],
                episodes: &mut rlox_core::EpisodeLog::default(),
            };
            let told = shard.answer(&|| false).and_then(|what| into.take(what, false));
            if let Err(error) = told {
                remote.abandon();
                if !matches!(error, Error::Interrupted) {
                    remote.broken = Some(error.to_string());
                }
                return Err(error);
            }
        }
        remote.started = true;
        Ok(())
    }

    pub(super) fn state_of(&self, index: usize) -> Option<Vec<f64>> {
        if index >= self.num_envs {
            return None;
        }
        // Who cannot be asked cannot tell.
        let mut remote = self.remote();
        let known = remote.standing().ok().flatten()?;
        let width = known.states.len() / self.num_envs;
        Some(known.states[index * width..][..width].to_vec())
    }

    pub(super) fn progress_of(&self, index: usize) -> Option<Progress> {
        if index >= self.num_envs {
            return None;
        }
        let mut remote = self.remote();
        let known = remote.standing().ok().flatten()?;
        let (episode_return, finished) = (known.episode_returns[index], known.finished[index]);
        Some(Progress { steps: u32::try_from(known.episode_steps[index]).ok()?, episode_return, finished })
    }

    fn check_index(&self, index: usize) -> Result<()> {
        if index < self.num_envs {
            return Ok(());
        }
        Err(Error::shape("index", format!("less than {}", self.num_envs), index.to_string(), "name an environment"))
    }

    pub(super) fn check_state_of(&self, index: usize, state: &[f64], progress: Progress) -> Result<()> {
        self.check_index(index)?;
        let mut remote = self.remote();
        remote.check()?;
        remote.expect_settled()?;
        let mut first = 0;
        for shard in &mut remote.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            if !rows.contains(&index) {
                continue;
            }
            let mut bytes = Vec::with_capacity(state.len() * 8);
            wire::put(&mut bytes, state);
            let Progress { steps: episode_steps, episode_return, finished } = progress;
            let (index, state) = ((index - rows.start) as u32, bytes.into());
            let check = v1::Check { index, state, episode_return, episode_steps, finished };
            shard.ask(request::What::Check(check), false);
            let answer = shard.answer(&|| false);
            shard.abandon(); // where it was not waited for
            return answer.map(|_| ());
        }
        Ok(())
    }

    /// Changes what is known of where the environments stand, to be told before anything else is asked.
    fn change(&mut self, change: impl FnOnce(&mut Standing<'static>)) -> Result<()> {
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = remote.standing()? else {
            let fix = "reset them instead";
            return Err(Error::config("state", "environments that can be restored", self.spec.id.clone(), fix));
        };
        change(known);
        (remote.changed, remote.started) = (true, true);
        Ok(())
    }

    pub(super) fn set_state_of(&mut self, index: usize, state: &[f64]) -> Result<()> {
        self.check_state_of(index, state, Progress::default())?;
        self.finished[index] = false;
        self.change(|known| {
            let width = state.len();
            known.states.to_mut()[index * width..][..width].copy_from_slice(state);
            (known.episode_returns.to_mut()[index], known.episode_steps.to_mut()[index]) = (0.0, 0);
            known.finished.to_mut()[index] = false;
        })
    }

    pub(super) fn set_progress_of(&mut self, index: usize, progress: Progress) -> Result<()> {
        self.check_index(index)?;
        let fix = "pass what the environments gave";
        let Progress { steps, episode_return, finished } = progress;
        if !episode_return.is_finite() {
            let got = format!("{episode_return} for environment {index}");
            return Err(Error::config("episode_returns", "finite numbers", got, fix));
        }
        if finished && self.mode == rlox_core::AutoresetMode::SameStep {
            let expected = "false, as environments of this mode reset in the same step";
            return Err(Error::config("finished", expected, format!("true for environment {index}"), fix));
        }
        self.finished[index] = finished && self.mode == rlox_core::AutoresetMode::Disabled;
        self.change(|known| {
            known.episode_returns.to_mut()[index] = episode_return;
            known.episode_steps.to_mut()[index] = i64::from(steps);
            known.finished.to_mut()[index] = finished;
        })
    }

    pub(super) fn streams(&self) -> Result<Vec<Pcg64>> {
        let mut remote = self.remote();
        let Some(known) = remote.standing()? else {
            let fix = "let the environments tell their state (Env::state)";
            return Err(Error::config("rngs", "environments that tell where they stand", self.spec.id.clone(), fix));
        };
        streams_of(&known.streams)
    }

    pub(super) fn set_streams(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.num_envs)?;
        let words = stream_words(rngs)?;
        let started = self.remote().started;
        self.change(|known| known.streams = words.into())?;
        // Streams alone begin no episodes.
        self.remote.get_mut().unwrap_or_else(PoisonError::into_inner).started = started;
        Ok(())
    }
}
