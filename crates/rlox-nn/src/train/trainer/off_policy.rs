//! Trainer of off-policy algorithms, which alternates between collecting transitions and learning
//! from minibatches.

use std::collections::VecDeque;

use rlox_core::replay::ReplayStorage;
use rlox_core::{
    EnvSpec, Normalizer, Pcg64, ResetOptions, Result, Seeds, VectorEnv, field::Field, interrupt::InterruptCheck,
    normalize::NormalizerOptions,
};

use super::Run;
use crate::alloc::resize;
use crate::train::agent::{OffPolicyAgent, check_autoreset};
use crate::train::algorithm::Method;
use crate::train::streams::Streams;
use crate::train::{EnvInfo, Episodes, OffPolicyUpdateStats};

/// Metrics of one iteration of off-policy training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffPolicyMetrics {
    /// Number of environment steps so far, over all environments.
    pub timesteps: u64,
    /// Mean return of the last 100 finished episodes; NaN before the first episode ends.
    pub mean_return: f64,
    /// Mean length of the last 100 finished episodes, in steps; NaN before the first episode ends.
    pub mean_length: f64,
    /// Number of finished episodes.
    pub episodes: u64,
    /// Number of minibatches learned from so far.
    pub updates: u64,
    /// Probability of a random action (epsilon); `None` without epsilon-greedy exploration.
    pub exploration_rate: Option<f32>,
    /// Means over the minibatches of the last iteration that learned; `None` before that.
    pub last_update: Option<OffPolicyUpdateStats>,
}

/// Trainer of an off-policy algorithm: [`Dqn`](crate::train::Dqn), [`Sac`](crate::train::Sac) or
/// [`Td3`](crate::train::Td3).
///
/// Each iteration makes `train_freq` steps in each environment. After `learning_starts` steps, each
/// iteration then learns from `gradient_steps` minibatches. The replay buffer stores observations
/// and rewards before normalisation. The next observation at the end of an episode is the last one
/// of that episode. Minibatches are normalised when sampled, with the statistics of all steps so
/// far.
pub struct OffPolicy<A: Method> {
    pub(in crate::train) env: Box<dyn VectorEnv>,
    pub(in crate::train) agent: OffPolicyAgent<A>,
    /// State of an empty replay buffer.
    pub(in crate::train) empty_replay: Vec<Field>,
    pub(in crate::train) config: A::Config,
    pub(in crate::train) normalizer: Option<Normalizer>,
    pub(in crate::train) seed: u64,
    pub(in crate::train) streams: Streams,
    pub(in crate::train) episodes: Episodes,
    pub(in crate::train) run: Run,
    /// `true` if the environments were restored in the middle of episodes and the agent has not read their
    /// observations.
    pub(in crate::train) env_restored: bool,
    /// Shared by all iterations, because an iteration may be shorter than the time between polls.
    interrupt: InterruptCheck,
}

impl<A: Method> std::fmt::Debug for OffPolicy<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OffPolicy")
            .field("config", &self.config)
            .field("timesteps", &self.timesteps())
            .finish_non_exhaustive()
    }
}

impl<A: Method> OffPolicy<A> {
    /// Creates a trainer of environments in `SAME_STEP` mode and of the networks from `make`.
    ///
    /// The seed determines all random numbers: initial weights, environments, actions and minibatches.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a setting out of range or another autoreset mode. [`rlox_core::Error::Space`]
    /// for spaces that the algorithm does not support. [`rlox_core::Error::Memory`] if the buffer does not fit into
    /// memory. Errors of `make`.
    pub fn new(
        env: Box<dyn VectorEnv>,
        make: impl FnOnce(&EnvSpec, &mut Pcg64) -> Result<A::Networks>,
        config: A::Config,
        seed: u64,
    ) -> Result<Self> {
        check_autoreset(env.as_ref())?;
        let (spec, n) = (env.spec(), env.num_envs());
        let replay_config = A::replay_config(&config, spec)?;
        replay_config.check()?;
        let mut streams = Streams::new(seed);
        let networks = make(spec, &mut streams.policy)?;
        let learner = Box::new(A::new(config.clone(), networks, spec, n)?);
        let seeds = [streams.iteration(), streams.iteration()];
        let agent = OffPolicyAgent::new(learner, replay_config, &EnvInfo::from_env(env.as_ref()), seeds)?;
        let options =
            replay_config.normalize.map(|options| NormalizerOptions { gamma: replay_config.gamma, ..options });
        let normalizer = options.map(|options| Normalizer::new(n, spec.observation.dim(), options)).transpose()?;
        let empty_replay = agent.replay_state()?;
        Ok(Self {
            env,
            agent,
            empty_replay,
            config,
            normalizer,
            seed,
            streams,
            episodes: Episodes::new(0, VecDeque::new()),
            run: Run::default(),
            env_restored: false,
            interrupt: InterruptCheck::default(),
        })
    }

