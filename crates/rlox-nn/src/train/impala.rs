//! IMPALA (Espeholt et al. 2018, arXiv:1802.01561): advantage actor-critic with V-trace.
//!
//! An importance ratio is the probability of an action under the current policy, divided by that
//! under the policy that collected the rollout.

use rlox_core::__private::profile::{self, Phase};
use rlox_core::{Pcg64, Result, RolloutBuffer, advantage::VtraceConfig, normalize::NormalizerOptions};

use super::checkpoint::settings::{self, ConfigMap, ConfigValue};
use super::minibatches::Corrected;
use super::{
    AsyncOnPolicy, CollectConfig, Minibatches, OnPolicyAlgorithm, Schedule, UpdateStats, check_counts, check_share,
    run_interruptible,
};
use crate::losses::explained_variance;
use crate::optimizer::ON_POLICY_EPS;
use crate::validate::check_not_negative;
use crate::{ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, Optimizer, PolicyLoss};

/// Settings of IMPALA.
///
/// ```
/// use rlox_nn::train::ImpalaConfig;
///
/// let config = ImpalaConfig { n_steps: 10, ..ImpalaConfig::default() };
/// config.check()?;
/// assert_eq!((config.rho_bar, config.c_bar), (1.0, 1.0));
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImpalaConfig {
    /// Number of steps of each environment per rollout.
    pub n_steps: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Lambda of V-trace, a factor of the trace coefficients.
    pub vtrace_lambda: f64,
    /// Upper limit of the importance ratios in the temporal differences.
    pub rho_bar: f64,
    /// Upper limit of the importance ratios in the trace coefficients.
    pub c_bar: f64,
    /// Optimiser with the initial learning rate.
    pub optimizer: Optimizer,
    /// Schedule of the learning rate.
    pub lr_schedule: Schedule,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// Maximum norm of the gradient of all parameters.
    pub max_grad_norm: f32,
    /// Number of steps between draws of the noise for generalised state-dependent exploration
    /// (gSDE). 0 draws the noise once per rollout.
    pub sde_sample_freq: usize,
}

impl Default for ImpalaConfig {
    /// Returns the V-trace limits of the paper and the optimiser of A2C.
    ///
    /// Losses are means over transitions. The paper uses sums.
    fn default() -> Self {
        Self {
            n_steps: 5,
            gamma: 0.99,
            vtrace_lambda: 1.0,
            rho_bar: 1.0,
            c_bar: 1.0,
            optimizer: Optimizer::rms_prop(7e-4).with_eps(ON_POLICY_EPS),
            lr_schedule: Schedule::Linear,
            ent_coef: 0.01,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            sde_sample_freq: 0,
        }
    }
}

/// Trainer of IMPALA, with actors in threads and one learner.
///
/// ```
/// use rlox_core::{AutoresetMode, VecEnv, VectorEnv, envs::CartPole, pipeline::StalenessPolicy};
/// use rlox_nn::{Activation, PolicyNetworks, train::{Impala, ImpalaConfig}};
///
/// // One actor with four environments.
/// let env: Box<dyn VectorEnv> = Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?);
/// let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
/// let mut impala = Impala::new(vec![env], make, ImpalaConfig::default(), StalenessPolicy::default(), 1)?;
/// impala.train(400, |_| true)?;
/// assert_eq!(impala.timesteps(), 400);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub type Impala<P> = AsyncOnPolicy<ImpalaConfig, P>;

impl ImpalaConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for the first setting out of range.
    pub fn check(&self) -> Result<()> {
        check_counts(&[("n_steps", self.n_steps)])?;
        check_share("gamma", self.gamma)?;
        self.vtrace().check().map_err(|error| error.rename_argument("lambda", "vtrace_lambda"))?;
        self.optimizer.check()?;
        check_not_negative("ent_coef", self.ent_coef)?;
        check_not_negative("vf_coef", self.vf_coef)?;
        check_not_negative("max_grad_norm", self.max_grad_norm)
    }

    fn vtrace(&self) -> VtraceConfig {
        let Self { gamma, vtrace_lambda: lambda, rho_bar, c_bar, .. } = *self;
        VtraceConfig { gamma, rho_bar, c_bar, lambda, pg_rho_bar: rho_bar }
    }

    /// Makes one gradient step on a finished rollout, which may come from an older policy.
    ///
    /// Schedules use `progress`, which is in [0, 1]. `stop` is polled several times if the rollout
    /// is large. If `stop` returns `true`, the policy does not change. In the result,
    /// [`crate::ActorCriticStats::approx_kl`] estimates the KL divergence between the policy that
    /// collected the rollout and the current policy. `clip_fraction` is the fraction of importance
    /// ratios above `rho_bar`.
    ///
    /// # Errors
    /// Errors of [`ImpalaConfig::check`] and [`ActorCritic::update`]. [`rlox_core::Error::Config`]
    /// for `progress` out of range, or for a rollout that is unfinished or has no transitions.
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
        let (policy_loss, clip_coef_vf) = (PolicyLoss::Gradient, None);
        let loss =
            ActorCriticLoss { policy: policy_loss, clip_coef_vf, vf_coef: self.vf_coef, ent_coef: self.ent_coef };
        profile::enter(Phase::Buffer);
        let mut corrected = std::mem::take(&mut minibatches.corrected);
        let learned = run_interruptible(stop, |stop| {
            let distance = corrected.compute(policy, buffer, minibatches, self.vtrace(), stop)?;
            profile::enter(Phase::GradientUpdate);
            let Corrected { values, advantages, returns, .. } = &corrected;
            let batch = Minibatch { values, advantages, returns, ..minibatches.minibatch() };
            let explained = explained_variance(values, returns)?;
            let stats =
                policy.update_with_early_stopping(&batch, &loss, &optimizer, Some(self.max_grad_norm), None, stop)?;
            let (approx_kl, clip_fraction) = (distance.kl, distance.clipped);
            Ok((ActorCriticStats { approx_kl, clip_fraction, ..stats }, explained))
        });
        minibatches.corrected = corrected;
        let learned = learned?;
        let updates = learned.is_some().into();
        let (stats, explained_variance) = learned.unwrap_or_default();
        Ok(UpdateStats { stats, explained_variance, learning_rate: optimizer.lr(), updates })
    }
}

impl OnPolicyAlgorithm for ImpalaConfig {
    const NAME: &'static str = "impala";

    fn check_for(&self, _num_envs: usize) -> Result<()> {
        self.check()
    }

    fn collect_config(&self) -> (usize, Option<NormalizerOptions>, CollectConfig) {
        // V-trace replaces the advantages that the collection estimates, so `gae_lambda` has no effect.
        let collect_config =
            CollectConfig { gamma: self.gamma, gae_lambda: 1.0, sde_sample_freq: self.sde_sample_freq };
        (self.n_steps, None, collect_config)
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
        use ConfigValue::{Count, Double, Single};
        let mut config_map = vec![
            ("n_steps", Count(self.n_steps)),
            ("gamma", Double(self.gamma)),
            ("vtrace_lambda", Double(self.vtrace_lambda)),
            ("rho_bar", Double(self.rho_bar)),
            ("c_bar", Double(self.c_bar)),
            ("lr_schedule", self.lr_schedule.into()),
            ("ent_coef", Single(self.ent_coef)),
            ("vf_coef", Single(self.vf_coef)),
            ("max_grad_norm", Single(self.max_grad_norm)),
        ];
        config_map.extend(settings::optimizer(self.optimizer));
        config_map
    }
}
