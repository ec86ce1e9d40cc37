//! Advantage estimators against numbers by hand, each other and slow references.

mod gae;
mod returns;
mod vtrace;
