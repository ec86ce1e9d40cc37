//! Conversion between Python objects and the types of `rlox_core`.

pub(crate) mod args;
pub(crate) mod array;
pub(crate) mod flags;
pub(crate) mod observation;
pub(crate) mod options;
pub(crate) mod policy_output;
pub(crate) mod scalar;
pub(crate) mod seed;
pub(crate) mod space;
