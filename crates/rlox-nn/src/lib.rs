//! Small neural networks on the CPU, and the reinforcement learning algorithms that train them.
//!
//! Losses and their gradients with respect to a network's outputs are written once; a [`Network`] multiplies them back.
//! The built-in one is [`Mlp`].

mod actor_critic;
mod adam;
mod distribution;
mod mlp;
mod network;
mod parameters;
mod simd;
pub mod train;
mod weights;

pub use actor_critic::{
    ActorCritic, ActorCriticLoss, ActorCriticStats, ClippedLoss, Minibatch, PolicyLoss, PolicyNetworks,
    clipped_policy_loss, explained_variance, normalize_advantages, policy_gradient_loss, value_loss,
};
pub use adam::{Optimizer, Update};
pub use distribution::{Distribution, Given};
pub use mlp::{Activation, Init, LayerLayout, Mlp, MlpLayout, orthogonal};
pub use network::{Network, Scratch, Step, clipped_step};
pub use parameters::Parameters;
pub use weights::{NamedTensor, NamedTensors};
