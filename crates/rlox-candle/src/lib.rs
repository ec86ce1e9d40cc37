//! Networks of [Candle](https://github.com/huggingface/candle) for the algorithms of [`rlox_nn`].
//!
//! [`CandleMlp`] implements [`rlox_nn::Network`] and can replace the built-in network
//! [`rlox_nn::Mlp`]. The same seed gives the same initial weights. Weights and optimiser states
//! have the same names as in [`rlox_nn::Mlp`] and torch, so that each can load those of the others.
//!
//! | item | purpose |
//! |---|---|
//! | [`CandleMlp`] | multilayer perceptron with an optimiser |
//! | [`policy_networks`] | actor and critic for the on-policy algorithms |
//! | [`Device`] | device of the tensors |
//!
//! ```
//! use rlox_candle::policy_networks;
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
//! Candle's `Tensor::backward` is not used. [`rlox_nn`] computes the losses and their gradients
//! with respect to the network outputs, and this crate computes the vector-Jacobian product of the
//! layers. The tests compare outputs and gradients of each activation with Candle's own `backward`.
//!
//! The default device is the CPU. [`CandleMlp::on`] takes other devices, which the features `cuda`
//! and `metal` enable. On the CPU, each network uses one core. The variables `RAYON_NUM_THREADS`
//! and `CANDLE_NUM_THREADS` have no effect. More cores are slower for small networks, and many
//! times slower while another thread computes.

mod cpu;
mod mlp;
mod tensor;

pub use mlp::{CandleMlp, policy_networks};
pub use tensor::Device;
