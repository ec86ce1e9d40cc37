//! Conversion between spaces and Python dicts.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::Space;

use crate::alloc::try_map;
use crate::convert::args::{INTEGER, REAL, argument, index, integer, item_of, shape, short_repr, text};
use crate::convert::array::new_dict;
use crate::error::{to_py, value_error};

const FIX: &str = "pass a dict from a native learner of rlox.learners";

/// Returns the description of a space as a dict.
pub(crate) fn space_dict<'py>(py: Python<'py>, space: &Space) -> PyResult<Bound<'py, PyDict>> {
    let dict = new_dict(py)?;
    match space {
        Space::Discrete { n, start } => {
            dict.set_item("kind", "discrete")?;
            dict.set_item("n", n)?;
            dict.set_item("start", start)?;
        }
        Space::MultiDiscrete { nvec } => {
            dict.set_item("kind", "multi_discrete")?;
            dict.set_item("nvec", nvec)?;
        }
        Space::MultiBinary { n } => {
            dict.set_item("kind", "multi_binary")?;
            dict.set_item("n", n)?;
        }
        Space::Box { shape, low, high } => {
            dict.set_item("kind", "box")?;
            dict.set_item("shape", shape)?;
            dict.set_item("low", PyArray1::from_slice(py, low))?;
            dict.set_item("high", PyArray1::from_slice(py, high))?;
        }
    }
    Ok(dict)
}

/// Returns the space that a dict of [`space_dict`] describes.
pub(crate) fn space_of(dict: &Bound<'_, PyDict>) -> PyResult<Space> {
    let get = |name: &str| item_of("action", dict.as_any(), name, FIX);
    let bounds = |name: &'static str| -> PyResult<Vec<f32>> {
        let numbers = argument::<f32>(name, &get(name)?, &REAL)?.read(false)?;
        try_map(numbers.slice(), |x| x).map_err(to_py)
    };
    let space = match &*text("kind", &get("kind")?)? {
        "discrete" => Space::Discrete { n: int64("n", &get("n")?)?, start: int64("start", &get("start")?)? },
        "multi_discrete" => {
            let nvec = argument::<i64>("nvec", &get("nvec")?, &INTEGER)?.read(false)?;
            Space::MultiDiscrete { nvec: try_map(nvec.slice(), |n| n).map_err(to_py)? }
        }
        "multi_binary" => Space::MultiBinary { n: index("n", &get("n")?)? },
        "box" => {
            let shape = shape("shape", &get("shape")?)?;
            Space::Box { shape, low: bounds("low")?, high: bounds("high")? }
        }
        other => return Err(value_error("kind", "discrete, multi_discrete, multi_binary or box", other, FIX)),
    };
    space.validate("action space").map_err(to_py)?;
    Ok(space)
}

/// Returns a 64-bit integer.
fn int64(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<i64> {
    let value = integer(argument, "an integer", object)?;
    let mismatch = |_| value_error(argument, "an integer of 64 bits", &short_repr(&value), "correct it");
    value.extract().map_err(mismatch)
}
