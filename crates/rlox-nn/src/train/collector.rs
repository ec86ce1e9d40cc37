//! What on-policy methods share: environments, a rollout, and its episodes.

use std::collections::VecDeque;
use std::ops::Range;

use rlox_core::profile::{self, Phase};
use rlox_core::{
    Error, FieldData, Normalizer, NormalizerOptions, Pcg64, Policy, PolicyOut, Result, RolloutBuffer, Seeds, VectorEnv,
    collect,
};

use super::episodes::Episodes;
use super::streams::Streams;
use super::{Encoding, IterationStreams, Metrics, Minibatches};
use crate::ActorCritic;
use crate::room::resize;

/// How a rollout is collected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collection {
    /// Discount.
    pub gamma: f64,
    /// From one-step advantages (0) to Monte Carlo (1).
    pub gae_lambda: f64,
    /// Steps until the noise of state-dependent exploration is drawn anew; 0 for once a rollout.
    pub sde_sample_freq: usize,
}

/// Fills a rollout, with one transition at least, and estimates advantages; see [`rlox_core::collect`]. The environments
/// have been reset. `streams` has one for each of them.
///
/// # Errors
/// Those of [`rlox_core::collect`], and [`Error::Interrupted`] where `stop`, asked before each step, says so.
pub fn collect_transitions(
    env: &mut dyn VectorEnv,
    policy: &mut dyn ActorCritic,
    streams: &mut [Pcg64],
    buffer: &mut RolloutBuffer,
    mut normalizer: Option<&mut Normalizer>,
    how: Collection,
    stop: &mut dyn FnMut() -> bool,
) -> Result<()> {
    loop {
        let mut exploring = Exploring { policy, every: how.sde_sample_freq, step: 0, stop };
        collect(env, &mut exploring, streams, buffer, normalizer.as_deref_mut(), how.gamma, how.gae_lambda)?;
        // Again if all that happened was resets.
        if buffer.transitions() > 0 {
            return Ok(());
        }
    }
}

/// Values and advantages of a full rollout that other environments than [`VectorEnv`]s gave, whose observations become
/// inputs as `encoding` says; `inputs` is memory for them.
///
/// # Errors
/// [`Error::Shape`] for observations of another width; those of [`Encoding::encode`], of the policy and of [`RolloutBuffer::finish`].
pub fn estimate_advantages(
    policy: &mut dyn ActorCritic,
    buffer: &mut RolloutBuffer,
    encoding: &Encoding,
    inputs: &mut Vec<f32>,
    gamma: f64,
    gae_lambda: f64,
) -> Result<()> {
    let (n, steps) = (buffer.num_envs(), buffer.n_steps());
    let mut worth = |data: FieldData<'_>, rows: Range<usize>| -> Result<Vec<f32>> {
        let mut values = Vec::new();
        resize("num_envs", &mut values, rows.len(), 0.0)?;
        encoding.encode(data, rows, inputs)?;
        policy.value(inputs, &mut values)?;
        Ok(values)
    };
    let none = || Error::shape("buffer", "a field \"obs\"", "none", "make another");
    let obs = buffer.field("obs").ok_or_else(none)?;
    encoding.check(obs)?;
    profile::enter(Phase::Inference);
    let last = worth(obs.data(), steps * n..(steps + 1) * n)?;
    let finals = worth(buffer.final_obs(), 0..buffer.final_index().len())?;
    profile::enter(Phase::GaeCompute);
    buffer.finish(&last, &finals, gamma, gae_lambda)
}

/// A policy whose exploration noise is drawn anew every few steps, and which may be told to stop.
struct Exploring<'a> {
    policy: &'a mut dyn ActorCritic,
    every: usize,
    step: usize,
    stop: &'a mut dyn FnMut() -> bool,
}

impl Policy for Exploring<'_> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        if (self.stop)() {
            return Err(Error::Interrupted);
        }
        if self.step == 0 || (self.every > 0 && self.step.is_multiple_of(self.every)) {
            self.policy.draw_noise(rngs)?;
        }
        self.step += 1;
        self.policy.act(obs, masks, rngs, out)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        self.policy.value(obs, values)
    }
}

