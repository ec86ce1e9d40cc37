//! Small neural networks on the CPU and the reinforcement-learning algorithms that train them.
//!
//! ```
//! use rlox_core::{AutoresetMode, VecEnv, envs::CartPole};
//! use rlox_nn::{Activation, PolicyNetworks, train::{Ppo, PpoConfig}};
//!
//! let env = VecEnv::new(8, Some(1), AutoresetMode::SameStep, CartPole::default)?;
//! let config = PpoConfig { n_steps: 32, batch_size: 256, ..PpoConfig::default() };
//! let policy = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
//! let mut ppo = Ppo::new(Box::new(env), policy, config, 1)?;
//! ppo.train(512, |metrics| metrics.mean_return.is_finite())?;
//! # Ok::<(), rlox_core::Error>(())
//! ```
//!
//! | item | contents |
//! |---|---|
//! | [`train`] | PPO, A2C, IMPALA, DQN, SAC and TD3, their settings, training loops and checkpoints |
//! | [`losses`] | losses and their gradients with respect to network outputs |
//! | [`Network`] | interface of a network backend; [`Mlp`] is the built-in implementation |
//! | [`ActorCritic`], [`QFunction`], [`ActionValue`] | actor-critics of on-policy algorithms, Q-functions of DQN, and critics of SAC and TD3 |
//! | [`StochasticPolicy`], [`DeterministicPolicy`] | policies of SAC and TD3 |
//! | [`Distribution`] | distributions of actions |
//! | [`Optimizer`] | Adam, AdamW and RMSprop |
//! | [`NamedTensors`] | weights with the names that PyTorch gives them |

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
pub use builders::PolicyBuilder;
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
