//! The trainer of on-policy methods: collect with the policy, learn from it, and again.

use std::collections::VecDeque;
use std::ops::Range;

use rlox_core::profile::{self, Phase};
use rlox_core::{
    EnvSpec, Error, FieldData, InterruptCheck, Normalizer, NormalizerOptions, Pcg64, Policy, PolicyOut, Result,
    RolloutBuffer, Seeds, VectorEnv, collect,
};

use super::Run;
use crate::ActorCritic;
use crate::alloc::resize;
use crate::train::streams::Streams;
use crate::train::{
    ConfigMap, Encoding, Episodes, IterationStreams, Metrics, Minibatches, UpdateStats, check_share, evaluate_policy,
};

/// What sets one on-policy method apart: its settings, and how it learns from a rollout.
pub trait Algorithm: std::fmt::Debug {
    /// What checkpoints call it.
    const NAME: &'static str;

    /// Checks the settings for so many environments.
    ///
    /// # Errors
    /// [`Error::Config`] naming the one that is out of range.
    fn check_for(&self, num_envs: usize) -> Result<()>;

    /// Steps from each environment in an iteration, what is normalised, and the rest of how they are collected.
    fn collect_config(&self) -> (usize, Option<NormalizerOptions>, CollectConfig);

    /// Learns from a finished rollout, until `stop` ends it; what was learned before stays. `order` decides the order of
    /// the steps; schedules go by `progress`.
    ///
    /// # Errors
    /// Those of [`ActorCritic::update`].
    fn update(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<UpdateStats>;

    /// The settings by the names that checkpoints have for them, but for those of normalisation.
    fn config_map(&self) -> ConfigMap;
}

/// How a rollout is collected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectConfig {
    /// Discount.
    pub gamma: f64,
    /// From one-step advantages (0) to Monte Carlo (1).
    pub gae_lambda: f64,
    /// Steps until the noise of state-dependent exploration is drawn anew; 0 for once a rollout.
    pub sde_sample_freq: usize,
}

/// The trainer of an on-policy method with the settings `A`, [`Ppo`](crate::train::Ppo) or [`A2c`](crate::train::A2c):
/// environments, policy, optimiser, and the loop over them.
pub struct OnPolicy<A, P> {
    pub(in crate::train) policy: P,
    pub(in crate::train) config: A,
    pub(in crate::train) collector: Collector,
    /// Of all iterations: each alone may be too short to be asked whether to stop.
    interrupt: InterruptCheck,
}

impl<A: Algorithm, P> std::fmt::Debug for OnPolicy<A, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnPolicy")
            .field("config", &self.config)
            .field("timesteps", &self.collector.timesteps)
            .finish_non_exhaustive()
    }
}

impl<A: Algorithm, P: ActorCritic> OnPolicy<A, P> {
    /// A learner of environments and of the policy that `make` makes for them. The seed decides everything random:
    /// initial weights, environments, actions, minibatches.
    ///
    /// # Errors
    /// [`Error::Config`] naming a setting that is out of range, and those of `make`.
    pub fn new(
        env: Box<dyn VectorEnv>,
        make: impl FnOnce(&EnvSpec, &mut Pcg64) -> Result<P>,
        config: A,
        seed: u64,
    ) -> Result<Self> {
        config.check_for(env.num_envs())?;
        let mut streams = Streams::new(seed);
        let policy = make(env.spec(), &mut streams.policy)?;
        let (n_steps, normalize, collect_config) = config.collect_config();
        let collector = Collector::new(env, n_steps, normalize, collect_config, (seed, streams))?;
        Ok(Self { policy, config, collector, interrupt: InterruptCheck::default() })
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, to act with or to load weights into.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The running statistics of observations and rewards, where they are normalised.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.collector.normalizer.as_ref()
    }

