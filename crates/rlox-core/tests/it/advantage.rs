//! Comparisons of advantage estimators with results computed by hand, with each other and with
//! scalar references.

mod gae;
mod returns;
mod vtrace;
