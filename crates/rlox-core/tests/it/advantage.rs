//! Advantage estimators compared with results by hand, with each other and with scalar references.

mod gae;
mod returns;
mod vtrace;
