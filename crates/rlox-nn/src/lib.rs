//! Small neural networks on the CPU and the reinforcement-learning algorithms that train them.
//!
//! - [`Network`] is the interface of a network backend. [`Mlp`] is the built-in implementation.
//! - [`losses`] computes losses and their gradients with respect to network outputs; a [`Network`] backpropagates them.
//! - [`ActorCritic`], [`QFunction`], [`StochasticPolicy`], [`DeterministicPolicy`] and [`ActionValue`] are the models
//!   that algorithms train.
//! - [`train`] has the algorithms (PPO, A2C, IMPALA, DQN, SAC, TD3) and the training loops.

mod action_scaling;
mod actor_critic;
mod alloc;
mod builders;
mod critics;
mod deterministic_policy;
mod distribution;
mod dueling;
mod kernels;
pub mod losses;
mod mlp;
mod network;
mod optimizer;
mod parallel;
mod q_function;
mod simd;
mod stochastic_policy;
pub mod train;
mod validate;
mod weights;

pub use action_scaling::ActionScaling;
pub use actor_critic::{
    ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, PolicyArch, PolicyLoss, PolicyNetworks, Trajectories,
    VtraceTargets,
};
pub use critics::{ActionValue, CriticBatch, CriticEnsemble, CriticReduction};
pub use deterministic_policy::{DeterministicActor, DeterministicPolicy, Smoothing};
pub use distribution::{DistInputs, Distribution, SquashedGaussian};
pub use dueling::Dueling;
pub use losses::off_policy::{Discount, TdLoss};
pub use mlp::{Activation, Init, LayerLayout, Mlp, MlpLayout, orthogonal};
pub use network::{Learnable, Network, NetworkArch, Parameters, Workspace, clip_and_step};
pub use optimizer::{Optimizer, Update};
pub use q_function::{CriticStats, QBatch, QFunction, QLoss, QNetworks};
pub use stochastic_policy::{ActorStats, SquashedPolicy, StochasticPolicy, Temperature};
pub use weights::{NamedTensor, NamedTensors};
