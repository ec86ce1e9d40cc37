//! Actors that step environments of this process.

use super::{Collect, RolloutJob};
use crate::{
    EpisodeLog, Error, Normalizer, Pcg64, Policy, PolicyOut, RandomPolicy, Result, RolloutBuffer, SeedSequence, Seeds,
    VectorEnv, collect,
};

/// A rollout, and the episodes that ended in it.
#[derive(Debug)]
pub struct Rollout {
    /// Steps of the rollout, with advantages computed from the values of the acting policy.
    pub steps: RolloutBuffer,
    /// Returns of the newest episodes that ended in the rollout, oldest first.
    pub returns: Vec<f64>,
    /// Lengths in steps of the episodes in `returns`.
    pub lengths: Vec<u32>,
    /// Number of episodes that ended in the rollout, including episodes that `returns` lacks.
    pub episodes: u64,
}

impl Rollout {
    /// Creates a rollout of `n_steps` steps of each environment; see [`RolloutBuffer::for_env`].
    ///
    /// # Errors
    /// The errors of [`RolloutBuffer::new`].
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, VecEnv, envs::CartPole, pipeline::Rollout};
    ///
    /// let env = VecEnv::new(2, None, AutoresetMode::SameStep, CartPole::default)?;
    /// assert_eq!(Rollout::for_env(8, &env)?.steps.n_steps(), 8);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn for_env(n_steps: usize, env: &dyn VectorEnv) -> Result<Self> {
        Ok(Self::from_buffer(RolloutBuffer::for_env(n_steps, env)?))
    }

    /// Creates a rollout from a buffer of steps, without finished episodes.
    pub fn from_buffer(steps: RolloutBuffer) -> Self {
        // More episodes can neither end in the rollout nor be stored in the log of the
        // environments.
        let most = (steps.n_steps() * steps.num_envs()).min(EpisodeLog::CAPACITY);
        Self { steps, returns: Vec::with_capacity(most), lengths: Vec::with_capacity(most), episodes: 0 }
    }

    /// Moves the finished episodes of the environments to the rollout.
    ///
    /// `known` is the number of episodes that finished before the rollout. The call sets it to the
    /// number of all finished episodes.
    pub fn drain(&mut self, env: &mut dyn VectorEnv, known: &mut u64) {
        self.returns.clear();
        self.lengths.clear();
        let log = env.episodes();
        self.episodes = log.total() - *known;
        *known = log.total();
        log.drain(&mut self.returns, &mut self.lengths);
    }
}

/// Options of the advantage estimation ([`crate::compute_gae`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RolloutOptions {
    /// Discount factor.
    pub gamma: f64,
    /// Lambda of GAE, from one-step advantages (0) to Monte Carlo advantages (1).
    pub gae_lambda: f64,
}

impl Default for RolloutOptions {
    /// Returns a discount of 0.99 and a lambda of 0.95.
    fn default() -> Self {
        Self { gamma: 0.99, gae_lambda: 0.95 }
    }
}

/// A policy that acts with weights from a learner.
///
/// ```
/// use rlox_core::{Pcg64, Policy, PolicyOut, RandomPolicy, Result, Space, pipeline::LearnedPolicy};
///
/// /// Returns a learned value, and acts randomly.
/// struct Constant {
///     value: f32,
///     actions: RandomPolicy,
/// }
///
/// impl Policy for Constant {
///     fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
///         let PolicyOut { actions, log_probs, values } = out;
///         self.actions.act(obs, masks, rngs, PolicyOut { actions, log_probs, values: &mut *values })?;
///         self.value(obs, values)
///     }
///     fn value(&mut self, _: &[f32], values: &mut [f32]) -> Result<()> {
///         values.fill(self.value);
///         Ok(())
///     }
/// }
///
/// impl LearnedPolicy<f32> for Constant {
///     fn load(&mut self, weights: &f32) -> Result<()> {
///         self.value = *weights;
///         Ok(())
///     }
/// }
/// ```
pub trait LearnedPolicy<W>: Policy + Send {
    /// Loads the weights that a learner has published.
    ///
    /// # Errors
    /// Any error ends the pipeline.
    fn load(&mut self, weights: &W) -> Result<()>;
}

/// A random policy has no weights.
impl LearnedPolicy<()> for RandomPolicy {
    fn load(&mut self, (): &()) -> Result<()> {
        Ok(())
    }
}

/// Environments, and a policy that acts in them.
pub struct Actor<P> {
    env: Box<dyn VectorEnv>,
    policy: P,
    version: Option<u64>,
    /// Base seed of the reset at the start of the next rollout, or `None` for no reset.
    seed: Option<u64>,
    options: RolloutOptions,
    normalizer: Option<Normalizer>,
    rngs: Vec<Pcg64>,
    /// Number of episodes that the environments had finished after the last rollout.
    known: u64,
}

impl<P> std::fmt::Debug for Actor<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actor").field("version", &self.version).field("options", &self.options).finish_non_exhaustive()
    }
}

impl<P: Policy> Actor<P> {
    /// Creates an actor. Its first rollout resets environment `i` with the seed `seed + i`.
    pub fn new(env: Box<dyn VectorEnv>, policy: P, seed: u64, options: RolloutOptions) -> Self {
        let (version, known) = (None, 0);
        Self { env, policy, version, seed: Some(seed), options, normalizer: None, rngs: Vec::new(), known }
    }
}

/// State of an actor of this process between two rollouts.
pub struct ActorParts<'a> {
    /// Environments of the actor.
    pub env: &'a mut dyn VectorEnv,
    /// Base seed of a reset at the start of the next rollout, or `None` to continue the current
    /// episodes.
    pub reset: &'a mut Option<u64>,
}

impl std::fmt::Debug for ActorParts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ActorParts");
        debug.field("reset", &self.reset).finish_non_exhaustive()
    }
}

impl<W: Send + Sync, P: LearnedPolicy<W>> Collect<W, Rollout> for Actor<P> {
    fn state(&mut self) -> Option<ActorParts<'_>> {
        Some(ActorParts { env: self.env.as_mut(), reset: &mut self.seed })
    }

    fn invalidate_cache(&mut self) {
        self.version = None;
    }

    fn collect(&mut self, job: &mut RolloutJob<W, Rollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, policy, version, seed, options, normalizer, rngs, known } = self;
        if *version != Some(job.ticket.version) {
            policy.load(&job.weights)?;
            *version = Some(job.ticket.version);
        }
        let Rollout { steps, .. } = &mut job.buffer;
        if let Some(seed) = seed.take() {
            steps.begin(env.as_mut(), Seeds::Base(seed), normalizer.as_mut())?;
        }
        let mut root = SeedSequence::new(job.ticket.seed.into());
        rngs.clear();
        rngs.extend((0..env.num_envs()).map(|_| root.spawn_rng()));
        let mut stoppable = StoppablePolicy { policy, stop };
        let RolloutOptions { gamma, gae_lambda } = *options;
        let done = collect(env.as_mut(), &mut stoppable, rngs, steps, normalizer.as_mut(), gamma, gae_lambda);
        job.buffer.drain(env.as_mut(), known);
        done
    }
}

/// A policy that ends its rollout when `stop` returns true.
struct StoppablePolicy<'a, P> {
    policy: &'a mut P,
    stop: &'a dyn Fn() -> bool,
}

impl<P: Policy> Policy for StoppablePolicy<'_, P> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        if (self.stop)() {
            return Err(Error::Interrupted);
        }
        self.policy.act(obs, masks, rngs, out)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        self.policy.value(obs, values)
    }
}
