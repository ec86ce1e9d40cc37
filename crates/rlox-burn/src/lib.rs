//! Networks of [Burn](https://burn.dev) for the algorithms of [`rlox_nn`].
//!
//! [`BurnMlp`] implements [`rlox_nn::Network`] and can replace the built-in network
//! [`rlox_nn::Mlp`]. The same seed gives the same initial weights. Weights and optimiser states
//! have the same names as in [`rlox_nn::Mlp`] and torch, so that each can load those of the others.
//!
//! | item | purpose |
//! |---|---|
//! | [`BurnMlp`] | multilayer perceptron with an optimiser |
//! | [`policy_networks`] | actor and critic for the on-policy algorithms |
//! | [`Device`] | device of the tensors |
//!
//! ```
//! use rlox_burn::policy_networks;
//! use rlox_core::{AutoresetMode, VecEnv, envs::CartPole};
//! use rlox_nn::{Activation, train::{Ppo, PpoConfig}};
//!
//! let env = VecEnv::new(8, None, AutoresetMode::SameStep, CartPole::default)?;
//! let config = PpoConfig { n_steps: 32, batch_size: 256, ..PpoConfig::default() };
//! let make = |spec: &_, rng: &mut _| policy_networks(spec, &[64, 64], Activation::Tanh, rng);
//! let mut ppo = Ppo::new(Box::new(env), make, config, 1)?;
//! ppo.train(512, |metrics| metrics.mean_return.is_finite())?;
//! assert_eq!(ppo.timesteps(), 512);
//! # Ok::<(), rlox_core::Error>(())
//! ```
//!
//! Burn's feature `autodiff` is not used. [`rlox_nn`] computes the losses and their gradients with
//! respect to the network outputs. The vector-Jacobian product of the layers is written in Burn's
//! operations, because building a graph takes longer than computing a small network. The tests
//! enable `autodiff` and compare outputs and gradients of each activation with Burn's own
//! `backward`.
//!
//! The default device is the CPU, with Burn's flex backend. [`BurnMlp::on`] takes other devices,
//! which the features `cuda` and `wgpu` enable. Burn is built without its feature `rayon`, so that
//! each network uses one core, which is faster for small networks. With `rayon`, Burn distributes
//! matrix products of more than 192^3 multiplications over threads.

mod mlp;
mod tensor;

pub use mlp::{BurnMlp, policy_networks};
pub use tensor::Device;
