//! Actor-critic models: a policy and values of states, trained by PPO, A2C and IMPALA.

mod networks;
mod vtrace;

pub use networks::PolicyNetworks;
pub use vtrace::{Trajectories, VtraceTargets};

use std::ops::Range;

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Policy, PolicyOut, Result};

use crate::optimizer::check_state;
use crate::validate::check_not_negative;
use crate::{Activation, NamedTensors, Optimizer};

/// A minibatch of B environment steps; arrays have the shape `[B]` unless stated otherwise.
///
/// In shapes, `d` is the number of elements of an observation, `a` the number of elements of an
/// action, and `n` the number of flags of an action mask.
#[derive(Clone, Copy, Debug)]
pub struct Minibatch<'a> {
    /// Observations, `[B, d]`.
    pub obs: &'a [f32],
    /// Actions, `[B, a]`. Discrete actions count from 0. Continuous actions are as the policy drew
    /// them.
    pub actions: Actions<'a>,
    /// Action masks, `[B, n]`; a flag is true if the action is allowed.
    pub masks: Option<&'a [bool]>,
    /// Log-probabilities of the actions under the policy that chose them.
    pub log_probs: &'a [f32],
    /// Values of the observations at the time when the actions were chosen.
    pub values: &'a [f32],
    /// Advantages, normalised or not.
    pub advantages: &'a [f32],
    /// Targets of the values.
    pub returns: &'a [f32],
}

impl Minibatch<'_> {
    /// Returns the rows with the indices `rows` of a minibatch with `total` rows.
    fn rows(&self, rows: Range<usize>, total: usize) -> Self {
        let element_range = |len: usize| len / total * rows.start..len / total * rows.end;
        Self {
            obs: &self.obs[element_range(self.obs.len())],
            actions: match self.actions {
                Actions::Discrete(actions) => Actions::Discrete(&actions[element_range(actions.len())]),
                Actions::Continuous(actions) => Actions::Continuous(&actions[element_range(actions.len())]),
            },
            masks: self.masks.map(|masks| &masks[element_range(masks.len())]),
            log_probs: &self.log_probs[rows.clone()],
            values: &self.values[rows.clone()],
            advantages: &self.advantages[rows.clone()],
            returns: &self.returns[rows.clone()],
        }
    }
}

/// Loss of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyLoss {
    /// PPO's loss, [`crate::losses::clipped_policy_loss`].
    Clipped {
        /// Distance of the probability ratio from 1 at which the ratio is clipped.
        clip_coef: f32,
    },
    /// Policy gradient loss of A2C, and of IMPALA with [`VtraceTargets`]:
    /// [`crate::losses::policy_gradient_loss`].
    Gradient,
}

/// Loss of a minibatch: `policy_loss + vf_coef * value_loss - ent_coef * entropy`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActorCriticLoss {
    /// Loss of the policy.
    pub policy: PolicyLoss,
    /// Largest change of a value since the action was chosen, beyond which the value is clipped;
    /// `None` disables clipping.
    pub clip_coef_vf: Option<f32>,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
}

impl ActorCriticLoss {
    /// Checks that all coefficients are finite and at least 0.
    ///
    /// # Errors
    /// [`Error::Config`] naming the coefficient that is negative or not finite.
    pub fn check(&self) -> Result<()> {
        if let PolicyLoss::Clipped { clip_coef } = self.policy {
            check_not_negative("clip_coef", clip_coef)?;
        }
        check_not_negative("clip_coef_vf", self.clip_coef_vf.unwrap_or(0.0))?;
        check_not_negative("vf_coef", self.vf_coef)?;
        check_not_negative("ent_coef", self.ent_coef)
    }
}

/// Architecture of the networks of a policy, for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyArch {
    /// Widths of the hidden layers of the policy.
    pub policy: Vec<usize>,
    /// Widths of the hidden layers of the values; equal to `policy` if the hidden layers are
    /// shared.
    pub value: Vec<usize>,
    /// Activation of the hidden layers; `None` if unknown.
    pub activation: Option<Activation>,
    /// True if policy and values share the hidden layers, the trunk.
    pub shared_trunk: bool,
    /// True if the policy uses state-dependent exploration (gSDE).
    pub use_sde: bool,
}

