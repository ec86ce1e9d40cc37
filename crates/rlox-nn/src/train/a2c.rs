//! Advantage actor-critic (Mnih et al. 2016, synchronous), from settings to trained policy.

use std::path::Path;

use rlox_core::{EnvSpec, NormalizerOptions, Pcg64, Result, RolloutBuffer, VectorEnv};

use super::checkpoint;
use super::collector::{Collector, Run};
use super::streams::Streams;
use super::{Collection, Learned, Metrics, Minibatches, Schedule, check_counts, check_share, evaluate_policy};
use crate::rows::check_not_negative;
use crate::{ActorCritic, ActorCriticLoss, Optimizer, PolicyLoss, normalize_advantages};

/// Settings of A2C. The defaults are Stable-Baselines3's.
#[derive(Clone, Debug, PartialEq)]
pub struct A2cConfig {
    /// Steps from each environment in an iteration.
    pub n_steps: usize,
    /// Discount.
    pub gamma: f64,
    /// From one-step advantages (0) to Monte Carlo (1).
    pub gae_lambda: f64,
    /// The optimiser and the learning rate to begin with.
    pub optimizer: Optimizer,
    /// How the learning rate moves.
    pub lr_schedule: Schedule,
    /// Advantages to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// The gradient of all parameters together is cut to this norm.
    pub max_grad_norm: f32,
    /// Normalisation of observations and rewards; `None` for neither.
    pub normalize: Option<NormalizerOptions>,
    /// Steps until the noise of state-dependent exploration is drawn anew; 0 for once an iteration.
    pub sde_sample_freq: usize,
}

impl Default for A2cConfig {
    fn default() -> Self {
        Self {
            n_steps: 5,
            gamma: 0.99,
            gae_lambda: 1.0,
            optimizer: Optimizer::RmsProp { lr: 7e-4, alpha: 0.99, eps: 1e-5 },
            lr_schedule: Schedule::Constant,
            normalize_advantage: false,
            ent_coef: 0.0,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            normalize: None,
            sde_sample_freq: 0,
        }
    }
}

impl A2cConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] naming the one that is out of range.
    pub fn check(&self) -> Result<()> {
        check_counts(&[("n_steps", self.n_steps)])?;
        check_share("gamma", self.gamma)?;
        check_share("gae_lambda", self.gae_lambda)?;
        self.optimizer.check()?;
        check_not_negative("ent_coef", self.ent_coef)?;
        check_not_negative("vf_coef", self.vf_coef)?;
        check_not_negative("max_grad_norm", self.max_grad_norm)
    }
}

/// The learner: environments, policy, optimiser, and the loop over them.
///
/// ```
/// use rlox_core::{AutoresetMode, VecEnv, envs::CartPole};
/// use rlox_nn::{Activation, PolicyNetworks, train::{A2c, A2cConfig}};
///
/// let env = VecEnv::new(8, None, AutoresetMode::SameStep, CartPole::default)?;
/// let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
/// let mut a2c = A2c::new(Box::new(env), make, A2cConfig::default(), 1)?;
/// a2c.train(400, |_| true)?;
/// assert_eq!(a2c.timesteps(), 400);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct A2c<P> {
    policy: P,
    config: A2cConfig,
    collector: Collector,
}

impl<P> std::fmt::Debug for A2c<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("A2c")
            .field("config", &self.config)
            .field("timesteps", &self.collector.timesteps)
            .finish_non_exhaustive()
    }
}

