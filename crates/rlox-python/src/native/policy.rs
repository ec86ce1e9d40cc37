//! The class `NativePolicy`: networks of on-policy algorithms that act and learn in Rust.

use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{Element, IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{
    ActionsMut, EnvSpec, Error, Normalizer, Pcg64, PolicyOut, Result, Space,
    field::{DType, Field, FieldData},
    interrupt::InterruptCheck,
};
use rlox_nn::train::{
    CollectConfig, Encoding, IterationStreams, Minibatches, Observations, UpdateStats, collect_transitions,
    estimate_advantages, mask_width, predict_actions,
};
use rlox_nn::{Activation, ActorCritic, NamedTensors, PolicyBuilder};

use super::configs::{self, ConfigDict, FIX};
use crate::alloc::{try_map, zeroed};
use crate::convert::args::{
    Argument, INTEGER, Input, REAL, argument, count, expect_shape, index, instance, item_of, number, shape, short_repr,
    switch, switches, text,
};
use crate::convert::array::new_dict;
use crate::convert::flags::{Flags, flag_argument};
use crate::convert::options::from_items;
use crate::convert::seed::seed_of;
use crate::convert::space::space_of;
use crate::env::snapshot::RNG_STATE_LEN;
use crate::env::vec_env::NativeVectorEnv;
use crate::error::{to_py, type_error, value_error};
use crate::normalize::normalizer_of;
use crate::rollout::RolloutBuffer;
use crate::sync::cell::{GuardedCell, run_locked};
use crate::sync::gil::detach;

/// Number of environments above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ENVS: usize = 1;

/// Number of inputs above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_INPUTS: usize = 64;

/// Policy and value networks on the CPU, created by `rlox.learners.native_on_policy`.
///
/// Args:
///     observation: Format of observations, one of two dicts. {"kind": "numbers", "shape": tuple}
///         stands for real numbers. {"kind": "one_hot", "shape": tuple, "counts": list} stands for
///         integers from 0, with their numbers of possible values in `counts`.
///     action: Description of the action space, as in `NativeVectorEnv.spec()["action"]`.
///     stream: int64 (6,), state of the random stream for the initial weights.
///     shape: Architecture of the networks: net_arch, activation, ortho_init, shared_trunk, use_sde
///         and log_std_init.
///     backend: A name from `network_backends()`.
///
/// Raises:
///     ValueError, TypeError: Spaces or settings are invalid.
///     MemoryError: The networks do not fit into memory.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativePolicy {
    pub(super) inner: GuardedCell<Inner>,
    /// Flag that ends a rollout or the updates early.
    stop: AtomicBool,
    encoding: Encoding,
    obs_shape: Vec<usize>,
    action: Space,
}

pub(super) struct Inner {
    pub(super) policy: Box<dyn ActorCritic>,
    pub(super) streams: IterationStreams,
    minibatches: Minibatches,
    /// Network inputs of a batch of observations.
    inputs: Vec<f32>,
}

impl NativePolicy {
    /// Calls `f` with a function that returns true if the work must end early.
    ///
    /// This is the case if `stop_requested` is set, or if a signal handler raised an exception.
    fn with_stop_fn<R>(&self, f: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<R>) -> Result<R> {
        let (mut interrupt, mut raised) = (InterruptCheck::default(), None);
        let done = f(&mut || {
            raised = raised.take().or_else(|| interrupt.check().err());
            raised.is_some() || self.stop.load(Ordering::Relaxed)
        });
        raised.map_or(done, Err)
    }

    /// Checks that a buffer holds this policy's observations and actions.
    pub(super) fn check(&self, buffer: &rlox_core::RolloutBuffer) -> Result<()> {
        let (obs, actions) = (field(buffer, "obs")?, field(buffer, "actions")?);
        let dtype = if matches!(self.action, Space::Box { .. }) { DType::F32 } else { DType::I64 };
        let expected = (self.encoding.stored(), self.action.dim(), dtype);
        let got = (obs.width(), actions.width(), actions.dtype());
        if expected == got {
            return Ok(());
        }
        let describe = |(obs, actions, dtype): (usize, usize, DType)| {
            format!("observations of {obs} numbers and actions of {actions} ({dtype:?})")
        };
        Err(Error::shape("buffer", describe(expected), describe(got), "make the buffer for the policy's environments"))
    }

