//! Python classes of replay buffers, in memory and in a file.

mod buffer;
pub(crate) mod hindsight;
mod mmap;
pub(crate) mod prioritized;
mod sample;
mod saving;
mod schema;
mod sequences;
mod source;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::{Replay, Uniform};

use crate::convert::args::{numbers, switches};
use buffer::{Buffer, BufferOptions, Transition, make_parts};
pub(crate) use mmap::MmapReplayBuffer;
pub(crate) use saving::{arrays_of, fields_of};
use sequences::SequenceRequest;

/// Replay buffer with uniform sampling, as a ring of transitions.
///
/// A next observation is not stored separately if it equals the observation of the same
/// environment's next row. Frames that consecutive stacked observations have in common are stored
/// once, too. Samples always equal the pushed data. `terminated` and `truncated` are separate
/// flags.
///
/// Any number of threads can sample at the same time. A push waits for running samples, and a
/// sample waits for earlier pushes.
///
/// Args:
///     capacity: Maximum number of transitions; new transitions replace the oldest. With several
///         environments, the number is rounded down to a multiple of `num_envs`, but not below
///         `num_envs`. The attribute `capacity` has the result.
///     obs_dim: Number of elements of an observation, or its shape. For Dict observations,
///         {name: shape} or {name: (shape, dtype)}.
///     act_dim: Number of elements of an action, or its shape; () for Discrete.
///     num_envs: Number of environments that step together. `push_batch` adds one row for each.
///     obs_dtype, act_dtype: Any form that `numpy.dtype` accepts of "float32", "float64", "int64",
///         "uint8" or "bool".
///     frame_stack: Number of frames that observations stack along their first axis, oldest first.
///     n_step: Number of steps that a sampled transition spans, unless the episode ends earlier.
///         `rewards` is then the discounted sum of the rewards, and `discounts` the factor of the
///         next observation's value. `terminated`, `truncated`, `next_obs` and extra fields whose
///         names begin with "next_" are those of the last step. Other fields are those of the first
///         step.
///     gamma: Discount factor per step, used if `n_step` is more than 1.
///     extra: Further fields of each step: {name: (shape, dtype)}.
///     seed: Seed of the buffer's random stream, for samples without a seed; None for system
///         entropy.
///
/// Raises:
///     ValueError: A size is 0, a dtype is unknown, or frames do not divide the first axis.
///     MemoryError: The rows do not fit into memory; the message has their size in bytes. Pushes
///         allocate further memory for next observations that are stored separately, up to the same
///         size again.
///
/// >>> import rlox
/// >>> buffer = rlox.ReplayBuffer(capacity=1000, obs_dim=2, act_dim=1, seed=0)
/// >>> buffer.push([0.0, 0.1], [1.0], 0.5, False, False, next_obs=[0.2, 0.3])
/// >>> buffer.push([0.2, 0.3], [0.0], 1.5, True, False, next_obs=[0.4, 0.5])
/// >>> batch = buffer.sample(2, seed=1)
/// >>> {name: (array.shape, str(array.dtype)) for name, array in batch.items()}  # doctest: +NORMALIZE_WHITESPACE
/// {'obs': ((2, 2), 'float32'), 'next_obs': ((2, 2), 'float32'), 'actions': ((2, 1), 'float32'),
///  'rewards': ((2,), 'float32'), 'terminated': ((2,), 'bool'), 'truncated': ((2,), 'bool')}
#[pyclass(frozen, subclass, module = "rlox._rlox")]
pub(crate) struct ReplayBuffer {
    buffer: Buffer,
}

