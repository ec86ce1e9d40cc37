//! `MmapReplayBuffer`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::MmapReplayBuffer as Core;

use super::buffer::{Buffer, Transition, rng_or_os_entropy};
use super::saving::{arrays_of, parse_fields_and_rng, parse_path};
use super::schema::make_schema;
use crate::convert::args::size;
use crate::error::to_py;
use crate::sync::gil::detach;

/// Replay buffer that is larger than memory and outlives its process, with uniform sampling.
///
/// The newest rows stay in memory; all of them go to a file, in batches, before they leave memory. `flush()` has all of
/// them reach the disk; so do `close()` and the end of a `with` block. After a crash `open` finds every row that was
/// flushed and that newer ones have not replaced. Each row has a checksum, which is checked whenever it is read from the
/// file, and while a buffer is open no other one opens its file. A forked process cannot use it. Any number of threads
/// sample at once, from memory and from the file; pushes wait for them, and they for pushes and flushes that came before.
///
/// Args:
///     hot_capacity: How many of the newest transitions stay in memory.
///     total_capacity: How many transitions it holds; the oldest make room for new ones.
///     obs_dim: Numbers in an observation, or its shape; of Dict observations {name: shape} or {name: (shape, dtype)}.
///     act_dim: Numbers in an action, or its shape; () for Discrete.
///     cold_path: Where the file is to be; nothing may be there. What is there already, `open` opens.
///     obs_dtype, act_dtype: "float32", "float64", "int64", "uint8" or "bool", as `numpy.dtype` takes them.
///     extra: What else is stored of each step: {name: (shape, dtype)}.
///     seed: Of the buffer's own random stream, which samples without a seed draw from; None for the system's entropy.
///
/// Raises:
///     ValueError: A size of 0, more in memory than there is, an unknown dtype.
///     MemoryError: What stays in memory does not fit; the bytes it would take are named.
///     OSError: Something is at cold_path (FileExistsError), or the system refuses.
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
        // What is not in the file yet is written, for which other threads need not wait. Where that fails, or the
        // interpreter has ended, it is tried once more as fields are dropped.
        let _ = Python::try_attach(|py| self.buffer.close(py, |_| Ok(())));
    }
}

/// What is not None, which the core refuses in its own words.
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

    /// Opens the file of an earlier buffer, to go on with it.
    ///
    /// Args:
    ///     path: Where the file is.
    ///     hot_capacity: How many of the newest transitions stay in memory; None for as many as it was made with.
    ///     seed: Of the buffer's own random stream; None for the system's entropy.
    ///
    /// Raises:
    ///     CorruptFileError: The file is damaged, cut off or not a replay buffer's; the section is named. Rows that do
    ///         not stay in memory are checked when they are sampled, or by `verify`.
    ///     ClosedError: Another buffer has the file open.
    ///     OSError: There is no such file (FileNotFoundError), or the system refuses.
    ///     ValueError: A hot_capacity of 0 or more than there is, a file of a newer format.
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

    /// Adds a transition.
    ///
    /// Args:
    ///     obs: The observation, (*obs_shape); of Dict observations a dict of arrays.
    ///     action: The action, (*act_shape).
    ///     reward: The reward.
    ///     terminated: The task itself ended.
    ///     truncated: The episode was cut.
    ///     next_obs: The observation after it: of an episode that ended its last, never one after a reset.
    ///     extra: What else the buffer stores, by name.
    ///
    /// Raises:
    ///     ValueError: A wrong shape, numbers that are not finite, no next_obs; nothing is stored then.
    ///     OSError: The disk is full, or fails. This transition is not stored, all former ones are kept, and the next push
    ///         tries again.
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

    /// Adds any number of transitions.
    ///
    /// Args:
    ///     obs: The observations, (B, *obs_shape).
    ///     next_obs: Those after them, of episodes that ended their last.
    ///     actions: The actions, (B, *act_shape).
    ///     rewards, terminated, truncated: (B,).
    ///     extra: What else the buffer stores, by name, (B, ...).
    ///
    /// Raises:
    ///     ValueError: A wrong shape, numbers that are not finite, no next_obs; nothing is stored then.
    ///     OSError: The disk is full, or fails. None of these is stored; of more than stay in memory some may be, and the
    ///         message says how many.
    ///     KeyboardInterrupt: Ctrl-C, as for OSError; `len` tells how many.
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

    /// Samples transitions, each as likely as another, with replacement.
    ///
    /// Args:
    ///     batch_size: B, at most as many as are stored.
    ///     seed: An integer or a numpy.random.Generator that decides the choice; None for the buffer's own stream.
    ///     out: A dict that an earlier sample of B transitions gave, to be overwritten.
    ///
    /// Returns:
    ///     What `ReplayBuffer.sample` gives.
    ///
    /// Raises:
    ///     ValueError: No transitions, more than are stored, arrays in `out` that do not fit.
    ///     CorruptFileError: A transition is damaged in the file; its number is named. `out` stays as it is.
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

    /// Has all transitions reach the disk: after a crash they are there.
    ///
    /// Raises:
    ///     OSError: The disk is full, or fails. Nothing is lost, and the next flush tries again.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.buffer.inner.write(py, true, Core::flush)
    }

    /// Reads and checks the whole file.
    ///
    /// Raises:
    ///     CorruptFileError: Something is damaged; the section is named.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        self.buffer.inner.read(py, true, Core::verify)
    }

    /// A reference to the file, for checkpoints, after a flush: arrays of its path, its id, how many transitions were
    /// pushed, a number that tells them from others that came in their place, and the buffer's own random stream. The
    /// transitions stay where they are.
    ///
    /// Raises:
    ///     OSError: The disk is full, or fails.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = self.buffer.inner.write(py, true, |buffer| {
            let mut fields = buffer.state()?;
            fields.push(self.buffer.stream()?);
            Ok(fields)
        })?;
        arrays_of(py, fields)
    }

    /// Goes back to what a reference to this buffer's file tells of, wherever that lies now: transitions that were pushed
    /// after it are dropped, also from the file, and samples and pushes go on exactly as there.
    ///
    /// Args:
    ///     arrays: What `state` gave.
    ///
    /// Raises:
    ///     ValueError: It is another file's, the file has fewer transitions, so many more that some were overwritten, or others
    ///         in the place of dropped ones; nothing has changed then.
    ///     OSError: The disk is full, or fails. Some of the later transitions may be dropped, the last ones.
    ///     KeyboardInterrupt: Ctrl-C, as for OSError; `len` tells.
    fn load_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        let (fields, rng) = parse_fields_and_rng(arrays)?;
        self.buffer.inner.write(py, true, |buffer| {
            buffer.load_state(&fields)?;
            self.buffer.set_stream(rng)
        })
    }

    /// Flushes, and lets the file go; every later call raises `ClosedError`. Closing twice does nothing, and so does
    /// whoever closes it while another thread does.
    ///
    /// Raises:
    ///     OSError: The disk is full, or fails. The buffer stays open then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // Where there is nothing to be flushed the file stays as it is, be it damaged.
        self.buffer.close(py, |buffer| if buffer.is_flushed() { Ok(()) } else { buffer.flush() })
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.buffer.inner.is_closed(py)
    }

    /// How many transitions it can hold.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.inner.read(py, false, |buffer| Ok(buffer.capacity()))
    }

    /// How many of them stay in memory.
    #[getter]
    fn hot_capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.inner.read(py, false, |buffer| Ok(buffer.hot_capacity()))
    }

    /// Bytes of memory that it takes, with those that samples keep for the next one.
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
