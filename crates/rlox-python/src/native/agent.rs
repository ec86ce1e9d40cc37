//! The class `NativeAgent`: off-policy algorithms that collect transitions and learn in Rust.

use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{
    Actions, EnvSpec, Normalizer as CoreNormalizer, Pcg64, Result, Space,
    interrupt::InterruptCheck,
    vector::{streams_from_array, streams_to_array},
};
use rlox_nn::train::{
    DqnConfig, DqnLearner, Encoding, EnvInfo, OffPolicyAgent, OffPolicyAlgorithm, OffPolicyMethod,
    OffPolicyUpdateStats, ReplayConfig, SacConfig, SacLearner, StepResult, Td3Config, Td3Learner, predict_with,
};
use rlox_nn::{Activation, CriticEnsemble, DeterministicActor, Init, Mlp, Network, QNetworks, SquashedPolicy};

use super::configs::{self, ConfigDict, FIX};
use super::policy::{
    ActionBuffer, EncodedObs, EncodedObsArgument, NativePolicy, PredictRequest, backend_of, encoding_of, predict,
    rename_masks, spec_of, tensors_dict, tensors_of,
};
use crate::alloc::try_map;
use crate::convert::args::{
    INTEGER, REAL, argument, count, expect_shape, index, instance, item_of, number, shape, switches, text,
};
use crate::convert::array::new_dict;
use crate::convert::flags::{Flags, flag_argument};
use crate::convert::space::space_of;
use crate::env::snapshot::RNG_STATE_LEN;
use crate::env::vec_env::NativeVectorEnv;
use crate::error::{to_py, value_error};
use crate::normalize::normalizer_of;
use crate::replay::{arrays_of, fields_of};
use crate::sync::cell::GuardedCell;
use crate::sync::gil::detach;

/// Names of the metrics. All algorithms have the first four, and some have the last three.
const NAMES: [&str; 7] =
    ["critic_loss", "mean_value", "grad_norm", "learning_rate", "actor_loss", "ent_coef", "ent_coef_loss"];

/// Off-policy algorithm with networks and a replay buffer; see `rlox.learners.native_off_policy`.
///
/// Args:
///     algorithm: "dqn", "sac" or "td3".
///     observation: Format of observations, one of two dicts. {"kind": "numbers", "shape": tuple}
///         stands for real numbers. {"kind": "one_hot", "shape": tuple, "counts": list} stands for
///         integers from 0, with their numbers of possible values in `counts`.
///     action: Description of the action space, as in `NativeVectorEnv.spec()["action"]`.
///     num_envs: Number of environments.
///     masked: True if the environments provide action masks.
///     idling: True if a step may only reset some environments, as in autoreset mode NEXT_STEP.
///     stream: int64 (6,), state of the random stream for the initial weights.
///     seeds: int64 (2,): the seed of actions and minibatches, and the seed of random numbers in
///         updates.
///     settings: Fields of the algorithm's config by name; see `native/configs.rs`.
///     backend: A name from `network_backends()`.
///
/// Raises:
///     ValueError, TypeError: Spaces or settings are invalid.
///     MemoryError: The networks or the replay buffer do not fit into memory.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativeAgent {
    inner: GuardedCell<Inner>,
    /// Flag that ends an iteration early.
    stop: AtomicBool,
    encoding: Encoding,
    obs_shape: Vec<usize>,
    /// Action space. Actions of a Discrete space are counted from 0, whatever its `start`.
    action: Space,
    num_envs: usize,
}

struct Inner {
    agent: OffPolicyAgent<dyn OffPolicyAlgorithm>,
    /// Network inputs of two batches of observations.
    inputs: [Vec<f32>; 2],
}

impl NativeAgent {
    /// Calls `f` with the agent, and with the normaliser if there is one.
    fn enter<R: Send>(
        &self,
        py: Python<'_>,
        normalizer: Option<&Bound<'_, PyAny>>,
        f: impl FnOnce(&mut Inner, Option<&mut CoreNormalizer>) -> Result<R> + Send,
    ) -> PyResult<R> {
        match normalizer_of(normalizer)? {
            Some(it) => it.inner.with(py, true, |it| self.inner.enter(|inner| f(inner, Some(it)))),
            None => self.inner.with(py, true, |inner| f(inner, None)),
        }
    }

