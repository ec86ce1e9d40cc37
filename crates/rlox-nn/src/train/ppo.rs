//! Proximal policy optimization (Schulman et al. 2017), from settings to trained policy.

use std::path::Path;

use rlox_core::{EnvSpec, Error, NormalizerOptions, Pcg64, Result, RolloutBuffer, VectorEnv};

use super::checkpoint;
use super::collector::{Collector, Run};
use super::streams::Streams;
use super::{Collection, Learned, Means, Metrics, Minibatches, Schedule, check_counts, check_share, evaluate_policy};
use crate::rows::check_not_negative;
use crate::{ActorCritic, ActorCriticLoss, ActorCriticStats, Optimizer, PolicyLoss, normalize_advantages};

/// Settings of PPO. The defaults are Stable-Baselines3's.
#[derive(Clone, Debug, PartialEq)]
pub struct PpoConfig {
    /// Steps from each environment in an iteration.
    pub n_steps: usize,
    /// Steps in a minibatch; the last one of an epoch may be smaller.
    pub batch_size: usize,
    /// Passes over the steps of an iteration.
    pub n_epochs: usize,
    /// Discount.
    pub gamma: f64,
    /// From one-step advantages (0) to Monte Carlo (1).
    pub gae_lambda: f64,
    /// The optimiser and the learning rate to begin with.
    pub optimizer: Optimizer,
    /// How the learning rate moves.
    pub lr_schedule: Schedule,
    /// How far the ratio of new to old probability may pay off.
    pub clip_coef: f32,
    /// How it moves.
    pub clip_schedule: Schedule,
    /// How far values may move in the value loss; `None` for any way.
    pub clip_coef_vf: Option<f32>,
    /// Advantages to mean 0 and standard deviation 1 in each minibatch.
    pub normalize_advantage: bool,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// The gradient of all parameters together is cut to this norm.
    pub max_grad_norm: f32,
    /// Updates end where a minibatch's KL is above 1.5 times this.
    pub target_kl: Option<f32>,
    /// Normalisation of observations and rewards; `None` for neither.
    pub normalize: Option<NormalizerOptions>,
    /// Steps until the noise of state-dependent exploration is drawn anew; 0 for once an iteration.
    pub sde_sample_freq: usize,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            n_steps: 2048,
            batch_size: 64,
            n_epochs: 10,
            gamma: 0.99,
            gae_lambda: 0.95,
            optimizer: Optimizer::Adam { lr: 3e-4, beta1: 0.9, beta2: 0.999, eps: 1e-5 },
            lr_schedule: Schedule::Constant,
            clip_coef: 0.2,
            clip_schedule: Schedule::Constant,
            clip_coef_vf: None,
            normalize_advantage: true,
            ent_coef: 0.0,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            target_kl: None,
            normalize: None,
            sde_sample_freq: 0,
        }
    }
}

impl PpoConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] naming the one that is out of range.
    pub fn check(&self) -> Result<()> {
        check_counts(&[("n_steps", self.n_steps), ("batch_size", self.batch_size), ("n_epochs", self.n_epochs)])?;
        check_share("gamma", self.gamma)?;
        check_share("gae_lambda", self.gae_lambda)?;
        self.optimizer.check()?;
        check_not_negative("clip_coef", self.clip_coef)?;
        check_not_negative("clip_coef_vf", self.clip_coef_vf.unwrap_or(0.0))?;
        check_not_negative("ent_coef", self.ent_coef)?;
        check_not_negative("vf_coef", self.vf_coef)?;
        check_not_negative("max_grad_norm", self.max_grad_norm)?;
        check_not_negative("target_kl", self.target_kl.unwrap_or(0.0))
    }
}

/// The learner: environments, policy, optimiser, and the loop over them.
///
/// ```
/// use rlox_core::{AutoresetMode, VecEnv, envs::CartPole};
/// use rlox_nn::{Activation, PolicyNetworks, train::{Ppo, PpoConfig}};
///
/// let env = VecEnv::new(8, None, AutoresetMode::SameStep, CartPole::default)?;
/// let config = PpoConfig { n_steps: 32, batch_size: 256, ..PpoConfig::default() };
/// let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
/// let mut ppo = Ppo::new(Box::new(env), make, config, 1)?;
/// ppo.train(512, |metrics| metrics.mean_return.is_finite())?;
/// assert_eq!(ppo.timesteps(), 512);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct Ppo<P> {
    policy: P,
    config: PpoConfig,
    collector: Collector,
}

impl<P> std::fmt::Debug for Ppo<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ppo")
            .field("config", &self.config)
            .field("timesteps", &self.collector.timesteps)
            .finish_non_exhaustive()
    }
}

