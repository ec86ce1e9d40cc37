//! The trainer of off-policy methods: act, remember, learn from what is remembered, and again.

use std::collections::VecDeque;

use rlox_core::replay::ReplayStorage;
use rlox_core::{
    EnvSpec, Field, InterruptCheck, Normalizer, NormalizerOptions, Pcg64, ResetOptions, Result, Seeds, VectorEnv,
};

use super::Run;
use crate::alloc::resize;
use crate::train::agent::{OffPolicyAgent, check_autoreset};
use crate::train::algorithm::Method;
use crate::train::streams::Streams;
use crate::train::{EnvInfo, Episodes, OffPolicyUpdateStats};

/// What an iteration of off-policy training said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffPolicyMetrics {
    /// Environment steps made so far, all environments together.
    pub timesteps: u64,
    /// The mean return of the last 100 finished episodes; NaN before the first.
    pub mean_return: f64,
    /// Their mean length, in steps.
    pub mean_length: f64,
    /// How many episodes were finished.
    pub episodes: u64,
    /// Minibatches learned from so far.
    pub updates: u64,
    /// The share of random actions, of DQN.
    pub exploration_rate: Option<f32>,
    /// Means over the minibatches of the last iteration that learned; `None` before the first.
    pub last_update: Option<OffPolicyUpdateStats>,
}

/// The trainer of an off-policy method, [`Dqn`](crate::train::Dqn), [`Sac`](crate::train::Sac) or
/// [`Td3`](crate::train::Td3): environments, replay, networks, and the loop over them.
///
/// Each iteration makes `train_freq` steps of each environment and then, from `learning_starts` steps on,
/// `gradient_steps` updates. Replay holds raw observations, rewards and the true next observations; where they are
/// normalised that is done on sampling, by the statistics of all steps so far.
pub struct OffPolicy<A: Method> {
    pub(in crate::train) env: Box<dyn VectorEnv>,
    pub(in crate::train) agent: OffPolicyAgent<A>,
    /// What a buffer tells that remembers nothing.
    pub(in crate::train) empty_replay: Vec<Field>,
    pub(in crate::train) config: A::Config,
    pub(in crate::train) normalizer: Option<Normalizer>,
    pub(in crate::train) seed: u64,
    pub(in crate::train) streams: Streams,
    pub(in crate::train) episodes: Episodes,
    pub(in crate::train) run: Run,
    /// Whether the environments were put where they stand, in the middle of episodes that the agent has not looked at.
    pub(in crate::train) env_restored: bool,
    /// Of all iterations: each alone may be too short to be asked whether to stop.
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
    /// A learner of environments, which reset in the same step, and of the networks that `make` makes for them. The
    /// seed decides everything random: initial weights, environments, actions, minibatches.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] naming a setting that is out of range, [`rlox_core::Error::Space`] for a space that
    /// the method is not for, [`rlox_core::Error::Memory`] for a buffer that does not fit into memory, and those of
    /// `make`.
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

    /// What acts and learns: the networks.
    pub fn learner(&self) -> &A {
        self.agent.learner()
    }

    /// The same, to act with or to load weights into.
    pub fn learner_mut(&mut self) -> &mut A {
        self.agent.learner_mut()
    }

    /// The settings.
    pub fn config(&self) -> &A::Config {
        &self.config
    }

    /// The transitions that are remembered.
    pub fn replay(&self) -> &ReplayStorage {
        self.agent.replay()
    }

    /// The running statistics of observations and rewards, where they are normalised.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.normalizer.as_ref()
    }

    /// Environment steps made so far, all environments together.
    pub fn timesteps(&self) -> u64 {
        self.agent.timesteps()
    }

    /// The returns of whole greedy episodes of other environments ([`crate::train::evaluate_policy`]), observed as these are.
    ///
    /// # Errors
    /// Those of [`crate::train::evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        self.agent.learner_mut().evaluate(env, episodes, seed, self.normalizer.as_ref())
    }

    /// Trains for at least `total_timesteps` more steps, all environments together, or until `progress` returns false;
    /// it is called after each iteration.
    ///
    /// # Errors
    /// Those of [`OffPolicy::iterate`].
    pub fn train(
        &mut self,
        total_timesteps: u64,
        progress: impl FnMut(&OffPolicyMetrics) -> bool,
    ) -> Result<OffPolicyMetrics> {
        self.begin(total_timesteps);
        self.resume(progress)
    }

    /// Goes on with a run that was ended early, or that was loaded, to where [`OffPolicy::train`] was to end. Schedules
    /// go on, too.
    ///
    /// # Errors
    /// Those of [`OffPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&OffPolicyMetrics) -> bool) -> Result<OffPolicyMetrics> {
        loop {
            let metrics = self.iterate()?;
            if !progress(&metrics) || self.timesteps() >= self.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Begins a run of so many steps more, one at least, that schedules go by; [`OffPolicy::iterate`] makes them.
    pub fn begin(&mut self, total_timesteps: u64) {
        self.run = Run::new(self.timesteps(), total_timesteps);
    }

    /// Makes `train_freq` steps of each environment and learns from what is remembered. Learning goes by the share of the run
    /// that is done before, exploration by that before each step.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] if no run was begun, or it has ended; [`rlox_core::Error::Space`],
    /// [`rlox_core::Error::Config`] and [`rlox_core::Error::NotFinite`] naming observations, rewards, outputs or
    /// gradients that are not finite, and the steps before; [`rlox_core::Error::Interrupted`] between two steps
    /// ([`rlox_core::set_interrupt_check`]).
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
