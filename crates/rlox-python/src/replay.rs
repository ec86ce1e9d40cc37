//! `ReplayBuffer` and `PrioritizedReplayBuffer`, the core's replay storage with a sampler, and `MmapReplayBuffer`.

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

/// Replay buffer with uniform sampling: a ring of transitions.
///
/// A next observation is stored once where the same environment's next row holds it, and frames that observations stack
/// are stored once; what is sampled is always what was pushed. `terminated` and `truncated` are never merged.
///
/// Any number of threads sample at once. A push waits for samples that have begun, and samples for pushes that came before
/// them.
///
/// Args:
///     capacity: How many transitions it holds; the oldest make room for new ones. Of several environments it is rounded
///         down to whole_episodes rows of all of them, but not to less than one such row: the attribute `capacity` tells.
///     obs_dim: Numbers in an observation, or its shape; of Dict observations {name: shape} or {name: (shape, dtype)}.
///     act_dim: Numbers in an action, or its shape; () for Discrete.
///     num_envs: How many environments step together. Each `push_batch` adds one row for each of them then.
///     obs_dtype, act_dtype: "float32", "float64", "int64", "uint8" or "bool", as `numpy.dtype` takes them.
///     frame_stack: How many frames observations stack along their first axis, oldest first.
///     n_step: Over how many steps a sampled transition goes: rewards are summed, and `discounts` is what the next
///         observation's value counts. They end where an episode does. `terminated`, `truncated` and what comes next are
///         those of the last step, and so are extras whose names begin with "next_"; all others are those of the first.
///     gamma: The discount of a step; used where `n_step` is more than 1.
///     extra: What else is stored of each step: {name: (shape, dtype)}.
///     seed: Of the buffer's own random stream, which samples without a seed draw from; None for the system's entropy.
///
/// Raises:
///     ValueError: A size of 0, an unknown dtype, frames that do not divide the first axis.
///     MemoryError: Its rows do not fit into memory; the bytes they would take are named. What is stored beside them, of
///         rows that stand for themselves as much again, is asked for by pushes.
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

    /// Adds a transition of the only environment.
    ///
    /// Args:
    ///     obs: The observation, (*obs_shape); of Dict observations a dict of arrays.
    ///     action: The action, (*act_shape).
    ///     reward: The reward.
    ///     terminated: The task itself ended.
    ///     truncated: The episode was cut.
    ///     next_obs: The observation after it: of an episode that ended its last, never one after a reset. None only
    ///         where the next push is the environment's next step: it is taken from there. Whether it is cannot be seen:
    ///         several environments that push in turns to a buffer of one would get each other's observations.
    ///     extra: What else the buffer stores, by name.
    ///
    /// Raises:
    ///     ValueError: A wrong shape, numbers that are not finite, no next_obs at an episode's end; nothing is stored then.
    ///     MemoryError: The next observation does not fit beside what the rows take, or will take; nothing is stored then.
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

    /// Adds a row for each environment, or, to a buffer of one, any number of transitions.
    ///
    /// Args:
    ///     obs: The observations, (B, *obs_shape).
    ///     next_obs: Those after them, of episodes that ended their last; or None, as `push` has it: of several rows of
    ///         one environment only with in_order. Rows that stand for themselves are refused after a row without one.
    ///     actions: The actions, (B, *act_shape).
    ///     rewards, terminated, truncated: (B,).
    ///     extra: What else the buffer stores, by name, (B, ...).
    ///     in_order: Whether the rows are steps of the only environment that follow each other. Otherwise rows of a buffer
    ///         of one environment stand for themselves, if they are two or more: several steps are not summed over them, and
    ///         each keeps its own next observation. One row is what `push` takes.
    ///
    /// Raises:
    ///     ValueError: A wrong shape, numbers that are not finite, no next_obs where it is needed; nothing is stored then.
    ///     MemoryError: Next observations do not fit beside what the rows take, or will take; nothing is stored then.
    ///     KeyboardInterrupt: Ctrl-C; of many transitions of one environment the first ones may be stored, as `len` tells.
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

    /// Samples transitions, each as likely as another, with replacement.
    ///
    /// Args:
    ///     batch_size: B, at most as many as are stored.
    ///     seed: An integer or a numpy.random.Generator that decides the choice; None for the buffer's own stream.
    ///     out: A dict that an earlier sample of B transitions gave, to be overwritten.
    ///
    /// Returns:
    ///     `obs` and `next_obs` (B, *obs_shape), `actions` (B, *act_shape), `rewards` (B,) float32, `terminated` and
    ///     `truncated` (B,) bool, what else is stored, and with n_step `discounts` (B,) float32. Dict observations are
    ///     dicts. `torch.from_numpy` shares the arrays' memory.
    ///
    /// Raises:
    ///     ValueError: No transitions, more than are stored, arrays in `out` that do not fit.
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

    /// Samples sequences of steps that follow each other in one episode, for policies that remember.
    ///
    /// Every stored transition is as likely to be a start as another, whatever priorities there are. A sequence goes on from
    /// there for `length` steps, or fewer where the episode ends before or still runs. Steps are single ones whatever
    /// n_step is.
    ///
    /// Args:
    ///     batch_size: B, at most as many as transitions are stored.
    ///     length: The most steps from the start on.
    ///     seed: An integer or a numpy.random.Generator that decides the choice; None for the buffer's own stream.
    ///     burn_in: The most steps of the episode before the start, to bring a recurrent state up to date on.
    ///     whole_episodes: Whether only episodes are sampled of which every step is stored, from the first step on, each as
    ///         likely as another. Of longer ones the first `length` steps come.
    ///     out: A dict that an earlier call with the same sizes gave, to be overwritten.
    ///
    /// Returns:
    ///     What `sample` gives, (T, B, ...) with T = burn_in + length: time first, as rollouts and torch's recurrent
    ///     layers have it. The start is step `burn_in`. `mask` (T, B) bool: which steps there are, the others being
    ///     zeros; `episode_starts` (T, B) bool: the first steps of episodes; `lengths` (B,) int64: how many steps there
    ///     are from the start on; `indices` (B,) int64: the starts' numbers.
    ///
    /// Raises:
    ///     ValueError: No transitions, no whole_episodes episode, sizes that make no sense, arrays in `out` that do not fit.
    ///     MemoryError: They do not fit into memory.
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

    /// Everything that it holds, as arrays by name: what `load_state` of another buffer takes.
    ///
    /// Returns:
    ///     `step.obs`, `step.actions`, ... (N, ...) of the stored transitions in the order of pushing, `next.obs` of next
    ///     observations that are no other transition's, and what says how pushes and samples go on. Only what is stored
    ///     is among them, whatever the capacity.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.buffer.state(py)
    }

    /// Goes back to a state of a buffer that was made with the same arguments: samples and pushes go on exactly as there.
    ///
    /// Args:
    ///     arrays: What `state` gave.
    ///
    /// Raises:
    ///     ValueError: An array is missing, too many, another buffer's or makes no sense; nothing has changed then.
    ///     KeyboardInterrupt: Ctrl-C; the buffer is as it was, or empty, as `len` tells.
    fn load_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        self.buffer.load_state(py, arrays)
    }

    /// Writes the folder `path`: a manifest and what is stored, checksummed, whole_episodes or not at all. A buffer or checkpoint
    /// that is there is replaced.
    ///
    /// Raises:
    ///     OSError: Something else is there (FileExistsError), or the system refuses; what was there stays.
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

    /// Reads what `save` wrote: a buffer that goes on exactly as that one.
    ///
    /// Raises:
    ///     CorruptFileError: Anything in it is damaged, missing or not a buffer's; the file and the section are named.
    ///     ValueError: It is a buffer of another class, or a newer rlox wrote it.
    ///     OSError: Nothing is there (FileNotFoundError), or the system refuses.
    #[staticmethod]
    fn load(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { buffer: Buffer::load(py, path, "ReplayBuffer")? })
    }

    /// How many transitions it can hold: whole_episodes rows of all environments.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.buffer.inner.read(py, false, |buffer| Ok(buffer.storage().capacity()))
    }

    /// How many environments step together.
    #[getter]
    fn num_envs(&self) -> usize {
        self.buffer.num_envs
    }

    /// Bytes of memory so far, with those that samples keep for the next one: more is taken where next observations and
    /// first frames are stored aside.
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
