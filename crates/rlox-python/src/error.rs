//! The core's errors as Python exceptions.

use std::io::ErrorKind;

use pyo3::exceptions::{
    PyException, PyFileExistsError, PyFileNotFoundError, PyFloatingPointError, PyMemoryError, PyOSError,
    PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use rlox_core::Error;

use crate::interrupt::raised;

pyo3::create_exception!(
    rlox,
    ClosedError,
    PyValueError,
    "The object was closed, or was left in use by another process."
);
pyo3::create_exception!(
    rlox,
    CorruptFileError,
    PyValueError,
    "A file is damaged, truncated or not one of rlox's; the message names the file and the section."
);

/// The exception a Python caller expects for an error of the core.
pub(crate) fn to_py(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::NotFinite(_) => PyFloatingPointError::new_err(text),
        Error::Memory(_) => PyMemoryError::new_err(text),
        Error::Closed(_) => ClosedError::new_err(text),
        Error::Corrupt(_) => CorruptFileError::new_err(text),
        Error::Io { source, .. } => refused(&source, text),
        Error::Interrupted => raised(),
        Error::Backend(_) => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    }
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

/// A `TypeError` in the four parts every message has.
pub(crate) fn type_error(argument: &str, expected: &str, got: &str, fix: &str) -> PyErr {
    PyTypeError::new_err(format!("{argument}: expected {expected}, got {got}; {fix}"))
}

/// A `ValueError` in the four parts every message has.
pub(crate) fn value_error(argument: &str, expected: &str, got: &str, fix: &str) -> PyErr {
    PyValueError::new_err(format!("{argument}: expected {expected}, got {got}; {fix}"))
}
