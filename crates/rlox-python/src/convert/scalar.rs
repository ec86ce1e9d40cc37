//! Scalar arguments: numbers, flags, texts, shapes and objects, with errors that name the argument.

use pyo3::PyTypeCheck;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::convert::array::slice;
use crate::error::{memory_error, replace_ordinary_error, type_error, value_error};
use crate::sync::gil::call;

/// Calls a function of Python's standard library.
pub(crate) fn call_standard<'py>(
    module: &str,
    function: &str,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    call(&args.py().import(module)?.getattr(function)?, args, None)
}

/// Returns `object.name`; the lookup may run Python code.
pub(crate) fn attribute<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    call_standard("builtins", "getattr", &(object, name).into_pyobject(object.py())?)
}

/// Returns true if the object has the attribute.
pub(crate) fn has(object: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    call_standard("builtins", "hasattr", &(object, name).into_pyobject(object.py())?)?.extract()
}

/// Returns `state[key]` of any mapping; a missing key is an error with the hint `fix`.
pub(crate) fn item<'py>(state: &Bound<'py, PyAny>, key: &str, fix: &str) -> PyResult<Bound<'py, PyAny>> {
    item_of("state", state, key, fix)
}

/// Returns `mapping[key]` as [`item`] does, with `argument` as the name in the error.
pub(crate) fn item_of<'py>(
    argument: &str,
    mapping: &Bound<'py, PyAny>,
    key: &str,
    fix: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let py = mapping.py();
    let missing = || value_error(argument, &format!("the key {key:?}"), "a mapping without it", fix);
    let item = call_standard("operator", "getitem", &(mapping, key).into_pyobject(py)?);
    item.map_err(|error| replace_ordinary_error(py, error, missing))
}

/// Returns an object of exactly the type `int`; methods of a subclass could run Python code.
///
/// Booleans and floats are errors, even floats without a fraction.
pub(crate) fn integer<'py>(argument: &str, expected: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let mismatch = || type_error(argument, expected, &short_repr(object), "pass an int");
    if object.is_instance_of::<PyBool>() {
        return Err(mismatch());
    }
    if object.is_exact_instance_of::<PyInt>() {
        return Ok(object.clone());
    }
    let index = call_standard("operator", "index", &PyTuple::new(object.py(), [object])?);
    index.map_err(|error| replace_ordinary_error(object.py(), error, mismatch))
}

/// Description of a count that may be 0, for errors.
const COUNT: &str = "zero or a positive integer";

/// Returns a non-negative integer. If it does not fit into `usize`, returns `None` and its `repr`.
///
/// `expected` describes the argument in the error for a negative integer.
fn non_negative_int(argument: &str, expected: &str, object: &Bound<'_, PyAny>) -> PyResult<(Option<usize>, String)> {
    // The fast path for a plain integer.
    if object.is_exact_instance_of::<PyInt>()
        && let Ok(value) = object.extract()
    {
        return Ok((Some(value), String::new()));
    }
    let index = integer(argument, "an integer", object)?;
    if index.lt(0)? {
        return Err(value_error(argument, expected, &short_repr(&index), "correct it"));
    }
    index.extract().map_or_else(|_| Ok((None, short_repr(&index))), |value| Ok((Some(value), String::new())))
}

/// Returns a count: an integer that is at least 0. Integers above `usize::MAX` are a `MemoryError`.
pub(crate) fn count(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    usize_argument(argument, COUNT, object)
}

/// Returns a count that must be at least 1. The core rejects 0 with its own error.
pub(crate) fn size(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    usize_argument(argument, "at least 1", object)
}

fn usize_argument(argument: &str, expected: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let (count, got) = non_negative_int(argument, expected, object)?;
    let too_large = || memory_error(argument, "less than 2**64", &got, "use a smaller value");
    count.ok_or_else(too_large)
}

/// Returns a count that is at least 1.
pub(crate) fn positive(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    match size(argument, object)? {
        0 => Err(value_error(argument, "at least 1", "0", "pass a positive integer")),
        count => Ok(count),
    }
}

/// Returns an index: an integer that is at least 0.
pub(crate) fn index(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let (index, got) = non_negative_int(argument, COUNT, object)?;
    index.ok_or_else(|| value_error(argument, "an integer below 2**64", &got, "correct it"))
}

/// Returns a number as `f64`.
pub(crate) fn number(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    float(object).map_err(|error| no_number(argument, "a number", object, error))
}

/// Converts a number to `f64`.
pub(crate) fn float(object: &Bound<'_, PyAny>) -> PyResult<f64> {
    // `extract` reads the number of a float subclass and runs none of its methods.
    if object.is_instance_of::<PyFloat>() || object.is_exact_instance_of::<PyInt>() {
        return object.extract();
    }
    // Python's `float` would also accept strings.
    call_standard("math", "ldexp", &(object, 0).into_pyobject(object.py())?)?.extract()
}

/// Returns the error for an object that overflows `f64` or is not a number.
pub(crate) fn no_number(argument: &str, expected: &str, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        return value_error(argument, "a number that a float can hold", &short_repr(object), "pass a smaller number");
    }
    replace_ordinary_error(py, error, || type_error(argument, expected, &short_repr(object), "pass a float"))
}