impl<P: ActorCritic> Ppo<P> {
    /// A learner of environments and of the policy that `make` makes for them. The seed decides everything random:
    /// initial weights, environments, actions, minibatches.
    ///
    /// # Errors
    /// [`Error::Config`] naming a setting that is out of range, and those of `make`.
    pub fn new(
        env: Box<dyn VectorEnv>,
        make: impl FnOnce(&EnvSpec, &mut Pcg64) -> Result<P>,
        config: PpoConfig,
        seed: u64,
    ) -> Result<Self> {
        config.check()?;
        let rows = config.n_steps.saturating_mul(env.num_envs());
        if config.batch_size > rows {
            let (expected, got) = (format!("at most n_steps * num_envs = {rows}"), config.batch_size.to_string());
            return Err(Error::config("batch_size", expected, got, "shrink the minibatch or collect more steps"));
        }
        let mut streams = Streams::new(seed);
        let policy = make(env.spec(), &mut streams.policy)?;
        let PpoConfig { gamma, gae_lambda, sde_sample_freq, .. } = config;
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
    /// Those of [`Ppo::iterate`].
    pub fn train(&mut self, total_timesteps: u64, progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        self.collector.run = Run::new(self.timesteps(), total_timesteps);
        self.resume(progress)
    }

    /// Goes on with a run that `progress` ended early, or that was loaded, to where [`Ppo::train`] was to end. Schedules
    /// go on, too.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such run, and those of [`Ppo::iterate`].
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
    /// use rlox_nn::{Activation, ActorCritic, Mlp, PolicyNetworks, train::{Ppo, PpoConfig}};
    ///
    /// fn trainer(seed: u64) -> Result<Ppo<PolicyNetworks<Mlp>>> {
    ///     let env = VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?;
    ///     let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng);
    ///     Ppo::new(Box::new(env), make, PpoConfig { n_steps: 16, ..PpoConfig::default() }, seed)
    /// }
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-ppo-{}", std::process::id()));
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
    /// Those of [`rlox_core::Checkpoint::write`], [`Error::Config`] for a weight or a return that is not finite; what
    /// was there stays.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let Self { policy, config, collector } = self;
        checkpoint::save(path.as_ref(), "ppo", &config.settings(collector.env.as_ref()), policy, collector)
    }

    /// Goes back to what [`Ppo::save`] wrote, or the Python package for a learner on its native backend, of a trainer with
    /// the same settings, environments and shape of the policy; [`Ppo::resume`] goes on from there, as if nothing had come
    /// between. Environments that could not tell where they stood start new episodes. Which activation the policy has is
    /// not told.
    ///
    /// # Errors
    /// Those of [`rlox_core::Checkpoint::read`], and errors that name the file and the section that is another trainer's.
    /// Nothing has changed then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let Self { policy, config, collector } = self;
        checkpoint::load(path.as_ref(), "ppo", &config.settings(collector.env.as_ref()), policy, collector)
    }

    /// Collects `n_steps` steps from each environment and learns from them. Schedules go by `progress`, between 0 and 1.
    ///
    /// # Errors
    /// [`Error::Config`] for a progress outside of it; [`Error::Space`] and [`Error::Config`] naming observations, values
    /// or gradients that are not finite.
    pub fn iterate(&mut self, progress: f64) -> Result<Metrics> {
        check_share("progress", progress)?;
        let Self { policy, config, collector } = self;
        let mut streams = collector.collect(policy)?;
        let Collector { buffer, minibatches, .. } = collector;
        let learned = config.learn(policy, buffer, minibatches, &mut streams.order, progress, &mut || false)?;
        collector.updates += learned.updates;
        collector.count_steps();
        Ok(Metrics { learned, ..collector.metrics() })
    }
}

impl PpoConfig {
    /// The weights of the losses, and the optimiser, when `progress`, between 0 and 1, of the run is done.
    fn at(&self, progress: f64) -> (ActorCriticLoss, Optimizer) {
        let loss = ActorCriticLoss {
            policy: PolicyLoss::Clipped { clip_coef: self.clip_schedule.at(self.clip_coef, progress) },
            clip_coef_vf: self.clip_coef_vf,
            vf_coef: self.vf_coef,
            ent_coef: self.ent_coef,
        };
        (loss, self.optimizer.with_lr(self.lr_schedule.at(self.optimizer.lr(), progress)))
    }

    /// Epochs of minibatches over a finished rollout, until `target_kl` or `stop`, asked before each of them, ends them.
    /// `order` decides the order of the steps; schedules go by `progress`, between 0 and 1.
    ///
    /// # Errors
    /// [`Error::Config`] for a rollout that is not finished or has no transitions, and those of [`ActorCritic::update`]:
    /// [`Error::Config`] naming a gradient that is not finite.
    pub fn learn(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Learned> {
        let (loss, optimizer) = self.at(progress);
        minibatches.all(buffer)?;
        let total = minibatches.index.len();
        let (mut all, mut epoch) = (Means::default(), Means::default());
        let mut learned = Learned { learning_rate: optimizer.lr(), ..Learned::default() };
        'epochs: for _ in 0..self.n_epochs {
            if total > self.batch_size {
                minibatches.shuffle(order);
            }
            let mut begun = false;
            for from in (0..total).step_by(self.batch_size) {
                if stop() {
                    break 'epochs;
                }
                if !begun {
                    (begun, epoch) = (true, Means::default());
                    learned.updates += 1;
                }
                minibatches.gather(buffer, from, total.min(from + self.batch_size))?;
                if self.normalize_advantage {
                    normalize_advantages(&mut minibatches.advantages);
                }
                let (stats, enough) = self.minibatch(policy, minibatches, &loss, &optimizer)?;
                all.add(stats);
                epoch.add(stats);
                learned.stats.loss = stats.loss;
                if enough {
                    break 'epochs;
                }
            }
        }
        learned.stats = ActorCriticStats { loss: learned.stats.loss, approx_kl: epoch.mean().approx_kl, ..all.mean() };
        learned.explained_variance = minibatches.explained_variance(buffer)?;
        Ok(learned)
    }

    /// One gradient step, unless the policy has moved enough before it.
    fn minibatch(
        &self,
        policy: &mut dyn ActorCritic,
        minibatches: &Minibatches,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
    ) -> Result<(ActorCriticStats, bool)> {
        let (batch, most) = (minibatches.minibatch(), Some(self.max_grad_norm));
        let Some(target) = self.target_kl else {
            return Ok((policy.update(&batch, loss, optimizer, most)?, false));
        };
        let stats = policy.evaluate(&batch, loss)?;
        if stats.approx_kl > 1.5 * target {
            return Ok((stats, true));
        }
        policy.backward()?;
        Ok((ActorCriticStats { grad_norm: policy.step(optimizer, most)?, ..stats }, false))
    }
}
