//! The class `MmapReplayBuffer`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::MmapReplayBuffer as Core;

use super::buffer::{Buffer, Transition, rng_or_os_entropy};
use super::saving::{arrays_of, parse_fields_and_rng, parse_path};
use super::schema::make_schema;
use crate::convert::args::size;
use crate::error::to_py;
use crate::sync::gil::detach;

/// Persistent replay buffer with uniform sampling, in a file that may be larger than memory.
///
/// The newest rows stay in memory. Rows are written to the file in batches before they leave
/// memory. `flush()`, `close()` and the end of a `with` block write all rows to the disk. After a
/// crash, `open` finds every flushed row that newer rows have not replaced. Each row has a
/// checksum, which every read from the file checks. While a buffer is open, no other buffer can
/// open its file, and a forked process cannot use the buffer. Any number of threads can sample at
/// the same time. A push waits for running samples, and a sample waits for earlier pushes and
/// flushes.
///
/// Args:
///     hot_capacity: Number of the newest transitions that stay in memory.
///     total_capacity: Maximum number of transitions; new transitions replace the oldest.
///     obs_dim: Number of elements of an observation, or its shape. For Dict observations,
///         {name: shape} or {name: (shape, dtype)}.
///     act_dim: Number of elements of an action, or its shape; () for Discrete.
///     cold_path: Path of the new file, which must not exist; use `open` for an existing file.
///     obs_dtype, act_dtype: Any form that `numpy.dtype` accepts of "float32", "float64", "int64",
///         "uint8" or "bool".
///     extra: Further fields of each step: {name: (shape, dtype)}.
///     seed: Seed of the buffer's random stream, for samples without a seed; None for system
///         entropy.
///
/// Raises:
///     ValueError: A size is 0, `hot_capacity` exceeds `total_capacity`, or a dtype is unknown.
///     MemoryError: The newest `hot_capacity` rows do not fit into memory; the message has their
///         size.
///     OSError: `cold_path` exists (FileExistsError), or the system reports an error.
///
/// >>> import os, tempfile, rlox
/// >>> folder = tempfile.TemporaryDirectory()
/// >>> path = os.path.join(folder.name, "replay")
/// >>> with rlox.MmapReplayBuffer(100, 10_000, obs_dim=2, act_dim=1, cold_path=path) as buffer:
/// ...     for i in range(1000):
/// ...         buffer.push([i, 0.0], [1.0], 0.5, False, False, next_obs=[i + 1, 0.0])
/// >>> buffer = rlox.MmapReplayBuffer.open(path)
/// >>> obs = buffer.sample(32, seed=7).get("obs")
/// >>> len(buffer), obs.shape
/// (1000, (32, 2))
/// >>> buffer.close()
/// >>> folder.cleanup()
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct MmapReplayBuffer {
    buffer: Buffer<Core>,
}

impl Drop for MmapReplayBuffer {
    fn drop(&mut self) {
        // Closing writes unflushed rows without blocking other threads. If it fails, or the
        // interpreter has ended, the drop of the fields tries again.
        let _ = Python::try_attach(|py| self.buffer.close(py, |_| Ok(())));
    }
}

