//! Python functions that compute advantages, returns and V-trace targets of trajectories.

pub(crate) mod gae;
pub(crate) mod returns;
mod trajectory;
pub(crate) mod vtrace;