    fn expect_rows(&self, name: &'static str, rows: &EncodedObs<'_>) -> PyResult<()> {
        expect_shape(name, rows.shape(), self.num_envs, &self.obs_shape)
    }

    /// Returns a function that returns true if `stop_requested` is set.
    ///
    /// Its error is the exception of a signal handler, which ends an iteration, too.
    fn stop_fn(&self) -> impl FnMut() -> Result<bool> + '_ {
        let mut interrupt = InterruptCheck::default();
        move || interrupt.check().map(|()| self.stop.load(Ordering::Relaxed))
    }
}

#[pymethods]
impl NativeAgent {
    #[new]
    #[pyo3(signature = (algorithm, observation, action, num_envs, masked, idling, stream, seeds, settings, backend))]
    fn new(
        py: Python<'_>,
        algorithm: &Bound<'_, PyAny>,
        observation: &Bound<'_, PyDict>,
        action: &Bound<'_, PyDict>,
        num_envs: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = switches::masked)] masked: bool,
        #[pyo3(from_py_with = switches::idling)] idling: bool,
        stream: &Bound<'_, PyAny>,
        seeds: &Bound<'_, PyAny>,
        settings: &Bound<'_, PyDict>,
        backend: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let env_arguments = EnvArguments { observation, action, num_envs, masked, idling };
        make_agent(py, algorithm, &env_arguments, (stream, seeds), settings, backend)
    }

    /// True if iterations end early, until `set_stop_requested(False)`.
    #[getter]
    fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Set or clear `stop_requested`, even while another thread's call runs or in a signal handler.
    fn set_stop_requested(&self, #[pyo3(from_py_with = switches::stop)] stop: bool) {
        self.stop.store(stop, Ordering::Relaxed);
    }

    /// True if the agent has current observations of the environments.
    #[getter]
    fn env_initialized(&self, py: Python<'_>) -> PyResult<bool> {
        self.inner.with(py, false, |inner| Ok(inner.agent.env_initialized()))
    }

    /// Start new episodes in native environments that the caller has reset.
    #[pyo3(signature = (env, normalizer=None))]
    fn start(&self, py: Python<'_>, env: &Bound<'_, PyAny>, normalizer: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        let normalizer = normalizer_of(normalizer)?;
        env.with_env_and_normalizer(py, normalizer, |env, normalizer| {
            self.inner.enter(|inner| inner.agent.start(env, normalizer))
        })
    }

    /// Continue the current episodes of native environments.
    fn attach(&self, py: Python<'_>, env: &Bound<'_, PyAny>) -> PyResult<()> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        env.with_env_and_normalizer(py, None, |env, _| self.inner.enter(|inner| inner.agent.attach(env)))
    }

    /// Perform `train_freq` steps in each native environment, then the updates.
    ///
    /// `progress` is the completed fraction of the run, in [0, 1]. Learning schedules use this
    /// number. Exploration schedules add `progress_per_step` for each transition of the iteration.
    ///
    /// Returns:
    ///     False if `stop_requested` ended the iteration early. Completed steps still count.
    ///
    /// Raises:
    ///     ValueError: Environments do not match or were not started, or numbers are not finite.
    ///     FloatingPointError: A computed number is NaN or infinite.
    #[pyo3(signature = (env, progress, normalizer=None, progress_per_step=None))]
    fn iterate(
        &self,
        py: Python<'_>,
        env: &Bound<'_, PyAny>,
        progress: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
        progress_per_step: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        let (progress, progress_per_step) =
            (number("progress", progress)?, parse_progress_per_step(progress_per_step)?);
        let done = env.with_env_and_normalizer(py, normalizer_of(normalizer)?, |env, normalizer| {
            self.inner.enter(|inner| {
                inner.agent.set_progress_per_step(progress_per_step)?;
                Ok(inner.agent.iterate(env, normalizer, progress, &mut self.stop_fn()))
            })
        })?;
        done.map_err(to_py)
    }

    /// Number of transitions so far, over all environments.
    #[getter]
    fn timesteps(&self, py: Python<'_>) -> PyResult<u64> {
        self.inner.with(py, false, |inner| Ok(inner.agent.timesteps()))
    }

    /// Return the number of timesteps, the number of updates, and metrics as a dict.
    ///
    /// The metrics are means over the last iteration with updates.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (timesteps, updates, learned, rate) = self.inner.with(py, false, |inner| {
            let agent = &inner.agent;
            let rate = agent.learner().exploration_rate(agent.progress());
            Ok((agent.timesteps(), agent.updates(), agent.last_update(), rate))
        })?;
        let dict = new_dict(py)?;
        dict.set_item("timesteps", timesteps)?;
        dict.set_item("updates", updates)?;
        let to_numbers = |it: Option<OffPolicyUpdateStats>| {
            it.map(|it| [Some(it.critic_loss), Some(it.mean_value), it.actor_loss, it.ent_coef, it.ent_coef_loss])
        };
        let names = ["critic_loss", "mean_value", "actor_loss", "ent_coef", "ent_coef_loss"];
        let numbers = to_numbers(learned).unwrap_or_default().into_iter().chain([rate]);
        for (name, number) in names.into_iter().chain(["exploration_rate"]).zip(numbers) {
            if let Some(number) = number {
                dict.set_item(name, f64::from(number))?;
            }
        }
        Ok(dict)
    }

    /// Return actions for one observation or a batch; see `NativePolicy.predict`.
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
                let Inner { agent, inputs: [inputs, _] } = inner;
                predict_with(agent, obs, seed, action, inputs, buffer.all()).map_err(rename_masks)
            })
        })
    }

    /// Return all parameters as float32 arrays, by their names in torch modules.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.agent.learner().tensors()))?;
        tensors_dict(py, named)
    }

    /// Check that `load` accepts these parameters.
    ///
    /// Raises:
    ///     ValueError: As for `load`.
    fn check_tensors(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.agent.learner().check_tensors(&named))
    }

    /// Load parameters by name.
    ///
    /// Raises:
    ///     ValueError: A parameter is missing, unknown, of another shape or not finite. The agent
    ///         is unchanged.
    fn load(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.agent.learner_mut().load(&named))
    }

    /// Return the states of the optimisers as float32 arrays, by the names of the parameters.
    fn optimizer_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.agent.learner().optimizer_state()))?;
        tensors_dict(py, named)
    }

    /// Check that `load_optimizer_state` accepts this state.
    ///
    /// Raises:
    ///     ValueError: As for `load`.
    fn check_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("state", state)?;
        self.inner.with(py, true, |inner| inner.agent.learner().check_optimizer_state(&named))
    }

    /// Load the result of `optimizer_state`.
    ///
    /// Raises:
    ///     ValueError: As for `load`.
    fn load_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors_of("state", state)?;
        self.inner.with(py, true, |inner| inner.agent.learner_mut().load_optimizer_state(&named))
    }

    /// Return the states of the random streams, int64 (num_envs + 2, 6).
    ///
    /// The first `num_envs` rows are the streams of the environments' actions. The last two rows
    /// are the streams of minibatch indices and of random numbers in updates.
    fn streams<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        let states = self.inner.with(py, true, |inner| {
            let streams: Vec<_> = inner.agent.streams().cloned().collect();
            streams_to_array(&streams)
        })?;
        Ok(states.into_pyarray(py).reshape([self.num_envs + 2, RNG_STATE_LEN])?.to_dyn().clone())
    }

    /// Return the number of transitions in the replay buffer.
    fn replay_len(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, false, |inner| Ok(inner.agent.replay().len()))
    }

    /// Return the content of the replay buffer and its priorities, as arrays by name.
    fn replay_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        arrays_of(py, self.inner.with(py, true, |inner| inner.agent.replay_state())?)
    }

    /// Restore the result of `replay_state`.
    ///
    /// Raises:
    ///     ValueError: The state belongs to another agent or is damaged; the agent is unchanged.
    fn load_replay_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        let fields = fields_of(arrays)?;
        self.inner.with(py, true, |inner| inner.agent.load_replay_state(&fields))
    }

    /// Return the action noise, the pending updates and the progress of the last iteration.
    ///
    /// The noise is float32 (num_envs * action_dim,), or empty. Pending updates are the number of
    /// minibatches that are due but not yet learned from, including a fraction.
    fn progress_state<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, f64, f64)> {
        let (noise, pending_updates, progress) = self.inner.with(py, true, |inner| {
            let agent = &inner.agent;
            Ok((agent.learner().noise().to_vec(), agent.remainder(), agent.progress()))
        })?;
        Ok((noise.into_pyarray(py).into_any(), pending_updates, progress))
    }

    /// Return the maximum number of pending updates after a number of timesteps.
    fn pending_limit(&self, py: Python<'_>, timesteps: &Bound<'_, PyAny>) -> PyResult<f64> {
        let timesteps = index("timesteps", timesteps)? as u64;
        self.inner.with(py, false, |inner| Ok(inner.agent.pending_limit(timesteps)))
    }

    /// Restore random streams, noise and counters of an earlier agent.
    ///
    /// The environments must be started again afterwards.
    ///
    /// Raises:
    ///     ValueError: The state belongs to another agent; the agent is unchanged.
    fn load_progress_state(
        &self,
        py: Python<'_>,
        streams: &Bound<'_, PyAny>,
        noise: &Bound<'_, PyAny>,
        pending_updates: &Bound<'_, PyAny>,
        timesteps: &Bound<'_, PyAny>,
        updates: &Bound<'_, PyAny>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (pending_updates, progress) = (number("pending_updates", pending_updates)?, number("progress", progress)?);
        let (timesteps, updates) = (index("timesteps", timesteps)? as u64, index("updates", updates)? as u64);
        let (streams, noise) =
            (argument::<i64>("streams", streams, &INTEGER)?, argument::<f32>("noise", noise, &REAL)?);
        let (streams, noise) = (streams.read(false)?, noise.read(false)?);
        expect_shape("streams", streams.shape(), self.num_envs + 2, &[RNG_STATE_LEN])?;
        let (stream_states, noise) = (streams.slice(), noise.slice());
        self.inner.with(py, true, |inner| {
            let streams = streams_from_array(stream_states)?;
            let before = inner.agent.learner().noise().to_vec();
            inner.agent.learner_mut().set_noise(noise)?;
            let set = inner.agent.load_progress_state(&streams, timesteps, updates, pending_updates, progress);
            // Setting the earlier noise again cannot fail.
            set.or_else(|error| inner.agent.learner_mut().set_noise(&before).and(Err(error)))
        })
    }

    /// Return the means over the minibatches of the last iteration with updates, by name.
    ///
    /// Means that the algorithm does not report are None. The result is None before the first
    /// update.
    fn last_update<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        update_stats_dict(py, self.inner.with(py, false, |inner| Ok(inner.agent.last_update()))?)
    }

    /// Load the result of `last_update`.
    ///
    /// Call this after `load_progress_state`, which discards the means.
    ///
    /// Raises:
    ///     ValueError, TypeError: The argument is not a result of `last_update`. The agent is
    ///         unchanged.
    fn load_last_update(&self, py: Python<'_>, last_update: &Bound<'_, PyAny>) -> PyResult<()> {
        let stats = update_stats_of(last_update)?;
        self.inner.with(py, false, |inner| {
            inner.agent.load_last_update(stats);
            Ok(())
        })
    }

    // Methods for environments that Python code steps.

    /// Set the current observations of environments that Python code steps, (N, *obs_shape).
    ///
    /// The observations have the format of the argument `observation`. If `is_new` is true, new
    /// episodes start. Otherwise, the current episodes continue.
    #[pyo3(signature = (obs, is_new, action_masks=None, normalizer=None))]
    fn start_from_obs<'py>(
        &self,
        py: Python<'py>,
        obs: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = switches::is_new)] is_new: bool,
        action_masks: Option<&Bound<'py, PyAny>>,
        normalizer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let obs = EncodedObsArgument::new("obs", &self.encoding, obs)?;
        let masks = NativePolicy::masks(py, action_masks)?;
        let obs = obs.read()?;
        self.expect_rows("obs", &obs)?;
        let (obs, masks) = (obs.data(), masks.as_ref().map(Flags::slice));
        self.enter(py, normalizer, |inner, normalizer| {
            let Inner { agent, inputs: [inputs, _] } = inner;
            self.encoding.encode(obs, 0..self.num_envs, inputs)?;
            if is_new { agent.start_from_obs(inputs, masks, normalizer) } else { agent.attach_at(inputs, masks) }
        })
    }

    /// Start an iteration whose steps the caller performs; the arguments are those of `iterate`.
    #[pyo3(signature = (progress, progress_per_step=None))]
    fn begin(
        &self,
        py: Python<'_>,
        progress: &Bound<'_, PyAny>,
        progress_per_step: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (progress, progress_per_step) =
            (number("progress", progress)?, parse_progress_per_step(progress_per_step)?);
        self.inner.with(py, true, |inner| {
            inner.agent.set_progress_per_step(progress_per_step)?;
            inner.agent.begin(progress)
        })
    }

    /// Return the next actions, (N, *action_shape): integers from 0, or numbers in a Box.
    #[pyo3(signature = (normalizer=None))]
    fn act<'py>(&self, py: Python<'py>, normalizer: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let actions = self.enter(py, normalizer, |inner, normalizer| {
            Ok(match inner.agent.act(normalizer).map_err(rename_masks)? {
                Actions::Discrete(actions) => ActionBuffer::Discrete(try_map(actions, |x| x)?),
                Actions::Continuous(actions) => ActionBuffer::Continuous(try_map(actions, |x| x)?),
            })
        })?;
        actions.into_array(py, &[&[self.num_envs][..], &self.action.shape()].concat())
    }

    /// Store the result of a step. All arguments are arrays (N, ...).
    ///
    /// The fields of `rlox_nn::train::StepResult` describe the arguments.
    #[pyo3(signature = (next_obs, obs, rewards, terminated, truncated, valid=None, action_masks=None, final_action_masks=None, normalizer=None))]
    fn observe<'py>(
        &self,
        py: Python<'py>,
        next_obs: &Bound<'py, PyAny>,
        obs: &Bound<'py, PyAny>,
        rewards: &Bound<'py, PyAny>,
        terminated: &Bound<'py, PyAny>,
        truncated: &Bound<'py, PyAny>,
        valid: Option<&Bound<'py, PyAny>>,
        action_masks: Option<&Bound<'py, PyAny>>,
        final_action_masks: Option<&Bound<'py, PyAny>>,
        normalizer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let next_obs = EncodedObsArgument::new("next_obs", &self.encoding, next_obs)?;
        let obs = EncodedObsArgument::new("obs", &self.encoding, obs)?;
        let rewards = argument::<f64>("rewards", rewards, &REAL)?;
        let terminated = flag_argument("terminated", terminated)?;
        let truncated = flag_argument("truncated", truncated)?;
        let valid = valid.map(|valid| flag_argument("valid", valid)).transpose()?;
        let masks = action_masks.map(|masks| flag_argument("action_masks", masks)).transpose()?;
        let final_masks = final_action_masks.map(|masks| flag_argument("final_action_masks", masks)).transpose()?;
        let (next_obs, obs, rewards) = (next_obs.read()?, obs.read()?, rewards.read(false)?);
        let (terminated, truncated) = (terminated.read(py, false)?, truncated.read(py, false)?);
        let valid = valid.map(|valid| valid.read(py, false)).transpose()?;
        let masks = masks.map(|masks| masks.read(py, false)).transpose()?;
        let final_masks = final_masks.map(|masks| masks.read(py, false)).transpose()?;
        self.expect_rows("next_obs", &next_obs)?;
        self.expect_rows("obs", &obs)?;
        expect_shape("rewards", rewards.shape(), self.num_envs, &[])?;
        let (next_obs, obs, rewards) = (next_obs.data(), obs.data(), rewards.slice());
        let (terminated, truncated) = (terminated.slice(), truncated.slice());
        let [valid, masks, final_masks] = [&valid, &masks, &final_masks].map(|flags| flags.as_ref().map(Flags::slice));
        self.enter(py, normalizer, |inner, normalizer| {
            let Inner { agent, inputs: [inputs, next_inputs] } = inner;
            self.encoding.encode(obs, 0..self.num_envs, inputs)?;
            self.encoding.encode(next_obs, 0..self.num_envs, next_inputs)?;
            let (next_obs, obs) = (&*next_inputs, &*inputs);
            let result = StepResult { next_obs, obs, rewards, terminated, truncated, valid, masks, final_masks };
            agent.observe(&result, normalizer)
        })
    }

    /// Perform the updates that are due after the steps since `begin`.
    ///
    /// Returns:
    ///     False if `stop_requested` ended the updates early.
    ///
    /// Raises:
    ///     FloatingPointError: A computed number is NaN or infinite.
    #[pyo3(signature = (normalizer=None))]
    fn learn(&self, py: Python<'_>, normalizer: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let done = self.enter(py, normalizer, |inner, normalizer| {
            Ok(inner.agent.learn(normalizer.as_deref(), &mut self.stop_fn()))
        })?;
        done.map_err(to_py)
    }
}