/// Loss statistics of a minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActorCriticStats {
    /// Loss of the policy.
    pub policy_loss: f32,
    /// Mean squared error of the values.
    pub value_loss: f32,
    /// Mean entropy of the policy, with a minus sign.
    pub entropy_loss: f32,
    /// Total loss, as in [`ActorCriticLoss`].
    pub loss: f32,
    /// Approximate KL divergence, [`crate::losses::ClippedLoss::approx_kl`]; 0 for
    /// [`PolicyLoss::Gradient`].
    pub approx_kl: f32,
    /// Share of clipped ratios, [`crate::losses::ClippedLoss::clip_fraction`]; 0 for
    /// [`PolicyLoss::Gradient`].
    pub clip_fraction: f32,
    /// Norm of all gradients before clipping.
    pub grad_norm: f32,
}

impl ActorCriticStats {
    /// Adds the statistics of a part of the minibatch, which has the share `weight` of the rows.
    fn add(&mut self, stats: &Self, weight: f32) {
        for (total, value) in [
            (&mut self.policy_loss, stats.policy_loss),
            (&mut self.value_loss, stats.value_loss),
            (&mut self.entropy_loss, stats.entropy_loss),
            (&mut self.loss, stats.loss),
            (&mut self.approx_kl, stats.approx_kl),
            (&mut self.clip_fraction, stats.clip_fraction),
        ] {
            *total += value * weight;
        }
    }
}

