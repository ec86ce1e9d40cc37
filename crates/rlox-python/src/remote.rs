//! Environments and actors on worker processes, which may run on other machines.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use rlox_core::{
    Error, Result, VectorEnv,
    pipeline::{Collect, RolloutJob, StalenessPolicy},
};
use rlox_grpc::{ClientOptions, EnvOptions, FaultCounts, RemoteActor, RemoteRolloutConfig, RemoteVecEnv};
use rlox_nn::train::CollectConfig;

use crate::convert::args::{count, number, sequence, short_repr, switches, text};
use crate::convert::array::new_dict;
use crate::convert::options::{arguments_of, limit_of};
use crate::convert::seed::{base_of, streams_from};
use crate::env::make::{id_of, mode_of};
use crate::env::vec_env::NativeVectorEnv;
use crate::error::{replace_ordinary_error, to_py, type_error, value_error};
use crate::native::NativePolicy;
use crate::native::actors::{FilledRollout, NativeActors, Weights, each, seeds_of};
use crate::rollout::RolloutBuffer;
use crate::sync::gil::{detach, without_gil};

/// Create environments on workers, for `rlox.distributed.remote.RemoteVecEnv`.
///
/// Args:
///     addresses: Addresses of workers, "host:port" with an optional "https://".
///     env_id, seed, autoreset_mode, max_episode_steps, kwargs: As for NativeVectorEnv.
///     n: Number of environments.
///     client_options: A dict. "token", "tls_ca" and "tls_domain" are str or None.
///         "connect_timeout", "keepalive_timeout", "reply_timeout" and "recovery_timeout" are
///         seconds. "snapshot_every" is an int.
///
/// Returns:
///     The environments, and a function that returns the faults so far as a dict. "lost" is the
///     number of lost sessions, "restarted" the number of sessions that were restarted, "replayed"
///     the number of repeated requests, and "longest" the longest recovery in seconds.
///
/// Raises:
///     ValueError, TypeError: An argument is invalid, or a worker rejects one.
///     RuntimeError: A worker cannot be reached.
#[pyfunction]
pub(crate) fn remote_env(
    py: Python<'_>,
    addresses: &Bound<'_, PyAny>,
    env_id: &Bound<'_, PyAny>,
    n: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
    autoreset_mode: &Bound<'_, PyAny>,
    max_episode_steps: &Bound<'_, PyAny>,
    kwargs: &Bound<'_, PyDict>,
    client_options: &Bound<'_, PyDict>,
) -> PyResult<(NativeVectorEnv, Py<PyAny>)> {
    let (addresses, options) = (parse_addresses(addresses)?, parse_client_options(client_options)?);
    let base = base_of(seed)?;
    let env = EnvOptions {
        seed: base.unwrap_or(0),
        autoreset_mode: mode_of(autoreset_mode)?,
        max_episode_steps: if max_episode_steps.is_none() { None } else { Some(limit_of(max_episode_steps)?) },
        arguments: arguments_of(Some(kwargs))?,
        ..EnvOptions::new(id_of(env_id)?, count("n", n)?, 0)
    };
    let name = |error: Error| error.rename_argument("num_envs", "n").rename_argument("arguments", "env_kwargs");
    let remote = detach(py, || RemoteVecEnv::new(&addresses, &env, &options)).map_err(|error| to_py(name(error)))?;
    let faults = make_faults_function(py, vec![remote.fault_counts()])?;
    let mut vector_env: Box<dyn VectorEnv> = Box::new(remote);
    if base.is_none() {
        let streams = streams_from(seed, env.num_envs, |rng| rng)?;
        detach(py, || vector_env.set_rngs(&streams)).map_err(to_py)?;
    }
    // The client stores this snapshot for recoveries. Here, an error reaches the caller.
    let env_ref = &mut vector_env;
    detach(py, move || env_ref.snapshot()).map_err(to_py)?;
    Ok((NativeVectorEnv::from_env(py, vector_env, true)?, faults))
}

/// Returns a Python function that returns the total faults of several clients as a dict.
fn make_faults_function(py: Python<'_>, counts: Vec<FaultCounts>) -> PyResult<Py<PyAny>> {
    let faults = move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
        let all: Vec<_> = counts.iter().map(FaultCounts::now).collect();
        let dict = new_dict(args.py())?;
        dict.set_item("lost", all.iter().map(|one| one.lost).sum::<u64>())?;
        dict.set_item("restarted", all.iter().map(|one| one.restarted).sum::<u64>())?;
        dict.set_item("replayed", all.iter().map(|one| one.replayed).sum::<u64>())?;
        dict.set_item("longest", all.iter().map(|one| one.longest).max().unwrap_or_default().as_secs_f64())?;
        Ok::<_, PyErr>(dict.unbind())
    };
    Ok(PyCFunction::new_closure(py, Some(c"faults"), None, faults)?.into_any().unbind())
}

