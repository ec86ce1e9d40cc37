//! A policy and the values of states: what PPO, A2C and IMPALA learn.

mod networks;
mod vtrace;

pub use networks::PolicyNetworks;
pub use vtrace::{Trajectories, VtraceTargets};

use std::ops::Range;

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Policy, PolicyOut, Result};

use crate::optimizer::check_state;
use crate::validate::check_not_negative;
use crate::{Activation, NamedTensors, Optimizer};

/// A minibatch of B steps. All but the observations and actions are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct Minibatch<'a> {
    /// `[B, d]`.
    pub obs: &'a [f32],
    /// `[B, a]`, discrete ones counted from 0, continuous ones as they were sampled.
    pub actions: Actions<'a>,
    /// What was allowed, `[B, n]`.
    pub masks: Option<&'a [bool]>,
    /// The log-probabilities the actions had when they were chosen.
    pub log_probs: &'a [f32],
    /// The values the observations had then.
    pub values: &'a [f32],
    /// Advantages, normalised or not.
    pub advantages: &'a [f32],
    /// What values are to be.
    pub returns: &'a [f32],
}

impl Minibatch<'_> {
    /// Some of `total` rows.
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

/// How the policy learns from advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyLoss {
    /// [`crate::losses::clipped_policy_loss`], PPO's.
    Clipped {
        /// How far the ratio of new to old probability may pay off.
        clip_coef: f32,
    },
    /// [`crate::losses::policy_gradient_loss`], A2C's and, with V-trace's advantages and targets ([`VtraceTargets`]), IMPALA's.
    Gradient,
}

/// `policy + vf_coef value - ent_coef entropy`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActorCriticLoss {
    /// How the policy learns.
    pub policy: PolicyLoss,
    /// How far values may move; `None` for any way.
    pub clip_coef_vf: Option<f32>,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
}

impl ActorCriticLoss {
    /// Checks the weights and the clips.
    ///
    /// # Errors
    /// [`Error::Config`] naming one that is not finite or below 0.
    pub fn check(&self) -> Result<()> {
        if let PolicyLoss::Clipped { clip_coef } = self.policy {
            check_not_negative("clip_coef", clip_coef)?;
        }
        check_not_negative("clip_coef_vf", self.clip_coef_vf.unwrap_or(0.0))?;
        check_not_negative("vf_coef", self.vf_coef)?;
        check_not_negative("ent_coef", self.ent_coef)
    }
}

/// How the networks of a policy are made, as checkpoints tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyArch {
    /// Widths of the hidden layers of the policy.
    pub policy: Vec<usize>,
    /// Widths of those of the values; the same ones where the trunk is shared.
    pub value: Vec<usize>,
    /// What they apply; `None` if it is unknown.
    pub activation: Option<Activation>,
    /// Whether policy and values have them in common.
    pub shared_trunk: bool,
    /// Whether exploration depends on the state.
    pub use_sde: bool,
}

/// What a minibatch said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActorCriticStats {
    /// The policy's part of the loss.
    pub policy_loss: f32,
    /// The mean squared error of the values.
    pub value_loss: f32,
    /// Minus the mean entropy.
    pub entropy_loss: f32,
    /// The whole.
    pub loss: f32,
    /// As [`crate::losses::ClippedLoss::approx_kl`]; 0 for [`PolicyLoss::Gradient`].
    pub approx_kl: f32,
    /// As [`crate::losses::ClippedLoss::clip_fraction`]; 0 for [`PolicyLoss::Gradient`].
    pub clip_fraction: f32,
    /// The norm of all gradients before they were clipped.
    pub grad_norm: f32,
}