    /// Returns the learner with its networks.
    pub fn learner(&self) -> &A {
        self.agent.learner()
    }

    /// Returns a mutable reference to the learner, for example to load weights.
    pub fn learner_mut(&mut self) -> &mut A {
        self.agent.learner_mut()
    }

    /// Returns the config of the algorithm.
    pub fn config(&self) -> &A::Config {
        &self.config
    }

    /// Returns the storage of the transitions.
    pub fn replay(&self) -> &ReplayStorage {
        self.agent.replay()
    }

    /// Returns the running statistics of observations and rewards; `None` without normalisation.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.normalizer.as_ref()
    }

    /// Returns the number of environment steps so far, over all environments.
    pub fn timesteps(&self) -> u64 {
        self.agent.timesteps()
    }

    /// Returns the episode returns of the greedy policy in `env`.
    ///
    /// Observations are normalised with this trainer's statistics; see
    /// [`crate::train::evaluate_policy`].
    ///
    /// # Errors
    /// Errors of [`crate::train::evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        self.agent.learner_mut().evaluate(env, episodes, seed, self.normalizer.as_ref())
    }

    /// Trains for at least `total_timesteps` more environment steps, counted over all environments.
    ///
    /// `progress` is called after each iteration and ends the run early by returning `false`.
    ///
    /// # Errors
    /// Errors of [`OffPolicy::iterate`].
    pub fn train(
        &mut self,
        total_timesteps: u64,
        progress: impl FnMut(&OffPolicyMetrics) -> bool,
    ) -> Result<OffPolicyMetrics> {
        self.begin(total_timesteps);
        self.resume(progress)
    }

    /// Continues an interrupted or loaded run and its schedules, to the end that
    /// [`OffPolicy::train`] set.
    ///
    /// # Errors
    /// Errors of [`OffPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&OffPolicyMetrics) -> bool) -> Result<OffPolicyMetrics> {
        loop {
            let metrics = self.iterate()?;
            if !progress(&metrics) || self.timesteps() >= self.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Starts a run of `total_timesteps` more steps, or of one step for 0, for later calls of
    /// [`OffPolicy::iterate`].
    pub fn begin(&mut self, total_timesteps: u64) {
        self.run = Run::new(self.timesteps(), total_timesteps);
    }

    /// Makes `train_freq` steps in each environment and learns from minibatches.
    ///
    /// Schedules of learning use the progress before the iteration. Schedules of exploration use
    /// the progress before each step.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] without an unfinished run. [`rlox_core::Error::NotFinite`] for
    /// observations, rewards, outputs or gradients that are not finite. Other errors of the
    /// environments and networks. [`rlox_core::Error::Interrupted`] if the check of
    /// [`rlox_core::interrupt::set_interrupt_check`] stops the iteration between two steps or
    /// minibatches.
    pub fn iterate(&mut self) -> Result<OffPolicyMetrics> {
        let progress = self.run.progress(self.timesteps())?;
        let Self { env, agent, normalizer, streams, episodes, env_restored, interrupt, .. } = self;
        if std::mem::take(env_restored) {
            agent.attach(env.as_ref())?;
        } else if !agent.env_initialized() {
            episodes.discard(env.as_mut());
            let mut obs = Vec::new();
            resize("num_envs", &mut obs, env.num_envs() * env.spec().observation.dim(), 0.0)?;
            env.reset(Seeds::Base(streams.reset()), None, &ResetOptions::default(), &mut obs)?;
            agent.start(env.as_ref(), normalizer.as_mut())?;
        }
        agent.set_progress_per_step(self.run.progress_per_step())?;
        let result =
            agent.iterate(env.as_mut(), normalizer.as_mut(), progress, &mut || interrupt.check().map(|()| false));
        episodes.update(env.as_mut());
        result?;
        Ok(self.metrics())
    }

    fn metrics(&self) -> OffPolicyMetrics {
        let Self { episodes, agent, .. } = self;
        OffPolicyMetrics {
            timesteps: agent.timesteps(),
            mean_return: episodes.mean_return,
            mean_length: episodes.mean_length,
            episodes: episodes.total,
            updates: agent.updates(),
            exploration_rate: agent.learner().exploration_rate(agent.progress()),
            last_update: agent.last_update(),
        }
    }
}
