//! Snapshots of vectorised environments: [`EnvSnapshot`] and the encoding of random streams.

use std::borrow::Cow;
use std::ops::Range;

use super::{EpisodeProgress, VectorEnv};
use crate::{Error, Pcg64, Result, alloc, error::check_len, interrupt::InterruptCheck};

const HINT: &str = "pass a snapshot of environments with the same id and settings";
/// Number of environments between two interrupt checks.
const POLL_EVERY_ENVS: usize = 1024;

/// Snapshot of N environments, with one array per quantity as in checkpoints.
///
/// Environments restored from a snapshot continue exactly like the original environments.
///
/// ```
/// use rlox_core::{AutoresetMode, ResetOptions, Seeds, VecEnv, VectorEnv, envs::CartPole, vector::EnvSnapshot};
///
/// let make = || VecEnv::new(2, None, AutoresetMode::SameStep, CartPole::default);
/// let (mut env, mut copy, mut obs) = (make()?, make()?, [0.0; 8]);
/// env.reset(Seeds::Base(7), None, &ResetOptions::default(), &mut obs)?;
/// let snapshot = EnvSnapshot::capture(&env)?.expect("CartPole has a state");
/// snapshot.restore_into(&mut copy)?;
/// assert_eq!(EnvSnapshot::capture(&copy)?, Some(snapshot));
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EnvSnapshot<'a> {
    /// The states ([`VectorEnv::state`]), `[N, width]`, with `width` numbers per state.
    pub states: Cow<'a, [f64]>,
    /// The sums of rewards of the current episodes, `[N]`.
    pub episode_returns: Cow<'a, [f64]>,
    /// The numbers of steps of the current episodes, `[N]`.
    pub episode_steps: Cow<'a, [i64]>,
    /// Flags, `[N]`: the episode is over and the next one has not started.
    pub finished: Cow<'a, [bool]>,
    /// The random streams ([`Pcg64::to_state_array`]), `[N, Pcg64::STATE_LEN]`.
    pub streams: Cow<'a, [i64]>,
}

