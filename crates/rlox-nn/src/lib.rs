//! Small neural networks on the CPU, and the reinforcement learning algorithms that train them.
//!
//! Losses and their gradients with respect to a network's outputs are written once; a [`Network`] multiplies them back.
//! The built-in one is [`Mlp`].

mod adam;
mod mlp;
mod network;
mod simd;
mod weights;

pub use adam::Optimizer;
pub use mlp::{Activation, Init, Mlp, orthogonal};
pub use network::{Network, Scratch, Step, clipped_step};
pub use weights::{NamedTensor, NamedTensors};