/// Parses the fraction of the run that one transition is; 0 by default.
fn parse_progress_per_step(value: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
    value.map_or(Ok(0.0), |progress_per_step| number("progress_per_step", progress_per_step))
}

/// Python objects that describe the environments.
struct EnvArguments<'a, 'py> {
    observation: &'a Bound<'py, PyDict>,
    action: &'a Bound<'py, PyDict>,
    num_envs: &'a Bound<'py, PyAny>,
    masked: bool,
    idling: bool,
}

/// Makes an agent from the description of the environments and the settings.
fn make_agent(
    py: Python<'_>,
    algorithm: &Bound<'_, PyAny>,
    env_arguments: &EnvArguments<'_, '_>,
    (stream, seeds): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    settings: &Bound<'_, PyDict>,
    backend: &Bound<'_, PyAny>,
) -> PyResult<NativeAgent> {
    let (encoding, obs_shape) = encoding_of(env_arguments.observation)?;
    let space = space_of(env_arguments.action)?;
    let num_envs = count("num_envs", env_arguments.num_envs)?;
    let settings = ConfigDict(settings);
    let method = AlgorithmConfig::parse(&text("algorithm", algorithm)?, &settings)?;
    let net_arch = shape("net_arch", &settings.get("net_arch")?)?;
    let activation = text("activation", &settings.get("activation")?)?.parse().map_err(to_py)?;
    let backend = backend_of(backend)?;
    let state = argument::<i64>("stream", stream, &INTEGER)?.read(false)?;
    let seeds = argument::<i64>("seeds", seeds, &INTEGER)?.read(false)?;
    expect_shape("stream", state.shape(), RNG_STATE_LEN, &[])?;
    expect_shape("seeds", seeds.shape(), 2, &[])?;
    let (state, seeds) = (state.slice(), [seeds.slice()[0], seeds.slice()[1]].map(i64::cast_unsigned));
    let spec = spec_of(&encoding, &space);
    let (masked, idling, network) =
        (env_arguments.masked, env_arguments.idling, NetworkConfig { net_arch, activation });
    let agent = detach(py, || -> Result<_> {
        let mut rng = Pcg64::from_state_array(state)?;
        let (learner, replay_config) = method.build(&backend, &network, (&spec, num_envs), &mut rng)?;
        OffPolicyAgent::new(learner, replay_config, &EnvInfo { spec: &spec, num_envs, masked, idling }, seeds)
    });
    let agent = agent.map_err(|error| {
        to_py(
            error
                .rename_argument("sizes", "net_arch")
                .rename_argument("hidden", "net_arch")
                .rename_argument("lr", "learning_rate"),
        )
    })?;
    let action = match space {
        Space::Discrete { n, .. } => Space::discrete(n),
        space => space,
    };
    let inner = GuardedCell::new("NativeAgent", Inner { agent, inputs: Default::default() });
    Ok(NativeAgent { inner, stop: AtomicBool::new(false), encoding, obs_shape, action, num_envs })
}

