//! What environments are made and reset with: seeds, limits, options, arguments; and what spaces look like in Python.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use rlox_core::{ResetOptions, Space};

use crate::argument::shown;
use crate::error::{type_error, value_error};

pub(crate) fn seed_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    object.extract::<u64>().map_err(|_| {
        value_error("seed", "an integer in [0, 2**64)", &shown(object), "pass a non-negative integer or None")
    })
}

/// A time limit: None for -1.
pub(crate) fn limit_of(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    let number = if object.is_instance_of::<PyBool>() { None } else { object.extract::<i64>().ok() };
    match number.map(u32::try_from) {
        Some(Ok(steps)) => Ok(Some(steps)),
        Some(Err(_)) if object.eq(-1)? => Ok(None),
        _ => {
            let expected = "a positive integer below 2**32, or -1 for no limit";
            Err(value_error("max_episode_steps", expected, &object.to_string(), "correct it"))
        }
    }
}

pub(crate) fn options_of(options: Option<&Bound<'_, PyDict>>) -> PyResult<ResetOptions> {
    let mut pairs = Vec::new();
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        let number = value.extract::<f64>().map_err(|_| {
            value_error("options", &format!("a number as {name:?}"), &value.get_type().to_string(), "pass a number")
        })?;
        pairs.push((name, number));
    }
    Ok(ResetOptions::new(pairs))
}

pub(crate) fn arguments_of(kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<(String, f64)>> {
    let mut arguments = Vec::new();
    for (name, value) in kwargs.into_iter().flatten() {
        let name: String = name.extract()?;
        let number = if let Ok(flag) = value.cast::<PyBool>() {
            Ok(f64::from(u8::from(flag.is_true())))
        } else {
            value.extract::<f64>()
        };
        let number = number
            .map_err(|_| type_error(&name, "a number or a boolean", &value.get_type().to_string(), "pass a number"))?;
        arguments.push((name, number));
    }
    Ok(arguments)
}

/// How many actions a mask is about; 1 where they cannot be counted.
pub(crate) fn discrete_actions(space: &Space) -> usize {
    if let Space::Discrete { n, .. } = space { usize::try_from(*n).unwrap_or(1) } else { 1 }
}

pub(crate) fn space_dict<'py>(py: Python<'py>, space: &Space) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
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
