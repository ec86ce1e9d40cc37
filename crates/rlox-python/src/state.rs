//! What environments remember, as arrays, for checkpoints: a copy goes on exactly as the original would.

use numpy::{IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Pcg64, Pcg64State, Progress};

use crate::argument::{INTEGER, REAL, argument, expect_shape};
use crate::error::value_error;
use crate::flags::flag_argument;
use crate::shared::Shared;
use crate::vector::Inner;

const FIX: &str = "pass what get_state() gave";

pub(crate) fn take<'py>(
    py: Python<'py>,
    inner: &Shared<Inner>,
    num_envs: usize,
    states: Bound<'py, PyArrayDyn<f64>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (progress, rngs) = inner.with(py, false, |inner| {
        let progress: Vec<_> = (0..num_envs).filter_map(|i| inner.env.progress(i)).collect();
        Ok((progress, inner.env.rngs()))
    })?;
    let dict = PyDict::new(py);
    dict.set_item("states", states)?;
    let column = |name, numbers: Vec<f64>| dict.set_item(name, numbers.into_pyarray(py));
    column("episode_returns", progress.iter().map(|env| env.episode_return).collect())?;
    let steps: Vec<_> = progress.iter().map(|env| i64::from(env.steps)).collect();
    dict.set_item("episode_steps", steps.into_pyarray(py))?;
    let finished: Vec<_> = progress.iter().map(|env| env.finished).collect();
    dict.set_item("finished", finished.into_pyarray(py))?;
    let words = rngs.iter().flat_map(|rng| {
        let Pcg64State { state, inc, has_uint32, uinteger } = rng.state();
        let halves = [state >> 64, state, inc >> 64, inc].map(|half| half as u64);
        halves.into_iter().chain([u64::from(has_uint32), u64::from(uinteger)]).map(|word| word as i64)
    });
    dict.set_item("streams", PyArray1::from_iter(py, words).reshape([num_envs, WORDS])?)?;
    Ok(dict)
}

/// 64-bit words of a stream: its state and its number, high half first, and NumPy's buffered half draw.
const WORDS: usize = 6;

pub(crate) fn put(py: Python<'_>, inner: &Shared<Inner>, num_envs: usize, dict: &Bound<'_, PyDict>) -> PyResult<()> {
    let item = |name| item(dict, name);
    let states = argument::<f64>("states", &item("states")?, &REAL)?;
    let returns = argument::<f64>("episode_returns", &item("episode_returns")?, &REAL)?;
    let steps = argument::<i64>("episode_steps", &item("episode_steps")?, &INTEGER)?;
    let finished = flag_argument("finished", &item("finished")?)?;
    let streams = argument::<i64>("streams", &item("streams")?, &INTEGER)?;

    let (states, returns, steps) = (states.read(false)?, returns.read(false)?, steps.read(false)?);
    let (finished, streams) = (finished.read(false)?, streams.read(false)?);
    let width = states.shape().last().copied().unwrap_or(0).max(1);
    expect_shape("states", states.shape(), num_envs, &[width])?;
    expect_shape("episode_returns", returns.shape(), num_envs, &[])?;
    expect_shape("episode_steps", steps.shape(), num_envs, &[])?;
    expect_shape("finished", finished.shape(), num_envs, &[])?;
    expect_shape("streams", streams.shape(), num_envs, &[WORDS])?;
    // NaN stands for what is not known yet, such as Pendulum's last torque.
    if let Some(state) = states.slice().iter().find(|x| x.is_infinite()) {
        return Err(value_error("states", "finite numbers", &state.to_string(), FIX));
    }
    let progress = returns.slice().iter().zip(steps.slice()).zip(finished.slice());
    let progress = progress.map(|((episode_return, steps), finished)| {
        let wrong = |_| value_error("episode_steps", "numbers in [0, 2**32)", &steps.to_string(), FIX);
        Ok(Progress {
            steps: u32::try_from(*steps).map_err(wrong)?,
            episode_return: *episode_return,
            finished: *finished,
        })
    });
    let progress = progress.collect::<PyResult<Vec<_>>>()?;
    let rngs: Vec<_> = streams.slice().chunks_exact(WORDS).map(stream_of).collect();
    let rows = states.slice();
    inner.with(py, true, |inner| {
        if let Some(known) = inner.env.state(0)
            && known.len() != width
        {
            let got = format!("{width} numbers");
            return Err(Error::shape("states", format!("{} numbers an environment", known.len()), got, FIX));
        }
        for (i, (state, progress)) in rows.chunks_exact(width).zip(progress).enumerate() {
            inner.env.set_state(i, state)?;
            inner.env.set_progress(i, progress)?;
        }
        inner.env.set_rngs(&rngs)
    })
}

fn stream_of(words: &[i64]) -> Pcg64 {
    let [state, inc] = [0, 2].map(|at| u128::from(words[at] as u64) << 64 | u128::from(words[at + 1] as u64));
    Pcg64::from_state(Pcg64State { state, inc, has_uint32: words[4] != 0, uinteger: words[5] as u32 })
}

/// A stream as NumPy's generators tell theirs.
pub(crate) fn stream_dict<'py>(py: Python<'py>, rng: &Pcg64) -> PyResult<Bound<'py, PyDict>> {
    let state = rng.state();
    let dict = PyDict::new(py);
    dict.set_item("state", state.state)?;
    dict.set_item("inc", state.inc)?;
    dict.set_item("has_uint32", u32::from(state.has_uint32))?;
    dict.set_item("uinteger", state.uinteger)?;
    Ok(dict)
}

pub(crate) fn stream_from(dict: &Bound<'_, PyDict>) -> PyResult<Pcg64> {
    Ok(Pcg64::from_state(Pcg64State {
        state: item(dict, "state")?.extract()?,
        inc: item(dict, "inc")?.extract()?,
        has_uint32: item(dict, "has_uint32")?.extract::<u32>()? != 0,
        uinteger: item(dict, "uinteger")?.extract()?,
    }))
}

fn item<'py>(dict: &Bound<'py, PyDict>, key: &str) -> PyResult<Bound<'py, PyAny>> {
    let missing = || value_error("state", &format!("the key {key:?}"), "a dict without it", FIX);
    dict.get_item(key)?.ok_or_else(missing)
}
