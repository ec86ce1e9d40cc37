//! Flags as arguments: booleans, or numbers that are 0 or 1.

use pyo3::prelude::*;
use rlox_core::{Float, flags_from_numbers};

use crate::argument::{Argument, FLAG, Input, REAL, argument, asarray};
use crate::array::{FromArray, typed};
use crate::error::to_py;
use crate::recycling::Scratch;

/// Flags whose Python code has run: booleans, or numbers that are 0 or 1.
pub(crate) enum FlagArgument<'py> {
    Booleans(Argument<'py, bool>),
    Singles(Argument<'py, f32>),
    Doubles(Argument<'py, f64>),
}

/// Takes boolean arrays as they are, and numbers if they are 0 or 1. May run Python code.
pub(crate) fn flag_argument<'py>(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<FlagArgument<'py>> {
    if typed::<bool>(object).is_some() {
        return Ok(FlagArgument::Booleans(argument(name, object, &FLAG)?));
    }
    let array = asarray(name, object)?;
    let object = array.as_any();
    if typed::<f64>(object).is_some() {
        Ok(FlagArgument::Doubles(argument(name, object, &REAL)?))
    } else if typed::<f32>(object).is_some() {
        Ok(FlagArgument::Singles(argument(name, object, &REAL)?))
    } else if typed::<bool>(object).is_some() {
        Ok(FlagArgument::Booleans(argument(name, object, &FLAG)?))
    } else {
        Ok(FlagArgument::Doubles(argument(name, object, &REAL)?))
    }
}

impl<'py> FlagArgument<'py> {
    /// As [`Argument::read`]; numbers are converted at once.
    pub(crate) fn read(self, hold: bool) -> PyResult<Flags<'py>> {
        match self {
            Self::Booleans(flags) => Ok(Flags::Borrowed(flags.read(hold)?)),
            Self::Singles(numbers) => converted(numbers, hold),
            Self::Doubles(numbers) => converted(numbers, hold),
        }
    }
}

fn converted<T: FromArray + Float>(numbers: Argument<'_, T>, hold: bool) -> PyResult<Flags<'_>> {
    let name = numbers.name();
    let numbers = numbers.read(hold)?;
    let mut flags = Scratch::take(numbers.slice().len())?;
    flags_from_numbers(name, numbers.slice(), flags.slice_mut()).map_err(to_py)?;
    Ok(Flags::Converted(flags, numbers.shape().to_vec()))
}

/// Flags as booleans.
pub(crate) enum Flags<'py> {
    Borrowed(Input<'py, bool>),
    Converted(Scratch, Vec<usize>),
}

impl<'py> Flags<'py> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Borrowed(array) => array.shape(),
            Self::Converted(_, shape) => shape,
        }
    }

    pub(crate) fn slice(&self) -> &[bool] {
        match self {
            Self::Borrowed(array) => array.slice(),
            Self::Converted(flags, _) => flags.slice(),
        }
    }

    /// Changes what is borrowed.
    pub(crate) fn map(self, change: impl FnOnce(Input<'py, bool>) -> Input<'py, bool>) -> Self {
        match self {
            Self::Borrowed(flags) => Self::Borrowed(change(flags)),
            converted @ Self::Converted(..) => converted,
        }
    }
}
