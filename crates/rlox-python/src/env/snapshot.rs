//! Conversion of the state of environments to arrays and back, for checkpoints.
//!
//! Environments with a restored state continue exactly like the original ones.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Pcg64, error::check_len, vector::EnvSnapshot};

use super::{Inner, state_unavailable};
use crate::alloc::try_map;
use crate::convert::args::{INTEGER, REAL, argument, expect_shape, item};
use crate::convert::array::{empty, new_dict, zeros};
use crate::convert::flags::flag_argument;
use crate::sync::cell::GuardedCell;

const FIX: &str = "pass the result of get_state()";

/// Returns the state of all environments as a dict of arrays.
///
/// The environments are locked meanwhile, so that no other thread steps them.
pub(crate) fn take_snapshot<'py>(
    py: Python<'py>,
    inner: &GuardedCell<Inner>,
    num_envs: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let width = inner.with(py, true, |inner| inner.state_width("get_state"))?;
    let mut states = empty::<f64>(py, &[num_envs, width])?;
    let (mut returns, mut steps) = (empty::<f64>(py, &[num_envs])?, empty::<i64>(py, &[num_envs])?);
    let (mut finished, mut streams) = (zeros::<bool>(py, &[num_envs])?, empty::<i64>(py, &[num_envs, RNG_STATE_LEN])?);
    let (states_out, streams_out) = (states.slice(), streams.slice());
    let (returns_out, steps_out, finished_out) = (returns.slice(), steps.slice(), finished.slice());
    inner.with(py, true, |inner| {
        let snapshot = EnvSnapshot::capture(inner.env.as_ref())?.ok_or_else(state_unavailable)?;
        check_len("states", snapshot.states.len(), states_out.len())?;
        states_out.copy_from_slice(&snapshot.states);
        returns_out.copy_from_slice(&snapshot.episode_returns);
        steps_out.copy_from_slice(&snapshot.episode_steps);
        finished_out.copy_from_slice(&snapshot.finished);
        streams_out.copy_from_slice(&snapshot.streams);
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

/// Number of int64 values in the state of a random stream.
pub(crate) const RNG_STATE_LEN: usize = Pcg64::STATE_LEN;

/// Restores the result of [`take_snapshot`]. `name` renames arguments in the core's errors.
pub(crate) fn restore_snapshot(
    py: Python<'_>,
    inner: &GuardedCell<Inner>,
    num_envs: usize,
    dict: &Bound<'_, PyDict>,
    name: impl FnOnce(Error) -> Error + Send,
) -> PyResult<()> {
    // Looking up a key may run Python code, so all items are looked up before any is converted.
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
    expect_shape("streams", streams.shape(), num_envs, &[RNG_STATE_LEN])?;
    let (states, returns, steps) = (states.slice(), returns.slice(), steps.slice());
    let (finished, streams) = (finished.slice(), streams.slice());
    inner.with(py, true, |inner| {
        // Copies, because other threads may write to the arrays between the check and the use.
        let snapshot = EnvSnapshot {
            states: try_map(states, |x| x)?.into(),
            episode_returns: try_map(returns, |x| x)?.into(),
            episode_steps: try_map(steps, |x| x)?.into(),
            finished: finished.into(),
            streams: try_map(streams, |x| x)?.into(),
        };
        snapshot.restore_into(inner.env.as_mut()).map_err(name)
    })
}