/// Returns a number in [0, 1].
fn factor(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    let factor = number(argument, object)?;
    if (0.0..=1.0).contains(&factor) {
        return Ok(factor);
    }
    Err(value_error(argument, "a number in [0, 1]", &factor.to_string(), "correct it"))
}

/// Parsers of numbers with defaults, for `from_py_with`. Each has the name of its argument.
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
    factors!(gamma lam gae_lambda alpha beta);
}

/// Parsers of booleans with defaults, for `from_py_with`. Each has the name of its argument.
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
    switches!(is_new obs reward noise stop in_order masked idling whole_episodes deterministic);
}

/// Returns the value of a `bool` or a `numpy.bool_`.
pub(crate) fn switch(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(flag.is_true());
    }
    let py = object.py();
    if object.get_type().is(&py.import("numpy")?.getattr("bool_")?) {
        return call_standard("operator", "truth", &PyTuple::new(py, [object])?)?.extract();
    }
    Err(type_error(argument, "True or False", &short_repr(object), "pass a bool"))
}

/// Maximum length of a text argument, in characters.
const MAX_TEXT_LEN: usize = 1 << 16;

/// Returns a string argument.
pub(crate) fn text(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<String> {
    let mismatch = || type_error(argument, "a string", &short_repr(object), "pass a str");
    if object.cast::<PyString>().map_err(|_| mismatch())?.len()? > MAX_TEXT_LEN {
        let expected = format!("a string of at most {MAX_TEXT_LEN} characters");
        return Err(value_error(argument, &expected, &short_repr(object), "pass a shorter string"));
    }
    object.extract().map_err(|_| mismatch())
}

/// Casts an object to a class of this module; `name` is the name of the class in the error.
pub(crate) fn instance<'a, 'py, T: PyTypeCheck>(
    argument: &str,
    object: &'a Bound<'py, PyAny>,
    name: &str,
) -> PyResult<&'a Bound<'py, T>> {
    let mismatch =
        |_| type_error(argument, &format!("a rlox.{name}"), &short_repr(object.get_type().as_any()), "pass one");
    object.cast().map_err(mismatch)
}

/// Maximum number of axes of an observation or action.
///
/// The numpy crate allows two more, which are for the axes of time and environments.
const MAX_AXES: usize = 30;

/// Returns a shape: a sequence of counts, or a single count.
pub(crate) fn shape(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    axis_sizes(argument, object, count)
}

/// Returns a shape without empty axes. The core rejects empty axes, as for [`size`].
pub(crate) fn sizes(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    axis_sizes(argument, object, size)
}

fn axis_sizes(
    argument: &str,
    object: &Bound<'_, PyAny>,
    axis: fn(&str, &Bound<'_, PyAny>) -> PyResult<usize>,
) -> PyResult<Vec<usize>> {
    if has(object, "__index__")? {
        return Ok(vec![axis(argument, object)?]);
    }
    let mismatch = || type_error(argument, "a shape", &short_repr(object), "pass a tuple of ints");
    let items = sequence(object).map_err(|error| replace_ordinary_error(object.py(), error, mismatch))?;
    if items.len() > MAX_AXES {
        let (expected, got) = (format!("at most {MAX_AXES} axes"), items.len().to_string());
        return Err(value_error(argument, &expected, &got, "flatten some axes"));
    }
    items.iter().map(|item| axis(argument, &item)).collect()
}

/// Returns the items of an iterable as a tuple.
pub(crate) fn sequence<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = object.py();
    Ok(call(py.get_type::<PyTuple>().as_any(), &PyTuple::new(py, [object])?, None)?.cast_into()?)
}

/// Returns the `repr` of an object, shortened for an error.
pub(crate) fn short_repr(object: &Bound<'_, PyAny>) -> String {
    text_of(object, "repr")
}

/// Maximum number of characters of an object's text in an error.
const MAX_REPR_LEN: usize = 200;

/// Returns the first characters of a text, or an error if the allocation fails.
///
/// Only these characters are copied: Rust aborts the process if the copy of a long text fails.
fn truncated_text(text: &Bound<'_, PyAny>) -> PyResult<String> {
    let prefix = slice(text, &(0..MAX_REPR_LEN + 1))?.cast_into::<PyString>()?;
    Ok(prefix.to_string_lossy().into_owned())
}

/// Returns the first items of a long list or tuple, because its full `repr` takes too long.
fn truncated_sequence<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let long = object.cast_exact::<PyList>().is_ok_and(|list| list.len() > MAX_REPR_LEN)
        || object.cast_exact::<PyTuple>().is_ok_and(|tuple| tuple.len() > MAX_REPR_LEN);
    if long { slice(object, &(0..MAX_REPR_LEN)) } else { Ok(object.clone()) }
}

pub(crate) fn text_of(object: &Bound<'_, PyAny>, function: &str) -> String {
    let render = || call_standard("builtins", function, &PyTuple::new(object.py(), [truncated_sequence(object)?])?);
    let text = render().and_then(|text| truncated_text(&text));
    // If the object's own `repr` fails, the `repr` of its type may succeed.
    let text = text.unwrap_or_else(|_: PyErr| {
        let is_type = object.is_instance_of::<PyType>();
        if is_type { "a type without a name".into() } else { text_of(object.get_type().as_any(), "repr") }
    });
    if text.chars().count() <= MAX_REPR_LEN {
        text
    } else {
        text.chars().take(MAX_REPR_LEN).chain("...".chars()).collect()
    }
}
