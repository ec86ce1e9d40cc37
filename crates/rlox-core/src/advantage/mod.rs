//! Advantage estimators: free functions that read and write the caller's slices and allocate nothing.

mod ends;
mod flags;
mod float;
mod gae;
mod kernel;
mod returns;
mod rows;
mod scan;
mod vtrace;
mod window;

pub use ends::Ends;
pub(crate) use ends::check_discount;
pub use flags::flags_from_numbers;
pub use float::Float;
pub use gae::{compute_gae, compute_gae_batched, compute_gae_time_major};
pub use returns::{
    compute_lambda_returns, compute_lambda_returns_time_major, compute_returns, compute_returns_time_major,
};
pub use vtrace::{Vtrace, compute_vtrace, compute_vtrace_time_major};
