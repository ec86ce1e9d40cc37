//! `NativeAgent`: off-policy methods that act, remember and learn without Python.

mod learned;
mod make;
mod stepwise;

use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Space, Watch, stream_words, streams_of};
use rlox_nn::train::{Encoding, OffPolicyAgent, OffPolicyAlgorithm, predict_with};

use super::predict::{self, Asked};
use super::{of_masks, tensors};
use crate::argument::{INTEGER, REAL, argument, expect_shape, index, instance, number, switches};
use crate::array::new_dict;
use crate::error::to_py;
use crate::normalize::normalizer_of;
use crate::replay::{arrays_of, fields_of};
use crate::shared::Shared;
use crate::state::WORDS;
use crate::vector::NativeVectorEnv;

/// An off-policy method with its networks and its replay buffer. `rlox.learners.native_off_policy` makes it for its learners.
///
/// Args:
///     algorithm: "dqn", "sac" or "td3".
///     observation: {"kind": "numbers", "shape": tuple} or {"kind": "one_hot", "shape": tuple, "counts": list}.
///     action: An action space as native environments describe theirs.
///     num_envs: How many environments.
///     masked: Whether they say which actions are allowed.
///     idling: Whether some may only reset while others step, as in autoreset mode NEXT_STEP.
///     stream: int64 (6,), the words of the random stream that the initial weights come from.
///     seeds: int64 (2,): of the actions and minibatches, and of what is drawn while learning.
///     settings: The config's fields; see `agent::make`.
///     backend: One of `network_backends()`.
///
/// Raises:
///     ValueError, TypeError: Spaces or settings that make no sense.
///     MemoryError: Networks or replay do not fit into memory.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativeAgent {
    inner: Shared<Inner>,
    /// Set to end an iteration early.
    stop: AtomicBool,
    encoding: Encoding,
    obs_shape: Vec<usize>,
    /// Counted from 0, whatever the environments' space is.
    action: Space,
    num_envs: usize,
}

struct Inner {
    agent: OffPolicyAgent<dyn OffPolicyAlgorithm>,
    /// The networks' inputs of batches of observations.
    inputs: [Vec<f32>; 2],
}

/// How far one transition takes the run: not at all unless told.
fn growth_of(growth: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
    growth.map_or(Ok(0.0), |growth| number("growth", growth))
}