/// A policy with a value function, for networks of any backend.
///
/// In shapes, `N` is the number of observations, and `d` the number of elements of an observation.
///
/// ```
/// use rlox_core::{Actions, AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, ActorCritic, ActorCriticLoss, Minibatch, Optimizer, PolicyLoss, PolicyNetworks};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[64, 64], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// // Two steps of CartPole; the second action has a positive advantage.
/// let batch = Minibatch {
///     obs: &[0.01, -0.02, 0.03, 0.04, 0.02, 0.17, 0.03, -0.24],
///     actions: Actions::Discrete(&[1, 0]),
///     masks: None,
///     log_probs: &[-0.69, -0.69],
///     values: &[0.0, 0.0],
///     advantages: &[-1.0, 1.0],
///     returns: &[1.0, 3.0],
/// };
/// let policy_loss = PolicyLoss::Clipped { clip_coef: 0.2 };
/// let loss = ActorCriticLoss { policy: policy_loss, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.0 };
/// let stats = policy.update(&batch, &loss, &Optimizer::adam(3e-4), Some(0.5))?;
/// assert!(stats.value_loss > 0.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub trait ActorCritic: Policy + Send {
    /// Computes the most probable action for each observation of `obs`, `[N, d]`.
    ///
    /// # Errors
    /// The errors of [`Policy::act`].
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;

    /// Computes the log-probabilities of actions under the current policy, and the values of `obs`.
    ///
    /// `obs` has the shape `[N, d]`; `log_probs` and `values` have the shape `[N]`.
    ///
    /// # Errors
    /// - [`Error::Shape`]: a slice has the wrong length.
    /// - [`Error::Action`]: an action is outside the action space or forbidden by `masks`.
    /// - [`Error::NotFinite`]: an action is NaN or infinite.
    /// - The errors of [`Policy::act`].
    fn evaluate_actions(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()>;

    /// Computes the loss of a minibatch and its gradient with respect to the network outputs.
    ///
    /// The gradients of the parameters do not change.
    ///
    /// # Errors
    /// - [`Error::Shape`]: an array of the minibatch has the wrong length.
    /// - [`Error::Action`]: an action is outside the action space or forbidden by its mask.
    /// - [`Error::Config`]: a coefficient of the loss is negative or not finite.
    /// - [`Error::NotFinite`]: a number in the minibatch, or in the `logits` or the `mean` of the
    ///   policy, is NaN or infinite.
    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats>;

    /// Adds the gradient of the last [`ActorCritic::evaluate`] to the gradients of the parameters.
    ///
    /// # Errors
    /// [`Error::Shape`] if [`ActorCritic::evaluate`] was not called since the last step or load.
    fn backward(&mut self) -> Result<()>;

    /// Clips all gradients together and applies one optimizer step; returns the norm of the
    /// gradients before clipping.
    ///
    /// # Errors
    /// The errors of [`crate::clip_and_step`].
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Zeroes the gradients.
    fn zero_gradients(&mut self);

    /// Runs [`ActorCritic::evaluate`], [`ActorCritic::backward`] and [`ActorCritic::step`].
    ///
    /// The step also uses gradients that were added before this call. Afterwards all gradients are
    /// zero, even if an error prevented the step.
    ///
    /// # Errors
    /// The errors of the three methods.
    fn update(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorCriticStats> {
        self.update_with_early_stopping(batch, loss, optimizer, max_grad_norm, None, &mut || false)
    }

    /// Works as [`ActorCritic::update`], but skips the step if the approximate KL divergence
    /// exceeds `max_kl`.
    ///
    /// `stop` is called between the parts of a large minibatch; if it returns true, the update
    /// ends. The default implementation calls `stop` once, at the start.
    ///
    /// # Errors
    /// The errors of [`ActorCritic::update`]. [`Error::Interrupted`] if `stop` returned true; then
    /// the gradients are zero and nothing else has changed.
    fn update_with_early_stopping(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
        max_kl: Option<f32>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<ActorCriticStats> {
        let mut work = || {
            if stop() {
                return Err(Error::Interrupted);
            }
            optimizer.check()?;
            let stats = self.evaluate(batch, loss)?;
            if max_kl.is_some_and(|most| stats.approx_kl > most) {
                return Ok(stats);
            }
            self.backward()?;
            Ok(ActorCriticStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
        };
        let result = work();
        self.zero_gradients();
        result
    }

    /// Draws new noise for state-dependent exploration, for environment `i` from `rngs[i]`.
    ///
    /// Policies without state-dependent exploration do nothing.
    ///
    /// # Errors
    /// [`rlox_core::Error::Memory`] if the noise does not fit into memory.
    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()>;

    /// Works as [`Policy::act`], but with exploration noise that is drawn for this call alone.
    ///
    /// Later calls of [`Policy::act`] use the noise of the last [`ActorCritic::draw_noise`].
    ///
    /// # Errors
    /// The errors of [`Policy::act`].
    fn act_stateless(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        out: PolicyOut<'_>,
    ) -> Result<()>;

    /// Returns the mean of the learned standard deviations, or `None` if there are none.
    fn mean_std(&self) -> Option<f32> {
        None
    }

    /// Returns the architecture, or `None` if the networks do not consist of fully connected
    /// layers.
    fn arch(&self) -> Option<PolicyArch> {
        None
    }

    /// Returns all parameters by name: `actor.0.weight`, `critic.0.weight`, `log_std`.
    fn tensors(&self) -> NamedTensors;

    /// Checks that [`ActorCritic::load`] accepts the parameters.
    ///
    /// Callers that load several parts check all parts first, so that an error changes nothing.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`].
    fn check_tensors(&self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())
    }

    /// Checks that [`ActorCritic::load_optimizer_state`] accepts the state.
    ///
    /// # Errors
    /// The errors of [`ActorCritic::load_optimizer_state`].
    fn check_optimizer_state(&self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())
    }

    /// Loads parameters by name.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. After an error, nothing has changed.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// Returns the gradients since the last step by parameter name.
    fn gradients(&self) -> NamedTensors;

    /// Returns the state of the optimizer by parameter name.
    fn optimizer_state(&self) -> NamedTensors;

    /// Loads a state that [`ActorCritic::optimizer_state`] returned.
    ///
    /// # Errors
    /// - The errors of [`NamedTensors::check`].
    /// - [`Error::Config`]: a number of steps is not an integer of at least 0, or a mean of squares
    ///   is negative.
    ///
    /// After an error, nothing has changed.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}