/// Actor on a worker, and the buffers that its rollouts are stored in.
struct Remote {
    actor: RemoteActor,
    buffers: Arc<Vec<Py<RolloutBuffer>>>,
}

impl Collect<Weights, FilledRollout> for Remote {
    fn collect(&mut self, job: &mut RolloutJob<Weights, FilledRollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Weights::Tensors(weights) = &*job.weights else {
            return Err(Error::Backend("expected tensors for actors on workers, got an object".to_owned()));
        };
        let FilledRollout { buffer, returns, lengths, dropped, .. } = &mut job.buffer;
        let (ring, ticket) = (Arc::clone(&self.buffers), job.ticket);
        let rollout = ring[*buffer].get();
        let episodes = without_gil(|| {
            rollout.inner.enter(|steps| self.actor.collect_into(ticket, weights, steps, returns, lengths, stop))
        })?;
        *dropped = episodes.saturating_sub(returns.len() as u64);
        Ok(())
    }
}

/// Create actors on workers with copies of the learner's policy, for `rlox.distributed.remote`.
///
/// Args:
///     addresses: As for `remote_env`. Actor i first connects to address i, modulo their number.
///     client_options: As for `remote_env`.
///     env_id, autoreset_mode, max_episode_steps, kwargs: As for NativeVectorEnv.
///     num_actors: Number of actors.
///     env: Environments of the learner. Those of the workers must have equal specs.
///     buffers: `max_staleness + 1` RolloutBuffers, each for the environments of one actor.
///     weights: Policy of the learner.
///     seed: Seed of the first environment of the first actor. The following integers are the seeds
///         of the other environments.
///     stream, max_staleness, deterministic: As for NativeActors.
///     gamma, gae_lambda, sde_sample_freq: As for NativeActors.
///
/// Returns:
///     The actors, and a function that returns their faults so far, as for `remote_env`.
///
/// Raises:
///     As `remote_env`; also ValueError if a worker's environments differ from the learner's.
#[pyfunction]
pub(crate) fn remote_actors(
    py: Python<'_>,
    addresses: &Bound<'_, PyAny>,
    env_id: &Bound<'_, PyAny>,
    num_actors: &Bound<'_, PyAny>,
    env: &Bound<'_, PyAny>,
    buffers: &Bound<'_, PyAny>,
    weights: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
    stream: &Bound<'_, PyAny>,
    max_staleness: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = switches::deterministic)] deterministic: bool,
    gamma: &Bound<'_, PyAny>,
    gae_lambda: &Bound<'_, PyAny>,
    sde_sample_freq: &Bound<'_, PyAny>,
    autoreset_mode: &Bound<'_, PyAny>,
    max_episode_steps: &Bound<'_, PyAny>,
    kwargs: &Bound<'_, PyDict>,
    client_options: &Bound<'_, PyDict>,
) -> PyResult<(NativeActors, Py<PyAny>)> {
    let (addresses, options) = (parse_addresses(addresses)?, parse_client_options(client_options)?);
    let num_actors = count("num_actors", num_actors)?;
    let staleness_policy = StalenessPolicy { max_staleness: count("max_staleness", max_staleness)?, deterministic };
    staleness_policy.check(num_actors).map_err(to_py)?;
    let buffers = Arc::new(each::<RolloutBuffer>("buffers", buffers, "RolloutBuffer")?);
    if buffers.len() as u64 != staleness_policy.max_staleness as u64 + 1 {
        let (expected, got) =
            (format!("{}, max_staleness + 1", staleness_policy.max_staleness as u64 + 1), buffers.len().to_string());
        return Err(to_py(Error::shape("buffers", expected, got, "pass a ring of rollouts")));
    }
    let learner = crate::convert::args::instance::<NativeVectorEnv>("env", env, "NativeVectorEnv")?.get();
    let (spec, masks) = (learner.spec.clone(), learner.masks);
    let (num_envs, n_steps) = buffers.first().map_or((1, 1), |one| (one.get().num_envs, one.get().n_steps));
    let policy = crate::convert::args::instance::<NativePolicy>("weights", weights, "NativePolicy")?.get();
    let (tensors, arch) = policy.weights_and_arch(py)?;
    let seed = base_of(seed)?.unwrap_or(0);
    let env = EnvOptions {
        autoreset_mode: mode_of(autoreset_mode)?,
        max_episode_steps: if max_episode_steps.is_none() { None } else { Some(limit_of(max_episode_steps)?) },
        arguments: arguments_of(Some(kwargs))?,
        ..EnvOptions::new(id_of(env_id)?, num_envs, seed)
    };
    let config = CollectConfig {
        gamma: number("gamma", gamma)?,
        gae_lambda: number("gae_lambda", gae_lambda)?,
        sde_sample_freq: count("sde_sample_freq", sde_sample_freq)?,
    };
    let seeds = seeds_of(stream)?;
    let mut counts = Vec::new();
    let actors = detach(py, || {
        (0..num_actors)
            .map(|index| {
                let reset_seed = seed.wrapping_add((index * num_envs) as u64);
                let rollout_config = RemoteRolloutConfig { n_steps, config, reset_seed, arch: arch.clone() };
                let actor = RemoteActor::new(&addresses, index, &env, &rollout_config, &options)?;
                actor.check_spec(&spec, masks)?;
                counts.push(actor.fault_counts());
                let buffers = Arc::clone(&buffers);
                Ok(Box::new(Remote { actor, buffers }) as Box<dyn Collect<Weights, FilledRollout>>)
            })
            .collect::<Result<Vec<_>>>()
    });
    let actors = actors.map_err(|error| to_py(error.rename_argument("arguments", "env_kwargs")))?;
    let actors = NativeActors::start(py, actors, staleness_policy, Weights::Tensors(tensors), seeds, Arc::default())?;
    Ok((actors, make_faults_function(py, counts)?))
}

