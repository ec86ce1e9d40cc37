//! Networks of rlox-nn that act and learn without Python: `NativePolicy` of on-policy methods, `NativeAgent` of others.

pub(crate) mod actors;
mod agent;
mod called;
mod learn;
mod make;
mod predict;
mod settings;
mod tensors;

use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{Element, IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{ActionsMut, DType, Error, Field, PolicyOut, Result, Space, Watch};
use rlox_nn::ActorCritic;
use rlox_nn::train::{
    Collection, Encoding, IterationStreams, Minibatches, collect_transitions, estimate_advantages, predict_actions,
};

use crate::argument::{count, index, instance, number, switches};
use crate::error::to_py;
use crate::flags::{Flags, flag_argument};
use crate::normalize::normalizer_of;
use crate::recycling::zeroed;
use crate::rollout::RolloutBuffer;
use crate::seeds::seed_of;
use crate::shared::Shared;
use crate::vector::NativeVectorEnv;

pub(crate) use actors::NativeActors;
pub(crate) use agent::NativeAgent;
pub(crate) use make::network_backends;

/// A policy and values of small networks on the CPU. `rlox.learners.native_on_policy` makes it for its learners.
///
/// Args:
///     observation: {"kind": "numbers", "shape": tuple} or {"kind": "one_hot", "shape": tuple, "counts": list}.
///     action: An action space as native environments describe theirs.
///     stream: int64 (6,), the words of the random stream that the initial weights come from.
///     shape: The settings that shape it: net_arch, activation, ortho_init, shared_trunk, use_sde, log_std_init.
///     backend: One of `network_backends()`.
///
/// Raises:
///     ValueError, TypeError: Spaces or settings that make no sense.
///     MemoryError: The networks do not fit into memory.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativePolicy {
    inner: Shared<Inner>,
    /// Set to end a rollout, or the updates, early.
    stop: AtomicBool,
    encoding: Encoding,
    obs_shape: Vec<usize>,
    action: Space,
}

struct Inner {
    policy: Box<dyn ActorCritic>,
    streams: IterationStreams,
    minibatches: Minibatches,
    /// The network's inputs of a batch.
    inputs: Vec<f32>,
}

/// Up to how many environments a call takes less than 5 us.
const SHORT: usize = 1;

/// Actions of a batch.
enum Chosen {
    Discrete(Vec<i64>),
    Continuous(Vec<f32>),
}

impl Chosen {
    fn zeroed(space: &Space, rows: usize) -> Result<Self> {
        let len = rows.saturating_mul(space.dim());
        Ok(if matches!(space, Space::Box { .. }) {
            Self::Continuous(zeroed(len)?)
        } else {
            Self::Discrete(zeroed(len)?)
        })
    }

    /// Where they are to be written.
    fn all(&mut self) -> ActionsMut<'_> {
        match self {
            Self::Discrete(actions) => ActionsMut::Discrete(actions),
            Self::Continuous(actions) => ActionsMut::Continuous(actions),
        }
    }

    fn into_array<'py>(self, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        fn array<'py, T: Element>(py: Python<'py>, data: Vec<T>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
            Ok(data.into_pyarray(py).reshape(shape)?.into_any())
        }
        match self {
            Self::Discrete(actions) => array(py, actions, shape),
            Self::Continuous(actions) => array(py, actions, shape),
        }
    }
}

/// An error in the caller's words for the masks.
fn of_masks(error: Error) -> Error {
    error.rename_argument("masks", "action_masks")
}

/// A field that every buffer has.
fn field<'a>(buffer: &'a rlox_core::RolloutBuffer, name: &str) -> Result<&'a Field> {
    buffer.field(name).ok_or_else(|| Error::shape("buffer", format!("a field {name:?}"), "none", "make another"))
}

impl NativePolicy {
    /// Calls `f` with what says whether to stop: it was asked to, or a signal handler raised something.
    fn stoppable<R>(&self, f: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<R>) -> Result<R> {
        let (mut watch, mut raised) = (Watch::default(), None);
        let done = f(&mut || {
            raised = raised.take().or_else(|| watch.check().err());
            raised.is_some() || self.stop.load(Ordering::Relaxed)
        });
        raised.map_or(done, Err)
    }

