//! The class `NativeVectorEnv`: a native vectorised environment, wrapped by `rlox.VecEnv`.

use numpy::{IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use rlox_core::{
    Actions, AutoresetMode, EnvSpec, Error, Normalizer as CoreNormalizer, Result, RolloutBuffer as Core, Seeds, Space,
    StepOut, VectorEnv,
    error::check_len,
    interrupt::InterruptCheck,
    vector::{masked_actions, streams_from_array, streams_to_array},
};

use super::Inner;
use super::snapshot::{self, RNG_STATE_LEN};
use crate::alloc::{with_capacity, zeroed};
use crate::convert::args::{INTEGER, argument, expect_shape, index, instance, output};
use crate::convert::array::{empty, new_dict, zeros};
use crate::convert::flags::{Flags, flag_argument};
use crate::convert::options::options_of;
use crate::convert::policy_output::{ActionArgument, PolicyStepArgument};
use crate::convert::seed::{Seeding, seed_of};
use crate::convert::space::space_dict;
use crate::env::make::make;
use crate::env::step_arrays::StepArrays;
use crate::error::to_py;
use crate::normalize::{Normalizer, normalizer_of};
use crate::rollout::RolloutBuffer;
use crate::sync::cell::GuardedCell;
use crate::sync::gil::{detach, is_alone};

/// Number of environments from which on a call releases the GIL.
const DETACH_MIN_ENVS: usize = 128;
/// Number of observation elements from which on a call releases the GIL.
const DETACH_MIN_OBS_ELEMENTS: usize = 4096;

/// Number of floats per environment that a step reserves for Python objects.
///
/// `rlox.VecEnv` makes these objects from the result: a row of the final observations, its index
/// and its flags. The memory is allocated before the step, which cannot be undone, and is freed for
/// the objects afterwards.
const OBJECT_OVERHEAD_FLOATS: usize = 72;

/// Number of environment steps, over all environments, between two checks for Ctrl-C.
const POLL_EVERY_ENV_STEPS: usize = 1024;

#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativeVectorEnv {
    pub(crate) inner: GuardedCell<Inner>,
    pub(crate) spec: EnvSpec,
    #[pyo3(get)]
    pub(crate) num_envs: usize,
    mode: AutoresetMode,
    pub(crate) masks: bool,
    restorable: bool,
    dim: usize,
    action_shape: Vec<usize>,
    long: bool,
    names: Names,
}

/// Names of arguments in errors, as in the Python function that the user called.
#[derive(Clone, Copy)]
struct Names {
    actions: &'static str,
    states: &'static str,
    /// True for a single environment, whose errors have no environment index.
    single: bool,
}

impl Names {
    const BATCH: Self = Self { actions: "actions", states: "states", single: false };
    const SINGLE: Self = Self { actions: "action", states: "state", single: true };

    fn apply(self, error: Error) -> Error {
        if !self.single {
            return error;
        }
        error.rename_argument("actions", self.actions).rename_argument("states", self.states).without_env()
    }
}

impl NativeVectorEnv {
    /// Wraps existing environments. If `slow` is true, every step releases the GIL.
    pub(crate) fn from_env(py: Python<'_>, env: Box<dyn VectorEnv>, slow: bool) -> PyResult<Self> {
        let (num_envs, mode) = (env.num_envs(), env.autoreset_mode());
        let spec = env.spec().clone();
        let (dim, action_shape) = (spec.observation.dim(), spec.action.shape());
        let finals = if mode == AutoresetMode::SameStep { num_envs * dim } else { 0 };
        let final_obs = zeroed(finals).map_err(to_py)?;
        let (masks, supports_state, env) = detach(py, move || (env.has_action_masks(), env.state(0).is_some(), env));
        let inner = GuardedCell::new("VecEnv", Inner { env, final_obs, drained: 0, dropped: 0 });
        let long = num_envs >= DETACH_MIN_ENVS || num_envs * dim >= DETACH_MIN_OBS_ELEMENTS || slow;
        Ok(Self {
            inner,
            spec,
            num_envs,
            mode,
            masks,
            restorable: supports_state,
            dim,
            action_shape,
            long,
            names: Names::BATCH,
        })
    }

    fn discrete(&self) -> bool {
        !matches!(self.spec.action, Space::Box { .. })
    }

