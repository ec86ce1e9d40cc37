//! Small neural networks on the CPU, and the reinforcement learning algorithms that train them.
//!
//! Losses and their gradients with respect to a network's outputs are written once; a [`Network`] multiplies them back.
//! The built-in one is [`Mlp`].

mod action_scaling;
mod action_value;
mod actor_critic;
mod adam;
mod at_once;
mod built_in;
mod deterministic_policy;
mod distribution;
mod dueling;
pub mod losses;
mod mlp;
mod network;
mod parameters;
mod q_function;
mod room;
mod rows;
mod shape;
mod simd;
mod squash;
mod stochastic_policy;
pub mod train;
mod weights;

pub use action_scaling::ActionScaling;
pub use action_value::{ActionValue, Critics, TwinCritics, ValuedActions};
pub use actor_critic::{
    ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, PolicyLoss, PolicyNetworks, PolicyShape, Trajectories,
    VtraceTargets,
};
pub use adam::{Optimizer, Update};
pub use deterministic_policy::{DeterministicActor, DeterministicPolicy, Smoothing};
pub use distribution::{Distribution, Given};
pub use dueling::Dueling;
pub use losses::off_policy::{Discount, TdLoss};
pub use mlp::{Activation, Init, LayerLayout, Mlp, MlpLayout, orthogonal};
pub use network::{Learnable, Network, Scratch, clipped_step};
pub use parameters::Parameters;
pub use q_function::{CriticStats, QFunction, QLoss, QNetworks, Transitions};
pub use shape::NetworkShape;
pub use stochastic_policy::{ActorStats, SquashedGaussian, SquashedPolicy, StochasticPolicy, Temperature};
pub use weights::{NamedTensor, NamedTensors};
