//! Seeds: non-negative integers. Resets accept seeds of any size, as Gymnasium does.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rlox_core::{Pcg64, ResetOptions, Result, Seeds, VectorEnv, interrupt::InterruptCheck};

use crate::alloc::{try_collect, with_capacity};
use crate::convert::args::{has, integer, sequence, short_repr};
use crate::error::{replace_ordinary_error, to_py, type_error, value_error};
use crate::sync::gil::detach;
use crate::sync::interrupt::poll_interrupt;

const EXPECTED: &str = "an integer of at least 0";
const FIX: &str = "pass a non-negative integer or None";

/// Returns a seed as an object of exactly the type `int`, whose use runs no Python code.
fn check_seed<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let seed = integer("seed", EXPECTED, object)?;
    if seed.lt(0)? { Err(value_error("seed", EXPECTED, &short_repr(&seed), FIX)) } else { Ok(seed) }
}

/// Returns a seed below 2**64.
pub(crate) fn seed_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let too_large = || value_error("seed", "an integer in [0, 2**64)", &short_repr(object), "pass a smaller seed");
    base_of(object)?.ok_or_else(too_large)
}

/// Returns a seed as u64, or `None` for a seed of 2**64 or more.
pub(crate) fn base_of(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    Ok(check_seed(object)?.extract().ok())
}

/// Returns one value per environment: `make` of the random stream that `seed + i` seeds.
///
/// The seed may have any size.
pub(crate) fn streams_from<T: Send>(
    seed: &Bound<'_, PyAny>,
    num_envs: usize,
    make: impl Fn(Pcg64) -> T + Sync,
) -> PyResult<Vec<T>> {
    let mut entropy = entropy_of(&check_seed(seed)?)?;
    let streams = || -> Result<Vec<T>> {
        let (mut streams, mut interrupt) = (with_capacity(num_envs)?, InterruptCheck::default());
        for i in 0..num_envs {
            poll_interrupt(&mut interrupt, i)?;
            streams.push(make(Pcg64::from_entropy(&entropy, &mut interrupt)?));
            increment(&mut entropy);
        }
        Ok(streams)
    };
    detach(seed.py(), streams).map_err(to_py)
}

/// Adds 1 to an integer that is stored as 32-bit words, lowest word first.
fn increment(entropy: &mut Vec<u32>) {
    for word in &mut *entropy {
        *word = word.wrapping_add(1);
        if *word != 0 {
            return;
        }
    }
    entropy.push(1);
}

/// Returns a seed from [`check_seed`] as 32-bit words, lowest word first.
///
/// The vector has at least one word, and capacity for one more.
fn entropy_of(seed: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let len = seed.call_method0("bit_length")?.extract::<usize>()?.div_ceil(32).max(1);
    let bytes = seed.call_method1("to_bytes", (4 * len, "little"))?.cast_into::<PyBytes>()?;
    let (mut entropy, mut interrupt) = (with_capacity(len + 1).map_err(to_py)?, InterruptCheck::default());
    for chunk in bytes.as_bytes().chunks(4 * InterruptCheck::POLL_ELEMENTS) {
        interrupt.check().map_err(to_py)?;
        entropy.extend(chunk.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
    }
    Ok(entropy)
}

/// Seeds of a reset.
pub(crate) enum Seeding {
    Keep,
    Base(u64),
    Each(Vec<Option<u64>>),
    /// Random streams, used if at least one seed is 2**64 or more. `None` continues a stream.
    Streams(Vec<Option<Pcg64>>),
}

impl Seeding {
    /// Parses `seed`: an integer, or a sequence with an integer or None for each environment.
    ///
    /// `None` continues a random stream.
    pub(crate) fn parse(object: Option<&Bound<'_, PyAny>>, num_envs: usize) -> PyResult<Self> {
        let Some(object) = object else { return Ok(Self::Keep) };
        if !has(object, "__len__")? {
            return Ok(match base_of(object)? {
                Some(base) => Self::Base(base),
                None => Self::Streams(streams_from(object, num_envs, Some)?),
            });
        }
        let mismatch = || {
            type_error("seed", "an integer, or one for each environment", &short_repr(object), "pass an int or a list")
        };
        let items = sequence(object).map_err(|error| replace_ordinary_error(object.py(), error, mismatch))?;
        let seeds = items.iter().map(|item| if item.is_none() { Ok(None) } else { check_seed(&item).map(Some) });
        let seeds = try_collect(items.len(), seeds)?;
        let small = seeds.iter().map(|seed| seed.as_ref().map(PyAnyMethods::extract).transpose());
        match try_collect(seeds.len(), small) {
            Ok(small) => return Ok(Self::Each(small)),
            Err(error) if error.is_instance_of::<PyMemoryError>(object.py()) => return Err(error),
            Err(_) => {}
        }
        let mut interrupt = InterruptCheck::default();
        let stream = |(i, seed): (usize, &Option<Bound<'_, PyAny>>)| {
            poll_interrupt(&mut interrupt, i).map_err(to_py)?;
            let Some(seed) = seed else { return Ok(None) };
            Pcg64::from_entropy(&entropy_of(seed)?, &mut interrupt).map(Some).map_err(to_py)
        };
        Ok(Self::Streams(try_collect(seeds.len(), seeds.iter().enumerate().map(stream))?))
    }

    /// Resets the environments; if the reset fails, the random streams stay unchanged.
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
            let is_reset = mask.is_none_or(|mask| mask.get(i) == Some(&true));
            if let (true, Some(stream)) = (is_reset, stream) {
                *rng = stream.clone();
            }
        }
        // Seeds of `None` keep the streams of `set_rngs`. The core checks the number of seeds.
        let mut seeds = with_capacity(streams.len())?;
        seeds.resize(streams.len(), None);
        env.set_rngs(&rngs)?;
        let reset = env.reset(Seeds::Each(&seeds), mask, options, obs);
        if reset.is_err() {
            env.set_rngs(&before)?;
        }
        reset
    }
}
