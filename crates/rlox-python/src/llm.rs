//! Kernels for post-training of language models.

pub(crate) mod advantage;
pub(crate) mod kl;
mod options;
pub(crate) mod packing;
pub(crate) mod ratio;
pub(crate) mod sequence_kl;
mod tokens;
