//! Trainer of on-policy algorithms, which collects rollouts and learns from them in turn.

use std::collections::VecDeque;
use std::ops::Range;

use rlox_core::__private::profile::{self, Phase};
use rlox_core::{
    EnvSpec, Error, Normalizer, Pcg64, Policy, PolicyOut, Result, RolloutBuffer, Seeds, VectorEnv, collect,
    field::FieldData, interrupt::InterruptCheck, normalize::NormalizerOptions,
};

use super::Run;
use crate::ActorCritic;
use crate::alloc::resize;
use crate::train::streams::Streams;
use crate::train::{
    ConfigMap, Encoding, Episodes, IterationStreams, Metrics, Minibatches, UpdateStats, check_share, evaluate_policy,
};

/// An on-policy algorithm: its settings and its update from a rollout.
pub trait Algorithm: std::fmt::Debug {
    /// Name of the algorithm in checkpoints.
    const NAME: &'static str;

    /// Checks the settings for `num_envs` environments.
    ///
    /// # Errors
    /// [`Error::Config`] for the first setting out of range.
    fn check_for(&self, num_envs: usize) -> Result<()>;

    /// Returns the number of steps per environment and iteration, the normalisation, and the other
    /// settings of the collection.
    fn collect_config(&self) -> (usize, Option<NormalizerOptions>, CollectConfig);

    /// Learns from a finished rollout. The update ends early if `stop` returns `true`.
    ///
    /// The minibatches learned before a stop keep their effect. The random stream `order` shuffles
    /// the transitions. Schedules use `progress`, the finished fraction of the run.
    ///
    /// # Errors
    /// Errors of [`ActorCritic::update`].
    fn update(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<UpdateStats>;

    /// Returns the settings under their names in checkpoints, without the normalisation.
    fn config_map(&self) -> ConfigMap;
}

/// Settings for the collection of a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectConfig {
    /// Discount factor.
    pub gamma: f64,
    /// Lambda of GAE, from one-step advantages (0) to Monte Carlo returns (1).
    pub gae_lambda: f64,
    /// Number of steps between draws of the noise for generalised state-dependent exploration
    /// (gSDE). 0 draws the noise once per rollout.
    pub sde_sample_freq: usize,
}

impl Default for CollectConfig {
    /// Returns the defaults of PPO.
    fn default() -> Self {
        Self { gamma: 0.99, gae_lambda: 0.95, sde_sample_freq: 0 }
    }
}

/// Trainer of an on-policy algorithm `A`: [`Ppo`](crate::train::Ppo) or [`A2c`](crate::train::A2c).
///
/// Owns the environments and the policy with its optimiser state, and runs the training loop.
pub struct OnPolicy<A, P> {
    pub(in crate::train) policy: P,
    pub(in crate::train) config: A,
    pub(in crate::train) collector: Collector,
    /// Shared by all iterations, because an iteration may be shorter than the time between polls.
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
    /// Creates a trainer for the environments and for the policy that `make` returns.
    ///
    /// The seed determines all random numbers: initial weights, environments, actions and minibatches.
    ///
    /// # Errors
    /// [`Error::Config`] for the first setting out of range, [`Error::Memory`] if the rollout does not fit into memory,
    /// and errors of `make`.
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

