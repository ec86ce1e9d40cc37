//! Advantage actor-critic (Mnih et al. 2016, synchronous): config and trainer.

use rlox_core::__private::profile::{self, Phase};
use rlox_core::{Pcg64, Result, RolloutBuffer, normalize::NormalizerOptions};

use super::checkpoint::settings::{self, ConfigMap, ConfigValue};
use super::{
    CollectConfig, Minibatches, OnPolicy, OnPolicyAlgorithm, Schedule, UpdateStats, check_counts, check_share,
    run_interruptible,
};
use crate::losses::normalize_advantages;
use crate::optimizer::ON_POLICY_EPS;
use crate::validate::check_not_negative;
use crate::{ActorCritic, ActorCriticLoss, Optimizer, PolicyLoss};

/// Settings of A2C, with the defaults of Stable-Baselines3.
///
/// ```
/// use rlox_nn::train::A2cConfig;
///
/// let config = A2cConfig { n_steps: 8, ..A2cConfig::default() };
/// config.check()?;
/// assert_eq!(config.gamma, 0.99);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct A2cConfig {
    /// Number of steps of each environment per iteration.
    pub n_steps: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Lambda of GAE, from one-step advantages (0) to Monte Carlo returns (1).
    pub gae_lambda: f64,
    /// Optimiser with the initial learning rate.
    pub optimizer: Optimizer,
    /// Schedule of the learning rate.
    pub lr_schedule: Schedule,
    /// `true` to normalise advantages to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// Maximum norm of the gradient of all parameters.
    pub max_grad_norm: f32,
    /// Normalisation of observations and rewards; `None` for no normalisation.
    pub normalize: Option<NormalizerOptions>,
    /// Number of steps between draws of the noise for generalised state-dependent exploration
    /// (gSDE). 0 draws the noise once per iteration.
    pub sde_sample_freq: usize,
}

impl Default for A2cConfig {
    fn default() -> Self {
        Self {
            n_steps: 5,
            gamma: 0.99,
            gae_lambda: 1.0,
            optimizer: Optimizer::rms_prop(7e-4).with_eps(ON_POLICY_EPS),
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
    /// [`rlox_core::Error::Config`] for the first setting out of range.
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

/// Trainer of A2C.
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
pub type A2c<P> = OnPolicy<A2cConfig, P>;

impl OnPolicyAlgorithm for A2cConfig {
    const NAME: &'static str = "a2c";

    fn check_for(&self, _num_envs: usize) -> Result<()> {
        self.check()
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
        _order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<UpdateStats> {
        self.learn(policy, buffer, minibatches, progress, stop)
    }

    fn config_map(&self) -> ConfigMap {
        use ConfigValue::{Count, Double, Flag, Single};
        let mut config_map = vec![
            ("n_steps", Count(self.n_steps)),
            ("gamma", Double(self.gamma)),
            ("gae_lambda", Double(self.gae_lambda)),
            ("lr_schedule", self.lr_schedule.into()),
            ("normalize_advantage", Flag(self.normalize_advantage)),
            ("ent_coef", Single(self.ent_coef)),
            ("vf_coef", Single(self.vf_coef)),
            ("max_grad_norm", Single(self.max_grad_norm)),
        ];
        config_map.extend(settings::optimizer(self.optimizer));
        config_map
    }
}

impl A2cConfig {
    /// Makes one gradient step on a finished rollout. Schedules use `progress`, which is in [0, 1].
    ///
    /// `stop` is polled several times if the rollout is large. If `stop` returns `true`, the policy
    /// does not change.
    ///
    /// # Errors
    /// Errors of [`A2cConfig::check`] and [`ActorCritic::update`]. [`rlox_core::Error::Config`] for
    /// `progress` out of range, or for a rollout that is unfinished or has no transitions.
    /// [`rlox_core::Error::Shape`] for observations of the wrong size.
    /// [`rlox_core::Error::NotFinite`] for outputs or gradients that are not finite.
    pub fn learn(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<UpdateStats> {
        self.check()?;
        check_share("progress", progress)?;
        let optimizer = self.optimizer.with_lr(self.lr_schedule.value_at(self.optimizer.lr(), progress));
        let loss = ActorCriticLoss {
            policy: PolicyLoss::Gradient,
            clip_coef_vf: None,
            vf_coef: self.vf_coef,
            ent_coef: self.ent_coef,
        };
        profile::enter(Phase::Buffer);
        minibatches.select_all(buffer)?;
        let learned = run_interruptible(stop, |stop| {
            minibatches.gather(buffer, 0..minibatches.index.len(), stop)?;
            profile::enter(Phase::GradientUpdate);
            if self.normalize_advantage {
                normalize_advantages(&mut minibatches.advantages);
            }
            let most_norm = Some(self.max_grad_norm);
            policy.update_with_early_stopping(&minibatches.minibatch(), &loss, &optimizer, most_norm, None, stop)
        })?;
        let explained_variance = minibatches.explained_variance(buffer)?;
        let (stats, updates) = (learned.unwrap_or_default(), learned.is_some().into());
        Ok(UpdateStats { stats, explained_variance, learning_rate: optimizer.lr(), updates })
    }
}
