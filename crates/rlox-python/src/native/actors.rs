//! The class `NativeActors`: actors that collect rollouts while a learner updates.
//!
//! An actor is a Rust thread that runs without the GIL, or a Python object.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::PyTypeCheck;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{
    AsyncCollector, Error, Pcg64, Result, VectorEnv,
    pipeline::{Collect, PipelineStats, RolloutJob, StalenessPolicy},
};
use rlox_nn::NamedTensors;
use rlox_nn::train::{CollectConfig, collect_transitions};

use super::policy::{Inner, NativePolicy, tensors_of};
use crate::convert::args::{INTEGER, argument, count, expect_shape, instance, number, sequence, short_repr, switches};
use crate::convert::array::new_dict;
use crate::env::snapshot::RNG_STATE_LEN;
use crate::env::vec_env::NativeVectorEnv;
use crate::error::{replace_ordinary_error, to_py, type_error, value_error};
use crate::normalize::{Normalizer, StateArrays, state_arrays, to_dict};
use crate::rollout::RolloutBuffer;
use crate::sync::cell::GuardedCell;
use crate::sync::gil::{detach, without_gil};

/// Seconds that one wait for a Python actor takes before the stop flag is checked again.
const POLL_SECONDS: f64 = 0.1;

/// Index of the buffer with the rollout, and the episodes that ended during the rollout.
#[derive(Default)]
pub(crate) struct FilledRollout {
    pub(crate) buffer: usize,
    pub(crate) returns: Vec<f64>,
    pub(crate) lengths: Vec<u32>,
    /// Number of further episodes that ended, whose returns and lengths were dropped.
    pub(crate) dropped: u64,
    /// Statistics of the actor's normaliser after the rollout, if the actor has one.
    pub(crate) statistics: Option<StateArrays>,
}

/// Weights that a learner publishes.
pub(crate) enum Weights {
    /// Weights for policies in Rust.
    Tensors(NamedTensors),
    /// Weights for actors in Python.
    Object(Py<PyAny>),
}

/// Objects of one actor thread. Their locks let Python code use them between two rollouts.
struct Actor {
    env: Arc<Py<NativeVectorEnv>>,
    policy: Py<NativePolicy>,
    normalizer: Option<Arc<Py<Normalizer>>>,
    buffers: Arc<Vec<Py<RolloutBuffer>>>,
    config: CollectConfig,
    version: Option<u64>,
}

impl Collect<Weights, FilledRollout> for Actor {
    fn collect(&mut self, job: &mut RolloutJob<Weights, FilledRollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, normalizer, buffers, .. } = &*self;
        let (env, buffer) = (Arc::clone(env), Arc::clone(buffers));
        let buffer = buffer[job.buffer.buffer].get();
        let normalizer = normalizer.clone();
        without_gil(|| {
            env.get().inner.enter(|inner| {
                // Lock order in all code: environment, buffer, normaliser, policy.
                let done = buffer.inner.enter(|buffer| match &normalizer {
                    Some(normalizer) => normalizer.get().inner.enter(|normalizer| {
                        self.fill(inner.env.as_mut(), buffer, Some(normalizer), job, stop)?;
                        job.buffer.statistics = Some(state_arrays(normalizer)?);
                        Ok(())
                    }),
                    None => self.fill(inner.env.as_mut(), buffer, None, job, stop),
                });
                let FilledRollout { returns, lengths, dropped, .. } = &mut job.buffer;
                returns.clear();
                lengths.clear();
                *dropped = inner.drain(returns, lengths);
                done
            })
        })
    }
}

impl Actor {
    fn fill(
        &mut self,
        env: &mut dyn VectorEnv,
        buffer: &mut rlox_core::RolloutBuffer,
        normalizer: Option<&mut rlox_core::Normalizer>,
        job: &RolloutJob<Weights, FilledRollout>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Self { policy, config, version, .. } = self;
        let policy = policy.get();
        policy.check(buffer)?;
        policy.inner.enter(|acting| {
            let Inner { policy, streams, .. } = acting;
            if let Weights::Tensors(weights) = &*job.weights
                && *version != Some(job.ticket.version)
            {
                policy.load(weights)?;
                *version = Some(job.ticket.version);
            }
            streams.renew(job.ticket.seed, env.num_envs())?;
            let actions = &mut streams.actions;
            collect_transitions(env, policy.as_mut(), actions, buffer, normalizer, *config, &mut || stop())
        })
    }
}

/// Actor in Python, and the variable for the first error of all actors.
struct PythonActor {
    actor: Py<PyAny>,
    raised: Arc<Mutex<Option<PyErr>>>,
}

/// Returns and lengths of episodes, and the number of dropped episodes.
type EpisodeReport<'py> = (PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, i64>, u64);

