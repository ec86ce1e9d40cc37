//! The class `RolloutBuffer`: Python access to `rlox_core::RolloutBuffer`, with fields as arrays.

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use rlox_core::{
    RolloutBuffer as Core,
    field::{DType, FieldData},
    interrupt::InterruptCheck,
    rollout::Transition,
};

use crate::alloc::{try_collect, try_map};
use crate::convert::args::{
    INTEGER, Input, REAL, argument, count, expect_shape, index, instance, numbers, shape, short_repr, switches, text,
};
use crate::convert::array::FieldMemory;
use crate::convert::flags::{Flags, flag_argument};
use crate::convert::observation::{ObsArgument, ObsInput, Owned, dtype_of};
use crate::convert::options::{extra_of, try_to_string};
use crate::convert::policy_output::PolicyStepArgument;
use crate::error::{to_py, value_error};
use crate::normalize::normalizer_of;
use crate::sync::cell::GuardedCell;
use crate::sync::gil::detach;
use crate::sync::interrupt::poll_interrupt;

/// Number of elements per step above which a call releases the GIL, because it may take over 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 2048;

/// Storage for one rollout: `n_steps` (T) steps of `num_envs` (N) environments.
///
/// Each field is an attribute: an array (T, N, ...) that shares the buffer's memory.
/// `torch.from_numpy` shares this memory, too. The next rollout overwrites it. The fields are:
///
/// ==================================== ================== =============================================
/// obs                                  (T, N, *obs_shape) observations that the policy received
/// last_obs                             (N, *obs_shape)    observations after the last step
/// actions                              (T, N, *action_shape)
/// log_probs, values, rewards           (T, N) float32     rewards: normalised if there is a normaliser
/// terminated, truncated                (T, N) bool        two separate flags
/// valid                                (T, N) bool        False for steps that only reset (NEXT_STEP)
/// final_values, advantages, returns    (T, N) float32     computed by `finish`
/// ==================================== ================== =============================================
///
/// Before `finish`, reading `advantages` or `returns` raises ValueError, because the memory still
/// holds numbers of an earlier rollout. Two attributes are copies. `final_index` has the indices
/// `t * N + n` of the steps at which an episode was truncated and not terminated. `final_obs` has
/// the last observations of these episodes.
///
/// Args:
///     n_steps: T, at least 1.
///     num_envs: N, at least 1.
///     obs_shape: Shape of one observation.
///     action_shape: Shape of one action; () for Discrete.
///     action_dtype: "int64" or "float32".
///     obs_dtype: "float32", "float64", "int64", "uint8" or "bool". Native environments return
///         float32. Observations of other environments are stored in this dtype. Only float32
///         observations can be normalised.
///     extra: Further fields, {name: (shape, dtype)}. `field(name)` returns them.
///
/// Raises:
///     ValueError: A size is 0, a dtype is unknown, or a name is used twice.
///     MemoryError: The buffer does not fit into memory; the message has its size.
///
/// >>> import rlox
/// >>> env = rlox.VecEnv(n=2, seed=0, env_id="CartPole-v1")
/// >>> buffer = rlox.RolloutBuffer(3, 2, (4,))
/// >>> env.begin_rollout(buffer)
/// >>> for t in range(3):
/// ...     env.step_rollout(buffer, t, [0, 1], log_probs=[-0.7, -0.7], values=[0.0, 0.0])
/// >>> buffer.finish(last_values=[0.0, 0.0], gamma=1.0, gae_lambda=1.0)
/// >>> buffer.returns[0]
/// array([3., 3.], dtype=float32)
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct RolloutBuffer {
    pub(crate) inner: GuardedCell<Core>,
    #[pyo3(get)]
    pub(crate) n_steps: usize,
    #[pyo3(get)]
    pub(crate) num_envs: usize,
    obs_shape: Vec<usize>,
    pub(crate) action_shape: Vec<usize>,
    pub(crate) discrete: bool,
    obs_dtype: DType,
    pub(crate) fields: Vec<(String, FieldMemory)>,
    pub(crate) long: bool,
}

