//! Construction of native environments, from an id or from a plugin's capsule.

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString};
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{AutoresetMode, Error, VectorEnv, plugin::EnvPlugin};

use crate::convert::args::{count, short_repr, text};
use crate::convert::array::plugin_from_capsule;
use crate::convert::options::{arguments_of, limit_of};
use crate::convert::seed::{base_of, streams_from};
use crate::error::{to_py, type_error, value_error};
use crate::sync::gil::detach;

enum EnvSource<'a> {
    Id(String),
    Plugin(&'a EnvPlugin),
}

impl<'a> EnvSource<'a> {
    fn parse(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(capsule) = object.cast::<PyCapsule>() else { return id_of(object).map(Self::Id) };
        plugin_from_capsule(capsule).map(Self::Plugin).ok_or_else(|| {
            let expected = format!("a capsule named {:?}", EnvPlugin::NAME);
            let fix = "compile the plugin against the rlox-core version of this rlox";
            type_error("plugin", &expected, &short_repr(object), fix)
        })
    }
}

/// Returns an environment id, or an error for a text that is too long for an id.
pub(crate) fn id_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    const MAX_ENV_ID_LEN: usize = 1 << 10;
    if let Ok(text) = object.cast::<PyString>()
        && text.len()? > MAX_ENV_ID_LEN
    {
        let got = format!("a string of {} characters", text.len()?);
        return Err(value_error("env_id", "the id of a native environment", &got, "pass an id such as CartPole-v1"));
    }
    text("env_id", object)
}

pub(crate) fn mode_of(object: &Bound<'_, PyAny>) -> PyResult<AutoresetMode> {
    match &*text("autoreset_mode", object)? {
        "NextStep" => Ok(AutoresetMode::NextStep),
        "SameStep" => Ok(AutoresetMode::SameStep),
        "Disabled" => Ok(AutoresetMode::Disabled),
        other => Err(value_error("autoreset_mode", "NextStep, SameStep or Disabled", other, "choose one of them")),
    }
}

/// Makes environments from an id or a plugin's capsule.
///
/// Errors about the number of environments name the argument `count_name`.
pub(crate) fn make(
    py: Python<'_>,
    env_id: &Bound<'_, PyAny>,
    (count_name, num_envs): (&str, &Bound<'_, PyAny>),
    seed: Option<&Bound<'_, PyAny>>,
    autoreset_mode: Option<&Bound<'_, PyAny>>,
    max_episode_steps: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Box<dyn VectorEnv>> {
    let num_envs = count(count_name, num_envs)?;
    let source = EnvSource::parse(env_id)?;
    let arguments = arguments_of(kwargs)?;
    let options = MakeOptions {
        num_envs,
        autoreset_mode: autoreset_mode.map_or(Ok(AutoresetMode::SameStep), mode_of)?,
        max_episode_steps: max_episode_steps.map(limit_of).transpose()?,
        seed: seed.map(base_of).transpose()?.flatten(),
        arguments: &arguments,
    };
    let env = detach(py, || match source {
        EnvSource::Id(id) => envs::make(&id, &options),
        EnvSource::Plugin(plugin) => plugin.make(&options),
    });
    let rename_arguments = |error: Error| {
        error.rename_argument("num_envs", count_name.to_owned()).rename_argument("arguments", "env_kwargs")
    };
    let mut env = env.map_err(|error| to_py(rename_arguments(error)))?;
    if let (Some(seed), None) = (seed, options.seed) {
        env.set_rngs(&streams_from(seed, num_envs, |rng| rng)?).map_err(to_py)?;
    }
    Ok(env)
}

/// Return the ids of the native environments.
#[pyfunction]
pub(crate) fn env_ids() -> Vec<&'static str> {
    envs::ids().collect()
}

/// Return the free memory in bytes, or None if the system does not report it.
///
/// A memory limit of the process's control group (cgroup) is taken into account.
#[pyfunction]
pub(crate) fn available_memory() -> Option<u64> {
    rlox_core::__private::available_memory()
}
