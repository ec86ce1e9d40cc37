//! Flag arguments: booleans, or numbers that are 0 or 1.

use pyo3::prelude::*;
use pyo3::types::PyBool;
use rlox_core::advantage::{Float, flags_from_numbers};

use crate::alloc::FlagBuffer;
use crate::convert::args::{Argument, FLAG, Input, Like, REAL, argument_like, asarray};
use crate::convert::array::FromArray;
use crate::error::{to_py, value_error};
use crate::sync::borrow::typed;
use crate::sync::gil::detach;

/// Element count above which a conversion releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 16_384;

/// Flag argument after its Python code has run: booleans, or numbers that are 0 or 1.
pub(crate) enum FlagArgument<'py> {
    Booleans(Argument<'py, bool>),
    Singles(Argument<'py, f32>),
    Doubles(Argument<'py, f64>),
}

/// Converts flags: boolean arrays unchanged, other numbers if they are 0 or 1. May run Python code.
pub(crate) fn flag_argument<'py>(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<FlagArgument<'py>> {
    flag_argument_like(name, object, None)
}

/// Converts flags that must have the shape `like`, as [`argument_like`] does.
pub(crate) fn flag_argument_like<'py>(
    name: &'static str,
    object: &Bound<'py, PyAny>,
    like: Option<Like<'_, 'py>>,
) -> PyResult<FlagArgument<'py>> {
    let array = asarray(name, object)?;
    let object = array.as_any();
    if typed::<bool>(object).is_some() {
        Ok(FlagArgument::Booleans(argument_like(name, object, &FLAG, like)?))
    } else if typed::<f32>(object).is_some() {
        Ok(FlagArgument::Singles(argument_like(name, object, &REAL, like)?))
    } else {
        Ok(FlagArgument::Doubles(argument_like(name, object, &REAL, like)?))
    }
}

/// Reads a single flag: a boolean, 0 or 1, or an array without axes.
pub(crate) fn flag(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(flag.is_true());
    }
    let flags = flag_argument(name, object)?.read(object.py(), false)?;
    match (flags.shape(), flags.slice()) {
        ([], [flag]) => Ok(*flag),
        (shape, _) => {
            Err(value_error(name, "a single flag", &format!("shape {shape:?}"), "use push_batch for several"))
        }
    }
}

impl<'py> FlagArgument<'py> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Booleans(flags) => flags.shape(),
            Self::Singles(numbers) => numbers.shape(),
            Self::Doubles(numbers) => numbers.shape(),
        }
    }

    /// Reads the flags as [`Argument::read`] does; numbers are converted to booleans.
    pub(crate) fn read(self, py: Python<'py>, hold: bool) -> PyResult<Flags<'py>> {
        match self {
            Self::Booleans(flags) => Ok(Flags::Borrowed(flags.read(hold)?)),
            Self::Singles(numbers) => convert_numbers(py, numbers, hold),
            Self::Doubles(numbers) => convert_numbers(py, numbers, hold),
        }
    }
}

fn convert_numbers<'py, T: FromArray + Float>(
    py: Python<'py>,
    numbers: Argument<'py, T>,
    hold: bool,
) -> PyResult<Flags<'py>> {
    let name = numbers.name();
    let numbers = numbers.read(hold)?;
    let mut flags = FlagBuffer::take(numbers.shape())?;
    let (values, out) = (numbers.slice(), flags.slice_mut());
    let mut convert = || flags_from_numbers(name, values, out);
    // A caller that holds other arrays without registration keeps the GIL.
    if hold || values.len() <= DETACH_ABOVE_ELEMENTS { convert() } else { detach(py, convert) }.map_err(to_py)?;
    Ok(Flags::Converted(flags))
}

/// Flags as booleans.
pub(crate) enum Flags<'py> {
    Borrowed(Input<'py, bool>),
    Converted(FlagBuffer),
}

impl Flags<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Borrowed(array) => array.shape(),
            Self::Converted(flags) => flags.shape(),
        }
    }

    pub(crate) fn slice(&self) -> &[bool] {
        match self {
            Self::Borrowed(array) => array.slice(),
            Self::Converted(flags) => flags.slice(),
        }
    }
}