impl RolloutBuffer {
    /// Returns a field as an array `(T, N, ...)` that shares the buffer's memory.
    fn field_view<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        Ok(this.memory_of(name)?.view(0, &[this.n_steps, this.num_envs], slf.clone().into_any()))
    }

    /// Returns a field that `finish` computes, or an error before `finish`.
    fn finished_field_view<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if !slf.get().inner.with(slf.py(), false, |buffer| Ok(buffer.is_finished()))? {
            return Err(value_error(name, "a finished rollout", "an unfinished rollout", "call finish first"));
        }
        Self::field_view(slf, name)
    }

    fn memory_of(&self, name: &str) -> PyResult<&FieldMemory> {
        let known = || self.fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let unknown =
            || value_error("name", &format!("one of {}", known()), &format!("{name:?}"), "use the name of a field");
        self.fields.iter().find(|(field, _)| field == name).map(|(_, memory)| memory).ok_or_else(unknown)
    }
}

#[pymethods]
impl RolloutBuffer {
    #[new]
    #[pyo3(signature = (n_steps, num_envs, obs_shape, action_shape=None, *, action_dtype=None, obs_dtype=None, extra=None),
        text_signature = "(n_steps, num_envs, obs_shape, action_shape=None, *, action_dtype='int64', obs_dtype='float32', extra=None)")]
    fn new(
        py: Python<'_>,
        n_steps: &Bound<'_, PyAny>,
        num_envs: &Bound<'_, PyAny>,
        obs_shape: &Bound<'_, PyAny>,
        action_shape: Option<&Bound<'_, PyAny>>,
        action_dtype: Option<&Bound<'_, PyAny>>,
        obs_dtype: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (n_steps, num_envs) = (count("n_steps", n_steps)?, count("num_envs", num_envs)?);
        let obs_shape = shape("obs_shape", obs_shape)?;
        let action_shape = action_shape.map_or_else(|| Ok(Vec::new()), |object| shape("action_shape", object))?;
        let dtype = |name, dtype_object: Option<&Bound<'_, PyAny>>, default| match dtype_object {
            Some(object) => dtype_of(name, object),
            None => Ok(default),
        };
        let parsed_dtype = dtype("action_dtype", action_dtype, DType::I64)?;
        if let (Some(object), DType::F64 | DType::U8 | DType::Bool) = (action_dtype, parsed_dtype) {
            let fix = "use int64 for Discrete, MultiDiscrete and MultiBinary actions, float32 for Box";
            return Err(value_error("action_dtype", "int64 or float32", &short_repr(object), fix));
        }
        let action_dtype = parsed_dtype;
        let obs_dtype = dtype("obs_dtype", obs_dtype, DType::F32)?;
        let extra = extra_of(extra)?;
        let mut interrupt = InterruptCheck::default();
        let core = detach(py, || {
            let core = Core::new(n_steps, num_envs, (&obs_shape, obs_dtype), (&action_shape, action_dtype))?;
            extra.iter().enumerate().try_fold(core, |core, (i, (name, shape, dtype))| {
                poll_interrupt(&mut interrupt, i)?;
                core.with_field(name, shape, *dtype)
            })
        });
        let mut core = core.map_err(to_py)?;
        let names = core.fields().map(|field| try_to_string(field.name()));
        let count = core.fields().count();
        let names = try_collect(count, names)?;
        let fields = names.into_iter().enumerate().filter_map(|(i, name)| {
            let memory = FieldMemory::find(&mut core, &name)?;
            Some(poll_interrupt(&mut interrupt, i).map_err(to_py).map(|()| (name, memory)))
        });
        let fields = try_collect(count, fields)?;
        let long = num_envs * (8 + obs_shape.iter().product::<usize>()) > DETACH_ABOVE_ELEMENTS;
        let discrete = action_dtype == DType::I64;
        let inner = GuardedCell::new("RolloutBuffer", core);
        Ok(Self { inner, n_steps, num_envs, obs_shape, action_shape, discrete, obs_dtype, fields, long })
    }

    /// Index of the next step, from 0; `n_steps` for a full rollout.
    #[getter]
    fn next_step(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, false, |buffer| Ok(buffer.next_step()))
    }

    /// Return a field as an array (T, N, ...) that shares the buffer's memory.
    ///
    /// Unlike the attributes, this method also returns `advantages` and `returns` before `finish`.
    fn field<'py>(slf: &Bound<'py, Self>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, &text("name", name)?)
    }

    /// Observations that the policy received, (T, N, *obs_shape).
    #[getter]
    fn obs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "obs")
    }

    /// Actions, (T, N, *action_shape); Discrete actions count from 0.
    #[getter]
    fn actions<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "actions")
    }

    /// Log-probabilities of the actions, (T, N).
    #[getter]
    fn log_probs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "log_probs")
    }

    /// Value estimates of the observations, (T, N).
    #[getter]
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "values")
    }

    /// Rewards, (T, N); normalised if a normaliser is used.
    #[getter]
    fn rewards<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "rewards")
    }

    /// True where the environment reached a terminal state, (T, N).
    #[getter]
    fn terminated<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "terminated")
    }

    /// True where the episode was cut off, for example by a time limit, (T, N).
    #[getter]
    fn truncated<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "truncated")
    }

    /// False where a step only reset the environment, as in autoreset mode NEXT_STEP, (T, N).
    ///
    /// Such a row is not a transition. Its reward, flags and advantage are 0, and learners skip it.
    #[getter]
    fn valid<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "valid")
    }

    /// Number of transitions stored so far, without the rows where `valid` is False.
    #[getter]
    fn n_transitions(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, false, |buffer| Ok(buffer.transitions()))
    }

    /// Values of the final observations where an episode was truncated, 0 elsewhere, (T, N).
    #[getter]
    fn final_values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::field_view(slf, "final_values")
    }

    /// Advantages, (T, N). Reading them before `finish` raises ValueError.
    #[getter]
    fn advantages<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::finished_field_view(slf, "advantages")
    }

    /// Returns (value targets), (T, N). Reading them before `finish` raises ValueError.
    #[getter]
    fn returns<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::finished_field_view(slf, "returns")
    }

    /// Observations after the last step, (N, *obs_shape).
    #[getter]
    fn last_obs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let first = this.n_steps * this.num_envs;
        Ok(this.memory_of("obs")?.view(first, &[this.num_envs], slf.clone().into_any()))
    }

    /// Indices `t * N + n` of steps at which an episode was truncated and not terminated, (K,).
    #[getter]
    fn final_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let index = self.inner.with(py, false, |buffer| try_map(buffer.final_index(), |i| i as i64))?;
        Ok(index.into_pyarray(py))
    }

    /// Last observations of these truncated episodes, as ordered in `final_index`, (K, *obs_shape).
    #[getter]
    fn final_obs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (rows, data) =
            self.inner.with(py, false, |b| Ok((b.final_index().len(), Owned::copy_from(b.final_obs())?)))?;
        data.into_array(py, &[&[rows], &self.obs_shape[..]].concat())
    }

    /// Start a rollout of environments that Python code steps, from their current observations.
    ///
    /// Args:
    ///     obs: Observations before normalisation, (N, *obs_shape). Numbers of other dtypes are
    ///         converted to the buffer's dtype if they are within its range.
    ///     is_new: True if the observations come from a reset. The normaliser then counts them.
    ///     normalizer: A `Normalizer`, or None.
    ///     ended: bool (N,), for environments in autoreset mode NEXT_STEP: True where the episode
    ///         has ended, so that the next step only resets the environment. None for environments
    ///         that reset in the step that ends an episode.
    ///
    /// Raises:
    ///     TypeError: Observations do not fit the kind of the buffer's dtype: real numbers in place
    ///         of integers, or numbers in place of booleans.
    ///     ValueError: A shape is wrong, an observation is NaN or infinite, or a number is outside
    ///         the range of the dtype.
    #[pyo3(signature = (obs, is_new=true, normalizer=None, ended=None))]
    fn begin(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = switches::is_new)] is_new: bool,
        normalizer: Option<&Bound<'_, PyAny>>,
        ended: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let normalizer = normalizer_of(normalizer)?;
        let obs = ObsArgument::new("obs", obs, self.obs_dtype)?;
        let ended = ended.map(|flags| flag_argument("ended", flags)).transpose()?;
        let obs = obs.read_for(&self.fields)?;
        let ended = ended.map(|flags| flags.read(py, false)).transpose()?;
        expect_shape("obs", obs.shape(), self.num_envs, &self.obs_shape)?;
        if let Some(ended) = &ended {
            expect_shape("ended", ended.shape(), self.num_envs, &[])?;
        }
        let (obs, ended) = (obs.get(), ended.as_ref().map(Flags::slice));
        self.inner.with(py, self.long, |buffer| match normalizer {
            Some(normalizer) => {
                normalizer.inner.enter(|normalizer| buffer.begin_with(obs, is_new, ended, Some(normalizer)))
            }
            None => buffer.begin_with(obs, is_new, ended, None),
        })
    }

    /// Store step `t` of environments that Python code steps: policy output and step results.
    ///
    /// Args:
    ///     t: Index of the next step, from 0.
    ///     actions: (N, *action_shape).
    ///     log_probs: Log-probabilities of the actions, (N,).
    ///     values: Value estimates of the observations, (N,).
    ///     next_obs: Observations that `step` returned, (N, *obs_shape); converted as in `begin`.
    ///     rewards, terminated, truncated: Results of `step` before normalisation, (N,).
    ///     final_obs: Last observations of ended episodes, (N, *obs_shape). Only rows that are
    ///         truncated and not terminated are read. None is allowed if there is no such row. None
    ///         is also allowed in mode NEXT_STEP, where `next_obs` contains the final observations.
    ///     normalizer: A `Normalizer`, or None.
    ///
    /// Raises:
    ///     TypeError: Observations do not fit the kind of the buffer's dtype, as in `begin`.
    ///     ValueError: `t` is not the next step, a shape is wrong, a number is NaN or infinite, or
    ///         a number is outside the range of the dtype. The step is not stored.
    #[pyo3(signature = (t, actions, log_probs, values, next_obs, rewards, terminated, truncated, final_obs=None, normalizer=None))]
    fn record(
        &self,
        py: Python<'_>,
        t: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        log_probs: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        final_obs: Option<&Bound<'_, PyAny>>,
        normalizer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let normalizer = normalizer_of(normalizer)?;
        let t = index("t", t)?;
        let policy_step = PolicyStepArgument::new(actions, log_probs, values, self.discrete)?;
        let next_obs = ObsArgument::new("next_obs", next_obs, self.obs_dtype)?;
        let rewards = argument::<f64>("rewards", rewards, &REAL)?;
        let terminated = flag_argument("terminated", terminated)?;
        let truncated = flag_argument("truncated", truncated)?;
        let final_obs = final_obs.map(|array| ObsArgument::new("final_obs", array, self.obs_dtype)).transpose()?;

        let policy_step = policy_step.read(&self.fields, self.num_envs, &self.action_shape)?;
        let policy_step = policy_step.get();
        let next_obs = next_obs.read_for(&self.fields)?;
        let rewards = rewards.read(false)?.copy_if_overlapping(&self.fields)?;
        let terminated = terminated.read(py, false)?;
        let truncated = truncated.read(py, false)?;
        let final_obs = final_obs.map(|array| array.read_for(&self.fields)).transpose()?;
        expect_shape("next_obs", next_obs.shape(), self.num_envs, &self.obs_shape)?;
        expect_shape("rewards", rewards.shape(), self.num_envs, &[])?;
        expect_shape("terminated", terminated.shape(), self.num_envs, &[])?;
        expect_shape("truncated", truncated.shape(), self.num_envs, &[])?;
        if let Some(final_obs) = &final_obs {
            expect_shape("final_obs", final_obs.shape(), self.num_envs, &self.obs_shape)?;
        }
        let transition = Transition {
            next_obs: next_obs.get(),
            rewards: rewards.slice(),
            terminated: terminated.slice(),
            truncated: truncated.slice(),
            final_obs: final_obs.as_ref().map_or(FieldData::F32(&[]), ObsInput::get),
        };
        self.inner.with(py, self.long, |buffer| match normalizer {
            Some(normalizer) => {
                normalizer.inner.enter(|normalizer| buffer.record(t, policy_step, transition, Some(normalizer)))
            }
            None => buffer.record(t, policy_step, transition, None),
        })
    }

    /// Compute `advantages` and `returns` of a full rollout (see `rlox.compute_gae`).
    ///
    /// Args:
    ///     last_values: Values of `last_obs`, (N,).
    ///     gamma, gae_lambda: Discount factor and lambda of GAE, in [0, 1].
    ///     final_values: Values of `final_obs`, (K,); None if K is 0.
    ///
    /// Raises:
    ///     ValueError: The rollout is not full, a length is wrong, or a factor is outside [0, 1].
    #[pyo3(signature = (last_values, gamma, gae_lambda, final_values=None))]
    fn finish(
        &self,
        py: Python<'_>,
        last_values: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
        #[pyo3(from_py_with = numbers::gae_lambda)] gae_lambda: f64,
        final_values: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let last = argument::<f32>("last_values", last_values, &REAL)?;
        let finals = final_values.map(|values| argument::<f32>("final_values", values, &REAL)).transpose()?;
        let last = last.read(false)?.copy_if_overlapping(&self.fields)?;
        let finals = finals.map(|values| values.read(false)?.copy_if_overlapping(&self.fields)).transpose()?;
        let (last, finals) = (last.slice(), finals.as_ref().map_or(&[][..], Input::slice));
        let long = self.n_steps * self.num_envs > 4096;
        self.inner.with(py, long, |buffer| buffer.finish(last, finals, gamma, gae_lambda))
    }
}

