//! What environments are made and reset with: seeds, limits, options, arguments; and what spaces look like in Python.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use rlox_core::{ResetOptions, Space};

use crate::argument::{sequence, shown};
use crate::error::{type_error, value_error};
use crate::recycling::collected;

pub(crate) fn seed_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    object.extract::<u64>().map_err(|_| {
        value_error("seed", "an integer in [0, 2**64)", &shown(object), "pass a non-negative integer or None")
    })
}

/// A seed of all, or one for each environment; of these, None lets a stream go on.
pub(crate) fn seeds_of(object: Option<&Bound<'_, PyAny>>) -> PyResult<(Option<u64>, Option<Vec<Option<u64>>>)> {
    let Some(object) = object else { return Ok((None, None)) };
    if !object.hasattr("__len__")? {
        return Ok((Some(seed_of(object)?), None));
    }
    let wrong = |_| type_error("seed", "an integer, or one for each environment", &shown(object), "pass one of them");
    let items = sequence(object).map_err(wrong)?;
    let seed = |item: Bound<'_, PyAny>| if item.is_none() { Ok(None) } else { seed_of(&item).map(Some) };
    Ok((None, Some(collected(items.len(), items.iter().map(seed))?)))
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

fn key(argument: &str, key: &Bound<'_, PyAny>) -> PyResult<String> {
    key.extract().map_err(|_| type_error(argument, "names as keys", &shown(key), "pass a dict of names and numbers"))
}

pub(crate) fn options_of(options: Option<&Bound<'_, PyDict>>) -> PyResult<ResetOptions> {
    let mut pairs = Vec::new();
    for (name, value) in options.into_iter().flatten() {
        let name = key("options", &name)?;
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
        let name = key("kwargs", &name)?;
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