    /// Checks that a buffer holds this policy's observations and actions.
    fn check(&self, buffer: &rlox_core::RolloutBuffer) -> Result<()> {
        let (obs, actions) = (field(buffer, "obs")?, field(buffer, "actions")?);
        let dtype = if matches!(self.action, Space::Box { .. }) { DType::F32 } else { DType::I64 };
        let wanted = (self.encoding.stored(), self.action.dim(), dtype);
        let got = (obs.width(), actions.width(), actions.dtype());
        if wanted == got {
            return Ok(());
        }
        let said = |(obs, actions, dtype): (usize, usize, DType)| {
            format!("observations of {obs} numbers and actions of {actions} ({dtype:?})")
        };
        Err(Error::shape("buffer", said(wanted), said(got), "make it for the policy's environments"))
    }

    fn masks<'py>(py: Python<'py>, masks: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Flags<'py>>> {
        masks.map(|masks| flag_argument("action_masks", masks)?.read(py, false)).transpose()
    }
}

#[cfg(feature = "grpc")]
impl NativePolicy {
    /// The weights, and what networks they are of.
    pub(crate) fn lent(&self, py: Python<'_>) -> PyResult<(rlox_nn::NamedTensors, rlox_nn::PolicyShape)> {
        let (tensors, shape) = self.inner.with(py, true, |inner| Ok((inner.policy.tensors(), inner.policy.shape())))?;
        let unknown = || {
            let fix = "use the native backend";
            crate::error::value_error("backend", "networks whose shape can be told", "others", fix)
        };
        Ok((tensors, shape.ok_or_else(unknown)?))
    }
}

#[pymethods]
impl NativePolicy {
    #[new]
    #[pyo3(signature = (observation, action, stream, shape, backend))]
    fn new(
        py: Python<'_>,
        observation: &Bound<'_, PyDict>,
        action: &Bound<'_, PyDict>,
        stream: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyDict>,
        backend: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        make::policy(py, observation, action, stream, shape, backend)
    }

    /// Whether a rollout or the updates shall end early; stays set until it is cleared.
    #[getter]
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sets or clears `stopping`, in the middle of a call of another thread or of this one's signal handler, too.
    fn set_stopping(&self, #[pyo3(from_py_with = switches::stop)] stop: bool) {
        self.stop.store(stop, Ordering::Relaxed);
    }

    /// The seed of an iteration: of its actions, its exploration noise and the order of its minibatches.
    fn begin(&self, py: Python<'_>, seed: &Bound<'_, PyAny>, num_envs: &Bound<'_, PyAny>) -> PyResult<()> {
        let (seed, num_envs) = (seed_of(seed)?, count("num_envs", num_envs)?);
        self.inner.with(py, num_envs > SHORT, |inner| {
            inner.streams.renew(seed, num_envs)?;
            Ok(())
        })
    }

    /// Fills a rollout of native environments that have been reset, and estimates advantages.
    ///
    /// Returns:
    ///     False if `stopping` was set meanwhile.
    ///
    /// Raises:
    ///     ValueError: Environments, buffer and policy that do not fit together; numbers that are not finite.
    ///     FloatingPointError: An output of the policy is NaN or infinite.
    #[pyo3(signature = (env, buffer, normalizer, gamma, gae_lambda, sde_sample_freq))]
    fn collect(
        &self,
        py: Python<'_>,
        env: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
        gamma: &Bound<'_, PyAny>,
        gae_lambda: &Bound<'_, PyAny>,
        sde_sample_freq: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
        let normalizer = normalizer_of(normalizer)?;
        let how = Collection {
            gamma: number("gamma", gamma)?,
            gae_lambda: number("gae_lambda", gae_lambda)?,
            sde_sample_freq: count("sde_sample_freq", sde_sample_freq)?,
        };
        let mut whole = true;
        env.roll(py, true, buffer, normalizer, |env, buffer, normalizer| {
            self.inner.enter(|inner| {
                self.check(buffer)?;
                let Inner { policy, streams, .. } = inner;
                let actions = &mut streams.actions;
                let done = self.stoppable(|stop| {
                    let done = collect_transitions(env, policy.as_mut(), actions, buffer, normalizer, how, stop);
                    match done {
                        Err(Error::Interrupted) if self.stop.load(Ordering::Relaxed) => Ok(false),
                        done => done.map(|()| true),
                    }
                });
                whole = done?;
                Ok(())
            })
        })?;
        Ok(whole)
    }

