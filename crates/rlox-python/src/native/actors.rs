//! `NativeActors`: native environments that are stepped in threads, which never have the GIL.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use numpy::{IntoPyArray, PyArray1};
use pyo3::PyTypeCheck;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Ahead, AsyncCollector, Begun, Collect, Pcg64, PipelineStats, Result, VectorEnv};
use rlox_nn::NamedTensors;
use rlox_nn::train::{Collection, collect_transitions};

use super::{Inner, NativePolicy, tensors};
use crate::argument::{INTEGER, argument, count, expect_shape, instance, number, sequence, shown, switches};
use crate::array::new_dict;
use crate::detach::{detached, without_gil};
use crate::error::{blamed, to_py, type_error, value_error};
use crate::normalize::Normalizer;
use crate::rollout::RolloutBuffer;
use crate::shared::Shared;
use crate::state::WORDS;
use crate::vector::NativeVectorEnv;

/// Which buffer was filled, and the episodes that ended meanwhile.
#[derive(Default)]
struct Filled {
    buffer: usize,
    returns: Vec<f64>,
    lengths: Vec<u32>,
    /// How many more there were.
    dropped: u64,
}

/// What one thread works with. Python objects see it work, one call after the other.
struct Actor {
    env: Arc<Py<NativeVectorEnv>>,
    policy: Py<NativePolicy>,
    normalizer: Option<Arc<Py<Normalizer>>>,
    buffers: Arc<Vec<Py<RolloutBuffer>>>,
    how: Collection,
    version: Option<u64>,
}

impl Collect<NamedTensors, Filled> for Actor {
    fn collect(&mut self, begun: &mut Begun<NamedTensors, Filled>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, normalizer, buffers, .. } = &*self;
        let (env, buffer) = (Arc::clone(env), Arc::clone(buffers));
        let buffer = buffer[begun.buffer.buffer].get();
        let normalizer = normalizer.clone();
        without_gil(|| {
            env.get().inner.enter(|inner| {
                // Environment, buffer, normaliser, policy: in this order everywhere.
                let done = buffer.inner.enter(|buffer| match &normalizer {
                    Some(normalizer) => normalizer
                        .get()
                        .inner
                        .enter(|normalizer| self.fill(inner.env.as_mut(), buffer, Some(normalizer), begun, stop)),
                    None => self.fill(inner.env.as_mut(), buffer, None, begun, stop),
                });
                let Filled { returns, lengths, dropped, .. } = &mut begun.buffer;
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
        begun: &Begun<NamedTensors, Filled>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Self { policy, how, version, .. } = self;
        let policy = policy.get();
        policy.check(buffer)?;
        policy.inner.enter(|acting| {
            let Inner { policy, streams, .. } = acting;
            if *version != Some(begun.turn.version) {
                policy.load(&begun.weights)?;
                *version = Some(begun.turn.version);
            }
            streams.renew(begun.turn.seed, env.num_envs())?;
            let actions = &mut streams.actions;
            collect_transitions(env, policy.as_mut(), actions, buffer, normalizer, *how, &mut || stop())
        })
    }
}

/// Threads that fill rollouts with native environments while a learner learns; `rlox.actors` makes it.
///
/// Args:
///     envs: Native environments that have been reset, those of one actor each.
///     policies: A policy for each actor, of the learner's shape.
///     buffers: `max_lag + 1` rollouts, each for an actor's environments.
///     weights: The learner's policy.
///     stream: int64 (6,), the words of the stream that each rollout's seed comes from.
///     normalizer: Of the only actor's observations and rewards, or None.
///     max_lag: How many updates a rollout's policy may be behind.
///     lockstep: Whether everybody waits for everybody, so that runs are repeatable.
///
/// Raises:
///     ValueError, TypeError: What does not fit together; a bound that is too small.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct NativeActors {
    inner: Shared<AsyncCollector<NamedTensors, Filled>>,
}

/// What `next` tells: the buffer's number, the version of its weights, its lag and seed; returns and lengths of episodes
/// that ended in it, and how many more there were.
type Next<'py> = (usize, u64, u64, u64, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<i64>>, u64);

#[pymethods]
impl NativeActors {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    #[pyo3(signature = (envs, policies, buffers, weights, stream, normalizer, max_lag, lockstep, gamma, gae_lambda, sde_sample_freq))]
    fn new(
        py: Python<'_>,
        envs: &Bound<'_, PyAny>,
        policies: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        normalizer: Option<&Bound<'_, PyAny>>,
        max_lag: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = switches::lockstep)] lockstep: bool,
        gamma: &Bound<'_, PyAny>,
        gae_lambda: &Bound<'_, PyAny>,
        sde_sample_freq: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let mut envs = each::<NativeVectorEnv>("envs", envs, "VecEnv's native environments")?;
        let mut policies = each::<NativePolicy>("policies", policies, "NativePolicy")?;
        let buffers = Arc::new(each::<RolloutBuffer>("buffers", buffers, "RolloutBuffer")?);
        let weights = instance::<NativePolicy>("weights", weights, "NativePolicy")?.get();
        let words = argument::<i64>("stream", stream, &INTEGER)?.read(true)?;
        expect_shape("stream", words.shape(), WORDS, &[])?;
        let seeds = Pcg64::from_words(words.slice()).map_err(to_py)?;
        let normalizer = normalizer
            .map(|given| {
                Ok::<_, PyErr>(Arc::new(instance::<Normalizer>("normalizer", given, "Normalizer")?.clone().unbind()))
            })
            .transpose()?;
        let ahead = Ahead { max_lag: count("max_lag", max_lag)?, lockstep };
        let how = Collection {
            gamma: number("gamma", gamma)?,
            gae_lambda: number("gae_lambda", gae_lambda)?,
            sde_sample_freq: count("sde_sample_freq", sde_sample_freq)?,
        };
        ahead.check(envs.len()).map_err(to_py)?;
        let expected = |name, expected: usize, got: usize| {
            if expected == got {
                return Ok(());
            }
            Err(value_error(name, &format!("{expected}"), &format!("{got}"), "pass what rlox.actors makes"))
        };
        expected("policies", envs.len(), policies.len())?;
        expected("buffers", ahead.max_lag.saturating_add(1), buffers.len())?;
        if normalizer.is_some() && envs.len() > 1 {
            let fix = "normalise in a wrapper, or take one actor";
            return Err(value_error("normalizer", "None for several actors", "one", fix));
        }
        let mut actors: Vec<Box<dyn Collect<NamedTensors, Filled>>> = Vec::new();
        for (env, policy) in envs.drain(..).zip(policies.drain(..)) {
            let (env, normalizer, buffers) = (Arc::new(env), normalizer.clone(), Arc::clone(&buffers));
            actors.push(Box::new(Actor { env, policy, normalizer, buffers, how, version: None }));
        }
        let mut number = 0..;
        let first = weights.inner.with(py, true, |inner| Ok(inner.policy.tensors()))?;
        let made = detached(py, || {
            let filled = || Ok(Filled { buffer: number.next().unwrap_or_default(), ..Filled::default() });
            AsyncCollector::new(actors, ahead, first, seeds, filled)
        });
        Ok(Self { inner: Shared::new("NativeActors", made.map_err(to_py)?) })
    }