    /// Locks the environments, the buffer and the normaliser, in this order, and calls `f`.
    pub(crate) fn with_rollout(
        &self,
        py: Python<'_>,
        long: bool,
        buffer: &RolloutBuffer,
        normalizer: Option<&Normalizer>,
        f: impl FnOnce(&mut dyn VectorEnv, &mut Core, Option<&mut CoreNormalizer>) -> Result<()> + Send,
    ) -> PyResult<()> {
        self.inner.with(py, long, |inner| {
            buffer.inner.enter(|buffer| match normalizer {
                Some(normalizer) => normalizer.inner.enter(|normalizer| f(&mut *inner.env, buffer, Some(normalizer))),
                None => f(&mut *inner.env, buffer, None),
            })
        })
    }

    /// Locks the environments and the normaliser, in this order, and calls `f` without the GIL.
    pub(crate) fn with_env_and_normalizer<R: Send>(
        &self,
        py: Python<'_>,
        normalizer: Option<&Normalizer>,
        f: impl FnOnce(&mut dyn VectorEnv, Option<&mut CoreNormalizer>) -> Result<R> + Send,
    ) -> PyResult<R> {
        self.inner.with(py, true, |inner| match normalizer {
            Some(normalizer) => normalizer.inner.enter(|normalizer| f(&mut *inner.env, Some(normalizer))),
            None => f(&mut *inner.env, None),
        })
    }
}

