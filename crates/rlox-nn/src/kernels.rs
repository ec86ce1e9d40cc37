//! Kernels of small networks on lines of f32: products of matrices, activations, and the steps of the optimisers.

pub(crate) mod activations;
pub(crate) mod elementwise;
pub(crate) mod gemm;
pub(crate) mod sparse;