    /// The returns of whole greedy episodes of other environments ([`evaluate_policy`]), observed as these are.
    ///
    /// # Errors
    /// Those of [`evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        evaluate_policy(&mut self.policy, env, episodes, seed, self.collector.normalizer.as_ref())
    }

    /// Environment steps learned from so far.
    pub fn timesteps(&self) -> u64 {
        self.collector.timesteps
    }

    /// Trains for at least `total_timesteps` more steps, all environments together, or until `progress` returns false; it
    /// is called after each iteration.
    ///
    /// # Errors
    /// Those of [`OnPolicy::iterate`].
    pub fn train(&mut self, total_timesteps: u64, progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        self.collector.run = Run::new(self.timesteps(), total_timesteps);
        self.resume(progress)
    }

    /// Goes on with a run that `progress` ended early, or that was loaded, to where [`OnPolicy::train`] was to end.
    /// Schedules go on, too.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such run, and those of [`OnPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        loop {
            let metrics = self.iterate(self.collector.run.progress(self.timesteps())?)?;
            if !progress(&metrics) || self.timesteps() >= self.collector.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Collects steps from each environment and learns from them. Schedules go by `progress`, between 0 and 1.
    ///
    /// # Errors
    /// [`Error::Config`] for a progress outside of it; [`Error::Space`], [`Error::NotFinite`]
    /// and [`Error::Config`] naming observations, outputs or gradients that are not finite, and the steps before;
    /// [`Error::Interrupted`] between two steps or minibatches ([`rlox_core::set_interrupt_check`]): what was
    /// learned before stays.
    pub fn iterate(&mut self, progress: f64) -> Result<Metrics> {
        check_share("progress", progress)?;
        let Self { policy, config, collector, interrupt } = self;
        interrupt.check()?;
        let timesteps = collector.timesteps;
        collector.collect(policy).map_err(|error| error.at_timestep(timesteps))?;
        let Collector { buffer, minibatches, iteration, .. } = collector;
        let mut stopped = Ok(());
        let mut stop = || {
            stopped = interrupt.check();
            stopped.is_err()
        };
        let last_update = config
            .update(policy, buffer, minibatches, &mut iteration.order, progress, &mut stop)
            .map_err(|error| error.at_timestep(timesteps))?;
        if last_update.updates > 0 {
            collector.updates += last_update.updates;
            collector.count_steps();
        }
        stopped?;
        Ok(Metrics { last_update, ..collector.metrics() })
    }
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
    config: CollectConfig,
    stop: &mut dyn FnMut() -> bool,
) -> Result<()> {
    loop {
        let mut exploring = Exploring { policy, every: config.sde_sample_freq, step: 0, stop };
        collect(env, &mut exploring, streams, buffer, normalizer.as_deref_mut(), config.gamma, config.gae_lambda)?;
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
    let mut value_fn = |data: FieldData<'_>, rows: Range<usize>| -> Result<Vec<f32>> {
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
    let last = value_fn(obs.data(), steps * n..(steps + 1) * n)?;
    let finals = value_fn(buffer.final_obs(), 0..buffer.final_index().len())?;
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

/// Environments, the rollout they fill, and what is counted.
pub(in crate::train) struct Collector {
    pub(in crate::train) env: Box<dyn VectorEnv>,
    pub(in crate::train) buffer: RolloutBuffer,
    pub(in crate::train) normalizer: Option<Normalizer>,
    pub(in crate::train) minibatches: Minibatches,
    pub(in crate::train) seed: u64,
    pub(in crate::train) streams: Streams,
    /// Those of this iteration.
    pub(in crate::train) iteration: IterationStreams,
    config: CollectConfig,
    pub(in crate::train) env_initialized: bool,
    pub(in crate::train) episodes: Episodes,
    pub(in crate::train) timesteps: u64,
    pub(in crate::train) updates: u64,
    pub(in crate::train) run: Run,
}

impl Collector {
    pub(in crate::train) fn new(
        env: Box<dyn VectorEnv>,
        n_steps: usize,
        normalize: Option<NormalizerOptions>,
        config: CollectConfig,
        (seed, streams): (u64, Streams),
    ) -> Result<Self> {
        let buffer = RolloutBuffer::for_env(n_steps, env.as_ref())?;
        let (num_envs, dim) = (env.num_envs(), env.spec().observation.dim());
        let options = normalize.map(|options| NormalizerOptions { gamma: config.gamma, ..options });
        Ok(Self {
            env,
            buffer,
            normalizer: options.map(|options| Normalizer::new(num_envs, dim, options)).transpose()?,
            minibatches: Minibatches::new(Encoding::Numbers(dim)),
            seed,
            streams,
            iteration: IterationStreams::new(0, num_envs)?,
            config,
            env_initialized: false,
            episodes: Episodes::new(0, VecDeque::new()),
            timesteps: 0,
            updates: 0,
            run: Run::default(),
        })
    }

    /// Fills the rollout and estimates advantages.
    pub(in crate::train) fn collect(&mut self, policy: &mut dyn ActorCritic) -> Result<()> {
        if !self.env_initialized {
            self.episodes.discard(self.env.as_mut());
            let seed = Seeds::Base(self.streams.reset());
            self.buffer.begin(self.env.as_mut(), seed, self.normalizer.as_mut())?;
            self.env_initialized = true;
        }
        self.iteration.renew(self.streams.iteration(), self.env.num_envs())?;
        let Self { env, buffer, normalizer, config, iteration, .. } = self;
        let actions = &mut iteration.actions;
        let result =
            collect_transitions(env.as_mut(), policy, actions, buffer, normalizer.as_mut(), *config, &mut || false);
        // Those of a rollout that failed have ended, too.
        self.episodes.update(self.env.as_mut());
        result
    }

    /// Counts the rollout's steps, once they were learned from.
    pub(in crate::train) fn count_steps(&mut self) {
        self.timesteps += self.buffer.transitions() as u64;
    }

    /// What is known of the episodes, and the number of steps.
    pub(in crate::train) fn metrics(&self) -> Metrics {
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
