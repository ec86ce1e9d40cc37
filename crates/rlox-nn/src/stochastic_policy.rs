//! A policy that draws actions between -1 and 1, and learns through them: SAC's actor.

mod memory;
mod squashed_gaussian;
mod squashed_policy;
mod state_dependent;
mod temperature;

pub use squashed_gaussian::SquashedGaussian;
pub use squashed_policy::SquashedPolicy;
pub use temperature::Temperature;

use rlox_core::{Pcg64, Result};

use crate::{ActionValue, NamedTensors, NetworkShape, Optimizer};

/// What a minibatch said to an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActorStats {
    /// The loss.
    pub loss: f32,
    /// The mean of what the critics said.
    pub mean_value: f32,
    /// Minus the mean log-probability, an estimate of the entropy; 0 for policies without one.
    pub entropy: f32,
    /// The norm of all gradients before they were clipped.
    pub grad_norm: f32,
}

/// A policy that draws actions between -1 and 1, of any backend: acts, samples, learns.
///
/// [`crate::ActionScaling`] takes actions to an environment's bounds.
pub trait StochasticPolicy: Send {
    /// Numbers in an observation.
    fn obs_dim(&self) -> usize;

    /// Numbers in an action.
    fn action_dim(&self) -> usize;

    /// Draws the noise of state-dependent exploration anew, that of environment i from `rngs[i]`; other policies have none.
    ///
    /// # Errors
    /// [`rlox_core::Error::Memory`] if it does not fit into memory.
    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()>;

    /// Draws actions of `obs`, `[N, d]`, for environments: row i from `rngs[i]` alone. Actions are `[N, a]`, their
    /// log-probabilities `[N]`.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit, [`rlox_core::Error::NotFinite`] naming an output of the
    /// policy, a `mean` or a `log_std`, that is NaN or infinite. Nothing is drawn then.
    fn act(&mut self, obs: &[f32], rngs: &mut [Pcg64], actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// As [`StochasticPolicy::act`] with noise that is drawn for this call: that of environments under way stays.
    ///
    /// # Errors
    /// Those of [`StochasticPolicy::act`] and [`StochasticPolicy::draw_noise`].
    fn act_once(&mut self, obs: &[f32], rngs: &mut [Pcg64], actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// The modes before they were squashed, `[N, a]`.
    ///
    /// # Errors
    /// Those of [`StochasticPolicy::act`].
    fn act_deterministic(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()>;

    /// Draws actions of a minibatch from one stream, to value next states with. State-dependent exploration draws nothing
    /// between an [`StochasticPolicy::rsample`] and its step: the noise matrix is that one's.
    ///
    /// # Errors
    /// Those of [`StochasticPolicy::act`].
    fn sample(&mut self, obs: &[f32], rng: &mut Pcg64, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// As [`StochasticPolicy::sample`], reparameterised: keeps what [`StochasticPolicy::backward`] needs.
    ///
    /// # Errors
    /// Those of [`StochasticPolicy::act`].
    fn rsample(&mut self, obs: &[f32], rng: &mut Pcg64, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// Adds to the parameters' gradients that of a loss, given those with respect to the actions and log-probabilities of
    /// the last [`StochasticPolicy::rsample`]. The noise stays what it was.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit, or if nothing was sampled before.
    fn backward(&mut self, d_actions: &[f32], d_log_probs: &[f32]) -> Result<()>;

    /// One step of the optimiser with the parameters' gradients, cut together to a norm; returns the norm before.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] naming a gradient that is not finite; nothing has changed then.
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// One step on [`crate::losses::sac_actor_loss`] for the last [`StochasticPolicy::rsample`], of these `obs`, through the
    /// smallest of the critics, whose parameters' gradients stay as they are.
    ///
    /// # Errors
    /// Those of [`StochasticPolicy::backward`], [`StochasticPolicy::step`] and [`ActionValue::action_gradients`], and
    /// [`rlox_core::Error::Config`] for an `alpha` below 0.
    fn update(
        &mut self,
        obs: &[f32],
        critics: &mut dyn ActionValue,
        alpha: f32,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorStats>;

    /// How its networks are made; `None` if they are not of fully connected layers.
    fn shape(&self) -> Option<NetworkShape> {
        None
    }

    /// All parameters by name: `actor.0.weight`, and `log_std` of state-dependent exploration.
    fn tensors(&self) -> NamedTensors;

    /// Takes parameters by name.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// The gradients since the last step, by the parameters' names.
    fn gradients(&self) -> NamedTensors;

    /// What the optimiser keeps, by the parameters' names.
    fn optimizer_state(&self) -> NamedTensors;

    /// Takes what [`StochasticPolicy::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}
