//! Advantage estimators: free functions that read and write the caller's slices and allocate nothing.

mod flags;
mod float;
mod gae;
mod kernel;

pub use flags::flags_from_numbers;
pub use float::Float;
pub use gae::{Ends, compute_gae, compute_gae_batched, compute_gae_time_major};
