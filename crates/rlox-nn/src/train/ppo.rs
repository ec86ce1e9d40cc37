//! Proximal policy optimization (Schulman et al. 2017): config and trainer.

use rlox_core::__private::profile::{self, Phase};
use rlox_core::{Error, Pcg64, Result, RolloutBuffer, normalize::NormalizerOptions};

use super::checkpoint::settings::{self, ConfigMap, ConfigValue};
use super::{
    CollectConfig, Means, Minibatches, OnPolicy, OnPolicyAlgorithm, Schedule, UpdateStats, check_counts, check_share,
    run_interruptible,
};
use crate::losses::normalize_advantages;
use crate::optimizer::ON_POLICY_EPS;
use crate::validate::check_not_negative;
use crate::{ActorCritic, ActorCriticLoss, ActorCriticStats, Optimizer, PolicyLoss};

/// Settings of PPO, with the defaults of Stable-Baselines3.
///
/// ```
/// use rlox_nn::train::PpoConfig;
///
/// let config = PpoConfig { n_steps: 32, batch_size: 256, ..PpoConfig::default() };
/// config.check()?;
/// assert_eq!(config.gamma, 0.99);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PpoConfig {
    /// Number of steps of each environment per iteration.
    pub n_steps: usize,
    /// Number of transitions per minibatch. The last minibatch of an epoch may be smaller.
    pub batch_size: usize,
    /// Number of passes over the transitions of an iteration.
    pub n_epochs: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Lambda of GAE, from one-step advantages (0) to Monte Carlo returns (1).
    pub gae_lambda: f64,
    /// Optimiser with the initial learning rate.
    pub optimizer: Optimizer,
    /// Schedule of the learning rate.
    pub lr_schedule: Schedule,
    /// Clip range of the probability ratio, `1 - clip_coef` to `1 + clip_coef`.
    pub clip_coef: f32,
    /// Schedule of `clip_coef`.
    pub clip_schedule: Schedule,
    /// Clip range of the change of values in the value loss; `None` for no clipping.
    pub clip_coef_vf: Option<f32>,
    /// `true` to normalise the advantages of each minibatch to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// Maximum norm of the gradient of all parameters.
    pub max_grad_norm: f32,
    /// Limit of the KL divergence from the old policy; `None` for no limit. An update ends before
    /// the first minibatch whose divergence exceeds `1.5 * target_kl`.
    pub target_kl: Option<f32>,
    /// Normalisation of observations and rewards; `None` for no normalisation.
    pub normalize: Option<NormalizerOptions>,
    /// Number of steps between draws of the noise for generalised state-dependent exploration
    /// (gSDE). 0 draws the noise once per iteration.
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
            optimizer: Optimizer::adam(3e-4).with_eps(ON_POLICY_EPS),
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
    /// [`Error::Config`] for the first setting out of range.
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

/// Trainer of PPO.
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
pub type Ppo<P> = OnPolicy<PpoConfig, P>;

impl OnPolicyAlgorithm for PpoConfig {
    const NAME: &'static str = "ppo";

    fn check_for(&self, num_envs: usize) -> Result<()> {
        self.check()?;
        let rows = self.n_steps.saturating_mul(num_envs);
        if self.batch_size > rows {
            let (expected, got) = (format!("at most n_steps * num_envs = {rows}"), self.batch_size.to_string());
            return Err(Error::config("batch_size", expected, got, "lower batch_size or collect more steps"));
        }
        Ok(())
    }

    fn collect_config(&self) -> (usize, Option<NormalizerOptions>, CollectConfig) {
        let Self { gamma, gae_lambda, sde_sample_freq, .. } = *self;
        (self.n_steps, self.normalize, CollectConfig { gamma, gae_lambda, sde_sample_freq })
    }

