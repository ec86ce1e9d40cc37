//! What environments remember, as arrays, for checkpoints: a copy goes on exactly as the original would.

use numpy::{IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Pcg64, Pcg64State, Progress};

use crate::argument::{INTEGER, REAL, argument, expect_shape, integer, shown};
use crate::array::fresh;
use crate::error::{to_py, value_error};
use crate::flags::flag_argument;
use crate::shared::Shared;
use crate::vector::Inner;

const FIX: &str = "pass what get_state() gave";

/// Everything at one moment: no step of another thread comes between.
pub(crate) fn take<'py>(py: Python<'py>, inner: &Shared<Inner>, num_envs: usize) -> PyResult<Bound<'py, PyDict>> {
    let (states, progress, rngs) = inner.with(py, true, |inner| {
        let states = inner.states("get_state")?;
        let progress: Vec<_> = (0..num_envs).filter_map(|i| inner.env.progress(i)).collect();
        Ok((states, progress, inner.env.rngs()))
    })?;
    let states = states_array(py, &states);
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

/// States as rows, `[N, k]`.
pub(crate) fn states_array<'py>(py: Python<'py>, states: &[Vec<f64>]) -> Bound<'py, PyArrayDyn<f64>> {
    let width = states.first().map_or(0, Vec::len);
    let mut array = fresh::<f64>(py, &[states.len(), width]);
    for (row, state) in array.slice().chunks_exact_mut(width.max(1)).zip(states) {
        row.copy_from_slice(state);
    }
    array.into_array()
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
    let (finished, streams) = (finished.read(py, false)?, streams.read(false)?);
    let width = states.shape().last().copied().unwrap_or(0).max(1);
    expect_shape("states", states.shape(), num_envs, &[width])?;
    expect_shape("episode_returns", returns.shape(), num_envs, &[])?;
    expect_shape("episode_steps", steps.shape(), num_envs, &[])?;
    expect_shape("finished", finished.shape(), num_envs, &[])?;
    expect_shape("streams", streams.shape(), num_envs, &[WORDS])?;
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
    let rngs: Vec<_> = streams.slice().chunks_exact(WORDS).map(stream_of).collect::<PyResult<_>>()?;
    let rows = states.slice();
    inner.with(py, true, |inner| {
        if let Some(known) = inner.env.state(0)
            && known.len() != width
        {
            let got = format!("{width} numbers");
            return Err(Error::shape("states", format!("{} numbers an environment", known.len()), got, FIX));
        }
        let all = || rows.chunks_exact(width).zip(&progress).enumerate();
        // All of them first, so that one which is refused has changed none.
        for (i, (state, progress)) in all() {
            inner.env.check_state(i, state, *progress)?;
        }
        for (i, (state, progress)) in all() {
            inner.env.set_state(i, state)?;
            inner.env.set_progress(i, *progress)?;
        }
        inner.env.set_rngs(&rngs)
    })
}

fn stream_of(words: &[i64]) -> PyResult<Pcg64> {
    let [state, inc] = [0, 2].map(|at| u128::from(words[at] as u64) << 64 | u128::from(words[at + 1] as u64));
    let (Ok(has_uint32), Ok(uinteger)) = (u8::try_from(words[4]), u32::try_from(words[5])) else {
        return Err(buffered(words[4], words[5]));
    };
    if has_uint32 > 1 {
        return Err(buffered(words[4], words[5]));
    }
    Pcg64::from_state(Pcg64State { state, inc, has_uint32: has_uint32 == 1, uinteger }).map_err(to_py)
}

fn buffered(has_uint32: i64, uinteger: i64) -> PyErr {
    let got = format!("{has_uint32} and {uinteger}");
    value_error("streams", "0 or 1 and 32 bits as a stream's last two words", &got, FIX)
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
    let word = |key: &'static str, limit: u128| {
        let number = item(dict, key)?;
        let expected = format!("an integer in [0, {limit}]");
        let got = integer(key, &expected, &number)?.extract().ok().filter(|word| *word <= limit);
        got.ok_or_else(|| value_error(key, &expected, &shown(&number), FIX))
    };
    let state = Pcg64State {
        state: word("state", u128::MAX)?,
        inc: word("inc", u128::MAX)?,
        has_uint32: word("has_uint32", 1)? == 1,
        uinteger: word("uinteger", u32::MAX.into())? as u32,
    };
    Pcg64::from_state(state).map_err(to_py)
}

fn item<'py>(dict: &Bound<'py, PyDict>, key: &str) -> PyResult<Bound<'py, PyAny>> {
    let missing = || value_error("state", &format!("the key {key:?}"), "a dict without it", FIX);
    dict.get_item(key)?.ok_or_else(missing)
}
