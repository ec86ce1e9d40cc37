//! What on-policy methods share: environments, a rollout, and its episodes.

use std::collections::VecDeque;

use rlox_core::{
    Error, Normalizer, NormalizerOptions, Pcg64, Policy, PolicyOut, Result, RolloutBuffer, Seeds, VectorEnv, collect,
};

use super::streams::Streams;
use super::{Encoding, IterationStreams, Metrics, Minibatches};
use crate::ActorCritic;

/// Episodes whose mean is reported.
const RECENT: usize = 100;

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
            self.policy.draw_noise(rngs);
        }
        self.step += 1;
        self.policy.act(obs, masks, rngs, out)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        self.policy.value(obs, values)
    }
}

/// Environments and the rollout they fill.
pub(super) struct Collector {
    pub(super) env: Box<dyn VectorEnv>,
    pub(super) buffer: RolloutBuffer,
    pub(super) normalizer: Option<Normalizer>,
    pub(super) minibatches: Minibatches,
    pub(super) streams: Streams,
    how: Collection,
    started: bool,
    recent: VecDeque<(f64, u32)>,
    drained: (Vec<f64>, Vec<u32>),
    pub(super) timesteps: u64,
}

impl Collector {
    pub(super) fn new(
        env: Box<dyn VectorEnv>,
        n_steps: usize,
        normalize: Option<NormalizerOptions>,
        how: Collection,
        streams: Streams,
    ) -> Result<Self> {
        let buffer = RolloutBuffer::for_env(n_steps, env.as_ref())?;
        let (num_envs, dim) = (env.num_envs(), env.spec().observation.dim());
        let options = normalize.map(|options| NormalizerOptions { gamma: how.gamma, ..options });
        Ok(Self {
            env,
            buffer,
            normalizer: options.map(|options| Normalizer::new(num_envs, dim, options)).transpose()?,
            minibatches: Minibatches::new(Encoding::Numbers(dim)),
            streams,
            how,
            started: false,
            recent: VecDeque::with_capacity(RECENT),
            drained: Default::default(),
            timesteps: 0,
        })
    }

    /// Fills the rollout and estimates advantages; the streams of this iteration.
    pub(super) fn collect(&mut self, policy: &mut dyn ActorCritic) -> Result<IterationStreams> {
        if !self.started {
            let seed = Seeds::Base(self.streams.reset());
            self.buffer.begin(self.env.as_mut(), seed, self.normalizer.as_mut())?;
            self.started = true;
        }
        let mut streams = IterationStreams::new(self.streams.iteration(), self.env.num_envs())?;
        let Self { env, buffer, normalizer, how, .. } = self;
        let actions = &mut streams.actions;
        collect_transitions(env.as_mut(), policy, actions, buffer, normalizer.as_mut(), *how, &mut || false)?;
        self.timesteps += self.buffer.transitions() as u64;
        Ok(streams)
    }

    /// What is known of the episodes, and the number of steps.
    pub(super) fn metrics(&mut self) -> Metrics {
        let (returns, lengths) = &mut self.drained;
        let log = self.env.episodes();
        log.drain(returns, lengths);
        for episode in returns.drain(..).zip(lengths.drain(..)) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(episode);
        }
        let mean = |of: &dyn Fn(&(f64, u32)) -> f64| self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64;
        Metrics {
            timesteps: self.timesteps,
            mean_return: mean(&|episode| episode.0),
            mean_length: mean(&|episode| f64::from(episode.1)),
            episodes: self.env.episodes().total(),
            ..Metrics::default()
        }
    }
}