impl EnvSnapshot<'_> {
    /// Returns a snapshot of environments that have been reset.
    ///
    /// Returns `None` if a state is unavailable or if the states have different lengths.
    ///
    /// # Errors
    /// [`Error::Memory`] if the snapshot does not fit into memory. [`Error::Interrupted`] if the
    /// interrupt check ([`crate::interrupt`]) returns true. [`Error::Backend`] or [`Error::Closed`]
    /// if a remote environment does not respond.
    pub fn capture(env: &dyn VectorEnv) -> Result<Option<Self>> {
        env.snapshot()
    }

    /// Implements the default of [`VectorEnv::snapshot`].
    pub(super) fn collect_from<E: VectorEnv + ?Sized>(env: &E) -> Result<Option<Self>> {
        let (n, mut interrupt) = (env.num_envs(), InterruptCheck::default());
        let Some(first) = env.state(0) else { return Ok(None) };
        let mut states = alloc::with_capacity("states", n.saturating_mul(first.len()))?;
        let (mut episode_returns, mut finished) =
            (alloc::with_capacity("episode_returns", n)?, alloc::with_capacity("finished", n)?);
        let mut episode_steps = alloc::with_capacity("episode_steps", n)?;
        for i in 0..n {
            poll_interrupt(&mut interrupt, i)?;
            let (Some(state), Some(progress)) = (env.state(i), env.progress(i)) else { return Ok(None) };
            if state.len() != first.len() {
                return Ok(None);
            }
            states.extend_from_slice(&state);
            episode_returns.push(progress.episode_return);
            episode_steps.push(progress.steps.into());
            finished.push(progress.finished);
        }
        let streams: Cow<'_, _> = streams_to_array(&env.rngs()?)?.into();
        check_len("streams", streams.len(), n * Pcg64::STATE_LEN)?;
        let (episode_returns, episode_steps) = (episode_returns.into(), episode_steps.into());
        Ok(Some(Self { states: states.into(), episode_returns, episode_steps, finished: finished.into(), streams }))
    }

    /// Checks that the snapshot can be restored into `env`.
    ///
    /// # Errors
    /// [`Error::Shape`] if an array has the wrong length. [`Error::Config`] if a value is invalid
    /// or the environments cannot be restored. [`Error::NotFinite`] if a number is NaN or infinite.
    /// Also the errors of [`EnvSnapshot::capture`].
    pub fn check(&self, env: &dyn VectorEnv) -> Result<()> {
        self.check_and_decode(env).map(|_| ())
    }

    /// Restores the snapshot into all environments of `env`.
    ///
    /// # Errors
    /// The errors of [`EnvSnapshot::check`]. The environments are unchanged after these errors. If
    /// an environment rejects a state that its check accepted, some environments may already be
    /// restored.
    pub fn restore_into(&self, env: &mut dyn VectorEnv) -> Result<()> {
        let (width, rngs) = self.check_and_decode(env)?;
        // No interrupt checks from here on, so that all environments are restored.
        for i in 0..env.num_envs() {
            env.set_state(i, self.state(i, width))?;
            env.set_progress(i, self.progress(i)?)?;
        }
        env.set_rngs(&rngs)
    }

    /// Checks the snapshot and returns the length of a state and the decoded random streams.
    fn check_and_decode(&self, env: &dyn VectorEnv) -> Result<(usize, Vec<Pcg64>)> {
        let n = env.num_envs();
        // A full snapshot is taken, because `VectorEnv::state` returns `None` for errors of remote
        // environments.
        let known = env.snapshot()?.ok_or_else(|| {
            Error::config("states", "environments that can be restored", env.spec().id.clone(), "reset them instead")
        })?;
        let width = known.states.len() / n.max(1);
        if self.states.len() != n * width {
            let (expected, got) = (format!("{width} numbers per environment"), self.states.len() / n.max(1));
            return Err(Error::shape("states", expected, format!("{got} numbers"), HINT));
        }
        check_len("episode_returns", self.episode_returns.len(), n)?;
        check_len("episode_steps", self.episode_steps.len(), n)?;
        check_len("finished", self.finished.len(), n)?;
        check_len("streams", self.streams.len(), n * Pcg64::STATE_LEN)?;
        let rngs = streams_from_array(&self.streams)?;
        env.check_snapshot(self)?;
        Ok((width, rngs))
    }

    /// Implements the default of [`VectorEnv::check_snapshot`].
    pub(super) fn for_each(&self, mut check: impl FnMut(usize, &[f64], EpisodeProgress) -> Result<()>) -> Result<()> {
        let (n, mut interrupt) = (self.finished.len(), InterruptCheck::default());
        for i in 0..n {
            poll_interrupt(&mut interrupt, i)?;
            check(i, self.state(i, self.states.len() / n), self.progress(i)?)?;
        }
        Ok(())
    }

    /// Returns a snapshot of the environments `rows` that borrows the arrays of this snapshot.
    ///
    /// # Panics
    /// Panics if `rows` exceeds the number of environments.
    ///
    /// ```
    /// use rlox_core::{Pcg64, vector::EnvSnapshot};
    ///
    /// let snapshot = EnvSnapshot {
    ///     states: vec![1.0, 2.0, 3.0, 4.0].into(),
    ///     episode_returns: vec![5.0, 6.0].into(),
    ///     episode_steps: vec![7, 8].into(),
    ///     finished: vec![false, true].into(),
    ///     streams: vec![0; 2 * Pcg64::STATE_LEN].into(),
    /// };
    /// let (mut first, second) = (snapshot.rows(0..1), snapshot.rows(1..2));
    /// assert_eq!(*second.states, [3.0, 4.0]);
    /// first.append(&second);
    /// assert_eq!(first, snapshot);
    /// ```
    pub fn rows(&self, rows: Range<usize>) -> EnvSnapshot<'_> {
        let range_of = |width: usize| rows.start * width..rows.end * width;
        EnvSnapshot {
            states: self.states[range_of(self.states.len() / self.finished.len().max(1))].into(),
            episode_returns: self.episode_returns[rows.clone()].into(),
            episode_steps: self.episode_steps[rows.clone()].into(),
            finished: self.finished[rows.clone()].into(),
            streams: self.streams[range_of(Pcg64::STATE_LEN)].into(),
        }
    }

    /// Appends the environments of `further`. Their states must be as long as those of this
    /// snapshot.
    pub fn append(&mut self, further: &EnvSnapshot<'_>) {
        self.states.to_mut().extend_from_slice(&further.states);
        self.episode_returns.to_mut().extend_from_slice(&further.episode_returns);
        self.episode_steps.to_mut().extend_from_slice(&further.episode_steps);
        self.finished.to_mut().extend_from_slice(&further.finished);
        self.streams.to_mut().extend_from_slice(&further.streams);
    }

    fn state(&self, index: usize, width: usize) -> &[f64] {
        &self.states[index * width..][..width]
    }

    fn progress(&self, index: usize) -> Result<EpisodeProgress> {
        let steps = self.episode_steps[index];
        let out_of_range = |_| Error::config("episode_steps", "integers in [0, 2**32)", steps.to_string(), HINT);
        let (episode_return, finished) = (self.episode_returns[index], self.finished[index]);
        Ok(EpisodeProgress { steps: u32::try_from(steps).map_err(out_of_range)?, episode_return, finished })
    }
}

/// Encodes random streams as one array, `[N * Pcg64::STATE_LEN]` ([`Pcg64::to_state_array`]).
///
/// # Errors
/// [`Error::Memory`] if the array does not fit into memory. [`Error::Interrupted`] if the interrupt
/// check ([`crate::interrupt`]) returns true.
pub fn streams_to_array(rngs: &[Pcg64]) -> Result<Vec<i64>> {
    let mut array = alloc::with_capacity("streams", rngs.len().saturating_mul(Pcg64::STATE_LEN))?;
    let mut interrupt = InterruptCheck::default();
    for (i, rng) in rngs.iter().enumerate() {
        poll_interrupt(&mut interrupt, i)?;
        array.extend_from_slice(&rng.to_state_array());
    }
    Ok(array)
}

/// Decodes random streams from an array of [`streams_to_array`].
///
/// # Errors
/// The errors of [`Pcg64::from_state_array`] and of [`streams_to_array`].
pub fn streams_from_array(array: &[i64]) -> Result<Vec<Pcg64>> {
    let mut rngs = alloc::with_capacity("streams", array.len().div_ceil(Pcg64::STATE_LEN))?;
    let mut interrupt = InterruptCheck::default();
    for (i, state) in array.chunks(Pcg64::STATE_LEN).enumerate() {
        poll_interrupt(&mut interrupt, i)?;
        rngs.push(Pcg64::from_state_array(state)?);
    }
    Ok(rngs)
}

fn poll_interrupt(interrupt: &mut InterruptCheck, index: usize) -> Result<()> {
    if index.is_multiple_of(POLL_EVERY_ENVS) { interrupt.check() } else { Ok(()) }
}