    fn update(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<UpdateStats> {
        self.learn(policy, buffer, minibatches, order, progress, stop)
    }

    fn config_map(&self) -> ConfigMap {
        use ConfigValue::{Count, Double, Flag, Single};
        let mut config_map = vec![
            ("n_steps", Count(self.n_steps)),
            ("batch_size", Count(self.batch_size)),
            ("n_epochs", Count(self.n_epochs)),
            ("gamma", Double(self.gamma)),
            ("gae_lambda", Double(self.gae_lambda)),
            ("lr_schedule", self.lr_schedule.into()),
            ("clip_coef", Single(self.clip_coef)),
            ("clip_schedule", self.clip_schedule.into()),
            ("clip_coef_vf", self.clip_coef_vf.into()),
            ("normalize_advantage", Flag(self.normalize_advantage)),
            ("ent_coef", Single(self.ent_coef)),
            ("vf_coef", Single(self.vf_coef)),
            ("max_grad_norm", Single(self.max_grad_norm)),
            ("target_kl", self.target_kl.into()),
        ];
        config_map.extend(settings::optimizer(self.optimizer));
        config_map
    }
}

impl PpoConfig {
    /// Returns the loss settings and the optimiser at `progress`, the finished fraction of the run.
    fn loss_and_optimizer(&self, progress: f64) -> (ActorCriticLoss, Optimizer) {
        let loss = ActorCriticLoss {
            policy: PolicyLoss::Clipped { clip_coef: self.clip_schedule.value_at(self.clip_coef, progress) },
            clip_coef_vf: self.clip_coef_vf,
            vf_coef: self.vf_coef,
            ent_coef: self.ent_coef,
        };
        (loss, self.optimizer.with_lr(self.lr_schedule.value_at(self.optimizer.lr(), progress)))
    }

    /// Learns from a finished rollout, in epochs of minibatches.
    ///
    /// Schedules use `progress`, which is in [0, 1].
    ///
    /// The random stream `order` shuffles the transitions of each epoch. A rollout with at most
    /// `batch_size` transitions is one minibatch. `target_kl` or `stop` may end the update early.
    /// `stop` is polled before each minibatch and during large minibatches. An interrupted
    /// minibatch has no effect; earlier minibatches keep theirs.
    ///
    /// # Errors
    /// Errors of [`PpoConfig::check`] and [`ActorCritic::update`]. [`Error::Config`] for `progress`
    /// out of range, or for a rollout that is unfinished or has no transitions. [`Error::Shape`]
    /// for observations of the wrong size. [`Error::NotFinite`] for outputs or gradients that are
    /// not finite.
    pub fn learn(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<UpdateStats> {
        self.check()?;
        check_share("progress", progress)?;
        let loss_and_optimizer = self.loss_and_optimizer(progress);
        profile::enter(Phase::Buffer);
        minibatches.select_all(buffer)?;
        let total = minibatches.index.len();
        let (mut all, mut epoch) = (Means::default(), Means::default());
        let mut learned = UpdateStats { learning_rate: loss_and_optimizer.1.lr(), ..UpdateStats::default() };
        'epochs: for _ in 0..self.n_epochs {
            if total > self.batch_size && !minibatches.shuffle(order, stop) {
                break;
            }
            for from in (0..total).step_by(self.batch_size) {
                let rows = from..total.min(from + self.batch_size);
                let Some(stats) = run_interruptible(stop, |stop| {
                    minibatches.gather(buffer, rows, stop)?;
                    profile::enter(Phase::GradientUpdate);
                    self.minibatch(policy, minibatches, &loss_and_optimizer, stop)
                })?
                else {
                    break 'epochs;
                };
                profile::enter(Phase::Buffer);
                if from == 0 {
                    epoch = Means::default();
                    learned.updates += 1;
                }
                all.add(stats);
                epoch.add(stats);
                learned.stats.loss = stats.loss;
                if self.most_kl().is_some_and(|most| stats.approx_kl > most) {
                    break 'epochs;
                }
            }
        }
        learned.stats = ActorCriticStats { loss: learned.stats.loss, approx_kl: epoch.mean().approx_kl, ..all.mean() };
        profile::enter(Phase::GradientUpdate);
        learned.explained_variance = minibatches.explained_variance(buffer)?;
        Ok(learned)
    }

    /// Returns the KL divergence above which the update ends.
    fn most_kl(&self) -> Option<f32> {
        self.target_kl.map(|target| 1.5 * target)
    }

    /// Makes a gradient step on the gathered minibatch, unless its KL divergence is too large.
    fn minibatch(
        &self,
        policy: &mut dyn ActorCritic,
        minibatches: &mut Minibatches,
        (loss, optimizer): &(ActorCriticLoss, Optimizer),
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<ActorCriticStats> {
        if self.normalize_advantage {
            normalize_advantages(&mut minibatches.advantages);
        }
        let most_norm = Some(self.max_grad_norm);
        policy.update_with_early_stopping(&minibatches.minibatch(), loss, optimizer, most_norm, self.most_kl(), stop)
    }
}
