//! Seeds: integers that are not negative, of any size where Gymnasium takes them.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rlox_core::{Pcg64, ResetOptions, Result, Seeds, VectorEnv, Watch};

use crate::alloc::{collected, reserved};
use crate::convert::args::{has, integer, sequence, shown};
use crate::error::{blamed, to_py, type_error, value_error};
use crate::sync::gil::detached;
use crate::sync::interrupt::look;

const EXPECTED: &str = "an integer of at least 0";
const FIX: &str = "pass a non-negative integer or None";

/// An int, and no instance of a subclass: what is asked of it here runs no Python code.
fn checked<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let seed = integer("seed", EXPECTED, object)?;
    if seed.lt(0)? { Err(value_error("seed", EXPECTED, &shown(&seed), FIX)) } else { Ok(seed) }
}

/// A seed below 2**64.
pub(crate) fn seed_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let too_large = || value_error("seed", "an integer in [0, 2**64)", &shown(object), "pass a smaller one");
    base_of(object)?.ok_or_else(too_large)
}

/// A seed that the core's environments take; none for a larger one.
pub(crate) fn base_of(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    Ok(checked(object)?.extract().ok())
}

/// What is made of the streams of `seed + i`, of any size, for environments i.
pub(crate) fn streams_from<T: Send>(
    seed: &Bound<'_, PyAny>,
    num_envs: usize,
    make: impl Fn(Pcg64) -> T + Sync,
) -> PyResult<Vec<T>> {
    let mut words = words_of(&checked(seed)?)?;
    let streams = || -> Result<Vec<T>> {
        let (mut streams, mut watch) = (reserved(num_envs)?, Watch::default());
        for i in 0..num_envs {
            look(&mut watch, i)?;
            streams.push(make(Pcg64::from_seed_words(&words, &mut watch)?));
            increment(&mut words);
        }
        Ok(streams)
    };
    detached(seed.py(), streams).map_err(to_py)
}

/// Adds 1 to an integer of 32-bit words, the lowest first.
fn increment(words: &mut Vec<u32>) {
    for word in &mut *words {
        *word = word.wrapping_add(1);
        if *word != 0 {
            return;
        }
    }
    words.push(1);
}

/// The 32-bit words of a [`checked`] integer, the lowest first, at least one; with room for one more.
fn words_of(seed: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let len = seed.call_method0("bit_length")?.extract::<usize>()?.div_ceil(32).max(1);
    let bytes = seed.call_method1("to_bytes", (4 * len, "little"))?.cast_into::<PyBytes>()?;
    let (mut words, mut watch) = (reserved(len + 1).map_err(to_py)?, Watch::default());
    for stretch in bytes.as_bytes().chunks(4 * Watch::STRETCH) {
        watch.check().map_err(to_py)?;
        words.extend(stretch.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
    }
    Ok(words)
}

/// What a reset is seeded with.
pub(crate) enum Seeding {
    Keep,
    Base(u64),
    Each(Vec<Option<u64>>),
    /// Of seeds of which one or more are too large for the core; None lets a stream go on.
    Streams(Vec<Option<Pcg64>>),
}

impl Seeding {
    /// A seed of all, or one for each environment; of these, None lets a stream go on.
    pub(crate) fn of(object: Option<&Bound<'_, PyAny>>, num_envs: usize) -> PyResult<Self> {
        let Some(object) = object else { return Ok(Self::Keep) };
        if !has(object, "__len__")? {
            return Ok(match base_of(object)? {
                Some(base) => Self::Base(base),
                None => Self::Streams(streams_from(object, num_envs, Some)?),
            });
        }
        let wrong =
            || type_error("seed", "an integer, or one for each environment", &shown(object), "pass one of them");
        let items = sequence(object).map_err(|error| blamed(object.py(), error, wrong))?;
        let seeds = items.iter().map(|item| if item.is_none() { Ok(None) } else { checked(&item).map(Some) });
        let seeds = collected(items.len(), seeds)?;
        let small = seeds.iter().map(|seed| seed.as_ref().map(PyAnyMethods::extract).transpose());
        match collected(seeds.len(), small) {
            Ok(small) => return Ok(Self::Each(small)),
            Err(error) if error.is_instance_of::<PyMemoryError>(object.py()) => return Err(error),
            Err(_) => {}
        }
        let mut watch = Watch::default();
        let stream = |(i, seed): (usize, &Option<Bound<'_, PyAny>>)| {
            look(&mut watch, i).map_err(to_py)?;
            let Some(seed) = seed else { return Ok(None) };
            Pcg64::from_seed_words(&words_of(seed)?, &mut watch).map(Some).map_err(to_py)
        };
        Ok(Self::Streams(collected(seeds.len(), seeds.iter().enumerate().map(stream))?))
    }

    /// Resets as the core does; where that is refused, the streams stay as they were.
    pub(crate) fn reset(
        &self,
        env: &mut dyn VectorEnv,
        mask: Option<&[bool]>,
        options: &ResetOptions,
        obs: &mut [f32],
    ) -> Result<()> {
        let streams = match self {
            Self::Keep => return env.reset(Seeds::Keep, mask, options, obs),
            Self::Base(base) => return env.reset(Seeds::Base(*base), mask, options, obs),
            Self::Each(seeds) => return env.reset(Seeds::Each(seeds), mask, options, obs),
            Self::Streams(streams) => streams,
        };
        let before = env.rngs()?;
        let mut rngs = env.rngs()?;
        for (i, (rng, stream)) in rngs.iter_mut().zip(streams).enumerate() {
            let chosen = mask.is_none_or(|mask| mask.get(i) == Some(&true));
            if let (true, Some(stream)) = (chosen, stream) {
                *rng = stream.clone();
            }
        }
        // None for each goes on with the streams, and has the core look at how many there are.
        let mut seeds = reserved(streams.len())?;
        seeds.resize(streams.len(), None);
        env.set_rngs(&rngs)?;
        let reset = env.reset(Seeds::Each(&seeds), mask, options, obs);
        if reset.is_err() {
            env.set_rngs(&before)?;
        }
        reset
    }
}
