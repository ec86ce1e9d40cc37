//! What environments remember, as arrays, for checkpoints: a copy goes on exactly as the original would.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Pcg64, Progress, Result, Watch};

use crate::argument::{INTEGER, REAL, argument, expect_shape, item};
use crate::array::{fresh, new_dict, result};
use crate::flags::flag_argument;
use crate::interrupt::look;
use crate::recycling::reserved;
use crate::shared::Shared;
use crate::vector::Inner;

const FIX: &str = "pass what get_state() gave";

/// Everything at one moment: no step of another thread comes between.
pub(crate) fn take<'py>(py: Python<'py>, inner: &Shared<Inner>, num_envs: usize) -> PyResult<Bound<'py, PyDict>> {
    let width = inner.with(py, true, |inner| inner.state_width("get_state"))?;
    let mut states = result::<f64>(py, &[num_envs, width])?;
    let (mut returns, mut steps) = (result::<f64>(py, &[num_envs])?, result::<i64>(py, &[num_envs])?);
    let (mut finished, mut streams) = (fresh::<bool>(py, &[num_envs])?, result::<i64>(py, &[num_envs, WORDS])?);
    let columns = returns.slice().iter_mut().zip(steps.slice()).zip(finished.slice());
    let (rows, words) = (states.slice(), streams.slice());
    inner.with(py, true, |inner| {
        inner.states(width, rows)?;
        let mut watch = Watch::default();
        for (i, ((episode_return, steps), finished)) in columns.enumerate() {
            look(&mut watch, i)?;
            let progress = inner.env.progress(i).unwrap_or_default();
            (*episode_return, *steps) = (progress.episode_return, progress.steps.into());
            *finished = progress.finished;
        }
        put_words(&inner.env.rngs()?, words, &mut watch)
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

/// Writes the words of each stream.
pub(crate) fn put_words(rngs: &[Pcg64], words: &mut [i64], watch: &mut Watch) -> Result<()> {
    for (i, (rng, words)) in rngs.iter().zip(words.chunks_exact_mut(WORDS)).enumerate() {
        look(watch, i)?;
        words.copy_from_slice(&rng.to_words());
    }
    Ok(())
}

/// The streams of which these are the words.
pub(crate) fn streams_of(words: &[i64], watch: &mut Watch) -> Result<Vec<Pcg64>> {
    let mut rngs = reserved(words.len() / WORDS)?;
    for (i, words) in words.chunks_exact(WORDS).enumerate() {
        look(watch, i)?;
        rngs.push(Pcg64::from_words(words)?);
    }
    Ok(rngs)
}

pub(crate) fn put(py: Python<'_>, inner: &Shared<Inner>, num_envs: usize, dict: &Bound<'_, PyDict>) -> PyResult<()> {
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
    let (returns, steps, finished) = (returns.slice(), steps.slice(), finished.slice());
    let (rows, words) = (states.slice(), streams.slice());
    inner.with(py, true, |inner| {
        if let Some(known) = inner.env.state(0)
            && known.len() != width
        {
            let got = format!("{width} numbers");
            return Err(Error::shape("states", format!("{} numbers an environment", known.len()), got, FIX));
        }
        let progress = |i: usize| {
            let wrong = |_| Error::config("episode_steps", "numbers in [0, 2**32)", steps[i].to_string(), FIX);
            let steps = u32::try_from(steps[i]).map_err(wrong)?;
            Ok(Progress { steps, episode_return: returns[i], finished: finished[i] })
        };
        // All of them first, so that one which is refused has changed none.
        let mut watch = Watch::default();
        let rngs = streams_of(words, &mut watch)?;
        for (i, state) in rows.chunks_exact(width).enumerate() {
            look(&mut watch, i)?;
            inner.env.check_state(i, state, progress(i)?)?;
        }
        // From here on no interruption leaves some of them behind.
        for (i, state) in rows.chunks_exact(width).enumerate() {
            inner.env.set_state(i, state)?;
            inner.env.set_progress(i, progress(i)?)?;
        }
        inner.env.set_rngs(&rngs)
    })
}
