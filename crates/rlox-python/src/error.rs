//! Conversion of the core's errors to Python exceptions.

use std::io::ErrorKind;

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyException, PyFileExistsError, PyFileNotFoundError, PyMemoryError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{
    Error,
    error::{Location, Mismatch},
};

use crate::sync::interrupt::take_raised;

/// Exception classes of `rlox._errors`.
mod classes {
    pyo3::import_exception!(rlox._errors, ArgumentError);
    pyo3::import_exception!(rlox._errors, ArgumentTypeError);
    pyo3::import_exception!(rlox._errors, ClosedError);
    pyo3::import_exception!(rlox._errors, CorruptFileError);
    pyo3::import_exception!(rlox._errors, NonFiniteError);
    pyo3::import_exception!(rlox._errors, OutOfMemoryError);
}

/// Converts an error of the core to a Python exception.
pub(crate) fn to_py(error: Error) -> PyErr {
    match error {
        Error::NotFinite(mismatch) => to_exception::<classes::NonFiniteError>(*mismatch),
        Error::Memory(mismatch) => to_exception::<classes::OutOfMemoryError>(*mismatch),
        Error::Closed(mismatch) => to_exception::<classes::ClosedError>(*mismatch),
        Error::Corrupt(mismatch) => to_exception::<classes::CorruptFileError>(*mismatch),
        Error::Shape(mismatch) | Error::Action(mismatch) | Error::Space(mismatch) | Error::Config(mismatch) => {
            to_exception::<classes::ArgumentError>(*mismatch)
        }
        Error::Io { ref source, .. } => os_error(source, error.to_string()),
        Error::Interrupted => take_raised(),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

/// Returns an exception of class `T`, whose attributes are the fields of `mismatch`.
fn to_exception<T: PyTypeInfo>(mismatch: Mismatch) -> PyErr {
    let Mismatch { argument, expected, got, hint, at } = mismatch;
    let (expected, hint) = (Some(expected).filter(|text| !text.is_empty()), Some(hint).filter(|text| !text.is_empty()));
    Python::attach(|py| {
        let keywords = || {
            let Location { env, row, column, index, step, timesteps, section, worker } = &at;
            let keywords = PyDict::new(py);
            keywords.set_item("env", env)?;
            keywords.set_item("row", row)?;
            keywords.set_item("column", column)?;
            keywords.set_item("index", index)?;
            keywords.set_item("step", step)?;
            keywords.set_item("timesteps", timesteps)?;
            keywords.set_item("section", section)?;
            keywords.set_item("worker", worker)?;
            PyResult::Ok(keywords)
        };
        let keywords = if at == Location::default() { None } else { Some(keywords()) };
        let class = py.get_type::<T>();
        let exception =
            keywords.transpose().and_then(|keywords| class.call((argument, expected, got, hint), keywords.as_ref()));
        exception.map_or_else(|error| error, PyErr::from_value)
    })
}

/// Returns an `OSError` with the system's error number, or of the subclass for the error's kind.
fn os_error(source: &std::io::Error, text: String) -> PyErr {
    match (source.raw_os_error(), source.kind()) {
        (Some(code), _) => PyOSError::new_err((code, text)),
        (None, ErrorKind::AlreadyExists) => PyFileExistsError::new_err(text),
        (None, ErrorKind::NotFound) => PyFileNotFoundError::new_err(text),
        (None, _) => PyOSError::new_err(text),
    }
}

/// Returns the error of `make` in place of an error that the Python code of an argument raised.
///
/// Ctrl-C, program exit and out-of-memory errors are returned unchanged, because no argument causes
/// them.
pub(crate) fn replace_ordinary_error(py: Python<'_>, error: PyErr, make: impl FnOnce() -> PyErr) -> PyErr {
    if is_ordinary(py, &error) { make() } else { error }
}

/// Returns true for an instance of `Exception` that is not a `MemoryError`.
pub(crate) fn is_ordinary(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py)
}

/// Returns an `ArgumentTypeError`.
pub(crate) fn type_error(argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    to_exception::<classes::ArgumentTypeError>(make_mismatch(argument, expected, got, hint))
}

/// Returns an `ArgumentError`.
pub(crate) fn value_error(argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    to_exception::<classes::ArgumentError>(make_mismatch(argument, expected, got, hint))
}

/// Returns an `ArgumentError` about an element of a flat array or of a list.
pub(crate) fn value_error_at(index: usize, argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    let mut details = make_mismatch(argument, expected, got, hint);
    details.at.index = Some(index);
    to_exception::<classes::ArgumentError>(details)
}

/// Returns an `OutOfMemoryError`.
pub(crate) fn memory_error(argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    to_exception::<classes::OutOfMemoryError>(make_mismatch(argument, expected, got, hint))
}

fn make_mismatch(argument: &str, expected: &str, got: &str, hint: &str) -> Mismatch {
    let (argument, hint) = (argument.to_owned().into(), hint.to_owned().into());
    Mismatch { argument, expected: expected.into(), got: got.into(), hint, at: Location::default() }
}