    pub(super) fn masks<'py>(py: Python<'py>, masks: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Flags<'py>>> {
        masks.map(|masks| flag_argument("action_masks", masks)?.read(py, false)).transpose()
    }
}

#[cfg(feature = "grpc")]
impl NativePolicy {
    /// Returns the weights and the architecture of the networks.
    pub(crate) fn weights_and_arch(&self, py: Python<'_>) -> PyResult<(NamedTensors, rlox_nn::PolicyArch)> {
        let (tensors, arch) = self.inner.with(py, true, |inner| Ok((inner.policy.tensors(), inner.policy.arch())))?;
        let unknown = || {
            let fix = "use the native backend";
            value_error("backend", "networks with a known architecture", "other networks", fix)
        };
        Ok((tensors, arch.ok_or_else(unknown)?))
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
        make_policy(py, observation, action, stream, shape, backend)
    }

    /// True if rollouts and updates end early, until `set_stop_requested(False)`.
    #[getter]
    fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Set or clear `stop_requested`, even while another thread's call runs or in a signal handler.
    fn set_stop_requested(&self, #[pyo3(from_py_with = switches::stop)] stop: bool) {
        self.stop.store(stop, Ordering::Relaxed);
    }

    /// Set the seed of an iteration: of its actions, exploration noise and minibatch order.
    fn begin(&self, py: Python<'_>, seed: &Bound<'_, PyAny>, num_envs: &Bound<'_, PyAny>) -> PyResult<()> {
        let (seed, num_envs) = (seed_of(seed)?, count("num_envs", num_envs)?);
        self.inner.with(py, num_envs > DETACH_ABOVE_ENVS, |inner| {
            inner.streams.renew(seed, num_envs)?;
            Ok(())
        })
    }

