//! State of environments as arrays, for checkpoints: a copy goes on exactly as the original would.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Pcg64, Standing, check_len};

use super::{Inner, untold};
use crate::alloc::mapped;
use crate::convert::args::{INTEGER, REAL, argument, expect_shape, item};
use crate::convert::array::{fresh, new_dict, result};
use crate::convert::flags::flag_argument;
use crate::sync::cell::Shared;

const FIX: &str = "pass what get_state() gave";

/// Everything at one moment: no step of another thread comes between.
pub(crate) fn take<'py>(py: Python<'py>, inner: &Shared<Inner>, num_envs: usize) -> PyResult<Bound<'py, PyDict>> {
    let width = inner.with(py, true, |inner| inner.state_width("get_state"))?;
    let mut states = result::<f64>(py, &[num_envs, width])?;
    let (mut returns, mut steps) = (result::<f64>(py, &[num_envs])?, result::<i64>(py, &[num_envs])?);
    let (mut finished, mut streams) = (fresh::<bool>(py, &[num_envs])?, result::<i64>(py, &[num_envs, WORDS])?);
    let (rows, words) = (states.slice(), streams.slice());
    let (all_returns, all_steps, all_finished) = (returns.slice(), steps.slice(), finished.slice());
    inner.with(py, true, |inner| {
        let standing = Standing::of(inner.env.as_ref())?.ok_or_else(untold)?;
        check_len("states", standing.states.len(), rows.len())?;
        rows.copy_from_slice(&standing.states);
        all_returns.copy_from_slice(&standing.episode_returns);
        all_steps.copy_from_slice(&standing.episode_steps);
        all_finished.copy_from_slice(&standing.finished);
        words.copy_from_slice(&standing.streams);
        Ok(())
    })?;
    let dict = new_dict(py)?;
    dict.set_item("states", states.into_array())?;
    dict.set_item("episode_returns", returns.into_array())?;
    dict.set_item("episode_steps", steps.into_array())?;
    dict.set_item("finished", finished.into_array())?;
    dict.set_item("streams", streams.into_array())?;
    Ok(dict)
}

/// Words of a stream.
pub(crate) const WORDS: usize = Pcg64::WORDS;

/// Restores what [`take`] returned; `name` gives an error the names that the caller knows.
pub(crate) fn put(
    py: Python<'_>,
    inner: &Shared<Inner>,
    num_envs: usize,
    dict: &Bound<'_, PyDict>,
    name: impl FnOnce(Error) -> Error + Send,
) -> PyResult<()> {
    // Comparing keys may run Python code, so all items are there before any of them is looked at.
    let item = |name| item(dict, name, FIX);
    let (states, returns, steps) = (item("states")?, item("episode_returns")?, item("episode_steps")?);
    let (finished, streams) = (item("finished")?, item("streams")?);
    let states = argument::<f64>("states", &states, &REAL)?;
    let returns = argument::<f64>("episode_returns", &returns, &REAL)?;
    let steps = argument::<i64>("episode_steps", &steps, &INTEGER)?;
    let finished = flag_argument("finished", &finished)?;
    let streams = argument::<i64>("streams", &streams, &INTEGER)?;

    let (states, returns, steps) = (states.read(false)?, returns.read(false)?, steps.read(false)?);
    let (finished, streams) = (finished.read(py, false)?, streams.read(false)?);
    let width = states.shape().last().copied().unwrap_or(0).max(1);
    expect_shape("states", states.shape(), num_envs, &[width])?;
    expect_shape("episode_returns", returns.shape(), num_envs, &[])?;
    expect_shape("episode_steps", steps.shape(), num_envs, &[])?;
    expect_shape("finished", finished.shape(), num_envs, &[])?;
    expect_shape("streams", streams.shape(), num_envs, &[WORDS])?;
    let (states, returns, steps) = (states.slice(), returns.slice(), steps.slice());
    let (finished, streams) = (finished.slice(), streams.slice());
    inner.with(py, true, |inner| {
        // Copies, as other threads may write to the arrays between the look at them and their use.
        let standing = Standing {
            states: mapped(states, |x| x)?.into(),
            episode_returns: mapped(returns, |x| x)?.into(),
            episode_steps: mapped(steps, |x| x)?.into(),
            finished: finished.into(),
            streams: mapped(streams, |x| x)?.into(),
        };
        standing.put(inner.env.as_mut()).map_err(name)
    })
}