/// Config of an algorithm, and the flags that select its networks.
enum AlgorithmConfig {
    Dqn { config: DqnConfig, dueling: bool },
    Sac(SacConfig),
    Td3(Td3Config),
}

struct NetworkConfig {
    net_arch: Vec<usize>,
    activation: Activation,
}

type Learner = Box<dyn OffPolicyAlgorithm>;
/// Learner, and the config of its replay buffer.
type LearnerAndReplay = (Learner, ReplayConfig);

impl AlgorithmConfig {
    fn parse(algorithm: &str, settings: &ConfigDict<'_, '_>) -> PyResult<Self> {
        match algorithm {
            "dqn" => Ok(Self::Dqn { config: configs::dqn(settings)?, dueling: settings.switch("dueling")? }),
            "sac" => Ok(Self::Sac(configs::sac(settings)?)),
            "td3" => Ok(Self::Td3(configs::td3(settings)?)),
            other => Err(value_error("algorithm", "dqn, sac or td3", other, FIX)),
        }
    }

    /// Returns the learner, with networks that `make` returns.
    fn learner<N: Network + 'static>(
        self,
        network: &NetworkConfig,
        (spec, num_envs): (&EnvSpec, usize),
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<LearnerAndReplay> {
        fn finish<M: OffPolicyMethod + 'static>(
            config: M::Config,
            networks: impl FnOnce(&M::Config) -> Result<M::Networks>,
            spec: &EnvSpec,
            num_envs: usize,
        ) -> Result<LearnerAndReplay> {
            let replay_config = M::replay_config(&config, spec)?;
            let networks = networks(&config)?;
            Ok((Box::new(M::new(config, networks, spec, num_envs)?), replay_config))
        }
        let hidden = &network.net_arch[..];
        match self {
            Self::Dqn { config, dueling: false } => {
                finish::<DqnLearner<_>>(config, |_| QNetworks::with(spec, hidden, rng, make), spec, num_envs)
            }
            Self::Dqn { config, dueling: true } => {
                finish::<DqnLearner<_>>(config, |_| QNetworks::dueling_with(spec, hidden, rng, make), spec, num_envs)
            }
            Self::Sac(config) => {
                let networks = |config: &SacConfig| {
                    let log_std = config.use_sde.then_some(config.log_std_init);
                    let policy = SquashedPolicy::with(spec, hidden, log_std, rng, &mut make)?;
                    Ok((policy, CriticEnsemble::with(spec, hidden, 2, rng, make)?))
                };
                finish::<SacLearner<_, _>>(config, networks, spec, num_envs)
            }
            Self::Td3(config) => {
                let networks = |_: &Td3Config| {
                    let policy = DeterministicActor::with(spec, hidden, rng, &mut make)?;
                    Ok((policy, CriticEnsemble::with(spec, hidden, 2, rng, make)?))
                };
                finish::<Td3Learner<_, _>>(config, networks, spec, num_envs)
            }
        }
    }

    /// Returns the learner with the networks of a backend.
    fn build(
        self,
        backend: &str,
        network: &NetworkConfig,
        envs: (&EnvSpec, usize),
        rng: &mut Pcg64,
    ) -> Result<LearnerAndReplay> {
        let activation = network.activation;
        match backend {
            #[cfg(feature = "candle")]
            "candle" => self.learner(network, envs, rng, |sizes, rng| {
                rlox_candle::CandleMlp::new(sizes, activation, Init::Kaiming, rng)
            }),
            #[cfg(feature = "burn")]
            "burn" => self.learner(network, envs, rng, |sizes, rng| {
                rlox_burn::BurnMlp::new(sizes, activation, Init::Kaiming, rng)
            }),
            _ => self.learner(network, envs, rng, |sizes, rng| Mlp::new(sizes, activation, Init::Kaiming, rng)),
        }
    }
}