    /// Collect a rollout from native environments that have been reset, and compute its advantages.
    ///
    /// Returns:
    ///     False if `stop_requested` ended the rollout early.
    ///
    /// Raises:
    ///     ValueError: Environments, buffer and policy do not match, or numbers are not finite.
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
        let config = CollectConfig {
            gamma: number("gamma", gamma)?,
            gae_lambda: number("gae_lambda", gae_lambda)?,
            sde_sample_freq: count("sde_sample_freq", sde_sample_freq)?,
        };
        let mut is_complete = true;
        env.with_rollout(py, true, buffer, normalizer, |env, buffer, normalizer| {
            self.inner.enter(|inner| {
                self.check(buffer)?;
                let Inner { policy, streams, .. } = inner;
                let actions = &mut streams.actions;
                let done = self.with_stop_fn(|stop| {
                    let done = collect_transitions(env, policy.as_mut(), actions, buffer, normalizer, config, stop);
                    match done {
                        Err(Error::Interrupted) if self.stop.load(Ordering::Relaxed) => Ok(false),
                        done => done.map(|()| true),
                    }
                });
                is_complete = done?;
                Ok(())
            })
        })?;
        Ok(is_complete)
    }

    /// Return (actions, log_probs, values) for the observations of step `t` of a rollout.
    ///
    /// Args:
    ///     noise: True to draw new noise for state-dependent exploration.
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
        let (mut actions, mut log_probs, mut values) = (
            ActionBuffer::zeroed(&self.action, n).map_err(to_py)?,
            zeroed(n).map_err(to_py)?,
            zeroed(n).map_err(to_py)?,
        );
        let out = PolicyOut { actions: actions.all(), log_probs: &mut log_probs, values: &mut values };
        let rows = t.saturating_mul(n)..t.saturating_add(1).saturating_mul(n);
        buffer.inner.with(py, n > DETACH_ABOVE_ENVS, |buffer| {
            self.check(buffer)?;
            self.inner.enter(|inner| {
                let Inner { policy, streams, inputs, .. } = inner;
                self.encoding.encode(field(buffer, "obs")?.data(), rows, inputs)?;
                if noise {
                    policy.draw_noise(&mut streams.actions)?;
                }
                policy.act(inputs, masks, &mut streams.actions, out).map_err(rename_masks)
            })
        })?;
        let shape = [&[n][..], &self.action.shape()].concat();
        Ok((actions.into_array(py, &shape)?, log_probs.into_pyarray(py).into_any(), values.into_pyarray(py).into_any()))
    }

    /// Compute values and advantages of a full rollout of environments that Python code steps.
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

    /// Perform the PPO epochs on a finished rollout. `native/configs.rs` lists the settings.
    fn ppo<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        settings: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let config = configs::ppo(&ConfigDict(settings))?;
        learn(self, py, buffer, |inner, buffer| {
            let Inner { policy, streams, minibatches, .. } = inner;
            self.with_stop_fn(|stop| config.learn(policy.as_mut(), buffer, minibatches, &mut streams.order, 0.0, stop))
        })
    }

    /// Perform one A2C step on a finished rollout.
    fn a2c<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        settings: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let config = configs::a2c(&ConfigDict(settings))?;
        learn(self, py, buffer, |inner, buffer| {
            let Inner { policy, minibatches, .. } = inner;
            self.with_stop_fn(|stop| config.learn(policy.as_mut(), buffer, minibatches, 0.0, stop))
        })
    }

    /// Perform one IMPALA step on a finished rollout.
    ///
    /// An older version of this policy may have collected the rollout.
    fn impala<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        settings: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let config = configs::impala(&ConfigDict(settings))?;
        learn(self, py, buffer, |inner, buffer| {
            let Inner { policy, minibatches, .. } = inner;
            self.with_stop_fn(|stop| config.learn(policy.as_mut(), buffer, minibatches, 0.0, stop))
        })
    }

    /// Return actions for one observation or a batch: greedy, or sampled if `seed` is given.
    ///
    /// Observations have the format of the argument `observation`. Discrete actions include the
    /// `start` of the space.
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
        let request = PredictRequest { encoding, obs_shape, action };
        predict(&request, py, obs, seed, action_masks, normalizer, |obs, seed, buffer| {
            self.inner.enter(|inner| {
                let Inner { policy, inputs, .. } = inner;
                predict_actions(policy.as_mut(), obs, seed, action, inputs, buffer.all()).map_err(rename_masks)
            })
        })
    }

    /// Return all parameters as float32 arrays, by their names in torch modules.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.policy.tensors()))?;
        tensors_dict(py, named)
    }

    /// Check that `load` accepts these parameters.
    ///
    /// Raises:
    ///     ValueError: As for `load`.
    fn check_tensors(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.policy.check_tensors(&named))
    }

    /// Check that `load_optimizer_state` accepts this state.
    ///
    /// Raises:
    ///     ValueError: As for `load`.
    fn check_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("state", state)?;
        self.inner.with(py, true, |inner| inner.policy.check_optimizer_state(&named))
    }

    /// Load parameters by name.
    ///
    /// Raises:
    ///     ValueError: A parameter is missing, unknown, of another shape or not finite. The policy
    ///         is unchanged.
    fn load(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.policy.load(&named))
    }

    /// Return the state of the optimiser as float32 arrays, by the names of the parameters.
    fn optimizer_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.policy.optimizer_state()))?;
        tensors_dict(py, named)
    }

    /// Load the result of `optimizer_state`.
    ///
    /// Raises:
    ///     ValueError: As for `load`.
    fn load_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("state", state)?;
        self.inner.with(py, true, |inner| inner.policy.load_optimizer_state(&named))
    }
}

/// Return the names of the network backends that this library was built with.
#[pyfunction]
pub(crate) fn network_backends() -> Vec<&'static str> {
    [("native", true), ("candle", cfg!(feature = "candle")), ("burn", cfg!(feature = "burn"))]
        .into_iter()
        .filter_map(|(name, built)| built.then_some(name))
        .collect()
}

/// Makes a policy from a space, an encoding and an architecture.
fn make_policy(
    py: Python<'_>,
    observation: &Bound<'_, PyDict>,
    action: &Bound<'_, PyDict>,
    stream: &Bound<'_, PyAny>,
    shape: &Bound<'_, PyDict>,
    backend: &Bound<'_, PyAny>,
) -> PyResult<NativePolicy> {
    let (encoding, obs_shape) = encoding_of(observation)?;
    let action = space_of(action)?;
    let state = argument::<i64>("stream", stream, &INTEGER)?.read(false)?;
    expect_shape("stream", state.shape(), RNG_STATE_LEN, &[])?;
    let config = PolicyConfig::parse(shape)?;
    let backend = backend_of(backend)?;
    let spec = spec_of(&encoding, &action);
    let state = state.slice();
    let policy = detach(py, || -> Result<_> { config.make(&spec, &backend, &mut Pcg64::from_state_array(state)?) });
    let inner = Inner {
        policy: policy.map_err(|error| to_py(error.rename_argument("sizes", "net_arch")))?,
        streams: IterationStreams::new(0, 0).map_err(to_py)?,
        minibatches: Minibatches::new(encoding.clone()),
        inputs: Vec::new(),
    };
    let stop = AtomicBool::new(false);
    Ok(NativePolicy { inner: GuardedCell::new("NativePolicy", inner), stop, encoding, obs_shape, action })
}

