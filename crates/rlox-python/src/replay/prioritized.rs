//! `PrioritizedReplayBuffer`.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::{AnySampler, Prioritized, Replay};
use rlox_core::{Error, Result};

use super::ReplayBuffer;
use super::buffer::{Buffer, BufferOptions, make_parts};
use super::source::{no_priorities, parts};
use crate::alloc::try_collect;
use crate::convert::args::{INTEGER, REAL, argument, expect_shape_or, number, numbers};
use crate::error::{to_py, value_error};
use crate::sync::gil::is_alone;

/// From how many transitions on new priorities may take more than 5 us.
const DETACH_ABOVE_INDICES: usize = 128;

/// Replay buffer that samples by priority (Schaul et al. 2016, "Prioritized Experience Replay", section 3.3).
///
/// A transition of priority p is drawn with probability `p**alpha / sum(p**alpha)`, and weighs `(N * P)**-beta`, divided
/// by the largest weight of all that are stored. New transitions have the largest priority there was. It does all that
/// `ReplayBuffer` does; samples also have `weights` and `indices`. `sample_sequences` and `rlox.interchange.to_arrow` pass
/// priorities over.
///
/// Args:
///     capacity, obs_dim, act_dim: As for `ReplayBuffer`, and so are the keywords that it has.
///     alpha: How much priorities count: 0 not at all, 1 in proportion.
///     beta: How much weights make up for that: 0 not at all, 1 wholly; usually raised to 1 over a run.
///
/// Raises:
///     ValueError: A size of 0, an alpha or beta outside of [0, 1].
///     MemoryError: It does not fit into memory; the bytes it would take are named.
///
/// >>> import rlox
/// >>> buffer = rlox.PrioritizedReplayBuffer(capacity=1000, obs_dim=1, act_dim=1, alpha=1.0, beta=1.0, seed=0)
/// >>> for i in range(4):
/// ...     buffer.push([i], [0.0], 0.0, False, True, next_obs=[i + 1])
/// >>> batch = buffer.sample(4)
/// >>> buffer.update_priorities(range(4), [1.0, 1.0, 1.0, 4.0])
/// >>> batch = buffer.sample(4)
/// >>> for name in ("indices", "weights"):
/// ...     print(batch[name].round(2).tolist())
/// [1, 3, 3, 3]
/// [1.0, 0.25, 0.25, 0.25]
#[pyclass(frozen, extends = ReplayBuffer, subclass, module = "rlox._rlox")]
pub(crate) struct PrioritizedReplayBuffer {
    /// The alpha and the beta that were given last, as bits: the buffer has them in float32.
    given: [AtomicU64; 2],
}

impl PrioritizedReplayBuffer {
    fn with_alpha_beta(alpha_beta: [f64; 2]) -> Self {
        Self { given: alpha_beta.map(|number| AtomicU64::new(number.to_bits())) }
    }

    /// What the caller gave of the buffer's number, or else, as after a load, the shortest one that is the same in float32.
    fn exact_value(&self, index: usize, stored: f32) -> f64 {
        let exact = f64::from_bits(self.given[index].load(Ordering::Relaxed));
        if exact as f32 == stored { exact } else { stored.to_string().parse().unwrap_or_else(|_| stored.into()) }
    }
}

/// The sampler of a buffer that has priorities.
fn sampler(buffer: &Replay<AnySampler>) -> Result<&Prioritized> {
    match buffer.sampler() {
        AnySampler::Prioritized(sampler) => Ok(sampler),
        AnySampler::Uniform(_) | AnySampler::Hindsight(_) => Err(no_priorities()),
    }
}

/// What is wrong with priorities of which one is finite, but not in float32; none if it is something else.
fn too_large(object: &Bound<'_, PyAny>, priorities: &[f32]) -> Option<PyErr> {
    let index = priorities.iter().position(|priority| !(0.0..=f32::MAX).contains(priority))?;
    let read = argument::<f64>("priorities", object, &REAL).and_then(|given| given.read(false)).ok()?;
    let number = read.slice().get(index).filter(|number| number.is_finite() && **number > 0.0)?;
    let (expected, got) = (format!("numbers of at most {:e}", f32::MAX), format!("{number:e}"));
    Some(to_py(Error::config("priorities", expected, got, "clip them").at_row(index)))
}