/// Returns the means of an iteration as a dict by name, with None for means that are not reported.
fn update_stats_dict(py: Python<'_>, last_update: Option<OffPolicyUpdateStats>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(stats) = last_update else { return Ok(None) };
    let dict = new_dict(py)?;
    let OffPolicyUpdateStats { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } =
        stats;
    let always = [critic_loss, mean_value, grad_norm, learning_rate].map(Some);
    for (name, mean) in NAMES.into_iter().zip(always.into_iter().chain([actor_loss, ent_coef, ent_coef_loss])) {
        dict.set_item(name, mean.map(f64::from))?;
    }
    Ok(Some(dict))
}

/// Parses a dict from [`update_stats_dict`].
fn update_stats_of(object: &Bound<'_, PyAny>) -> PyResult<Option<OffPolicyUpdateStats>> {
    if object.is_none() {
        return Ok(None);
    }
    let metrics = ConfigDict(instance("last_update", object, "dict, or None")?);
    for name in NAMES {
        item_of("last_update", object, name, "pass the result of last_update()")?;
    }
    let mean = |name| metrics.double(name).map(|mean| mean as f32);
    let optional_mean = |name| metrics.double_or_none(name).map(|mean| mean.map(|mean| mean as f32));
    Ok(Some(OffPolicyUpdateStats {
        critic_loss: mean("critic_loss")?,
        mean_value: mean("mean_value")?,
        grad_norm: mean("grad_norm")?,
        actor_loss: optional_mean("actor_loss")?,
        ent_coef: optional_mean("ent_coef")?,
        ent_coef_loss: optional_mean("ent_coef_loss")?,
        learning_rate: mean("learning_rate")?,
    }))
}