/// Raise the error that `buffer.begin` and `buffer.record` would raise for a normaliser.
#[pyfunction]
pub(crate) fn check_normalizer(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    normalizer: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let Some(normalizer) = normalizer_of(normalizer)? else { return Ok(()) };
    buffer
        .inner
        .with(py, false, |buffer| normalizer.inner.enter(|normalizer| buffer.check_normalizer(Some(normalizer))))
}

/// Raise the error that `buffer.record` would raise for the policy's output.
///
/// Callers check the output before they step the environments.
#[pyfunction]
pub(crate) fn check_step(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    t: &Bound<'_, PyAny>,
    actions: &Bound<'_, PyAny>,
    log_probs: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    normalizer: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    check_normalizer(py, buffer, normalizer)?;
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let t = index("t", t)?;
    let policy_step = PolicyStepArgument::new(actions, log_probs, values, buffer.discrete)?;
    let policy_step = policy_step.read(&buffer.fields, buffer.num_envs, &buffer.action_shape)?;
    let policy_step = policy_step.get();
    buffer.inner.with(py, buffer.long, |buffer| buffer.check_step(t, policy_step, None))
}

/// Return the content of a finished rollout as bytes, for `read_rollout`.
///
/// Args:
///     buffer: A RolloutBuffer after `finish`.
///
/// Returns:
///     uint8 (k,): the fields in a fixed order, then the final observations. Numbers are
///     little-endian.
///
/// Raises:
///     ValueError: The rollout is not finished.
///     MemoryError: The bytes do not fit into memory.
///
/// >>> import rlox
/// >>> from rlox._rlox import read_rollout, write_rollout
/// >>> source, copy = rlox.RolloutBuffer(2, 1, (4,)), rlox.RolloutBuffer(2, 1, (4,))
/// >>> env = rlox.VecEnv(n=1, seed=0)
/// >>> env.begin_rollout(source)
/// >>> for t in range(2):
/// ...     env.step_rollout(source, t, [1], log_probs=[-0.7], values=[0.0])
/// >>> source.finish(last_values=[0.0], gamma=1.0, gae_lambda=1.0)
/// >>> read_rollout(copy, write_rollout(source))
/// >>> bool((copy.obs == source.obs).all()), copy.returns[0]
/// (True, array([2.], dtype=float32))
#[pyfunction]
pub(crate) fn write_rollout<'py>(py: Python<'py>, buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let bytes = buffer.inner.with(py, true, |buffer| {
        let mut bytes = Vec::new();
        buffer.to_bytes(&mut bytes)?;
        Ok(bytes)
    })?;
    Ok(bytes.into_pyarray(py))
}

/// Replace the content of a buffer by a rollout that `write_rollout` converted to bytes.
///
/// Args:
///     buffer: A RolloutBuffer of the same sizes and fields.
///     data: Result of `write_rollout`, uint8 (k,).
///
/// Raises:
///     ValueError: The bytes belong to a rollout of other sizes or fields, or a number is not
///         finite. The buffer is unchanged.
///     MemoryError: The final observations do not fit into memory.
#[pyfunction]
pub(crate) fn read_rollout(py: Python<'_>, buffer: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let data = argument::<u8>("data", data, &INTEGER)?.read(true)?;
    let bytes = data.slice();
    expect_shape("data", data.shape(), bytes.len(), &[])?;
    buffer.inner.with(py, true, |buffer| buffer.load_bytes(bytes))
}
