//! Snapshots of remote environments: fetched from workers, changed here and sent back.

use std::sync::PoisonError;

use rlox_core::{AutoresetMode, Error, Pcg64, Progress, Result, Standing, check_len, stream_words, streams_of};

use super::env::{Remote, RemoteVecEnv};
use super::failover::Shard;
use crate::proto::{reply, request};
use crate::{codec, proto};

impl Remote {
    /// Where all environments stand; `None` where they cannot tell.
    pub(super) fn standing(&mut self) -> Result<Option<&mut Standing<'static>>> {
        self.settle()?;
        if self.known.is_none() {
            self.known = self.asked().inspect_err(|_| self.abandon())?;
        }
        Ok(self.known.as_mut())
    }

    /// Leaves what was not waited for.
    fn abandon(&mut self) {
        self.shards.iter_mut().for_each(Shard::abandon);
    }

    /// Where all environments stand, from their workers.
    fn asked(&mut self) -> Result<Option<Standing<'static>>> {
        self.shards.iter_mut().for_each(|shard| shard.ask(request::What::Snapshot(proto::Snapshot {}), false));
        let (mut all, mut untold) = (None::<Standing<'static>>, false);
        for shard in &mut self.shards {
            let n = shard.num_envs();
            let reply::What::Standing(part) = shard.answer(&|| false)? else {
                let fix = "install the same version of rlox on both sides";
                return Err(Error::config("reply", "where environments stand", "another answer", fix));
            };
            if part.slab.is_empty() {
                untold = true;
                continue;
            }
            let part = codec::standing_from(&part, n)?;
            match &mut all {
                None => all = Some(part),
                Some(all) => all.append(&part),
            }
        }
        Ok(all.filter(|_| !untold))
    }

    /// Tells workers what was changed here, and takes in what is seen there then.
    pub(super) fn tell(&mut self) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let Some(known) = &self.known else { return Ok(()) };
        let mut first = 0;
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            let standing = Some(codec::standing_to(&known.rows(rows)));
            shard.ask(request::What::Restore(proto::Restore { standing, only_check: false }), true);
        }
        let mut first = 0;
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            if let Err(error) = shard.answer(&|| false).and_then(|what| self.seen.take(rows, what, false)) {
                self.abandon();
                if !matches!(error, Error::Interrupted) {
                    self.broken = Some(error.to_string());
                }
                return Err(error);
            }
        }
        self.changed = false;
        Ok(())
    }

    /// Has workers refuse where their environments cannot be put.
    pub(super) fn expect(&mut self, standing: &Standing<'_>) -> Result<()> {
        let mut first = 0;
        for shard in &mut self.shards {
            let rows = first..first + shard.num_envs();
            first = rows.end;
            let standing = Some(codec::standing_to(&standing.rows(rows)));
            shard.ask(request::What::Restore(proto::Restore { standing, only_check: true }), false);
        }
        // The first error: what the others say is not needed then.
        let said = self.shards.iter_mut().try_for_each(|shard| shard.answer(&|| false).map(drop));
        self.abandon();
        said?;
        self.allowed = standing.states.to_vec();
        Ok(())
    }

    /// Changes what is known of where the environments stand, to be told before anything else is asked.
    fn change(&mut self, untold: Error, change: impl FnOnce(&mut Standing<'static>)) -> Result<()> {
        change(self.standing()?.ok_or(untold)?);
        self.changed = true;
        Ok(())
    }
}

impl RemoteVecEnv {
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
        let Some(known) = remote.standing()? else { return Err(self.untold()) };
        let (mut one, width) = (known.clone(), known.states.len() / self.num_envs);
        if state.len() != width {
            let (expected, got) = (format!("{width} numbers"), state.len().to_string());
            return Err(Error::config("state", expected, got, "pass what the environments gave"));
        }
        put(&mut one, index, state, progress);
        remote.expect(&one)
    }

    pub(super) fn set_state_of(&mut self, index: usize, state: &[f64]) -> Result<()> {
        self.check_index(index)?;
        let allowed = |states: &[f64]| {
            !state.is_empty()
                && states.len() == self.num_envs * state.len()
                && states[index * state.len()..].starts_with(state)
        };
        if !allowed(&self.remote().allowed) {
            self.check_state_of(index, state, Progress::default())?;
        }
        let untold = self.untold();
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.change(untold, |known| put(known, index, state, Progress::default()))?;
        (remote.born[index], remote.finished[index]) = (true, false);
        Ok(())
    }

    /// Environments that do not say where they are.
    fn untold(&self) -> Error {
        Error::config("state", "environments that can be restored", self.spec.id.clone(), "reset them instead")
    }

    pub(super) fn set_progress_of(&mut self, index: usize, progress: Progress) -> Result<()> {
        self.check_index(index)?;
        let fix = "pass what the environments gave";
        let Progress { episode_return, finished, .. } = progress;
        if !episode_return.is_finite() {
            let got = episode_return.to_string();
            return Err(Error::not_finite("episode_returns", "finite numbers", got, fix).at_env(index));
        }
        if finished && self.mode == AutoresetMode::SameStep {
            let expected = "false, as environments of this mode reset in the same step";
            return Err(Error::config("finished", expected, "true", fix).at_env(index));
        }
        let untold = self.untold();
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.change(untold, |known| put_progress(known, index, progress))?;
        remote.finished[index] = finished && self.mode == AutoresetMode::Disabled;
        Ok(())
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
        // Streams alone begin no episodes.
        let untold = self.untold();
        let remote = self.remote.get_mut().unwrap_or_else(PoisonError::into_inner);
        remote.change(untold, |known| known.streams = words.into())
    }
}

fn put(standing: &mut Standing<'_>, index: usize, state: &[f64], progress: Progress) {
    standing.states.to_mut()[index * state.len()..][..state.len()].copy_from_slice(state);
    put_progress(standing, index, progress);
}

fn put_progress(standing: &mut Standing<'_>, index: usize, progress: Progress) {
    standing.episode_returns.to_mut()[index] = progress.episode_return;
    standing.episode_steps.to_mut()[index] = progress.steps.into();
    standing.finished.to_mut()[index] = progress.finished;
}