impl NativeAgent {
    /// What ends an iteration early: `stopping`, or a signal handler that raised something.
    fn pause(&self) -> impl FnMut() -> rlox_core::Result<bool> + '_ {
        let mut watch = Watch::default();
        move || watch.check().map(|()| self.stop.load(Ordering::Relaxed))
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
        let envs = make::Told { observation, action, num_envs, masked, idling };
        make::agent(py, algorithm, &envs, (stream, seeds), settings, backend)
    }

    /// Whether an iteration shall end early; stays set until it is cleared.
    #[getter]
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sets or clears `stopping`, in the middle of a call of another thread or of this one's signal handler, too.
    fn set_stopping(&self, #[pyo3(from_py_with = switches::stop)] stop: bool) {
        self.stop.store(stop, Ordering::Relaxed);
    }

    /// Whether it knows where the environments stand.
    #[getter]
    fn started(&self, py: Python<'_>) -> PyResult<bool> {
        self.inner.with(py, false, |inner| Ok(inner.agent.started()))
    }

    /// Begins episodes in native environments that have been reset.
    #[pyo3(signature = (env, normalizer=None))]
    fn start(&self, py: Python<'_>, env: &Bound<'_, PyAny>, normalizer: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        let normalizer = normalizer_of(normalizer)?;
        env.lend(py, normalizer, |env, normalizer| self.inner.enter(|inner| inner.agent.start(env, normalizer)))
    }

    /// Goes on where native environments stand, in the middle of their episodes.
    fn go_on(&self, py: Python<'_>, env: &Bound<'_, PyAny>) -> PyResult<()> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        env.lend(py, None, |env, _| self.inner.enter(|inner| inner.agent.go_on(env)))
    }

    /// Makes `train_freq` steps of each of the native environments and learns. Schedules go by `progress`, in [0, 1], and
    /// exploration goes on by `growth`, the share that one transition is of the run.
    ///
    /// Returns:
    ///     False if `stopping` ended it early. The steps that were made count.
    ///
    /// Raises:
    ///     ValueError: Environments that do not fit or were not started; numbers that are not finite.
    ///     FloatingPointError: What was computed is NaN or infinite.
    #[pyo3(signature = (env, progress, normalizer=None, growth=None))]
    fn iterate(
        &self,
        py: Python<'_>,
        env: &Bound<'_, PyAny>,
        progress: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
        growth: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let env = instance::<NativeVectorEnv>("env", env, "VecEnv")?.get();
        let (progress, growth) = (number("progress", progress)?, growth_of(growth)?);
        let done = env.lend(py, normalizer_of(normalizer)?, |env, normalizer| {
            self.inner.enter(|inner| {
                inner.agent.set_growth(growth)?;
                Ok(inner.agent.iterate(env, normalizer, progress, &mut self.pause()))
            })
        })?;
        done.map_err(to_py)
    }

    /// Environment steps so far, all environments together.
    #[getter]
    fn timesteps(&self, py: Python<'_>) -> PyResult<u64> {
        self.inner.with(py, false, |inner| Ok(inner.agent.timesteps()))
    }

    /// Counts, and what was learned last: timesteps, updates, and means over the last iteration that learned.
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (timesteps, updates, learned, rate) = self.inner.with(py, false, |inner| {
            let agent = &inner.agent;
            let rate = agent.learner().exploration_rate(agent.progress());
            Ok((agent.timesteps(), agent.updates(), agent.learned(), rate))
        })?;
        let dict = new_dict(py)?;
        dict.set_item("timesteps", timesteps)?;
        dict.set_item("updates", updates)?;
        let of = |it: Option<rlox_nn::train::OffPolicyLearned>| {
            it.map(|it| [Some(it.critic_loss), Some(it.mean_value), it.actor_loss, it.ent_coef, it.ent_coef_loss])
        };
        let names = ["critic_loss", "mean_value", "actor_loss", "ent_coef", "ent_coef_loss"];
        let numbers = of(learned).unwrap_or_default().into_iter().chain([rate]);
        for (name, number) in names.into_iter().chain(["exploration_rate"]).zip(numbers) {
            if let Some(number) = number {
                dict.set_item(name, f64::from(number))?;
            }
        }
        Ok(dict)
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
        let asked = Asked { encoding, obs_shape, action };
        predict::predict(&asked, py, obs, seed, action_masks, normalizer, |obs, seed, chosen| {
            self.inner.enter(|inner| {
                let Inner { agent, inputs: [inputs, _] } = inner;
                predict_with(agent, obs, seed, action, inputs, chosen.all()).map_err(of_masks)
            })
        })
    }

    /// All parameters by torch's names, float32.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.agent.learner().tensors()))?;
        tensors::dict(py, named)
    }

    /// Checks that `load` takes these parameters.
    ///
    /// Raises:
    ///     ValueError: As `load`.
    fn check_tensors(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.agent.learner().check_tensors(&named))
    }

    /// Takes parameters by name.
    ///
    /// Raises:
    ///     ValueError: One is absent, unknown, of another shape, or not finite; nothing has changed then.
    fn load(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("tensors", tensors)?;
        self.inner.with(py, true, |inner| inner.agent.learner_mut().load(&named))
    }

    /// What the optimisers keep, by the parameters' names, float32.
    fn optimizer_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = self.inner.with(py, true, |inner| Ok(inner.agent.learner().optimizer_state()))?;
        tensors::dict(py, named)
    }

    /// Checks that `load_optimizer_state` takes this state.
    ///
    /// Raises:
    ///     ValueError: As `load`.
    fn check_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("state", state)?;
        self.inner.with(py, true, |inner| inner.agent.learner().check_optimizer_state(&named))
    }

    /// Takes what `optimizer_state` gave.
    ///
    /// Raises:
    ///     ValueError: As `load`.
    fn load_optimizer_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let named = tensors::named("state", state)?;
        self.inner.with(py, true, |inner| inner.agent.learner_mut().load_optimizer_state(&named))
    }

    /// The words of the random streams, int64 (num_envs + 2, 6): of each environment's actions, of the choice of minibatches,
    /// of learning.
    fn streams<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        let words = self.inner.with(py, true, |inner| {
            let streams: Vec<_> = inner.agent.streams().cloned().collect();
            stream_words(&streams)
        })?;
        Ok(words.into_pyarray(py).reshape([self.num_envs + 2, WORDS])?.to_dyn().clone())
    }

    /// How many transitions are remembered.
    fn replay_len(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, false, |inner| Ok(inner.agent.replay().len()))
    }

    /// Everything that is remembered, and its priorities, as arrays by name.
    fn replay_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        arrays_of(py, self.inner.with(py, true, |inner| inner.agent.replay_state())?)
    }

    /// Goes back to what `replay_state` gave.
    ///
    /// Raises:
    ///     ValueError: It is another's, or damaged; nothing has changed then.
    fn load_replay_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        let fields = fields_of(arrays)?;
        self.inner.with(py, true, |inner| inner.agent.load_replay_state(&fields))
    }

    /// Where the action noise is, float32 (num_envs * action numbers,), or empty; what is due of a minibatch; how far the run
    /// was in the last iteration.
    fn standing<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, f64, f64)> {
        let (noise, due, progress) = self.inner.with(py, true, |inner| {
            let agent = &inner.agent;
            Ok((agent.learner().noise().to_vec(), agent.left_over(), agent.progress()))
        })?;
        Ok((noise.into_pyarray(py).into_any(), due, progress))
    }

    /// Returns the largest number of minibatches that can be due after this many timesteps.
    fn due_limit(&self, py: Python<'_>, timesteps: &Bound<'_, PyAny>) -> PyResult<f64> {
        let timesteps = index("timesteps", timesteps)? as u64;
        self.inner.with(py, false, |inner| Ok(inner.agent.due_limit(timesteps)))
    }

    /// Goes on with streams, noise and counts that were there before; the environments have to be started.
    ///
    /// Raises:
    ///     ValueError: They are another's; nothing has changed then.
    fn set_standing(
        &self,
        py: Python<'_>,
        streams: &Bound<'_, PyAny>,
        noise: &Bound<'_, PyAny>,
        due: &Bound<'_, PyAny>,
        timesteps: &Bound<'_, PyAny>,
        updates: &Bound<'_, PyAny>,
        progress: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (due, progress) = (number("due", due)?, number("progress", progress)?);
        let (timesteps, updates) = (index("timesteps", timesteps)? as u64, index("updates", updates)? as u64);
        let (streams, noise) =
            (argument::<i64>("streams", streams, &INTEGER)?, argument::<f32>("noise", noise, &REAL)?);
        let (streams, noise) = (streams.read(false)?, noise.read(false)?);
        expect_shape("streams", streams.shape(), self.num_envs + 2, &[WORDS])?;
        let (words, noise) = (streams.slice(), noise.slice());
        self.inner.with(py, true, |inner| {
            let streams = streams_of(words)?;
            let before = inner.agent.learner().noise().to_vec();
            inner.agent.learner_mut().set_noise(noise)?;
            let set = inner.agent.set_standing(&streams, timesteps, updates, due, progress);
            // What was there is not refused.
            set.or_else(|error| inner.agent.learner_mut().set_noise(&before).and(Err(error)))
        })
    }

    /// Means over the minibatches of the last iteration that learned, by name, with None for what nobody told; None before
    /// the first.
    fn learned<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        learned::told(py, self.inner.with(py, false, |inner| Ok(inner.agent.learned()))?)
    }

    /// Tells in `said` what `learned` gave before `set_standing`, which forgets it.
    ///
    /// Raises:
    ///     ValueError, TypeError: It is something else; nothing has changed then.
    fn set_learned(&self, py: Python<'_>, learned: &Bound<'_, PyAny>) -> PyResult<()> {
        let learned = learned::taken(learned)?;
        self.inner.with(py, false, |inner| {
            inner.agent.set_learned(learned);
            Ok(())
        })
    }

    // What is for environments that Python steps, see `stepwise`.

    /// Takes where environments stand, (N, *obs_shape) as rollouts store it: at the beginning of episodes if `fresh`.
    #[pyo3(signature = (obs, fresh, action_masks=None, normalizer=None))]
    fn start_at<'py>(
        &self,
        py: Python<'py>,
        obs: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = switches::fresh)] fresh: bool,
        action_masks: Option<&Bound<'py, PyAny>>,
        normalizer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        stepwise::start_at(self, py, obs, fresh, action_masks, normalizer)
    }

    /// Begins an iteration that is made step by step; `growth` as for `iterate`.
    #[pyo3(signature = (progress, growth=None))]
    fn begin(&self, py: Python<'_>, progress: &Bound<'_, PyAny>, growth: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let (progress, growth) = (number("progress", progress)?, growth_of(growth)?);
        self.inner.with(py, true, |inner| {
            inner.agent.set_growth(growth)?;
            inner.agent.begin(progress)
        })
    }

    /// What to do next, (N, *action_shape): integers counted from 0, or numbers within a Box's bounds.
    #[pyo3(signature = (normalizer=None))]
    fn act<'py>(&self, py: Python<'py>, normalizer: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        stepwise::act(self, py, normalizer)
    }

    /// Remembers what came of it; see `rlox_nn::train::Outcome` for the arrays, all (N, ...).
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
        let masks = [action_masks, final_action_masks];
        let stepped = stepwise::Stepped { next_obs, obs, rewards, terminated, truncated, valid, masks };
        stepwise::observe(self, py, &stepped, normalizer)
    }

    /// Learns as much as is meant after the steps since `begin`; False if `stopping` ended it early.
    ///
    /// Raises:
    ///     FloatingPointError: What was computed is NaN or infinite.
    #[pyo3(signature = (normalizer=None))]
    fn learn(&self, py: Python<'_>, normalizer: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        stepwise::learn(self, py, normalizer)
    }
}