/// The steps that a call of `train` was to make.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) target: u64,
}

impl Run {
    /// So many steps more, one at least.
    pub(super) fn new(timesteps: u64, more: u64) -> Self {
        Self { start: timesteps, target: timesteps.saturating_add(more.max(1)) }
    }

    /// The share that is done.
    ///
    /// # Errors
    /// [`Error::Config`] if that is all of it.
    pub(super) fn progress(self, timesteps: u64) -> Result<f64> {
        if timesteps >= self.target {
            let got = format!("{timesteps} steps of {}", self.target);
            return Err(Error::config("resume", "a run that has not ended", got, "call train"));
        }
        Ok(timesteps.saturating_sub(self.start) as f64 / (self.target - self.start) as f64)
    }

    /// The share that one step is.
    pub(super) fn growth(self) -> f64 {
        1.0 / (self.target - self.start).max(1) as f64
    }
}

/// Environments, the rollout they fill, and what is counted.
pub(super) struct Collector {
    pub(super) env: Box<dyn VectorEnv>,
    pub(super) buffer: RolloutBuffer,
    pub(super) normalizer: Option<Normalizer>,
    pub(super) minibatches: Minibatches,
    pub(super) seed: u64,
    pub(super) streams: Streams,
    /// Those of this iteration.
    pub(super) iteration: IterationStreams,
    how: Collection,
    pub(super) started: bool,
    pub(super) episodes: Episodes,
    pub(super) timesteps: u64,
    pub(super) updates: u64,
    pub(super) run: Run,
}

impl Collector {
    pub(super) fn new(
        env: Box<dyn VectorEnv>,
        n_steps: usize,
        normalize: Option<NormalizerOptions>,
        how: Collection,
        (seed, streams): (u64, Streams),
    ) -> Result<Self> {
        let buffer = RolloutBuffer::for_env(n_steps, env.as_ref())?;
        let (num_envs, dim) = (env.num_envs(), env.spec().observation.dim());
        let options = normalize.map(|options| NormalizerOptions { gamma: how.gamma, ..options });
        Ok(Self {
            env,
            buffer,
            normalizer: options.map(|options| Normalizer::new(num_envs, dim, options)).transpose()?,
            minibatches: Minibatches::new(Encoding::Numbers(dim)),
            seed,
            streams,
            iteration: IterationStreams::new(0, num_envs)?,
            how,
            started: false,
            episodes: Episodes::new(0, VecDeque::new()),
            timesteps: 0,
            updates: 0,
            run: Run::default(),
        })
    }

    /// Fills the rollout and estimates advantages.
    pub(super) fn collect(&mut self, policy: &mut dyn ActorCritic) -> Result<()> {
        if !self.started {
            self.episodes.forget(self.env.as_mut());
            let seed = Seeds::Base(self.streams.reset());
            self.buffer.begin(self.env.as_mut(), seed, self.normalizer.as_mut())?;
            self.started = true;
        }
        self.iteration.renew(self.streams.iteration(), self.env.num_envs())?;
        let Self { env, buffer, normalizer, how, iteration, .. } = self;
        let actions = &mut iteration.actions;
        let done = collect_transitions(env.as_mut(), policy, actions, buffer, normalizer.as_mut(), *how, &mut || false);
        // Those of a rollout that failed have ended, too.
        self.episodes.update(self.env.as_mut());
        done
    }

    /// Counts the rollout's steps, once they were learned from.
    pub(super) fn count_steps(&mut self) {
        self.timesteps += self.buffer.transitions() as u64;
    }

    /// What is known of the episodes, and the number of steps.
    pub(super) fn metrics(&self) -> Metrics {
        let Episodes { mean_return, mean_length, total, .. } = self.episodes;
        Metrics {
            timesteps: self.timesteps,
            mean_return,
            mean_length,
            episodes: total,
            updates: self.updates,
            ..Metrics::default()
        }
    }
}