/// Architecture of the networks.
struct PolicyConfig {
    net_arch: Vec<usize>,
    activation: Activation,
    ortho_init: bool,
    shared_trunk: bool,
    use_sde: bool,
    log_std_init: f32,
}

impl PolicyConfig {
    fn parse(dict: &Bound<'_, PyDict>) -> PyResult<Self> {
        let get = |name: &str| item_of("shape", dict.as_any(), name, FIX);
        Ok(Self {
            net_arch: shape("net_arch", &get("net_arch")?)?,
            activation: text("activation", &get("activation")?)?.parse().map_err(to_py)?,
            ortho_init: switch("ortho_init", &get("ortho_init")?)?,
            shared_trunk: switch("shared_trunk", &get("shared_trunk")?)?,
            use_sde: switch("use_sde", &get("use_sde")?)?,
            log_std_init: number("log_std_init", &get("log_std_init")?)? as f32,
        })
    }

    fn make(&self, spec: &EnvSpec, backend: &str, rng: &mut Pcg64) -> Result<Box<dyn ActorCritic>> {
        let builder = PolicyBuilder::new(spec)
            .net_arch(&self.net_arch)
            .activation(self.activation)
            .ortho_init(self.ortho_init)
            .shared_trunk(self.shared_trunk)
            .use_sde(self.use_sde)
            .log_std_init(self.log_std_init);
        Ok(match backend {
            #[cfg(feature = "candle")]
            "candle" => Box::new(builder.build_with(rng, rlox_candle::CandleMlp::new)?),
            #[cfg(feature = "burn")]
            "burn" => Box::new(builder.build_with(rng, rlox_burn::BurnMlp::new)?),
            _ => Box::new(builder.build(rng)?),
        })
    }
}

/// Returns the encoding of observations, and the shape of one observation.
pub(super) fn encoding_of(observation: &Bound<'_, PyDict>) -> PyResult<(Encoding, Vec<usize>)> {
    let get = |name: &str| item_of("observation", observation.as_any(), name, FIX);
    let obs_shape = shape("shape", &get("shape")?)?;
    let encoding = match &*text("kind", &get("kind")?)? {
        "numbers" => Encoding::Numbers(obs_shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n))),
        "one_hot" => {
            let counts = shape("counts", &get("counts")?)?;
            if counts.contains(&0) || counts.len() != obs_shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n)) {
                let got = format!("{counts:?} for shape {obs_shape:?}");
                return Err(value_error("counts", "one positive count per integer", &got, FIX));
            }
            Encoding::OneHot(counts)
        }
        other => return Err(value_error("kind", "numbers or one_hot", other, FIX)),
    };
    if encoding.inputs() == 0 {
        let got = format!("shape {obs_shape:?}");
        return Err(value_error("observation", "at least one number", &got, "use a shape without empty axes"));
    }
    Ok((encoding, obs_shape))
}

/// Returns a backend name, or an error if this build does not include the backend.
pub(super) fn backend_of(backend: &Bound<'_, PyAny>) -> PyResult<String> {
    let backend = text("backend", backend)?;
    if network_backends().contains(&&*backend) {
        return Ok(backend);
    }
    let known = network_backends().join(", ");
    Err(value_error(
        "backend",
        &format!("one of {known}"),
        &backend,
        "use an available backend, or build rlox with that feature",
    ))
}

/// Returns a spec whose observations are the network inputs, to create networks from.
pub(super) fn spec_of(encoding: &Encoding, action: &Space) -> EnvSpec {
    EnvSpec {
        id: String::new(),
        observation: Space::uniform_box(f32::NEG_INFINITY, f32::INFINITY, &[encoding.inputs()]),
        action: action.clone(),
        max_episode_steps: None,
    }
}