#[pymethods]
impl ReplayBuffer {
    #[new]
    #[pyo3(signature = (capacity, obs_dim, act_dim, *, num_envs=None, obs_dtype=None, act_dtype=None, frame_stack=None, n_step=None, gamma=0.99, extra=None, seed=None, capacity_name=None),
        text_signature = "(capacity, obs_dim, act_dim, *, num_envs=1, obs_dtype='float32', act_dtype='float32', frame_stack=1, n_step=1, gamma=0.99, extra=None, seed=None)")]
    fn new(
        py: Python<'_>,
        capacity: &Bound<'_, PyAny>,
        obs_dim: &Bound<'_, PyAny>,
        act_dim: &Bound<'_, PyAny>,
        num_envs: Option<&Bound<'_, PyAny>>,
        obs_dtype: Option<&Bound<'_, PyAny>>,
        act_dtype: Option<&Bound<'_, PyAny>>,
        frame_stack: Option<&Bound<'_, PyAny>>,
        n_step: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
        extra: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        capacity_name: Option<&str>,
    ) -> PyResult<Self> {
        let options =
            BufferOptions { num_envs, obs_dtype, act_dtype, frame_stack, n_step, gamma, extra, seed, capacity_name };
        let parts = make_parts(py, [capacity, obs_dim, act_dim], options)?;
        Ok(Self { buffer: Buffer::new(py, parts, Uniform.into(), "ReplayBuffer")? })
    }

    /// Add one transition to a buffer of one environment.
    ///
    /// Args:
    ///     obs: The observation, (*obs_shape); a dict of arrays for Dict observations.
    ///     action: The action, (*act_shape).
    ///     reward: The reward.
    ///     terminated: True if the environment reached a terminal state.
    ///     truncated: True if the episode was cut off, for example by a time limit.
    ///     next_obs: The observation after the step. At an episode's end, this is the final
    ///         observation, not the one after the reset. None is allowed only if the next push is
    ///         the following step of the same environment, whose `obs` is then the next
    ///         observation. The buffer cannot check this condition. If several environments push to
    ///         the buffer in turn, None would combine observations of different environments.
    ///     extra: Values of the extra fields, by name.
    ///
    /// Raises:
    ///     ValueError: A shape is wrong, a number is not finite, or `next_obs` is None at an
    ///         episode's end. Nothing is stored.
    ///     MemoryError: The next observation does not fit into memory; nothing is stored.
    #[pyo3(signature = (obs, action, reward, terminated, truncated, next_obs=None, *, extra=None))]
    fn push(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        action: &Bound<'_, PyAny>,
        reward: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        next_obs: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.buffer.push(py, Transition { obs, action, reward, terminated, truncated, next_obs, extra })
    }

    /// Add one row per environment, or any number of transitions to a buffer of one environment.
    ///
    /// Args:
    ///     obs: The observations, (B, *obs_shape).
    ///     next_obs: The observations after the steps, (B, *obs_shape): the final observation at an
    ///         episode's end. None is allowed as for `push`; several rows of one environment then
    ///         need `in_order`. After a row without `next_obs`, independent rows raise ValueError.
    ///     actions: The actions, (B, *act_shape).
    ///     rewards, terminated, truncated: (B,).
    ///     extra: Values of the extra fields, by name, (B, ...).
    ///     in_order: True if the rows are consecutive steps of the only environment. If False,
    ///         several rows of a buffer of one environment are independent: `n_step` does not sum
    ///         over them, and each row stores its own next observation. A single row is stored as
    ///         by `push`.
    ///
    /// Raises:
    ///     ValueError: A shape is wrong, a number is not finite, or a required `next_obs` is None.
    ///         Nothing is stored.
    ///     MemoryError: Next observations do not fit into memory; nothing is stored.
    ///     KeyboardInterrupt: Ctrl-C was pressed. In a buffer of one environment, the first rows
    ///         may be stored; `len(buffer)` shows their number.
    #[pyo3(signature = (obs, next_obs, actions, rewards, terminated, truncated, *, extra=None, in_order=false))]
    fn push_batch(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        next_obs: Option<&Bound<'_, PyAny>>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = switches::in_order)] in_order: bool,
    ) -> PyResult<()> {
        let (action, reward) = (actions, rewards);
        self.buffer.push_batch(py, Transition { obs, action, reward, terminated, truncated, next_obs, extra }, in_order)
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
    ///     A dict: `obs` and `next_obs` (B, *obs_shape), `actions` (B, *act_shape), `rewards` (B,)
    ///     float32, `terminated` and `truncated` (B,) bool, and the extra fields. With `n_step`,
    ///     also `discounts` (B,) float32. Dict observations are dicts. `torch.from_numpy` shares
    ///     the arrays' memory.
    ///
    /// Raises:
    ///     ValueError: `batch_size` is 0 or exceeds the number of stored transitions, or arrays in
    ///         `out` do not match.
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

    /// Sample sequences of consecutive steps within an episode, for recurrent policies.
    ///
    /// Each sequence has a start: a stored transition, drawn with equal probabilities, even in a
    /// buffer with priorities. The sequence has `length` steps from the start, or fewer if the
    /// episode ends earlier or still runs. `n_step` does not apply: each step is one step of the
    /// environment.
    ///
    /// Args:
    ///     batch_size: B, at most the number of stored transitions.
    ///     length: Maximum number of steps from the start.
    ///     seed: An integer or a numpy.random.Generator for this sample; None for the buffer's
    ///         stream.
    ///     burn_in: Maximum number of steps of the episode before the start, to warm up a recurrent
    ///         state.
    ///     whole_episodes: True to draw complete episodes with equal probabilities. Each start is
    ///         then the first step of an episode. Episodes with more than `length` steps are cut
    ///         off.
    ///     out: Result of an earlier call with the same sizes, whose arrays are overwritten.
    ///
    /// Returns:
    ///     The arrays of `sample` with shape (T, B, ...) and T = burn_in + length. Time is the
    ///     first axis, as in rollouts and torch's recurrent layers. The start is step `burn_in`.
    ///     `mask` (T, B) bool is True for existing steps; the elements of other steps are 0.
    ///     `episode_starts` (T, B) bool is True for the first steps of episodes. `lengths` (B,)
    ///     int64 has the numbers of steps from the starts on. `indices` (B,) int64 has the indices
    ///     of the starts in the order of pushing, from 0.
    ///
    /// Raises:
    ///     ValueError: No transitions or no complete episodes are stored, a size is invalid, or
    ///         `out` does not match.
    ///     MemoryError: The arrays do not fit into memory.
    ///
    /// >>> import rlox
    /// >>> buffer = rlox.ReplayBuffer(capacity=1000, obs_dim=1, act_dim=1)
    /// >>> for t in range(3):
    /// ...     buffer.push([t], [0.0], 1.0, t == 2, False, next_obs=[t + 1])
    /// >>> batch = buffer.sample_sequences(1, 4, whole_episodes=True)
    /// >>> obs, mask = batch.get("obs"), batch.get("mask")
    /// >>> obs.ravel().tolist(), mask.ravel().tolist()
    /// ([0.0, 1.0, 2.0, 0.0], [True, True, True, False])
    #[pyo3(signature = (batch_size, length, seed=None, *, burn_in=None, whole_episodes=false, out=None),
        text_signature = "($self, batch_size, length, seed=None, *, burn_in=0, whole_episodes=False, out=None)")]
    fn sample_sequences<'py>(
        &self,
        py: Python<'py>,
        batch_size: &Bound<'py, PyAny>,
        length: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        burn_in: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = switches::whole_episodes)] whole_episodes: bool,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.buffer.sample_sequences(py, &SequenceRequest { batch_size, length, seed, burn_in, whole_episodes, out })
    }

    /// Return the content of the buffer as a dict of arrays, for `load_state`.
    ///
    /// Returns:
    ///     The fields of the N stored transitions in the order of pushing: `step.obs`,
    ///     `step.actions` and so on, (N, ...). `next.obs` has the next observations that are stored
    ///     separately. Other arrays have the state of pushes and samples. The size depends on the
    ///     number of stored transitions, not on the capacity.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.buffer.state(py)
    }

    /// Restore the state of a buffer with the same constructor arguments.
    ///
    /// Afterwards, the same pushes and samples give the same results in both buffers.
    ///
    /// Args:
    ///     arrays: The result of `state`.
    ///
    /// Raises:
    ///     ValueError: An array is missing, unknown, of another buffer or invalid. The buffer is
    ///         unchanged.
    ///     KeyboardInterrupt: Ctrl-C was pressed. The buffer is unchanged or empty; see
    ///         `len(buffer)`.
    fn load_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        self.buffer.load_state(py, arrays)
    }

    /// Write the buffer to the folder `path`, as a manifest and data with checksums.
    ///
    /// The write is atomic. It replaces an existing buffer or checkpoint.
    ///
    /// Raises:
    ///     OSError: `path` exists and is neither a buffer nor a checkpoint (FileExistsError), or
    ///         the system reports an error. Existing content is unchanged.
    ///
    /// >>> import tempfile, rlox
    /// >>> buffer = rlox.ReplayBuffer(capacity=1000, obs_dim=2, act_dim=1)
    /// >>> buffer.push([0.0, 0.1], [1.0], 0.5, True, False, next_obs=[0.2, 0.3])
    /// >>> with tempfile.TemporaryDirectory() as folder:
    /// ...     buffer.save(folder + "/replay")
    /// ...     again = rlox.ReplayBuffer.load(folder + "/replay")
    /// >>> len(again), again.capacity
    /// (1, 1000)
    fn save(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        self.buffer.save(py, path)
    }

    /// Read a buffer that `save` wrote. The new buffer continues exactly like the saved one.
    ///
    /// Raises:
    ///     CorruptFileError: The data is damaged, incomplete or not a buffer; the error names the
    ///         file and the section.
    ///     ValueError: The buffer is of another class, or a newer version of rlox wrote it.
    ///     OSError: `path` does not exist (FileNotFoundError), or the system reports an error.
    #[staticmethod]
    fn load(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { buffer: Buffer::load(py, path, "ReplayBuffer")? })
    }

    /// Maximum number of transitions, a multiple of `num_envs`.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.inner.read(py, false, |buffer| Ok(buffer.storage().capacity()))
    }

    /// Number of environments that step together.
    #[getter]
    fn num_envs(&self) -> usize {
        self.buffer.num_envs
    }

    /// Bytes of memory in use, including memory that later samples reuse.
    ///
    /// The number grows with pushes whose next observations or first frames are stored separately.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.nbytes(py, Replay::memory)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.len(py)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?.to_string();
        Ok(slf.get().buffer.format_repr(slf.py(), &name, &[]))
    }
}
