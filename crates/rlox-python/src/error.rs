//! The core's errors as Python exceptions.

use std::io::ErrorKind;

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyException, PyFileExistsError, PyFileNotFoundError, PyMemoryError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Location, Mismatch};

use crate::sync::interrupt::raised;

/// The classes of `rlox._errors`.
mod classes {
    pyo3::import_exception!(rlox._errors, ArgumentError);
    pyo3::import_exception!(rlox._errors, ArgumentTypeError);
    pyo3::import_exception!(rlox._errors, ClosedError);
    pyo3::import_exception!(rlox._errors, CorruptFileError);
    pyo3::import_exception!(rlox._errors, NonFiniteError);
    pyo3::import_exception!(rlox._errors, OutOfMemoryError);
}

/// Returns the Python exception of an error of the core.
pub(crate) fn to_py(error: Error) -> PyErr {
    match error {
        Error::NotFinite(wrong) => structured::<classes::NonFiniteError>(*wrong),
        Error::Memory(wrong) => structured::<classes::OutOfMemoryError>(*wrong),
        Error::Closed(wrong) => structured::<classes::ClosedError>(*wrong),
        Error::Corrupt(wrong) => structured::<classes::CorruptFileError>(*wrong),
        Error::Shape(wrong) | Error::Action(wrong) | Error::Space(wrong) | Error::Config(wrong) => {
            structured::<classes::ArgumentError>(*wrong)
        }
        Error::Io { ref source, .. } => refused(source, error.to_string()),
        Error::Interrupted => raised(),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

/// Returns an exception of a class of `rlox._errors`, with the fields as attributes.
fn structured<T: PyTypeInfo>(wrong: Mismatch) -> PyErr {
    let Mismatch { argument, expected, got, hint, at } = wrong;
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
        let made =
            keywords.transpose().and_then(|keywords| class.call((argument, expected, got, hint), keywords.as_ref()));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// What the system's errors are; those that have no number of the system's are told by their class.
fn refused(source: &std::io::Error, text: String) -> PyErr {
    match (source.raw_os_error(), source.kind()) {
        (Some(code), _) => PyOSError::new_err((code, text)),
        (None, ErrorKind::AlreadyExists) => PyFileExistsError::new_err(text),
        (None, ErrorKind::NotFound) => PyFileNotFoundError::new_err(text),
        (None, _) => PyOSError::new_err(text),
    }
}

/// What to raise for an `error` of Python code that an argument ran: the error of `make`, which names the argument, but
/// for Ctrl-C, the program's end and memory that there is not, which no argument is to blame for.
pub(crate) fn blamed(py: Python<'_>, error: PyErr, make: impl FnOnce() -> PyErr) -> PyErr {
    if ordinary(py, &error) { make() } else { error }
}

/// Whether an argument is to blame for an error of Python code that it ran.
pub(crate) fn ordinary(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py)
}

/// Returns an `ArgumentTypeError`.
pub(crate) fn type_error(argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    structured::<classes::ArgumentTypeError>(mismatch(argument, expected, got, hint))
}

/// Returns an `ArgumentError`.
pub(crate) fn value_error(argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    structured::<classes::ArgumentError>(mismatch(argument, expected, got, hint))
}

/// Returns an `ArgumentError` about an element of a flat array or of a list.
pub(crate) fn value_error_at(index: usize, argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    let mut wrong = mismatch(argument, expected, got, hint);
    wrong.at.index = Some(index);
    structured::<classes::ArgumentError>(wrong)
}

/// Returns an `OutOfMemoryError`.
pub(crate) fn memory_error(argument: &str, expected: &str, got: &str, hint: &str) -> PyErr {
    structured::<classes::OutOfMemoryError>(mismatch(argument, expected, got, hint))
}

fn mismatch(argument: &str, expected: &str, got: &str, hint: &str) -> Mismatch {
    let (argument, hint) = (argument.to_owned().into(), hint.to_owned().into());
    Mismatch { argument, expected: expected.into(), got: got.into(), hint, at: Location::default() }
}
