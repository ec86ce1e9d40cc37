//! One thing or several, of which one takes no memory of its own.

use pyo3::prelude::*;

use crate::recycling::collected;

pub(crate) enum Few<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn one(thing: T) -> Self {
        Self::One([thing])
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }

    /// What is made of each.
    pub(crate) fn map<R>(self, mut make: impl FnMut(usize, T) -> PyResult<R>) -> PyResult<Few<R>> {
        Ok(match self {
            Self::One([one]) => Few::one(make(0, one)?),
            Self::Many(many) => {
                Few::Many(collected(many.len(), many.into_iter().enumerate().map(|(i, thing)| make(i, thing)))?)
            }
        })
    }

    /// What is made of each, which cannot fail.
    pub(crate) fn each<'a, R>(&'a self, make: impl Fn(&'a T) -> R) -> Few<R> {
        match self {
            Self::One([one]) => Few::one(make(one)),
            Self::Many(many) => Few::Many(many.iter().map(make).collect()),
        }
    }
}