    /// The next rollout, waited for: the buffer's number, the version of its weights, its lag and seed; returns and lengths
    /// of the newest episodes that ended in it, and how many more there were. None where `policy.stopping` is set.
    ///
    /// Raises:
    ///     ValueError, FloatingPointError: The first error of an actor; all have ended then.
    ///     RuntimeError: An actor panicked.
    fn next<'py>(&self, py: Python<'py>, policy: &Bound<'py, PyAny>) -> PyResult<Option<Next<'py>>> {
        let policy = instance::<NativePolicy>("policy", policy, "NativePolicy")?.get();
        let told = self.inner.with(py, true, |collector| {
            let Some(rollout) = collector.next_unless(&mut || policy.stop.load(Ordering::Relaxed))? else {
                return Ok(None);
            };
            let (turn, filled) = (rollout.turn, rollout.buffer);
            let lengths: Vec<i64> = filled.lengths.iter().copied().map(i64::from).collect();
            let seen = (filled.buffer, turn.version, rollout.lag, turn.seed);
            Ok(Some((seen, filled.returns.clone(), lengths, filled.dropped)))
        })?;
        Ok(told.map(|((buffer, version, lag, seed), returns, lengths, dropped)| {
            (buffer, version, lag, seed, returns.into_pyarray(py), lengths.into_pyarray(py), dropped)
        }))
    }

    /// Gives the rollout back that `next` told of last, with the weights learned from it; without one, these take the place
    /// of the newest weights.
    fn publish(&self, py: Python<'_>, policy: &Bound<'_, PyAny>) -> PyResult<()> {
        let policy = instance::<NativePolicy>("policy", policy, "NativePolicy")?.get();
        let weights = policy.inner.with(py, true, |inner| Ok(inner.policy.tensors()))?;
        self.inner.with(py, true, |collector| {
            collector.publish(weights);
            Ok(())
        })
    }

    /// As `publish`, of weights by name.
    fn publish_tensors(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let weights = tensors::named("tensors", tensors)?;
        self.inner.with(py, true, |collector| {
            collector.publish(weights);
            Ok(())
        })
    }

    /// The words of the stream that the seed of the next rollout comes from, int64 (6,).
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let words = self.inner.with(py, true, |collector| Ok(collector.seeds()?.to_words()))?;
        Ok(words.to_vec().into_pyarray(py))
    }

    /// Counts and seconds so far: "rollouts", "total_lag", "largest_lag", "learner_waited", "actors_waited".
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.inner.with(py, true, |collector| collector.stats())?;
        let PipelineStats { rollouts, total_lag, largest_lag, learner_waited, actors_waited } = stats;
        let dict = new_dict(py)?;
        dict.set_item("rollouts", rollouts)?;
        dict.set_item("total_lag", total_lag)?;
        dict.set_item("largest_lag", largest_lag)?;
        dict.set_item("learner_waited", learner_waited.as_secs_f64())?;
        dict.set_item("actors_waited", actors_waited.as_secs_f64())?;
        Ok(dict)
    }

    /// Ends the threads; what they collected and nobody took is lost. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.close(py)
    }
}

impl Drop for NativeActors {
    fn drop(&mut self) {
        // Threads that are waited for may want the GIL, in a plugin's environments.
        let _ = Python::try_attach(|py| self.inner.close(py));
    }
}

fn each<T: PyTypeCheck>(name: &'static str, given: &Bound<'_, PyAny>, kind: &str) -> PyResult<Vec<Py<T>>> {
    let wrong = || type_error(name, &format!("a sequence of rlox.{kind}"), &shown(given), "pass a list of them");
    let items = sequence(given).map_err(|error| blamed(given.py(), error, wrong))?;
    items.iter().map(|item| Ok(instance::<T>(name, &item, kind)?.clone().unbind())).collect()
}
