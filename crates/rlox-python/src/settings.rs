//! What environments are made and reset with: limits, options, arguments; and what spaces look like in Python.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use rlox_core::{ResetOptions, Space};

use crate::argument::{float, integer, no_number, shown};
use crate::array::new_dict;
use crate::error::{blamed, type_error, value_error};

/// A time limit: None for -1.
pub(crate) fn limit_of(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    let expected = "a positive integer below 2**32, or -1 for no limit";
    let steps = integer("max_episode_steps", expected, object)?;
    match steps.extract::<i64>().map(u32::try_from) {
        Ok(Ok(steps)) => Ok(Some(steps)),
        Ok(Err(_)) if steps.eq(-1)? => Ok(None),
        _ => Err(value_error("max_episode_steps", expected, &shown(&steps), "correct it")),
    }
}

fn key(argument: &str, key: &Bound<'_, PyAny>) -> PyResult<String> {
    key.extract().map_err(|_| type_error(argument, "names as keys", &shown(key), "pass a dict of names and numbers"))
}

/// A dict's items as they are now: Python code that reads one of them may change the dict.
pub(crate) fn items_of<'py>(dict: Option<&Bound<'py, PyDict>>) -> Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    dict.into_iter().flatten().collect()
}

pub(crate) fn options_of(options: Option<&Bound<'_, PyDict>>) -> PyResult<ResetOptions> {
    let mut pairs = Vec::new();
    for (name, value) in items_of(options) {
        let name = key("options", &name)?;
        let wrong = || {
            let fix = if name.contains("mask") { "did you mean \"reset_mask\"?" } else { "pass a number" };
            value_error("options", &format!("a number as {name:?}"), &shown(&value), fix)
        };
        let number = float(&value).map_err(|error| blamed(value.py(), error, wrong))?;
        pairs.push((name, number));
    }
    Ok(ResetOptions::new(pairs))
}

pub(crate) fn arguments_of(kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<(String, f64)>> {
    let mut arguments = Vec::new();
    for (name, value) in items_of(kwargs) {
        let name = key("kwargs", &name)?;
        let number =
            if let Ok(flag) = value.cast::<PyBool>() { Ok(f64::from(u8::from(flag.is_true()))) } else { float(&value) };
        let number = number.map_err(|error| no_number(&name, "a number or a boolean", &value, error))?;
        arguments.push((name, number));
    }
    Ok(arguments)
}

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