    /// What the policy does at row `t` of a rollout, whose observations are there: (actions, log_probs, values).
    ///
    /// Args:
    ///     noise: Whether to draw the noise of state-dependent exploration anew.
    #[pyo3(signature = (buffer, t, action_masks=None, noise=false))]
    fn act<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        t: &Bound<'py, PyAny>,
        action_masks: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = switches::noise)] noise: bool,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
        let t = index("t", t)?;
        let masks = Self::masks(py, action_masks)?;
        let masks = masks.as_ref().map(Flags::slice);
        let n = buffer.num_envs;
        let (mut actions, mut log_probs, mut values) =
            (Chosen::zeroed(&self.action, n).map_err(to_py)?, zeroed(n).map_err(to_py)?, zeroed(n).map_err(to_py)?);
        let out = PolicyOut { actions: actions.all(), log_probs: &mut log_probs, values: &mut values };
        let rows = t.saturating_mul(n)..t.saturating_add(1).saturating_mul(n);
        buffer.inner.with(py, n > SHORT, |buffer| {
            self.check(buffer)?;
            self.inner.enter(|inner| {
                let Inner { policy, streams, inputs, .. } = inner;
                self.encoding.encode(field(buffer, "obs")?.data(), rows, inputs)?;
                if noise {
                    policy.draw_noise(&mut streams.actions)?;
                }
                policy.act(inputs, masks, &mut streams.actions, out).map_err(of_masks)
            })
        })?;
        let shape = [&[n][..], &self.action.shape()].concat();
        Ok((actions.into_array(py, &shape)?, log_probs.into_pyarray(py).into_any(), values.into_pyarray(py).into_any()))
    }

    /// Values and advantages of a full rollout of environments elsewhere.
    fn finish(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        gamma: &Bound<'_, PyAny>,
        gae_lambda: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
        let (gamma, gae_lambda) = (number("gamma", gamma)?, number("gae_lambda", gae_lambda)?);
        buffer.inner.with(py, true, |buffer| {
            self.inner.enter(|inner| {
                self.check(buffer)?;
                let Inner { policy, inputs, .. } = inner;
                estimate_advantages(policy.as_mut(), buffer, &self.encoding, inputs, gamma, gae_lambda)
            })
        })
    }

    /// Epochs of PPO over a finished rollout; see `learn::Settings` for the names.
    fn ppo<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        settings: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        learn::ppo(self, py, buffer, settings)
    }

    /// One step of A2C on a finished rollout.
    fn a2c<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        settings: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        learn::a2c(self, py, buffer, settings)
    }

    /// One step of IMPALA on a finished rollout of this policy or an older one.
    fn impala<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        settings: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        learn::impala(self, py, buffer, settings)
    }

    /// Actions for observations as rollouts store them, of one or of a batch; see `predict::predict`.
    #[pyo3(signature = (obs, seed=None, action_masks=None, normalizer=None))]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        obs: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        action_masks: Option<&Bound<'py, PyAny>>,
        normalizer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Self { encoding, obs_shape, action, .. } = self;
        let asked = predict::Asked { encoding, obs_shape, action };
        predict::predict(&asked, py, obs, seed, action_masks, normalizer, |obs, seed, chosen| {
            self.inner.enter(|inner| {
                let Inner { policy, inputs, .. } = inner;
                predict_actions(policy.as_mut(), obs, seed, action, inputs, chosen.all()).map_err(of_masks)
            })
        })
    }

    /// All parameters by torch's names, float32.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.policy.tensors()))?;
        tensors::dict(py, named)
    }

    /// Checks that `load` takes these parameters.
    ///
    /// Raises:
    ///     ValueError: As `load`.
    fn check_tensors(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.policy.check_tensors(&named))
    }

    /// Checks that `load_optimizer_state` takes this state.
    ///
    /// Raises:
    ///     ValueError: As `load`.
    fn check_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("state", state)?;
        self.inner.with(py, true, |inner| inner.policy.check_optimizer_state(&named))
    }

    /// Takes parameters by name.
    ///
    /// Raises:
    ///     ValueError: One is absent, unknown, of another shape, or not finite; nothing has changed then.
    fn load(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.policy.load(&named))
    }

    /// What the optimiser keeps, by the parameters' names, float32.
    fn optimizer_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.policy.optimizer_state()))?;
        tensors::dict(py, named)
    }

    /// Takes what `optimizer_state` gave.
    ///
    /// Raises:
    ///     ValueError: As `load`.
    fn load_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("state", state)?;
        self.inner.with(py, true, |inner| inner.policy.load_optimizer_state(&named))
    }
}
