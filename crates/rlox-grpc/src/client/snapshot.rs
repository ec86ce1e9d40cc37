//! Snapshots of remote environments, which the client receives from workers, changes and sends
//! back.
//!
//! A shard is the part of the environments that one worker steps.

use std::sync::PoisonError;

use rlox_core::{
    AutoresetMode, Error, Pcg64, Result,
    error::check_len,
    vector::{EnvSnapshot, EpisodeProgress, streams_from_array, streams_to_array},
};

use super::env::{RemoteState, RemoteVecEnv};
use super::failover::Shard;
use crate::proto::{reply, request};
use crate::{codec, proto};

impl RemoteState {
    /// Returns the snapshot of all environments; `None` if they do not support snapshots.
    pub(super) fn snapshot(&mut self) -> Result<Option<&mut EnvSnapshot<'static>>> {
        self.receive_pending()?;
        if self.cached_snapshot.is_none() {
            self.cached_snapshot = self.request_snapshot().inspect_err(|_| self.abandon())?;
        }
        Ok(self.cached_snapshot.as_mut())
    }

    /// Drops the requests whose replies have not arrived.
    fn abandon(&mut self) {
        self.shards.iter_mut().for_each(Shard::drop_pending);
    }

    /// Requests the snapshot of all environments from their workers.
    fn request_snapshot(&mut self) -> Result<Option<EnvSnapshot<'static>>> {
        self.shards.iter_mut().for_each(|shard| shard.send_request(request::What::Snapshot(proto::Snapshot {}), false));
        let (mut all, mut is_unavailable) = (None::<EnvSnapshot<'static>>, false);
        for shard in &mut self.shards {
            let n = shard.num_envs();
            let reply::What::EnvState(shard_snapshot) = shard.receive_reply(&|| false)? else {
                let fix = "install the same version of rlox on both sides";
                return Err(Error::config("reply", "a snapshot", "another reply", fix));
            };
            if shard_snapshot.slab.is_empty() {
                is_unavailable = true;
                continue;
            }
            let shard_snapshot = codec::snapshot_from(&shard_snapshot, n)?;
            match &mut all {
                None => all = Some(shard_snapshot),
                Some(all) => all.append(&shard_snapshot),
            }
        }
        Ok(all.filter(|_| !is_unavailable))
    }

    /// Sends the cached snapshot to the workers if it was changed, and reads the resulting
    /// observations.
    pub(super) fn send_changes(&mut self) -> Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        let Some(snapshot) = &self.cached_snapshot else { return Ok(()) };
        let mut first = 0;
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            let shard_snapshot = Some(codec::snapshot_to(&snapshot.rows(rows)));
            shard.send_request(
                request::What::Restore(proto::Restore { env_state: shard_snapshot, only_check: false }),
                true,
            );
        }
        let mut first = 0;
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            if let Err(error) =
                shard.receive_reply(&|| false).and_then(|what| self.buffers.read_reply(rows, what, false))
            {
                self.abandon();
                if !matches!(error, Error::Interrupted) {
                    self.broken = Some(error.to_string());
                }
                return Err(error);
            }
        }
        self.is_changed = false;
        Ok(())
    }

    /// Makes the workers check a snapshot, without restoring it.
    pub(super) fn check_snapshot(&mut self, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        let mut first = 0;
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            let shard_snapshot = Some(codec::snapshot_to(&snapshot.rows(rows)));
            shard.send_request(
                request::What::Restore(proto::Restore { env_state: shard_snapshot, only_check: true }),
                false,
            );
        }
        // The first error is enough; the remaining replies are dropped.
        let result = self.shards.iter_mut().try_for_each(|shard| shard.receive_reply(&|| false).map(drop));
        self.abandon();
        result?;
        self.checked_states = snapshot.states.to_vec();
        Ok(())
    }

    /// Changes the cached snapshot, which is sent before the next request. Returns `error` without
    /// snapshots.
    fn change_snapshot(&mut self, error: Error, change: impl FnOnce(&mut EnvSnapshot<'static>)) -> Result<()> {
        change(self.snapshot()?.ok_or(error)?);
        self.is_changed = true;
        Ok(())
    }
}

impl RemoteVecEnv {
    pub(super) fn state_of(&self, index: usize) -> Option<Vec<f64>> {
        if index >= self.num_envs {
            return None;
        }
        // A failed request is reported as a missing state.
        let mut remote = self.remote();
        let snapshot = remote.snapshot().ok().flatten()?;
        let width = snapshot.states.len() / self.num_envs;
        Some(snapshot.states[index * width..][..width].to_vec())
    }