impl PythonActor {
    fn new(actor: Py<PyAny>, raised: Arc<Mutex<Option<PyErr>>>) -> Self {
        Self { actor, raised }
    }

    /// Calls a function with the GIL. The learner receives the first error of all actors.
    fn attached<R>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R> {
        // `None` means that the interpreter is exiting, which ends the actors.
        let called = Python::try_attach(|py| call(self.actor.bind(py))).ok_or(Error::Interrupted)?;
        called.map_err(|error| {
            self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            Error::Backend("an actor in Python raised".to_owned())
        })
    }
}

impl Collect<Weights, FilledRollout> for PythonActor {
    fn collect(&mut self, job: &mut RolloutJob<Weights, FilledRollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Weights::Object(weights) = &*job.weights else {
            return Err(Error::Backend("expected weights for actors in Python, got tensors".to_owned()));
        };
        let (buffer, ticket) = (job.buffer.buffer, job.ticket);
        self.attached(|actor| actor.call_method1("begin", (buffer, ticket.version, ticket.seed, weights)).map(drop))?;
        while !stop() {
            let filled = self.attached(|actor| {
                let reply = actor.call_method1("wait", (POLL_SECONDS,))?;
                if reply.is_none() {
                    return Ok(None);
                }
                let (returns, lengths, dropped): EpisodeReport<'_> = reply.extract()?;
                let lengths =
                    lengths.as_array().iter().map(|length| u32::try_from(*length).unwrap_or(u32::MAX)).collect();
                Ok(Some((returns.as_array().to_vec(), lengths, dropped)))
            })?;
            if let Some((returns, lengths, dropped)) = filled {
                job.buffer = FilledRollout { buffer, returns, lengths, dropped, ..FilledRollout::default() };
                return Ok(());
            }
        }
        Err(Error::Interrupted)
    }
}

/// Actors that collect rollouts while a learner updates, created by `rlox.learners._actors`.
///
/// Args:
///     envs: Native environments that have been reset, one `VecEnv` per actor.
///     policies: One policy per actor, with the architecture of the learner's policy.
///     buffers: `max_staleness + 1` RolloutBuffers, each for the environments of one actor.
///     weights: Policy of the learner.
///     stream: int64 (6,), state of the random stream for the seeds of rollouts.
///     normalizer: Normaliser of observations and rewards, or None. It requires a single actor.
///     max_staleness: Maximum staleness of a rollout: the number of updates between the policy that
///         collected it and the policy that learns from it.
///     deterministic: True to let actors and learner wait for each other, so that runs are
///         repeatable.
///
/// Raises:
///     ValueError, TypeError: Arguments do not match, or `max_staleness` is too small.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativeActors {
    inner: GuardedCell<AsyncCollector<Weights, FilledRollout>>,
    stop: AtomicBool,
    /// True for actors in Python.
    python: bool,
    /// First error of an actor in Python.
    raised: Arc<Mutex<Option<PyErr>>>,
}

