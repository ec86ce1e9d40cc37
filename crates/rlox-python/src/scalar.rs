//! Single things that callers pass - numbers, switches, texts, shapes, objects - read once, or refused by name.

use pyo3::PyTypeCheck;
use pyo3::exceptions::{PyMemoryError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyTuple};

use crate::array::call;
use crate::error::{blamed, type_error, value_error};

/// A Python int. Booleans and floats are none, whole or not.
pub(crate) fn integer<'py>(argument: &str, expected: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let wrong = || type_error(argument, expected, &shown(object), "pass an int");
    if object.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(object.clone());
    }
    let index = object.py().import("operator")?.getattr("index")?;
    let args = PyTuple::new(object.py(), [object])?;
    call(&index, &args, None).map_err(|error| blamed(object.py(), error, wrong))
}

/// A whole number that is not negative; none where it is too large for this machine.
fn whole(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<(Option<usize>, String)> {
    let index = integer(argument, "an integer", object)?;
    if index.lt(0)? {
        return Err(value_error(argument, "zero or a positive integer", &shown(&index), "correct it"));
    }
    index.extract().map_or_else(|_| Ok((None, shown(&index))), |whole| Ok((Some(whole), String::new())))
}

/// A count: an integer that is not negative. What no machine could hold is a `MemoryError` here already.
pub(crate) fn count(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let (count, got) = whole(argument, object)?;
    let much = || PyMemoryError::new_err(format!("{argument}: expected less than 2**64, got {got}; ask for less"));
    count.ok_or_else(much)
}

/// Which of several things: an integer that is not negative.
pub(crate) fn index(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let (index, got) = whole(argument, object)?;
    index.ok_or_else(|| value_error(argument, "an integer below 2**64", &got, "correct it"))
}

/// A number.
pub(crate) fn number(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    object.extract().map_err(|error| no_number(argument, "a number", object, error))
}

/// Why `object` is no f64: it is too large for one, or no number at all.
pub(crate) fn no_number(argument: &str, expected: &str, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        return value_error(argument, "a number that a float can hold", &shown(object), "pass a smaller one");
    }
    blamed(py, error, || type_error(argument, expected, &shown(object), "pass a float"))
}

/// A number in [0, 1].
fn factor(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    let factor = number(argument, object)?;
    if (0.0..=1.0).contains(&factor) {
        return Ok(factor);
    }
    Err(value_error(argument, "a number in [0, 1]", &factor.to_string(), "correct it"))
}

/// Numbers with defaults, for `from_py_with`: each function is named as its argument.
pub(crate) mod numbers {
    use pyo3::prelude::*;

    macro_rules! numbers {
        ($($name:ident)*) => {
            $(
                pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<f64> {
                    super::number(stringify!($name), object)
                }
            )*
        };
    }
    numbers!(rho_bar c_bar pg_rho_bar clip_obs clip_reward epsilon);

    macro_rules! factors {
        ($($name:ident)*) => {
            $(
                pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<f64> {
                    super::factor(stringify!($name), object)
                }
            )*
        };
    }
    factors!(gamma lam gae_lambda);
}

/// True or False, for `from_py_with`: each function is named as its argument.
pub(crate) mod switches {
    use pyo3::prelude::*;

    macro_rules! switches {
        ($($name:ident)*) => {
            $(
                pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<bool> {
                    super::switch(stringify!($name), object)
                }
            )*
        };
    }
    switches!(fresh obs reward);
}

fn switch(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.extract().map_err(|_| type_error(argument, "True or False", &shown(object), "pass a bool"))
}

/// A text.
pub(crate) fn text(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.extract().map_err(|_| type_error(argument, "a string", &shown(object), "pass a str"))
}

/// One of this module's own objects.
pub(crate) fn instance<'a, 'py, T: PyTypeCheck>(
    argument: &str,
    object: &'a Bound<'py, PyAny>,
    name: &str,
) -> PyResult<&'a Bound<'py, T>> {
    let wrong = |_| type_error(argument, &format!("a rlox.{name}"), &object.get_type().to_string(), "pass one");
    object.cast().map_err(wrong)
}

/// A shape: a sequence of counts, or a single count.
pub(crate) fn shape(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    if object.hasattr("__index__")? {
        return Ok(vec![count(argument, object)?]);
    }
    let wrong = || type_error(argument, "a shape", &shown(object), "pass a tuple of ints");
    let items = sequence(object).map_err(|error| blamed(object.py(), error, wrong))?;
    items.iter().map(|item| count(argument, &item)).collect()
}

/// The items of anything iterable.
pub(crate) fn sequence<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = object.py();
    Ok(call(py.get_type::<PyTuple>().as_any(), &PyTuple::new(py, [object])?, None)?.cast_into()?)
}

/// An object as its `repr`, cut short, for a message.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    text_of(object, "repr")
}

pub(crate) fn text_of(object: &Bound<'_, PyAny>, function: &str) -> String {
    let py = object.py();
    let text = || call(&py.import("builtins")?.getattr(function)?, &PyTuple::new(py, [object])?, None);
    let text = text().map_or_else(|_| object.get_type().to_string(), |text| text.to_string());
    if text.chars().count() <= 200 { text } else { text.chars().take(200).chain("...".chars()).collect() }
}