impl ActorCriticStats {
    /// Adds what a share of the rows said.
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

/// A policy with values, of any backend: acts, evaluates, learns.
///
/// ```
/// use rlox_core::{Actions, AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, ActorCritic, ActorCriticLoss, Minibatch, Optimizer, PolicyLoss, PolicyNetworks};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[64, 64], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// // Two steps of CartPole; the second action was better than was thought.
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
    /// The likeliest actions of `obs`, `[N, d]`.
    ///
    /// # Errors
    /// Those of [`Policy::act`].
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;

    /// The log-probabilities, `[N]`, that actions of `obs`, `[N, d]`, have now, and the values, `[N]`.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Action`] for slices that do not fit, [`Error::NotFinite`] naming actions that are NaN
    /// or infinite, and those of [`Policy::act`].
    fn evaluate_actions(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()>;

    /// The loss of a minibatch, and its gradient with respect to the networks' outputs. The parameters' gradients stay as
    /// they are.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Action`] for a minibatch that does not fit, [`Error::Config`] for a loss that makes no
    /// sense, [`Error::NotFinite`] naming an array of the minibatch, or an output of the policy, one of
    /// the `logits` or of the `mean`.
    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats>;

    /// Adds the gradient of what [`ActorCritic::evaluate`] said last to the parameters' gradients.
    ///
    /// # Errors
    /// [`Error::Shape`] if nothing was evaluated since the last step or load.
    fn backward(&mut self) -> Result<()>;

    /// One step of the optimiser with the parameters' gradients, cut together to a norm; returns the norm before.
    ///
    /// # Errors
    /// [`Error::Config`] naming a gradient that is not finite; nothing has changed then.
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Drops the gradients: the next backward starts from zero.
    fn zero_gradients(&mut self);

    /// All three in one. Gradients from before go into the step with those of the minibatch. None are left afterwards:
    /// where no step is taken, because something failed or otherwise, they are dropped, those from before too.
    ///
    /// # Errors
    /// Those of the three.
    fn update(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorCriticStats> {
        self.update_with_early_stopping(batch, loss, optimizer, max_grad_norm, None, &mut || false)
    }

    /// As [`ActorCritic::update`], but takes no step where [`ActorCriticStats::approx_kl`] is above `max_kl`, or where
    /// `stop` says so, which is asked between the parts of a large minibatch.
    ///
    /// # Errors
    /// Those of [`ActorCritic::update`], and [`Error::Interrupted`] where it was stopped; but for the gradients, nothing has
    /// changed then.
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

    /// Draws the noise of state-dependent exploration anew.
    ///
    /// # Errors
    /// [`rlox_core::Error::Memory`] if it does not fit into memory.
    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()>;

    /// As [`Policy::act`] with noise that is drawn for this call: that of a rollout under way stays.
    ///
    /// # Errors
    /// Those of [`Policy::act`].
    fn act_stateless(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        out: PolicyOut<'_>,
    ) -> Result<()>;

    /// The mean standard deviation that is learned beside the networks, if one is.
    fn mean_std(&self) -> Option<f32> {
        None
    }

    /// How its networks are made; `None` if it is not of fully connected layers.
    fn arch(&self) -> Option<PolicyArch> {
        None
    }

    /// All parameters by name: `actor.0.weight`, `critic.0.weight`, `log_std`.
    fn tensors(&self) -> NamedTensors;

    /// Checks that [`ActorCritic::load`] takes these parameters: who loads more than them checks all of it first.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    fn check_tensors(&self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())
    }

    /// Checks that [`ActorCritic::load_optimizer_state`] takes this state.
    ///
    /// # Errors
    /// Those of [`ActorCritic::load_optimizer_state`].
    fn check_optimizer_state(&self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())
    }

    /// Takes parameters by name.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// The gradients since the last step, by the parameters' names.
    fn gradients(&self) -> NamedTensors;

    /// What the optimiser keeps, by the parameters' names.
    fn optimizer_state(&self) -> NamedTensors;

    /// Takes what [`ActorCritic::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`], and [`Error::Config`] for a number of steps or a mean of squares that is none;
    /// nothing has changed then.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}