/// Result of `pop`.
///
/// The items are buffer index, weights version, staleness, seed, returns, lengths, number of
/// dropped episodes, and statistics.
type PoppedRollout<'py> =
    (usize, u64, u64, u64, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<i64>>, u64, Option<Bound<'py, PyDict>>);

#[pymethods]
impl NativeActors {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    #[pyo3(signature = (envs, policies, buffers, weights, stream, normalizer, max_staleness, deterministic, gamma, gae_lambda, sde_sample_freq))]
    fn new(
        py: Python<'_>,
        envs: &Bound<'_, PyAny>,
        policies: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
        max_staleness: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = switches::deterministic)] deterministic: bool,
        gamma: &Bound<'_, PyAny>,
        gae_lambda: &Bound<'_, PyAny>,
        sde_sample_freq: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let mut envs = each::<NativeVectorEnv>("envs", envs, "VecEnv's native environments")?;
        let mut policies = each::<NativePolicy>("policies", policies, "NativePolicy")?;
        let buffers = Arc::new(each::<RolloutBuffer>("buffers", buffers, "RolloutBuffer")?);
        let weights = instance::<NativePolicy>("weights", weights, "NativePolicy")?.get();
        let seeds = seeds_of(stream)?;
        let normalizer = normalizer
            .map(|object| {
                Ok::<_, PyErr>(Arc::new(instance::<Normalizer>("normalizer", object, "Normalizer")?.clone().unbind()))
            })
            .transpose()?;
        let staleness_policy = StalenessPolicy { max_staleness: count("max_staleness", max_staleness)?, deterministic };
        let config = CollectConfig {
            gamma: number("gamma", gamma)?,
            gae_lambda: number("gae_lambda", gae_lambda)?,
            sde_sample_freq: count("sde_sample_freq", sde_sample_freq)?,
        };
        staleness_policy.check(envs.len()).map_err(to_py)?;
        let expected = |name, expected: usize, got: usize| {
            if expected == got {
                return Ok(());
            }
            Err(value_error(name, &format!("{expected}"), &format!("{got}"), "pass that many"))
        };
        expected("policies", envs.len(), policies.len())?;
        expected("buffers", staleness_policy.max_staleness.saturating_add(1), buffers.len())?;
        if normalizer.is_some() && envs.len() > 1 {
            let fix = "normalise in a wrapper, or use a single actor";
            return Err(value_error("normalizer", "None for several actors", "a normaliser", fix));
        }
        let mut actors: Vec<Box<dyn Collect<Weights, FilledRollout>>> = Vec::new();
        for (env, policy) in envs.drain(..).zip(policies.drain(..)) {
            let (env, normalizer, buffers) = (Arc::new(env), normalizer.clone(), Arc::clone(&buffers));
            actors.push(Box::new(Actor { env, policy, normalizer, buffers, config, version: None }));
        }
        let first = weights.inner.with(py, true, |inner| Ok(inner.policy.tensors()))?;
        Self::start(py, actors, staleness_policy, Weights::Tensors(first), seeds, Arc::default())
    }

    /// Start actors in Python. Each is called in a thread of its own.
    ///
    /// An actor has two methods. `begin(buffer, version, seed, weights)` starts to collect a
    /// rollout with these weights, in the buffer of that index. `wait(seconds)` returns None if the
    /// rollout is not complete after that time. Otherwise, it returns the episodes that ended:
    /// returns, float64 (k,), lengths, int64 (k,), and the number of dropped episodes. `pop` raises
    /// the errors of actors.
    #[staticmethod]
    fn start_python_actors(
        py: Python<'_>,
        actors: &Bound<'_, PyAny>,
        weights: Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        max_staleness: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = switches::deterministic)] deterministic: bool,
    ) -> PyResult<Self> {
        let mismatch = || type_error("actors", "a sequence of actors", &short_repr(actors), "pass a list of actors");
        let actor_objects = sequence(actors).map_err(|error| replace_ordinary_error(py, error, mismatch))?;
        let seeds = seeds_of(stream)?;
        let staleness_policy = StalenessPolicy { max_staleness: count("max_staleness", max_staleness)?, deterministic };
        staleness_policy.check(actor_objects.len()).map_err(to_py)?;
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let boxed = |actor: Bound<'_, PyAny>| -> Box<dyn Collect<Weights, FilledRollout>> {
            Box::new(PythonActor::new(actor.unbind(), Arc::clone(&raised)))
        };
        let actors = actor_objects.into_iter().map(boxed).collect();
        Self::start(py, actors, staleness_policy, Weights::Object(weights.unbind()), seeds, raised)
    }

    /// Wait for the next rollout. Return None after `set_stop_requested(True)`.
    ///
    /// Returns:
    ///     A tuple: index of the buffer, version of the weights, staleness, seed, returns and
    ///     lengths of the newest episodes that ended, number of dropped episodes, and statistics of
    ///     the actor's normaliser or None.
    ///
    /// Raises:
    ///     ValueError, FloatingPointError: The first error of an actor. All actors have stopped.
    ///     RuntimeError: An actor panicked.
    fn pop<'py>(&self, py: Python<'py>) -> PyResult<Option<PoppedRollout<'py>>> {
        let popped = self.inner.with(py, true, |collector| {
            let Some(rollout) = collector.recv_unless(&mut || self.stop.load(Ordering::Relaxed))? else {
                return Ok(None);
            };
            let (ticket, filled) = (rollout.ticket, rollout.buffer);
            let lengths: Vec<i64> = filled.lengths.iter().copied().map(i64::from).collect();
            let rollout_info = (filled.buffer, ticket.version, rollout.staleness, ticket.seed);
            Ok(Some((rollout_info, filled.returns.clone(), lengths, filled.dropped, filled.statistics.take())))
        });
        let popped = popped.map_err(|error| {
            let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
            raised.unwrap_or(error)
        })?;
        let Some(((buffer, version, staleness, seed), returns, lengths, dropped, statistics)) = popped else {
            return Ok(None);
        };
        let statistics = statistics.map(|arrays| to_dict(py, arrays)).transpose()?;
        let (returns, lengths) = (returns.into_pyarray(py), lengths.into_pyarray(py));
        Ok(Some((buffer, version, staleness, seed, returns, lengths, dropped, statistics)))
    }

    /// Set or clear the flag that makes `pop` return None instead of waiting.
    #[pyo3(signature = (stop))]
    fn set_stop_requested(&self, #[pyo3(from_py_with = switches::stop)] stop: bool) {
        self.stop.store(stop, Ordering::Relaxed);
    }

    /// Release the buffer of the last `pop`, and publish the weights that were learned from it.
    ///
    /// Raises:
    ///     ValueError: No rollout was popped since the last `publish`.
    fn publish(&self, py: Python<'_>, policy: &Bound<'_, PyAny>) -> PyResult<()> {
        let policy = instance::<NativePolicy>("policy", policy, "NativePolicy")?.get();
        let weights = policy.inner.with(py, true, |inner| Ok(inner.policy.tensors()))?;
        self.publish_weights(py, Weights::Tensors(weights))
    }

    /// Publish weights as tensors by name; otherwise like `publish`.
    fn publish_tensors(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        self.publish_weights(py, Weights::Tensors(tensors_of("tensors", tensors)?))
    }

    /// Publish weights as an object for actors in Python; otherwise like `publish`.
    fn publish_object(&self, weights: Bound<'_, PyAny>) -> PyResult<()> {
        let py = weights.py();
        self.publish_weights(py, Weights::Object(weights.unbind()))
    }

    /// Return the state of the random stream for the seeds of the next rollouts, int64 (6,).
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let state = self.inner.with(py, true, |collector| Ok(collector.seeds()?.to_state_array()))?;
        Ok(state.to_vec().into_pyarray(py))
    }

    /// Return statistics of all rollouts so far as a dict.
    ///
    /// The keys are "rollouts", "total_staleness", "max_staleness", "learner_wait_seconds" and
    /// "actor_wait_seconds".
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.inner.with(py, true, |collector| collector.stats())?;
        let PipelineStats { rollouts, total_staleness, max_staleness, learner_wait, actor_wait } = stats;
        let dict = new_dict(py)?;
        dict.set_item("rollouts", rollouts)?;
        dict.set_item("total_staleness", total_staleness)?;
        dict.set_item("max_staleness", max_staleness)?;
        dict.set_item("learner_wait_seconds", learner_wait.as_secs_f64())?;
        dict.set_item("actor_wait_seconds", actor_wait.as_secs_f64())?;
        Ok(dict)
    }

    /// Stop the threads and discard rollouts that were not popped. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.close(py)
    }
}

