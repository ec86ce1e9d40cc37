//! Networks of [Candle](https://github.com/huggingface/candle) for the algorithms of [`rlox_nn`].
//!
//! [`CandleMlp`] takes the place of [`rlox_nn::Mlp`] wherever a [`rlox_nn::Network`] does: the same seed gives the same
//! first weights, and weights and optimiser states go from one to the other, and to torch, by name.
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
//! Candle's `Tensor::backward` is not used: losses and their gradients are those of [`rlox_nn`], and the vector-Jacobian
//! product of the layers is written out. The tests hold outputs, input gradients and parameter gradients of each
//! activation to what Candle's own `backward` gives.
//!
//! The CPU is the device unless [`CandleMlp::on`] is given another one; the features `cuda` and `metal` bring those. On
//! the CPU each network computes on one core, whatever `RAYON_NUM_THREADS` and `CANDLE_NUM_THREADS` say: at these sizes
//! more are slower, and while another thread computes many times slower.

mod cpu;
mod device;
mod mlp;
mod tensor;

pub use device::Device;
pub use mlp::{CandleMlp, policy_networks};