#[pymethods]
impl NativeVectorEnv {
    #[new]
    #[pyo3(signature = (env_id, num_envs, seed=None, autoreset_mode=None, max_episode_steps=None, kwargs=None, count_name="num_envs", *, single=false),
        text_signature = "(env_id, num_envs, seed=None, autoreset_mode=None, max_episode_steps=None, kwargs=None, count_name='num_envs', *, single=False)")]
    fn new(
        py: Python<'_>,
        env_id: &Bound<'_, PyAny>,
        num_envs: &Bound<'_, PyAny>,
        seed: Option<&Bound<'_, PyAny>>,
        autoreset_mode: Option<&Bound<'_, PyAny>>,
        max_episode_steps: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        count_name: &str,
        single: bool,
    ) -> PyResult<Self> {
        let env = make(py, env_id, (count_name, num_envs), seed, autoreset_mode, max_episode_steps, kwargs)?;
        // A plugin's environments may take any time for a step, and may wait for other Python
        // threads.
        let env = Self::from_env(py, env, env_id.is_instance_of::<PyCapsule>())?;
        Ok(Self { names: if single { Names::SINGLE } else { Names::BATCH }, ..env })
    }

    #[getter]
    fn autoreset_mode(&self) -> String {
        format!("{:?}", self.mode)
    }

    #[getter]
    fn env_id(&self) -> &str {
        &self.spec.id
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.inner.is_closed(py)
    }
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.close(py)
    }

    fn spec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = new_dict(py)?;
        dict.set_item("id", &self.spec.id)?;
        dict.set_item("max_episode_steps", self.spec.max_episode_steps)?;
        dict.set_item("has_action_masks", self.masks)?;
        dict.set_item("supports_state", self.restorable)?;
        dict.set_item("observation", space_dict(py, &self.spec.observation)?)?;
        dict.set_item("action", space_dict(py, &self.spec.action)?)?;
        Ok(dict)
    }

    #[pyo3(signature = (seed=None, mask=None, options=None))]
    fn reset<'py>(
        &self,
        py: Python<'py>,
        seed: Option<&Bound<'py, PyAny>>,
        mask: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let seeds = Seeding::parse(seed, self.num_envs)?;
        let options = options_of(options)?;
        let mask = mask.map(|mask| flag_argument("reset_mask", mask)?.read(py, false)).transpose()?;
        let mask = mask.as_ref().map(Flags::slice);
        let mut obs = empty::<f32>(py, &[self.num_envs, self.dim])?;
        let row = obs.slice();
        self.inner.with(py, self.long, |inner| seeds.reset(&mut *inner.env, mask, &options, row))?;
        Ok(obs.into_array())
    }
    fn step<'py>(
        &self,
        py: Python<'py>,
        actions: &Bound<'py, PyAny>,
    ) -> PyResult<(
        Bound<'py, PyArrayDyn<f32>>,
        Bound<'py, PyArrayDyn<f64>>,
        Bound<'py, PyArrayDyn<bool>>,
        Bound<'py, PyArrayDyn<bool>>,
        Option<Bound<'py, PyArrayDyn<f32>>>,
    )> {
        let actions = ActionArgument::new(self.names.actions, actions, self.discrete())?;
        let actions = actions.read(!self.long && is_alone(py), self.num_envs, &self.action_shape)?;
        let (mut obs, mut rewards) =
            (empty::<f32>(py, &[self.num_envs, self.dim])?, empty::<f64>(py, &[self.num_envs])?);
        let (mut terminated, mut truncated) =
            (zeros::<bool>(py, &[self.num_envs])?, zeros::<bool>(py, &[self.num_envs])?);
        let (obs_out, reward, term, trunc) = (obs.slice(), rewards.slice(), terminated.slice(), truncated.slice());
        let actions = actions.get();
        let finals = self.inner.with(py, self.long, |inner| {
            // Allocated before the step, which cannot be undone. Pages that are never written take
            // no memory.
            let mut copy = with_capacity(inner.final_obs.len() + self.num_envs * OBJECT_OVERHEAD_FLOATS)?;
            let out =
                StepOut { obs: obs_out, reward, terminated: term, truncated: trunc, final_obs: &mut inner.final_obs };
            inner.env.step(actions, out).map_err(|error| self.names.apply(error))?;
            let any = !inner.final_obs.is_empty() && term.iter().zip(trunc.iter()).any(|(a, b)| *a || *b);
            if !any {
                return Ok(None);
            }
            copy.extend_from_slice(&inner.final_obs);
            copy.shrink_to_fit();
            Ok(Some(copy))
        })?;
        let finals = finals.map(|data| data.into_pyarray(py).reshape([self.num_envs, self.dim])).transpose()?;
        let finals = finals.map(|array| array.to_dyn().clone());
        Ok((obs.into_array(), rewards.into_array(), terminated.into_array(), truncated.into_array(), finals))
    }
    #[pyo3(signature = (actions, obs, rewards, terminated, truncated, final_obs=None))]
    fn step_into(
        &self,
        py: Python<'_>,
        actions: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        final_obs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (n, each) = (self.num_envs, [self.dim]);
        let actions = ActionArgument::new(self.names.actions, actions, self.discrete())?;
        let arrays = StepArrays { obs, rewards, terminated, truncated, final_obs };
        if !self.long
            && is_alone(py)
            && let Some(out) = arrays.fast_borrow(n, self.dim, &actions)
        {
            let actions = actions.read(true, n, &self.action_shape)?;
            let actions = actions.get();
            return self.inner.with(py, self.long, |inner| inner.env.step(actions, out));
        }
        let actions = actions.read(false, n, &self.action_shape)?;
        let mut guarded = arrays.guarded_borrow(n, &[], &each)?;
        let (actions, out) = (actions.get(), guarded.out());
        self.inner.with(py, self.long, |inner| inner.env.step(actions, out))
    }

    /// Perform several steps; every array has a leading time axis. Ctrl-C interrupts between steps.
    fn steps_into(
        &self,
        py: Python<'_>,
        actions: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        final_obs: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (n, dim) = (self.num_envs, self.dim);
        let shape = [&[n][..], &self.action_shape].concat();
        let actions = ActionArgument::new(self.names.actions, actions, self.discrete())?;
        let steps = actions.rows();
        let actions = actions.read(false, steps, &shape)?;
        let arrays = StepArrays { obs, rewards, terminated, truncated, final_obs: Some(final_obs) };
        let mut guarded = arrays.guarded_borrow(steps, &[n], &[n, dim])?;
        let out = guarded.out();
        let obs = out.obs.chunks_exact_mut(n * dim);
        let rewards = out.reward.chunks_exact_mut(n);
        let terminated = out.terminated.chunks_exact_mut(n);
        let truncated = out.truncated.chunks_exact_mut(n);
        let final_obs = out.final_obs.chunks_exact_mut(n * dim);
        let rows = obs.zip(rewards).zip(terminated.zip(truncated)).zip(final_obs).enumerate();
        let (actions, width) = (actions.get(), shape.iter().product());
        self.inner.with(py, true, |inner| {
            let mut interrupt = InterruptCheck::default();
            for (t, (((obs, reward), (terminated, truncated)), final_obs)) in rows {
                if t.is_multiple_of((POLL_EVERY_ENV_STEPS / n).max(1)) {
                    interrupt.check()?;
                }
                let actions = match actions {
                    Actions::Discrete(all) => Actions::Discrete(&all[t * width..][..width]),
                    Actions::Continuous(all) => Actions::Continuous(&all[t * width..][..width]),
                };
                inner.env.step(actions, StepOut { obs, reward, terminated, truncated, final_obs })?;
            }
            Ok(())
        })
    }

    #[pyo3(signature = (buffer, normalizer=None, seed=None))]
    fn begin_rollout(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
        let normalizer = normalizer_of(normalizer)?;
        let seeds = seed.map(seed_of).transpose()?.map_or(Seeds::Keep, Seeds::Base);
        self.with_rollout(py, self.long, buffer, normalizer, |env, buffer, normalizer| {
            buffer.begin(env, seeds, normalizer)
        })
    }
    #[pyo3(signature = (buffer, t, actions, log_probs, values, normalizer=None))]
    fn step_rollout(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        t: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        log_probs: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
        let normalizer = normalizer_of(normalizer)?;
        let t = index("t", t)?;
        let policy_step = PolicyStepArgument::new(actions, log_probs, values, self.discrete())?;
        let policy_step = policy_step.read(&buffer.fields, self.num_envs, &self.action_shape)?;
        let policy_step = policy_step.get();
        self.with_rollout(py, self.long, buffer, normalizer, |env, buffer, normalizer| {
            buffer.step(t, env, policy_step, normalizer)
        })
    }

    fn pop_episodes<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<i64>>)> {
        let (returns, lengths) = self.inner.with(py, self.long, |inner| {
            let count = inner.env.episodes().len();
            let (mut returns, mut lengths, mut int_lengths) =
                (with_capacity(count)?, with_capacity(count)?, with_capacity(count)?);
            inner.drain(&mut returns, &mut lengths);
            int_lengths.extend(lengths.into_iter().map(i64::from));
            Ok((returns, int_lengths))
        })?;
        Ok((returns.into_pyarray(py), lengths.into_pyarray(py)))
    }

    /// Number of ended episodes that the last `pop_episodes` did not return.
    ///
    /// The environments keep only the newest 16,384 episodes.
    #[getter]
    fn dropped_episodes(&self, py: Python<'_>) -> PyResult<u64> {
        self.inner.with(py, self.long, |inner| Ok(inner.dropped))
    }

    fn observe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let mut obs = empty::<f32>(py, &[self.num_envs, self.dim])?;
        let row = obs.slice();
        self.inner.with(py, self.long, |inner| inner.env.observe(row))?;
        Ok(obs.into_array())
    }

    /// Return the action masks for a Discrete space, bool (N, n): True for allowed actions.
    ///
    /// The masks are written to `out` if it is given, otherwise to a new array.
    #[pyo3(signature = (out=None))]
    fn action_masks<'py>(&self, py: Python<'py>, out: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let shape = [self.num_envs, masked_actions(&self.spec.action)];
        let Some(array) = out else {
            let mut masks = zeros::<bool>(py, &shape)?;
            let flags = masks.slice();
            self.inner.with(py, self.long, |inner| inner.env.action_masks(flags))?;
            return Ok(masks.into_array().into_any());
        };
        let mut masks = output::<bool>("out", array)?;
        expect_shape("out", masks.shape(), shape[0], &shape[1..])?;
        let flags = masks.slice();
        self.inner.with(py, self.long, |inner| inner.env.action_masks(flags))?;
        Ok(array.clone())
    }

    /// Return the action masks of the final states of episodes, bool (N, n).
    ///
    /// Only rows of episodes that the last step truncated are defined.
    fn final_action_masks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
        let mut masks = zeros::<bool>(py, &[self.num_envs, masked_actions(&self.spec.action)])?;
        let flags = masks.slice();
        self.inner.with(py, self.long, |inner| inner.env.final_action_masks(flags))?;
        Ok(masks.into_array())
    }

    fn states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
        let width = self.inner.with(py, self.long, |inner| inner.state_width("render"))?;
        let mut states = empty::<f64>(py, &[self.num_envs, width])?;
        let rows = states.slice();
        self.inner.with(py, self.long, |inner| inner.states(width, rows))?;
        Ok(states.into_array())
    }

    fn get_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot::take_snapshot(py, &self.inner, self.num_envs)
    }

    fn set_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = instance::<PyDict>("state", state, "VecEnv's state, a dict")?;
        snapshot::restore_snapshot(py, &self.inner, self.num_envs, state, |error| self.names.apply(error))
    }

    /// Return the state of every random stream, int64 (N, 6), as in `get_state()["streams"]`.
    fn rng_states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        let mut states = empty::<i64>(py, &[self.num_envs, RNG_STATE_LEN])?;
        let stream_states = self.inner.with(py, self.long, |inner| streams_to_array(&inner.env.rngs()?))?;
        check_len("streams", stream_states.len(), states.slice().len()).map_err(to_py)?;
        states.slice().copy_from_slice(&stream_states);
        Ok(states.into_array())
    }

    fn set_rng_states(&self, py: Python<'_>, states: &Bound<'_, PyAny>) -> PyResult<()> {
        let states = argument::<i64>("states", states, &INTEGER)?.read(false)?;
        expect_shape("states", states.shape(), self.num_envs, &[RNG_STATE_LEN])?;
        let states = states.slice();
        self.inner.with(py, self.long, |inner| {
            inner.env.set_rngs(&streams_from_array(states).map_err(|error| error.rename_argument("streams", "states"))?)
        })
    }
}
