//! What `np.asarray` makes of arguments.

use numpy::PyUntypedArray;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyList, PyTuple};

use crate::argument::{attribute, has, shown};
use crate::array::{call, check_signals, expect_axes};
use crate::error::{blamed, ordinary, type_error, value_error};
use crate::scalar::text_of;

/// Up to how many objects of a list are converted at once.
const MANY: usize = 1 << 18;

// Looking functions up takes as long as a short call.
static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static MASKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static GETATTR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What `np.asarray` makes of an object, in float32 of bfloat16 tensors, for which NumPy has no dtype; arrays stay what
/// they are. Of no more axes than [`expect_axes`] lets pass. May run Python code.
pub(crate) fn asarray<'py>(argument: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        expect_axes(argument, array)?;
        expect_unmasked(argument, object)?;
        return Ok(array.clone());
    }
    if let Some(array) = from_tensor(object)? {
        expect_axes(argument, &array)?;
        return Ok(array);
    }
    let py = object.py();
    let convert = ASARRAY.import(py, "numpy", "asarray")?;
    let made = match object.cast_exact::<PyList>() {
        Ok(list) if list.len() > MANY => from_list(convert, list),
        _ => call(convert, &PyTuple::new(py, [object])?, None),
    };
    let made = made.or_else(|error| call(convert, &PyTuple::new(py, [in_float32(object, error)?])?, None));
    let array = made.map_err(|error| {
        let got = format!("{} ({})", shown(object.get_type().as_any()), shown(error.value(py).as_any()));
        // Tensors that require gradients, or are on another device.
        let fix = if has(object, "detach").unwrap_or(false) {
            "pass it as .detach().cpu()"
        } else {
            "pass what np.asarray takes"
        };
        blamed(py, error, || value_error(argument, "an array", &got, fix))
    })?;
    let array = array.cast_into::<PyUntypedArray>()?;
    expect_axes(argument, &array)?;
    Ok(array)
}

/// Whether an object is an instance of a subclass of NumPy's arrays: a masked array may be one.
pub(crate) fn is_subclassed(array: &Bound<'_, PyAny>) -> bool {
    !array.is_exact_instance_of::<PyUntypedArray>()
}

/// Refuses arrays of which numbers are masked, as nothing here knows of masks.
fn expect_unmasked(argument: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = array.py();
    // By its type: an object may say with code of its own what its class is.
    if !is_subclassed(array) || !array.get_type().is_subclass(MASKED.import(py, "numpy.ma", "MaskedArray")?)? {
        return Ok(());
    }
    let is_masked = call(&py.import("numpy.ma")?.getattr("is_masked")?, &PyTuple::new(py, [array])?, None);
    if is_masked?.is_truthy()? {
        let fix = "fill it first, as with .filled(0)";
        return Err(type_error(argument, "an array without a mask", "one with masked elements", fix));
    }
    Ok(())
}

/// What a tensor's own `numpy()` gives, which takes half as long as `np.asarray` does; None where there is none, or it
/// refuses.
fn from_tensor<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
    let py = object.py();
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyFloat>() {
        return Ok(None);
    }
    let arguments = (object, intern!(py, "numpy"), py.None()).into_pyobject(py)?;
    let method = call(GETATTR.import(py, "builtins", "getattr")?, &arguments, None)?;
    if method.is_none() {
        return Ok(None);
    }
    match call(&method, &PyTuple::empty(py), None) {
        Ok(array) => Ok(array.cast_into().ok()),
        Err(error) if ordinary(py, &error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What `np.asarray` makes of a long list, part by part, so that Ctrl-C ends it.
fn from_list<'py>(convert: &Bound<'py, PyAny>, list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    let (py, parts) = (list.py(), PyList::empty(list.py()));
    for from in (0..list.len()).step_by(MANY) {
        parts.append(call(convert, &PyTuple::new(py, [list.get_slice(from, from + MANY)])?, None)?)?;
        check_signals(py)?;
    }
    call(&py.import("numpy")?.getattr("concatenate")?, &PyTuple::new(py, [parts])?, None)
}

/// The numbers of a bfloat16 tensor in float32, which has all of them; for all else, the error.
fn in_float32<'py>(object: &Bound<'py, PyAny>, error: PyErr) -> PyResult<Bound<'py, PyAny>> {
    let refused = error.is_instance_of::<PyTypeError>(object.py()) && has(object, "dtype")?;
    if refused && text_of(&attribute(object, "dtype")?, "str") == "torch.bfloat16" {
        return call(&attribute(object, "float")?, &PyTuple::empty(object.py()), None);
    }
    Err(error)
}
