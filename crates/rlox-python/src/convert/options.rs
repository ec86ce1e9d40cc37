//! Arguments that are options: time limits, texts, reset options, keywords and extra fields.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use rlox_core::{ResetOptions, field::DType, interrupt::InterruptCheck};

use crate::alloc::{out_of_memory_error, try_collect, with_capacity};
use crate::convert::args::{float, integer, no_number, shape, short_repr};
use crate::convert::observation::{dtype_of, is_dtype};
use crate::error::{replace_ordinary_error, to_py, type_error, value_error};
use crate::sync::interrupt::poll_interrupt;

/// Returns a time limit in steps; `None` for -1.
pub(crate) fn limit_of(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    let expected = "a positive integer below 2**32, or -1 for no limit";
    let steps = integer("max_episode_steps", expected, object)?;
    match steps.extract::<i64>().map(u32::try_from) {
        Ok(Ok(steps)) => Ok(Some(steps)),
        Ok(Err(_)) if steps.eq(-1)? => Ok(None),
        _ => Err(value_error("max_episode_steps", expected, &short_repr(&steps), "correct it")),
    }
}

/// Returns a copy of a Python string, or `None` for another object.
pub(crate) fn text_in(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let Ok(text) = object.cast::<PyString>() else { return Ok(None) };
    let text = match text.to_str() {
        Ok(text) => text,
        Err(error) if error.is_instance_of::<PyMemoryError>(object.py()) => return Err(error),
        Err(_) => return Ok(None),
    };
    try_to_string(text).map(Some)
}

/// Returns a copy of a text, or an error if the allocation fails.
pub(crate) fn try_to_string(text: &str) -> PyResult<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| out_of_memory_error(text.len()))?;
    copy.push_str(text);
    Ok(copy)
}

fn key(argument: &str, key: &Bound<'_, PyAny>) -> PyResult<String> {
    text_in(key)?
        .ok_or_else(|| type_error(argument, "strings as keys", &short_repr(key), "pass a dict of numbers by name"))
}

/// Key and value of a dict.
type Item<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Converts each item of a dict with `make`.
///
/// All items are copied first, because `make` may run Python code that changes the dict. The call
/// then checks that memory for the results is available. The estimate is `allocations_per_item`
/// blocks per item, each as long as the item's name. Otherwise a small allocation could fail later,
/// with no memory left to report the error.
pub(crate) fn from_items<'py, T>(
    dict: Option<&Bound<'py, PyDict>>,
    allocations_per_item: usize,
    mut make: impl FnMut(Item<'py>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let Some(dict) = dict else { return Ok(Vec::new()) };
    let items = try_collect(dict.len(), dict.iter().map(Ok))?;
    let length = |(name, _): &Item<'_>| name.cast::<PyString>().map_or(0, |name| name.len().unwrap_or(0));
    let bytes: usize = items.iter().map(|item| allocations_per_item * (64 + length(item))).sum();
    drop(with_capacity::<u8>(bytes).map_err(to_py)?);
    let mut interrupt = InterruptCheck::default();
    let converted = items.into_iter().enumerate().map(|(i, item)| {
        poll_interrupt(&mut interrupt, i).map_err(to_py)?;
        make(item)
    });
    try_collect(dict.len(), converted)
}

pub(crate) fn options_of(options: Option<&Bound<'_, PyDict>>) -> PyResult<ResetOptions> {
    let pairs = from_items(options, 2, |(name, value)| {
        let name = key("options", &name)?;
        let mismatch = || {
            let fix = if name.contains("mask") { "did you mean \"reset_mask\"?" } else { "pass a number" };
            value_error("options", &format!("a number as {name:?}"), &short_repr(&value), fix)
        };
        let number = float(&value).map_err(|error| replace_ordinary_error(value.py(), error, mismatch))?;
        Ok((name, number))
    })?;
    Ok(ResetOptions::new(pairs))
}

pub(crate) fn arguments_of(kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<(String, f64)>> {
    from_items(kwargs, 2, |(name, value)| {
        let name = key("env_kwargs", &name)?;
        let number =
            if let Ok(flag) = value.cast::<PyBool>() { Ok(f64::from(u8::from(flag.is_true()))) } else { float(&value) };
        let number = number.map_err(|error| no_number(&name, "a number or a boolean", &value, error))?;
        Ok((name, number))
    })
}

/// Returns the name, row shape and dtype of each extra field of a rollout.
pub(crate) fn extra_of(extra: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<(String, Vec<usize>, DType)>> {
    let mismatch = |value: &Bound<'_, PyAny>| {
        type_error("extra", "a dict {name: (shape, dtype)}", &short_repr(value), "pass a pair for every name")
    };
    let extra = extra.map(|extra| extra.cast::<PyDict>().map_err(|_| mismatch(extra))).transpose()?;
    from_items(extra, 12, |(name, spec)| {
        let name = text_in(&name)?.ok_or_else(|| mismatch(&name))?;
        let (row_shape, dtype): (Bound<'_, PyAny>, Bound<'_, PyAny>) = spec.extract().map_err(|_| mismatch(&spec))?;
        if !is_dtype(&dtype) {
            return Err(mismatch(&spec));
        }
        Ok((name, shape("extra", &row_shape)?, dtype_of("extra", &dtype)?))
    })
}