/// Converts Python's None to `None`, for which the core has an error.
fn none_to_option<'a, 'py>(object: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyAny>> {
    (!object.is_none()).then_some(object)
}

#[pymethods]
impl MmapReplayBuffer {
    #[new]
    #[pyo3(signature = (hot_capacity, total_capacity, obs_dim, act_dim, cold_path, *, obs_dtype=None, act_dtype=None, extra=None, seed=None),
        text_signature = "(hot_capacity, total_capacity, obs_dim, act_dim, cold_path, *, obs_dtype='float32', act_dtype='float32', extra=None, seed=None)")]
    fn new(
        py: Python<'_>,
        hot_capacity: &Bound<'_, PyAny>,
        total_capacity: &Bound<'_, PyAny>,
        obs_dim: &Bound<'_, PyAny>,
        act_dim: &Bound<'_, PyAny>,
        cold_path: &Bound<'_, PyAny>,
        obs_dtype: Option<&Bound<'_, PyAny>>,
        act_dtype: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (hot, total) = (size("hot_capacity", hot_capacity)?, size("total_capacity", total_capacity)?);
        let schema = make_schema([obs_dim, act_dim], [obs_dtype, act_dtype], extra, 1)?;
        let (path, rng) = (parse_path("cold_path", cold_path)?, rng_or_os_entropy(seed)?);
        let core = detach(py, || Core::create(path, hot, total, schema)).map_err(to_py)?;
        Ok(Self { buffer: Buffer::from_backend(py, core, rng, "MmapReplayBuffer") })
    }

    /// Open the file of an earlier buffer, to sample from it and to add transitions.
    ///
    /// Args:
    ///     path: Path of the file.
    ///     hot_capacity: Number of the newest transitions that stay in memory; None for the number
    ///         in the file.
    ///     seed: Seed of the buffer's random stream; None for system entropy.
    ///
    /// Raises:
    ///     CorruptFileError: The file is damaged, truncated or not a replay buffer; the error names
    ///         the section. Rows outside of memory are checked only when they are sampled, or by
    ///         `verify`.
    ///     ClosedError: Another buffer has opened the file.
    ///     OSError: The file does not exist (FileNotFoundError), or the system reports an error.
    ///     ValueError: `hot_capacity` is 0 or exceeds the total capacity, or the file's format is
    ///         newer.
    #[staticmethod]
    #[pyo3(signature = (path, hot_capacity=None, seed=None))]
    fn open(
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        hot_capacity: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let hot = hot_capacity.map(|hot| size("hot_capacity", hot)).transpose()?;
        let (path, rng) = (parse_path("path", path)?, rng_or_os_entropy(seed)?);
        let core = detach(py, || Core::open(path, hot)).map_err(to_py)?;
        Ok(Self { buffer: Buffer::from_backend(py, core, rng, "MmapReplayBuffer") })
    }

    /// Add one transition.
    ///
    /// Args:
    ///     obs: The observation, (*obs_shape); a dict of arrays for Dict observations.
    ///     action: The action, (*act_shape).
    ///     reward: The reward.
    ///     terminated: True if the environment reached a terminal state.
    ///     truncated: True if the episode was cut off, for example by a time limit.
    ///     next_obs: The observation after the step. At an episode's end, this is the final
    ///         observation, not the one after the reset.
    ///     extra: Values of the extra fields, by name.
    ///
    /// Raises:
    ///     ValueError: A shape is wrong, a number is not finite, or `next_obs` is None. Nothing is
    ///         stored.
    ///     OSError: The disk is full or fails while earlier rows are written. The transition is not
    ///         stored, and the next push tries to write these rows again.
    #[pyo3(signature = (obs, action, reward, terminated, truncated, next_obs, *, extra=None))]
    fn push(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        action: &Bound<'_, PyAny>,
        reward: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let next_obs = none_to_option(next_obs);
        self.buffer.push(py, Transition { obs, action, reward, terminated, truncated, next_obs, extra })
    }

    /// Add any number of transitions.
    ///
    /// Args:
    ///     obs: The observations, (B, *obs_shape).
    ///     next_obs: The observations after the steps: the final observation at an episode's end.
    ///     actions: The actions, (B, *act_shape).
    ///     rewards, terminated, truncated: (B,).
    ///     extra: Values of the extra fields, by name, (B, ...).
    ///
    /// Raises:
    ///     ValueError: A shape is wrong, a number is not finite, or `next_obs` is None. Nothing is
    ///         stored.
    ///     OSError: The disk is full or fails. Nothing is stored, except that the first rows of a
    ///         batch larger than `hot_capacity` may be; the message has their number.
    ///     KeyboardInterrupt: Ctrl-C was pressed, with the same effect; see `len(buffer)`.
    #[pyo3(signature = (obs, next_obs, actions, rewards, terminated, truncated, *, extra=None))]
    fn push_batch(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (action, reward, next_obs) = (actions, rewards, none_to_option(next_obs));
        self.buffer.push_batch(py, Transition { obs, action, reward, terminated, truncated, next_obs, extra }, false)
    }

    /// Sample transitions uniformly, with replacement.
    ///
    /// Args:
    ///     batch_size: B, at most the number of stored transitions.
    ///     seed: An integer or a numpy.random.Generator for this sample; None for the buffer's
    ///         stream.
    ///     out: Result of an earlier sample of B transitions, whose arrays are overwritten.
    ///
    /// Returns:
    ///     The same arrays as `ReplayBuffer.sample`.
    ///
    /// Raises:
    ///     ValueError: `batch_size` is 0 or exceeds the number of stored transitions, or arrays in
    ///         `out` do not match.
    ///     CorruptFileError: A transition in the file is damaged; the error has its index. `out` is
    ///         unchanged.
    #[pyo3(signature = (batch_size, seed=None, *, out=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        batch_size: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.buffer.sample(py, batch_size, seed, out, None)
    }

    /// Write all transitions to the disk, so that they survive a crash.
    ///
    /// Raises:
    ///     OSError: The disk is full or fails. No transition is lost, and the next flush tries
    ///         again.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.buffer.inner.write(py, true, Core::flush)
    }

    /// Read and checks the complete file.
    ///
    /// Raises:
    ///     CorruptFileError: The file is damaged; the error names the section.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        self.buffer.inner.read(py, true, Core::verify)
    }

    /// Flush the buffer and return a reference to its file, for checkpoints.
    ///
    /// The reference is a dict of arrays: the file's path and id, the number of pushed transitions,
    /// a number that identifies these transitions, and the state of the buffer's random stream. The
    /// transitions stay in the file.
    ///
    /// Raises:
    ///     OSError: The disk is full or fails.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = self.buffer.inner.write(py, true, |buffer| {
            let mut fields = buffer.state()?;
            fields.push(self.buffer.stream()?);
            Ok(fields)
        })?;
        arrays_of(py, fields)
    }

    /// Restore the state that `state` referred to.
    ///
    /// The reference must be to this buffer's file, which may have been moved since. Transitions
    /// that were pushed after the call of `state` are removed, also from the file. Pushes and
    /// samples then continue exactly as after the call of `state`.
    ///
    /// Args:
    ///     arrays: The result of `state`.
    ///
    /// Raises:
    ///     ValueError: The reference is to another file, or the file no longer has all referenced
    ///         transitions. The buffer is unchanged.
    ///     OSError: The disk is full or fails. Some of the later transitions may be removed.
    ///     KeyboardInterrupt: Ctrl-C was pressed, with the same effect; see `len(buffer)`.
    fn load_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        let (fields, rng) = parse_fields_and_rng(arrays)?;
        self.buffer.inner.write(py, true, |buffer| {
            buffer.load_state(&fields)?;
            self.buffer.set_stream(rng)
        })
    }

    /// Flush and close the file; every later call raises `ClosedError`.
    ///
    /// Closing twice, or in two threads at once, does nothing.
    ///
    /// Raises:
    ///     OSError: The disk is full or fails; the buffer stays open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // If all rows are flushed, the file is not accessed, so that even a damaged file can be
        // closed.
        self.buffer.close(py, |buffer| if buffer.is_flushed() { Ok(()) } else { buffer.flush() })
    }

    /// True if the buffer is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.buffer.inner.is_closed(py)
    }

    /// Maximum number of transitions.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.inner.read(py, false, |buffer| Ok(buffer.capacity()))
    }

    /// Number of the newest transitions that stay in memory.
    #[getter]
    fn hot_capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.inner.read(py, false, |buffer| Ok(buffer.hot_capacity()))
    }

    /// Bytes of memory in use, including memory that later samples reuse.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.nbytes(py, Core::memory)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.len(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        if self.closed(py).unwrap_or(false) {
            return "MmapReplayBuffer(closed)".to_owned();
        }
        let hot = self.hot_capacity(py).ok().map(|hot| ("hot_capacity", hot.to_string()));
        self.buffer.format_repr(py, "MmapReplayBuffer", hot.as_slice())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