impl<P: ActorCritic> A2c<P> {
    /// A learner of environments and of the policy that `make` makes for them. The seed decides everything random:
    /// initial weights, environments, actions.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] naming a setting that is out of range, and those of `make`.
    pub fn new(
        env: Box<dyn VectorEnv>,
        make: impl FnOnce(&EnvSpec, &mut Pcg64) -> Result<P>,
        config: A2cConfig,
        seed: u64,
    ) -> Result<Self> {
        config.check()?;
        let mut streams = Streams::new(seed);
        let policy = make(env.spec(), &mut streams.policy)?;
        let A2cConfig { gamma, gae_lambda, sde_sample_freq, .. } = config;
        let how = Collection { gamma, gae_lambda, sde_sample_freq };
        let collector = Collector::new(env, config.n_steps, config.normalize, how, (seed, streams))?;
        Ok(Self { policy, config, collector })
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
    pub fn normalizer(&self) -> Option<&rlox_core::Normalizer> {
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
    /// Those of [`A2c::iterate`].
    pub fn train(&mut self, total_timesteps: u64, progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        self.collector.run = Run::new(self.timesteps(), total_timesteps);
        self.resume(progress)
    }

    /// Goes on with a run that `progress` ended early, or that was loaded, to where [`A2c::train`] was to end. Schedules
    /// go on, too.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] if there is no such run, and those of [`A2c::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        loop {
            let metrics = self.iterate(self.collector.run.progress(self.timesteps())?)?;
            if !progress(&metrics) || self.timesteps() >= self.collector.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Writes a checkpoint into the folder `path`, or leaves what was there ([`rlox_core::Checkpoint::write`]): weights,
    /// optimiser, statistics, random streams, counters, and where the environments stand, if they can tell
    /// ([`VectorEnv::state`]).
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Result, VecEnv, envs::CartPole};
    /// use rlox_nn::{Activation, ActorCritic, Mlp, PolicyNetworks, train::{A2c, A2cConfig}};
    ///
    /// fn trainer(seed: u64) -> Result<A2c<PolicyNetworks<Mlp>>> {
    ///     let env = VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?;
    ///     let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng);
    ///     A2c::new(Box::new(env), make, A2cConfig::default(), seed)
    /// }
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-a2c-{}", std::process::id()));
    /// let mut first = trainer(1)?;
    /// first.train(256, |metrics| metrics.timesteps < 128)?; // the run is left halfway
    /// first.save(&folder)?;
    /// let mut second = trainer(2)?;
    /// second.load(&folder)?;
    /// first.resume(|_| true)?;
    /// second.resume(|_| true)?;
    /// assert_eq!(first.policy().tensors(), second.policy().tensors());
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`rlox_core::Checkpoint::write`], [`rlox_core::Error::Config`] for a weight or a return that is not finite; what
    /// was there stays.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let Self { policy, config, collector } = self;
        checkpoint::save(path.as_ref(), "a2c", &config.settings(collector.env.as_ref()), policy, collector)
    }

    /// Goes back to what [`A2c::save`] wrote, or the Python package for a learner on its native backend, of a trainer with
    /// the same settings, environments and shape of the policy; [`A2c::resume`] goes on from there, as if nothing had come
    /// between. Environments that could not tell where they stood start new episodes. Which activation the policy has is
    /// not told.
    ///
    /// # Errors
    /// Those of [`rlox_core::Checkpoint::read`], and errors that name the file and the section that is another trainer's.
    /// Nothing has changed then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let Self { policy, config, collector } = self;
        checkpoint::load(path.as_ref(), "a2c", &config.settings(collector.env.as_ref()), policy, collector)
    }

    /// Collects `n_steps` steps from each environment and takes one gradient step on them. Schedules go by `progress`,
    /// between 0 and 1.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a progress outside of it; [`rlox_core::Error::Space`] and
    /// [`rlox_core::Error::Config`] naming observations, values or gradients that are not finite.
    pub fn iterate(&mut self, progress: f64) -> Result<Metrics> {
        check_share("progress", progress)?;
        let Self { policy, config, collector } = self;
        collector.collect(policy)?;
        let learned = config.learn(policy, &collector.buffer, &mut collector.minibatches, progress)?;
        collector.updates += learned.updates;
        collector.count_steps();
        Ok(Metrics { learned, ..collector.metrics() })
    }
}

impl A2cConfig {
    /// One gradient step on a finished rollout. Schedules go by `progress`, between 0 and 1.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a rollout that is not finished or has no transitions, and those of
    /// [`ActorCritic::update`]: [`rlox_core::Error::Config`] naming a gradient that is not finite.
    pub fn learn(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        progress: f64,
    ) -> Result<Learned> {
        let optimizer = self.optimizer.with_lr(self.lr_schedule.at(self.optimizer.lr(), progress));
        let loss = ActorCriticLoss {
            policy: PolicyLoss::Gradient,
            clip_coef_vf: None,
            vf_coef: self.vf_coef,
            ent_coef: self.ent_coef,
        };
        minibatches.all(buffer)?;
        minibatches.gather(buffer, 0, minibatches.index.len())?;
        if self.normalize_advantage {
            normalize_advantages(&mut minibatches.advantages);
        }
        let stats = policy.update(&minibatches.minibatch(), &loss, &optimizer, Some(self.max_grad_norm))?;
        let explained_variance = minibatches.explained_variance(buffer)?;
        Ok(Learned { stats, explained_variance, learning_rate: optimizer.lr(), updates: 1 })
    }
}