    pub(super) fn progress_of(&self, index: usize) -> Option<EpisodeProgress> {
        if index >= self.num_envs {
            return None;
        }
        let mut remote = self.remote();
        let snapshot = remote.snapshot().ok().flatten()?;
        let (episode_return, finished) = (snapshot.episode_returns[index], snapshot.finished[index]);
        Some(EpisodeProgress { steps: u32::try_from(snapshot.episode_steps[index]).ok()?, episode_return, finished })
    }

    fn check_index(&self, index: usize) -> Result<()> {
        if index < self.num_envs {
            return Ok(());
        }
        Err(Error::shape(
            "index",
            format!("less than {}", self.num_envs),
            index.to_string(),
            "pass the index of an environment",
        ))
    }

    pub(super) fn check_state_of(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()> {
        self.check_index(index)?;
        let mut remote = self.remote();
        let Some(snapshot) = remote.snapshot()? else { return Err(self.state_unavailable()) };
        let (mut changed, width) = (snapshot.clone(), snapshot.states.len() / self.num_envs);
        if state.len() != width {
            let (expected, got) = (format!("{width} numbers"), state.len().to_string());
            return Err(Error::config("state", expected, got, "pass a state of these environments"));
        }
        set_env_state(&mut changed, index, state, progress);
        remote.check_snapshot(&changed)
    }

    pub(super) fn set_state_of(&mut self, index: usize, state: &[f64]) -> Result<()> {
        self.check_index(index)?;
        let allowed = |states: &[f64]| {
            !state.is_empty()
                && states.len() == self.num_envs * state.len()
                && states[index * state.len()..].starts_with(state)
        };
        if !allowed(&self.remote().checked_states) {
            self.check_state_of(index, state, EpisodeProgress::default())?;
        }
        let error = self.state_unavailable();
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.change_snapshot(error, |snapshot| set_env_state(snapshot, index, state, EpisodeProgress::default()))?;
        (remote.was_reset[index], remote.finished[index]) = (true, false);
        Ok(())
    }

    /// Returns the error for environments without snapshots.
    fn state_unavailable(&self) -> Error {
        Error::config("state", "environments that support snapshots", self.spec.id.clone(), "reset them instead")
    }

    pub(super) fn set_progress_of(&mut self, index: usize, progress: EpisodeProgress) -> Result<()> {
        self.check_index(index)?;
        let fix = "pass the progress of these environments";
        let EpisodeProgress { episode_return, finished, .. } = progress;
        if !episode_return.is_finite() {
            let got = episode_return.to_string();
            return Err(Error::not_finite("episode_returns", "finite numbers", got, fix).at_env(index));
        }
        if finished && self.mode == AutoresetMode::SameStep {
            let expected = "false, because environments of this mode reset in the same step";
            return Err(Error::config("finished", expected, "true", fix).at_env(index));
        }
        let error = self.state_unavailable();
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.change_snapshot(error, |snapshot| set_env_progress(snapshot, index, progress))?;
        remote.finished[index] = finished && self.mode == AutoresetMode::Disabled;
        Ok(())
    }

    pub(super) fn streams(&self) -> Result<Vec<Pcg64>> {
        let mut remote = self.remote();
        let Some(snapshot) = remote.snapshot()? else {
            let fix = "implement Env::state for the environments";
            return Err(Error::config("rngs", "environments that support snapshots", self.spec.id.clone(), fix));
        };
        streams_from_array(&snapshot.streams)
    }

    pub(super) fn set_streams(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.num_envs)?;
        let streams = streams_to_array(rngs)?;
        // Setting random streams starts no episodes, so `was_reset` stays unchanged.
        let error = self.state_unavailable();
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.change_snapshot(error, |snapshot| snapshot.streams = streams.into())
    }
}

fn set_env_state(snapshot: &mut EnvSnapshot<'_>, index: usize, state: &[f64], progress: EpisodeProgress) {
    snapshot.states.to_mut()[index * state.len()..][..state.len()].copy_from_slice(state);
    set_env_progress(snapshot, index, progress);
}

fn set_env_progress(snapshot: &mut EnvSnapshot<'_>, index: usize, progress: EpisodeProgress) {
    snapshot.episode_returns.to_mut()[index] = progress.episode_return;
    snapshot.episode_steps.to_mut()[index] = progress.steps.into();
    snapshot.finished.to_mut()[index] = progress.finished;
}