/// Returns a field that every buffer has.
fn field<'a>(buffer: &'a rlox_core::RolloutBuffer, name: &str) -> Result<&'a Field> {
    buffer
        .field(name)
        .ok_or_else(|| Error::shape("buffer", format!("a field {name:?}"), "no such field", "use a rlox.RolloutBuffer"))
}

/// Performs updates on a rollout and returns the metrics.
fn learn<'py>(
    policy: &NativePolicy,
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    f: impl FnOnce(&mut Inner, &mut rlox_core::RolloutBuffer) -> Result<UpdateStats> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let (learned, std) = buffer.inner.with(py, true, |buffer| {
        policy.check(buffer)?;
        policy.inner.enter(|inner| Ok((f(inner, buffer), inner.policy.mean_std())))
    })?;
    let learned = learned.map_err(to_py)?;
    let dict = new_dict(py)?;
    let stats = learned.stats;
    for (name, number) in [
        ("policy_loss", stats.policy_loss),
        ("value_loss", stats.value_loss),
        ("entropy_loss", stats.entropy_loss),
        ("loss", stats.loss),
        ("approx_kl", stats.approx_kl),
        ("clip_fraction", stats.clip_fraction),
        ("explained_variance", learned.explained_variance),
    ] {
        dict.set_item(name, f64::from(number))?;
    }
    if let Some(std) = std {
        dict.set_item("std", f64::from(std))?;
    }
    dict.set_item("updates", learned.updates)?;
    Ok(dict)
}

/// Actions of a batch.
pub(super) enum ActionBuffer {
    Discrete(Vec<i64>),
    Continuous(Vec<f32>),
}

impl ActionBuffer {
    pub(super) fn zeroed(space: &Space, rows: usize) -> Result<Self> {
        let len = rows.saturating_mul(space.dim());
        Ok(if matches!(space, Space::Box { .. }) {
            Self::Continuous(zeroed(len)?)
        } else {
            Self::Discrete(zeroed(len)?)
        })
    }

    /// Returns the mutable slice of all actions.
    pub(super) fn all(&mut self) -> ActionsMut<'_> {
        match self {
            Self::Discrete(actions) => ActionsMut::Discrete(actions),
            Self::Continuous(actions) => ActionsMut::Continuous(actions),
        }
    }

    pub(super) fn into_array<'py>(self, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        fn array<'py, T: Element>(py: Python<'py>, data: Vec<T>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
            Ok(data.into_pyarray(py).reshape(shape)?.into_any())
        }
        match self {
            Self::Discrete(actions) => array(py, actions, shape),
            Self::Continuous(actions) => array(py, actions, shape),
        }
    }
}

/// Converted observation argument of a network; see [`crate::convert::args`].
pub(super) enum EncodedObsArgument<'py> {
    Numbers(Argument<'py, f32>),
    Integers(Argument<'py, i64>),
}

impl<'py> EncodedObsArgument<'py> {
    /// Converts observations to the type that the encoding requires. May run Python code.
    pub(super) fn new(name: &'static str, encoding: &Encoding, obs: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(match encoding {
            Encoding::Numbers(_) => Self::Numbers(argument(name, obs, &REAL)?),
            Encoding::OneHot(_) => Self::Integers(argument(name, obs, &INTEGER)?),
        })
    }

    pub(super) fn read(self) -> PyResult<EncodedObs<'py>> {
        Ok(match self {
            Self::Numbers(rows) => EncodedObs::Numbers(rows.read(false)?),
            Self::Integers(rows) => EncodedObs::Integers(rows.read(false)?),
        })
    }
}

/// Elements of an observation argument of a network.
pub(super) enum EncodedObs<'py> {
    Numbers(Input<'py, f32>),
    Integers(Input<'py, i64>),
}

impl EncodedObs<'_> {
    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Numbers(rows) => rows.shape(),
            Self::Integers(rows) => rows.shape(),
        }
    }

    pub(super) fn data(&self) -> FieldData<'_> {
        match self {
            Self::Numbers(rows) => FieldData::F32(rows.slice()),
            Self::Integers(rows) => FieldData::I64(rows.slice()),
        }
    }
}

