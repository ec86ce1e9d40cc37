//! Boolean arguments: arrays of booleans, or of numbers that are 0 or 1.

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

/// Boolean argument that is converted but not yet read; see [`crate::convert::args`].
pub(crate) enum FlagArgument<'py> {
    Booleans(Argument<'py, bool>),
    Singles(Argument<'py, f32>),
    Doubles(Argument<'py, f64>),
}

/// Converts an object to an array of booleans, or of numbers. May run Python code.
///
/// [`FlagArgument::read`] checks that the numbers are 0 or 1.
pub(crate) fn flag_argument<'py>(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<FlagArgument<'py>> {
    flag_argument_like(name, object, None)
}

/// Converts an object as [`flag_argument`] does; the array must have the shape `like`.
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

/// Returns a single boolean. The object is a boolean, 0, 1, or an array without axes.
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

    /// Reads the elements as [`Argument::read`] does, and converts numbers to booleans.
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
    // With `hold`, the call has borrowed arrays without guards, so it must keep the GIL.
    if hold || values.len() <= DETACH_ABOVE_ELEMENTS { convert() } else { detach(py, convert) }.map_err(to_py)?;
    Ok(Flags::Converted(flags))
}

/// Elements of a boolean argument that was read.
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
