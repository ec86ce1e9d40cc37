//! Computations of small networks on lines of 16 f32: matrix products, activations and optimizer
//! steps.

pub(crate) mod activations;
pub(crate) mod elementwise;
pub(crate) mod gemm;
pub(crate) mod sparse;
