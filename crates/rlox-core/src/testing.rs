//! Assertions about errors, for the tests of all rlox crates.

use std::mem::discriminant;

use crate::{Error, Result, error::Mismatch};

/// Constructor of a variant of [`Error`] that carries a [`Mismatch`].
pub type Variant = fn(Box<Mismatch>) -> Error;

/// Checks that `result` is an error of the given variant about the given argument. Returns the
/// details of the error.
///
/// # Panics
/// If `result` is a value, or an error of another variant or about another argument.
#[track_caller]
pub fn assert_rejects<T>(result: Result<T>, variant: Variant, argument: &str) -> Mismatch {
    let Err(error) = result else { panic!("expected an error about {argument}") };
    assert_eq!(discriminant(&error), discriminant(&variant(Box::default())), "{error:?}");
    let mismatch = error.mismatch().expect("the variant has one").clone();
    assert_eq!(mismatch.argument, argument, "{mismatch}");
    mismatch
}