/// Run the program `rlox-worker` with a list of command line arguments, until a signal ends it.
///
/// Raises:
///     ValueError: A flag is invalid, or the worker would accept unprotected connections from other
///         machines.
///     OSError: A file cannot be read, or an address is in use.
#[pyfunction]
pub(crate) fn run_worker(py: Python<'_>, argv: &Bound<'_, PyAny>) -> PyResult<()> {
    let mismatch = || type_error("argv", "a list of str", &short_repr(argv), "pass the command line arguments");
    let items = sequence(argv).map_err(|error| replace_ordinary_error(py, error, mismatch))?;
    let argv = items.iter().map(|word| text("argv", &word)).collect::<PyResult<Vec<_>>>()?;
    detach(py, || rlox_grpc::run(&argv)).map_err(to_py)
}

fn parse_addresses(object: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let fix = r#"pass for example ["127.0.0.1:50051"]"#;
    let mismatch = || type_error("addresses", "a list of worker addresses", &short_repr(object), fix);
    let items = sequence(object).map_err(|error| replace_ordinary_error(object.py(), error, mismatch))?;
    items.iter().map(|item| text("addresses", &item)).collect()
}

fn parse_client_options(dict: &Bound<'_, PyDict>) -> PyResult<ClientOptions> {
    let mut options = ClientOptions::default();
    for (name, value) in dict.iter() {
        let name: String = name.extract()?;
        let optional_text = |name| if value.is_none() { Ok(None) } else { text(name, &value).map(Some) };
        let seconds = |name| {
            let seconds = number(name, &value)?;
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                let expected = "seconds above 0 and of at most a day";
                value_error(name, expected, &format!("{seconds}"), "correct it")
            })
        };
        match name.as_str() {
            "token" => options.token = optional_text("token")?,
            "tls_ca" => options.tls_ca = optional_text("tls_ca")?,
            "tls_domain" => options.tls_domain = optional_text("tls_domain")?,
            "connect_timeout" => options.connect_timeout = seconds("connect_timeout")?,
            "keepalive_timeout" => options.keepalive_timeout = seconds("keepalive_timeout")?,
            "reply_timeout" => options.reply_timeout = seconds("reply_timeout")?,
            "recovery_timeout" => options.recovery_timeout = seconds("recovery_timeout")?,
            "snapshot_every" => options.snapshot_every = count("snapshot_every", &value)?,
            _ => {
                return Err(type_error(
                    "client_options",
                    "known option names",
                    &name,
                    "use the options of rlox.distributed.remote",
                ));
            }
        }
    }
    Ok(options)
}
