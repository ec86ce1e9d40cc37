//! Kernels of language-model post-training.

pub(crate) mod advantage;
