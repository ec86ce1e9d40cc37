//! Networks of [Burn](https://burn.dev) for the algorithms of [`rlox_nn`].
//!
//! [`BurnMlp`] takes the place of [`rlox_nn::Mlp`] wherever a [`rlox_nn::Network`] does: the same seed gives the same
//! first weights, and weights and optimiser states go from one to the other, and to torch, by name.
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
//! Burn's feature `autodiff` is not used: losses and their gradients are those of [`rlox_nn`], and the vector-Jacobian
//! product of the layers is written out in Burn's operations, as building a graph takes longer than computing a small
//! network. The tests switch that feature on and hold outputs, input gradients and parameter gradients of each activation
//! to what Burn's own `backward` gives.
//!
//! The device is the CPU, by Burn's flex, unless [`BurnMlp::on`] is given another one; the features `cuda` and `wgpu`
//! bring those. Burn is built without its feature `rayon`, so that each network computes on one core: at these sizes more
//! are slower. A program that switches that feature on has Burn share out products of more than 192^3 multiplications.

mod device;
mod mlp;
mod tensor;

pub use device::Device;
pub use mlp::{BurnMlp, policy_networks};