#[pymethods]
impl PrioritizedReplayBuffer {
    #[new]
    #[pyo3(signature = (capacity, obs_dim, act_dim, alpha=0.6, beta=0.4, *, num_envs=None, obs_dtype=None, act_dtype=None, frame_stack=None, n_step=None, gamma=0.99, extra=None, seed=None, capacity_name=None),
        text_signature = "(capacity, obs_dim, act_dim, alpha=0.6, beta=0.4, *, num_envs=1, obs_dtype='float32', act_dtype='float32', frame_stack=1, n_step=1, gamma=0.99, extra=None, seed=None)")]
    fn new(
        py: Python<'_>,
        capacity: &Bound<'_, PyAny>,
        obs_dim: &Bound<'_, PyAny>,
        act_dim: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::alpha)] alpha: f64,
        #[pyo3(from_py_with = numbers::beta)] beta: f64,
        num_envs: Option<&Bound<'_, PyAny>>,
        obs_dtype: Option<&Bound<'_, PyAny>>,
        act_dtype: Option<&Bound<'_, PyAny>>,
        frame_stack: Option<&Bound<'_, PyAny>>,
        n_step: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
        extra: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        capacity_name: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let options =
            BufferOptions { num_envs, obs_dtype, act_dtype, frame_stack, n_step, gamma, extra, seed, capacity_name };
        let parts = make_parts(py, [capacity, obs_dim, act_dim], options)?;
        let sampler =
            Prioritized::new(&parts.storage, alpha as f32, beta as f32).map_err(|error| to_py(parts.name(error)))?;
        let buffer = Buffer::new(py, parts, sampler.into(), "PrioritizedReplayBuffer")?;
        Ok(PyClassInitializer::from(ReplayBuffer { buffer }).add_subclass(Self::with_alpha_beta([alpha, beta])))
    }

    /// Samples transitions by priority, in rising order of where they are stored.
    ///
    /// Args:
    ///     batch_size: B, at most as many as are stored.
    ///     seed: An integer or a numpy.random.Generator that decides the choice; None for the buffer's own stream.
    ///     beta: Sets `beta` first, if it is given; other threads' samples wait meanwhile.
    ///     out: A dict that an earlier sample of B transitions gave, to be overwritten.
    ///
    /// Returns:
    ///     What `ReplayBuffer.sample` gives, and `weights` (B,) float32 and `indices` (B,) int64: the transitions'
    ///     numbers in the order of pushing, counted from 0, for `update_priorities`.
    ///
    /// Raises:
    ///     ValueError: No transitions, more than are stored, arrays in `out` that do not fit.
    #[pyo3(signature = (batch_size, seed=None, *, beta=None, out=None))]
    fn sample<'py>(
        slf: &Bound<'py, Self>,
        batch_size: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        beta: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let beta = beta.map(|beta| number("beta", beta)).transpose()?;
        let beta_f32 = beta.map(|beta| beta as f32);
        let batch = slf.as_super().get().buffer.sample(slf.py(), batch_size, seed, out, beta_f32)?;
        if let Some(beta) = beta {
            slf.get().given[1].store(beta.to_bits(), Ordering::Relaxed);
        }
        Ok(batch)
    }

    /// Gives transitions new priorities.
    ///
    /// Args:
    ///     indices: (B,) of what `sample` gave. What is not stored any more is passed over; of doubled ones the last counts.
    ///     priorities: (B,) usually the errors' absolute values. A little is added, so that none is 0.
    ///
    /// Raises:
    ///     ValueError: Different lengths, numbers that were never given, priorities that are negative or not finite;
    ///         nothing has changed then.
    fn update_priorities(
        slf: &Bound<'_, Self>,
        indices: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        let indices = argument::<i64>("indices", indices, &INTEGER)?;
        let object = priorities;
        let priorities = argument::<f32>("priorities", priorities, &REAL)?;
        let hold = indices.len() <= DETACH_ABOVE_INDICES && is_alone(py);
        let (indices, priorities) = (indices.read(hold)?, priorities.read(hold)?);
        let count = indices.slice().len();
        expect_shape_or("indices", indices.shape(), (count, &[]), "pass them in one axis, as sampling gave them")?;
        expect_shape_or("priorities", priorities.shape(), (count, &[]), "pass one for each of the indices")?;
        let number = |index: &i64| {
            usize::try_from(*index).map_err(|_| {
                value_error("indices", "numbers of transitions", &index.to_string(), "pass what sampling gave")
            })
        };
        let indices = try_collect(count, indices.slice().iter().map(number))?;
        let priorities = priorities.slice();
        let done = slf.as_super().get().buffer.inner.write(py, !hold, |buffer| {
            let (storage, sampler) = parts(buffer)?;
            sampler.update_priorities(storage, &indices, priorities)
        });
        done.map_err(|error| too_large(object, priorities).unwrap_or(error))
    }

    /// Reads what `save` wrote: a buffer that goes on exactly as that one.
    ///
    /// Raises:
    ///     CorruptFileError: Anything in it is damaged, missing or not a buffer's; the file and the section are named.
    ///     ValueError: It is a buffer of another class, or a newer rlox wrote it.
    ///     OSError: Nothing is there (FileNotFoundError), or the system refuses.
    #[staticmethod]
    fn load(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let buffer = Buffer::load(py, path, "PrioritizedReplayBuffer")?;
        let initializer = PyClassInitializer::from(ReplayBuffer { buffer });
        Py::new(py, initializer.add_subclass(Self::with_alpha_beta([f64::NAN; 2])))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?.to_string();
        let named = [("alpha", Self::alpha(slf)), ("beta", Self::beta(slf))];
        let extra: Vec<_> =
            named.into_iter().filter_map(|(name, value)| Some((name, value.ok()?.to_string()))).collect();
        Ok(slf.as_super().get().buffer.format_repr(slf.py(), &name, &extra))
    }

    /// How much priorities count.
    #[getter]
    fn alpha(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let stored = slf.as_super().get().buffer.inner.read(slf.py(), false, |buffer| Ok(sampler(buffer)?.alpha()))?;
        Ok(slf.get().exact_value(0, stored))
    }

    /// How much weights make up for priorities; `sample(beta=...)` sets it.
    #[getter]
    fn beta(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let stored = slf.as_super().get().buffer.inner.read(slf.py(), false, |buffer| Ok(sampler(buffer)?.beta()))?;
        Ok(slf.get().exact_value(1, stored))
    }
}