/// Encoding and shapes for a prediction.
pub(super) struct PredictRequest<'a> {
    pub(super) encoding: &'a Encoding,
    /// Shape of one observation.
    pub(super) obs_shape: &'a [usize],
    pub(super) action: &'a Space,
}

/// Returns actions that `predict` computes: greedy, or sampled if `seed` is given.
///
/// The shape is `[n, *action_shape]`, or `[*action_shape]` for one observation. Discrete actions
/// include the `start` of the space, and Box actions are within the bounds.
pub(super) fn predict<'py>(
    request: &PredictRequest<'_>,
    py: Python<'py>,
    obs: &Bound<'py, PyAny>,
    seed: Option<&Bound<'py, PyAny>>,
    action_masks: Option<&Bound<'py, PyAny>>,
    normalizer: Option<&Bound<'py, PyAny>>,
    mut predict: impl FnMut(Observations<'_>, Option<u64>, &mut ActionBuffer) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let PredictRequest { encoding, obs_shape, action } = *request;
    let normalizer = normalizer_of(normalizer)?;
    let seed = seed.map(seed_of).transpose()?;
    let obs_argument = EncodedObsArgument::new("obs", encoding, obs)?;
    let masks = NativePolicy::masks(py, action_masks)?;
    let rows = obs_argument.read()?;
    let lead = leading_shape(rows.shape(), obs_shape)?;
    let n = lead.iter().product();
    let width = mask_width(action).map_err(to_py)?;
    if let Some(masks) = &masks {
        expect_shape("action_masks", masks.shape(), n, &[width])?;
    }
    let masks = masks.as_ref().map(Flags::slice);
    let mut buffer = ActionBuffer::zeroed(action, n).map_err(to_py)?;
    let data = rows.data();
    let mut act = |normalizer: Option<&Normalizer>| {
        predict(Observations { data, encoding, normalizer, masks }, seed, &mut buffer)
    };
    let long = n.saturating_mul(encoding.inputs()) > DETACH_ABOVE_INPUTS;
    match normalizer {
        Some(normalizer) => normalizer.inner.with(py, long, |normalizer| act(Some(normalizer))),
        None => run_locked(py, long, || act(None)),
    }?;
    buffer.into_array(py, &[&lead[..], &action.shape()].concat())
}

/// Returns the axes before the shape of one observation: none, or the number of observations.
fn leading_shape(got: &[usize], row_shape: &[usize]) -> PyResult<Vec<usize>> {
    if got == row_shape {
        return Ok(Vec::new());
    }
    match got.split_first() {
        Some((n, row)) if row == row_shape => Ok(vec![*n]),
        _ => {
            let expected = format!("one observation of shape {row_shape:?}, or a batch with one more leading axis");
            Err(value_error("obs", &expected, &format!("shape {got:?}"), "reshape it"))
        }
    }
}

/// Renames the argument `masks` of an error to `action_masks`.
pub(super) fn rename_masks(error: Error) -> Error {
    error.rename_argument("masks", "action_masks")
}

/// Returns named tensors as a dict of arrays.
pub(super) fn tensors_dict(py: Python<'_>, tensors: NamedTensors) -> PyResult<Bound<'_, PyDict>> {
    let dict = new_dict(py)?;
    for tensor in tensors {
        let array = tensor.data.into_pyarray(py).reshape(tensor.shape)?;
        dict.set_item(tensor.name, array)?;
    }
    Ok(dict)
}

/// Parses named tensors from a dict of arrays.
pub(super) fn tensors_of(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<NamedTensors> {
    let Ok(dict) = object.cast::<PyDict>() else {
        return Err(type_error(
            argument,
            "a dict of arrays by name",
            &short_repr(object),
            "pass the tensors of a policy with this architecture",
        ));
    };
    let mut tensors = NamedTensors::default();
    from_items(Some(dict), 2, |(name, array)| {
        let mismatch = |_| type_error(argument, "strings as keys", &short_repr(&name), "pass a dict of arrays by name");
        let name: String = name.extract().map_err(mismatch)?;
        let array = crate::convert::args::argument::<f32>(argument, &array, &REAL)?.read(false)?;
        let data = try_map(array.slice(), |x| x).map_err(to_py)?;
        tensors.push(name, array.shape(), data).map_err(to_py)
    })?;
    Ok(tensors)
}