    /// Returns the policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns a mutable reference to the policy, for example to load weights.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Returns the running statistics of observations and rewards; `None` without normalisation.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.collector.normalizer.as_ref()
    }

    /// Returns the episode returns of the greedy policy in `env`; see [`evaluate_policy`].
    ///
    /// Observations are normalised with this trainer's statistics.
    ///
    /// # Errors
    /// Errors of [`evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        evaluate_policy(&mut self.policy, env, episodes, seed, self.collector.normalizer.as_ref())
    }

    /// Returns the number of environment steps so far from which the policy has learned.
    pub fn timesteps(&self) -> u64 {
        self.collector.timesteps
    }

    /// Trains for at least `total_timesteps` more environment steps, counted over all environments.
    ///
    /// `progress` is called after each iteration and ends the run early by returning `false`.
    ///
    /// # Errors
    /// Errors of [`OnPolicy::iterate`].
    pub fn train(&mut self, total_timesteps: u64, progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        self.collector.run = Run::new(self.timesteps(), total_timesteps);
        self.resume(progress)
    }

    /// Continues an interrupted or loaded run and its schedules, to the end that
    /// [`OnPolicy::train`] set.
    ///
    /// # Errors
    /// [`Error::Config`] without an unfinished run; errors of [`OnPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        loop {
            let metrics = self.iterate(self.collector.run.progress(self.timesteps())?)?;
            if !progress(&metrics) || self.timesteps() >= self.collector.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Collects a rollout and learns from it. Schedules use `progress`, which is in [0, 1].
    ///
    /// # Errors
    /// [`Error::Config`] for `progress` out of range. [`Error::NotFinite`] for observations,
    /// rewards, outputs or gradients that are not finite. Other errors of the environments and the
    /// policy. Errors of the collection and the update contain the number of timesteps.
    /// [`Error::Interrupted`] if the check of [`rlox_core::interrupt::set_interrupt_check`] stops
    /// the iteration between two steps or minibatches. The minibatches learned before keep their
    /// effect.
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

/// Fills `buffer` with a rollout and estimates the advantages; see [`rlox_core::collect`].
///
/// The caller must reset the environments first ([`RolloutBuffer::begin`]). `streams` has one
/// random stream per environment. A rollout without transitions, in which environments only reset,
/// is followed by another one.
///
/// # Errors
/// Errors of [`rlox_core::collect`], and [`Error::Interrupted`] if `stop`, polled before each step, returns `true`.
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
        // A rollout in which environments only reset has no transition.
        if buffer.transitions() > 0 {
            return Ok(());
        }
    }
}

/// Estimates values and advantages of a full rollout that does not come from a [`VectorEnv`].
///
/// `encoding` converts observations to network inputs. `inputs` is a reusable buffer for them.
///
/// # Errors
/// [`Error::Shape`] if the rollout has no field `obs`, or if its rows have the wrong width. Errors
/// of [`Encoding::encode`], the policy and [`RolloutBuffer::finish`].
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
    let none = || Error::shape("buffer", "a field \"obs\"", "no such field", "create the buffer with it");
    let obs = buffer.field("obs").ok_or_else(none)?;
    encoding.check(obs)?;
    profile::enter(Phase::Inference);
    let last = value_fn(obs.data(), steps * n..(steps + 1) * n)?;
    let finals = value_fn(buffer.final_obs(), 0..buffer.final_index().len())?;
    profile::enter(Phase::GaeCompute);
    buffer.finish(&last, &finals, gamma, gae_lambda)
}

/// Policy wrapper that redraws the gSDE noise every `every` steps and polls `stop`.
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

/// Environments, rollout buffer, normaliser, random streams and counters.
pub(in crate::train) struct Collector {
    pub(in crate::train) env: Box<dyn VectorEnv>,
    pub(in crate::train) buffer: RolloutBuffer,
    pub(in crate::train) normalizer: Option<Normalizer>,
    pub(in crate::train) minibatches: Minibatches,
    pub(in crate::train) seed: u64,
    pub(in crate::train) streams: Streams,
    /// Random streams of the current iteration.
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

    /// Fills the rollout and estimates advantages. Resets the environments in the first call.
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
        // Episodes that ended before an error count as well.
        self.episodes.update(self.env.as_mut());
        result
    }

    /// Adds the transitions of the rollout to `timesteps`, after an update.
    pub(in crate::train) fn count_steps(&mut self) {
        self.timesteps += self.buffer.transitions() as u64;
    }

    /// Returns the episode statistics and counters.
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