impl NativeActors {
    pub(crate) fn start(
        py: Python<'_>,
        actors: Vec<Box<dyn Collect<Weights, FilledRollout>>>,
        staleness_policy: StalenessPolicy,
        weights: Weights,
        seeds: Pcg64,
        raised: Arc<Mutex<Option<PyErr>>>,
    ) -> PyResult<Self> {
        let (mut number, python) = (0.., matches!(weights, Weights::Object(_)));
        let collector = detach(py, || {
            let filled = || Ok(FilledRollout { buffer: number.next().unwrap_or_default(), ..FilledRollout::default() });
            AsyncCollector::new(actors, staleness_policy, weights, seeds, filled)
        });
        let inner = GuardedCell::new("NativeActors", collector.map_err(to_py)?);
        Ok(Self { inner, stop: AtomicBool::new(false), python, raised })
    }

    fn publish_weights(&self, py: Python<'_>, weights: Weights) -> PyResult<()> {
        if matches!(weights, Weights::Tensors(_)) == self.python {
            let (expected, got) = if self.python { ("an object", "tensors") } else { ("tensors", "an object") };
            return Err(value_error("weights", expected, got, "use the publish method for this kind of actors"));
        }
        self.inner.with(py, true, |collector| collector.publish(weights))
    }
}

pub(crate) fn seeds_of(stream: &Bound<'_, PyAny>) -> PyResult<Pcg64> {
    let state = argument::<i64>("stream", stream, &INTEGER)?.read(true)?;
    expect_shape("stream", state.shape(), RNG_STATE_LEN, &[])?;
    Pcg64::from_state_array(state.slice()).map_err(to_py)
}

impl Drop for NativeActors {
    fn drop(&mut self) {
        // The actor threads, for which `close` waits, may need the GIL in environments of a plugin.
        let _ = Python::try_attach(|py| self.inner.close(py));
    }
}

pub(crate) fn each<T: PyTypeCheck>(name: &'static str, object: &Bound<'_, PyAny>, kind: &str) -> PyResult<Vec<Py<T>>> {
    let mismatch = || type_error(name, &format!("a sequence of rlox.{kind}"), &short_repr(object), "pass a list");
    let items = sequence(object).map_err(|error| replace_ordinary_error(object.py(), error, mismatch))?;
    items.iter().map(|item| Ok(instance::<T>(name, &item, kind)?.clone().unbind())).collect()
}
