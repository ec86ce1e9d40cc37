//! The class `PrioritizedReplayBuffer`.

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

/// Number of transitions above which an update releases the GIL, because it may take over 5 us.
const DETACH_ABOVE_INDICES: usize = 128;

/// Replay buffer with sampling by priority (Schaul et al. 2016, "Prioritized Experience Replay").
///
/// A transition of priority p is drawn with probability `P = p**alpha / sum(p**alpha)`. Its weight
/// is `(N * P)**-beta` for N stored transitions, divided by the largest weight of all of them. New
/// transitions get the largest priority so far. The buffer has all features of `ReplayBuffer`. Its
/// samples also have `weights` and `indices`. `sample_sequences` and `rlox.interchange.to_arrow`
/// ignore priorities.
///
/// Args:
///     capacity, obs_dim, act_dim: As for `ReplayBuffer`, and so are the keywords that are not
///         listed here.
///     alpha: Exponent of priorities: 0 for uniform sampling, 1 for proportional sampling.
///     beta: Exponent of the weights: 0 for no correction of the bias, 1 for full correction.
///         Usually it is increased to 1 over a run.
///
/// Raises:
///     ValueError: A size is 0, or `alpha` or `beta` is outside of [0, 1].
///     MemoryError: The buffer does not fit into memory; the message has its size in bytes.
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
    /// Last `alpha` and `beta` of the caller, as bits of f64. The core stores them as f32.
    exact: [AtomicU64; 2],
}

impl PrioritizedReplayBuffer {
    fn with_alpha_beta(alpha_beta: [f64; 2]) -> Self {
        Self { exact: alpha_beta.map(|number| AtomicU64::new(number.to_bits())) }
    }

    /// Returns the caller's value or, after `load`, the shortest number that rounds to `stored`.
    fn exact_value(&self, index: usize, stored: f32) -> f64 {
        let exact = f64::from_bits(self.exact[index].load(Ordering::Relaxed));
        if exact as f32 == stored { exact } else { stored.to_string().parse().unwrap_or_else(|_| stored.into()) }
    }
}

/// Returns the sampler of a buffer with priorities.
fn sampler(buffer: &Replay<AnySampler>) -> Result<&Prioritized> {
    match buffer.sampler() {
        AnySampler::Prioritized(sampler) => Ok(sampler),
        AnySampler::Uniform(_) | AnySampler::Hindsight(_) => Err(no_priorities()),
    }
}

/// Returns the error for a finite priority that is too large for float32; `None` if there is none.
fn too_large(object: &Bound<'_, PyAny>, priorities: &[f32]) -> Option<PyErr> {
    let index = priorities.iter().position(|priority| !(0.0..=f32::MAX).contains(priority))?;
    let read = argument::<f64>("priorities", object, &REAL).and_then(|numbers| numbers.read(false)).ok()?;
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

    /// Sample transitions by priority.
    ///
    /// The batch is in ascending order of the transitions' rows in the storage.
    ///
    /// Args:
    ///     batch_size: B, at most the number of stored transitions.
    ///     seed: An integer or a numpy.random.Generator for this sample; None for the buffer's
    ///         stream.
    ///     beta: New value of `beta`, set before sampling. Samples of other threads wait meanwhile.
    ///     out: Result of an earlier sample of B transitions, whose arrays are overwritten.
    ///
    /// Returns:
    ///     The arrays of `ReplayBuffer.sample`, `weights` (B,) float32, and `indices` (B,) int64.
    ///     An index is a transition's number in the order of pushing, from 0, for
    ///     `update_priorities`.
    ///
    /// Raises:
    ///     ValueError: `batch_size` is 0 or exceeds the number of stored transitions, or arrays in
    ///         `out` do not match.
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
            slf.get().exact[1].store(beta.to_bits(), Ordering::Relaxed);
        }
        Ok(batch)
    }

    /// Set new priorities of transitions.
    ///
    /// Args:
    ///     indices: `indices` of a sample, (B,). Transitions that newer ones have replaced are
    ///         skipped. If an index occurs several times, the last priority counts.
    ///     priorities: (B,), usually absolute temporal-difference errors. A small constant is
    ///         added, so that no priority is 0.
    ///
    /// Raises:
    ///     ValueError: Lengths differ, an index was never assigned, or a priority is negative or
    ///         not finite. No priority has changed.
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
        expect_shape_or("indices", indices.shape(), (count, &[]), "pass the one-dimensional indices of a sample")?;
        expect_shape_or("priorities", priorities.shape(), (count, &[]), "pass one priority per index")?;
        let number = |index: &i64| {
            usize::try_from(*index).map_err(|_| {
                value_error(
                    "indices",
                    "non-negative numbers of transitions",
                    &index.to_string(),
                    "pass the indices of a sample",
                )
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

    /// Read a buffer that `save` wrote. The new buffer continues exactly like the saved one.
    ///
    /// Raises:
    ///     CorruptFileError: The data is damaged, incomplete or not a buffer; the error names the
    ///         file and the section.
    ///     ValueError: The buffer is of another class, or a newer version of rlox wrote it.
    ///     OSError: `path` does not exist (FileNotFoundError), or the system reports an error.
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

    /// Exponent of priorities.
    #[getter]
    fn alpha(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let stored = slf.as_super().get().buffer.inner.read(slf.py(), false, |buffer| Ok(sampler(buffer)?.alpha()))?;
        Ok(slf.get().exact_value(0, stored))
    }

    /// Exponent of the weights. `sample(beta=...)` sets it.
    #[getter]
    fn beta(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let stored = slf.as_super().get().buffer.inner.read(slf.py(), false, |buffer| Ok(sampler(buffer)?.beta()))?;
        Ok(slf.get().exact_value(1, stored))
    }
}
