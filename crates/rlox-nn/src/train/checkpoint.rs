//! Checkpoints of trainers, in the format of the Python package.

mod async_on_policy;
mod members;
mod off_policy;
mod on_policy;
pub(super) mod settings;

use std::collections::VecDeque;

use rlox_core::{
    EnvSpec, Error, Normalizer, Pcg64, Result, VectorEnv, checkpoint::Checkpoint, rng::Pcg64State, vector::EnvSnapshot,
};
use serde_json::{Map, Value, json};

use super::streams::Streams;
use super::trainer::Run;
use super::{Episodes, RECENT};
use crate::NamedTensors;
use settings::{ConfigMap, Defaults};

const NETWORKS: &str = "networks";
const OPTIMIZER: &str = "optimizer";
const ENVIRONMENT: &str = "environment";
const COUNTERS: &str = "counters";

/// Part of a trainer's state that the checkpoints of all trainers contain.
struct CheckpointInfo<'a> {
    algorithm: &'static str,
    config_map: &'a ConfigMap,
    /// Values of settings that the Python package does not store.
    defaults: Defaults,
    spec: &'a EnvSpec,
    /// Number of environments, over all actors.
    num_envs: usize,
    seed: u64,
    run: Run,
    timesteps: u64,
    updates: u64,
    episodes: &'a Episodes,
    /// All random streams by name.
    streams: Vec<(String, Pcg64)>,
    normalizer: Option<&'a Normalizer>,
}

/// State that was read from a checkpoint, without the networks.
struct LoadedState {
    counters: Counters,
    /// Random streams in the order of [`CheckpointInfo::streams`].
    streams: Vec<Pcg64>,
    normalizer: Option<Normalizer>,
    /// Snapshot of the environments that is not yet checked against the environments.
    snapshot: Option<EnvSnapshot<'static>>,
}

impl CheckpointInfo<'_> {
    /// Returns a checkpoint with parameters, optimiser state and, if there is one, a snapshot of
    /// the environments.
    fn checkpoint(
        &self,
        networks: &NamedTensors,
        optimizer: &NamedTensors,
        snapshot: Option<&EnvSnapshot<'_>>,
    ) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        checkpoint.manifest = self.describe()?;
        for (member, tensors) in [(NETWORKS, networks), (OPTIMIZER, optimizer)] {
            // A checkpoint with numbers that are not finite could not be loaded and would replace a
            // usable one.
            if let Some((tensor, at)) = tensors.iter().find_map(|tensor| Some((tensor, tensor.first_not_finite()?))) {
                let got = tensor.data[at].to_string();
                let error = Error::not_finite(member, "finite numbers", got, "load the last checkpoint");
                return Err(tensor.locate(error, at));
            }
            if !tensors.is_empty() {
                checkpoint.insert_safetensors(member, tensors.to_safetensors())?;
            }
        }
        members::write_normalizer(&mut checkpoint, self.normalizer)?;
        if let Some(snapshot) = snapshot {
            members::write_env(&mut checkpoint, snapshot, self.num_envs)?;
        }
        Ok(checkpoint)
    }

    fn describe(&self) -> Result<Map<String, Value>> {
        let Episodes { recent, total, .. } = self.episodes;
        if let Some((non_finite, _)) = recent.iter().find(|(episode_return, _)| !episode_return.is_finite()) {
            let fix = "scale rewards so that their sums are finite";
            return Err(Error::not_finite("episode returns", "finite numbers", non_finite.to_string(), fix));
        }
        let (returns, lengths): (Vec<f64>, Vec<u32>) = recent.iter().copied().unzip();
        let spec = self.spec;
        let streams: Map<_, _> = self.streams.iter().map(|(name, rng)| (name.clone(), stream_state(rng))).collect();
        let manifest = json!({
            "algorithm": self.algorithm,
            "backend": "native",
            "env": spec.id,
            "env_kwargs": {"max_episode_steps": spec.max_episode_steps.map_or(json!(-1), |limit| json!(limit))},
            "seed": self.seed,
            "settings": settings::to_json(self.config_map),
            "spaces": {"observation": spec.observation.to_json(), "action": spec.action.to_json()},
            "run": {"unit": "timesteps", "start": self.run.start, "target": self.run.target},
            "counters": {
                "timesteps": self.timesteps,
                "updates": self.updates,
                "episodes": {"count": total, "returns": returns, "lengths": lengths},
            },
            "streams": streams,
        });
        Ok(if let Value::Object(manifest) = manifest { manifest } else { Map::new() })
    }

    /// Checks the settings of a checkpoint, and reads the state that all checkpoints contain.
    fn read(&self, checkpoint: &Checkpoint) -> Result<LoadedState> {
        settings::check(self.config_map, checkpoint, self.defaults)?;
        let counters = Counters::read(checkpoint)?;
        let stored_streams = checkpoint.object("streams")?;
        let stream = |(name, _): &(String, Pcg64)| {
            let corrupt = || checkpoint.corrupt("streams", format!("no PCG64 state as {name:?}"));
            stored_streams.get(name).and_then(parse_stream).ok_or_else(corrupt)
        };
        let streams = self.streams.iter().map(stream).collect::<Result<_>>()?;
        let normalizer = members::read_normalizer(checkpoint, self.normalizer)?;
        let snapshot = members::read_env(checkpoint, self.num_envs)?;
        Ok(LoadedState { counters, streams, normalizer, snapshot })
    }

    /// Rejects a checkpoint of another algorithm or of other environments.
    fn check_kind(&self, checkpoint: &Checkpoint) -> Result<()> {
        let spec = self.spec;
        let spaces = checkpoint.object("spaces")?;
        let id = json!(spec.id);
        for (section, theirs, ours) in [
            ("algorithm", checkpoint.manifest.get("algorithm"), json!(self.algorithm)),
            ("env", checkpoint.manifest.get("env").filter(|id| !id.is_null()).or(Some(&id)), id.clone()),
            ("spaces", spaces.get("observation"), spec.observation.to_json()),
            ("spaces", spaces.get("action"), spec.action.to_json()),
        ] {
            let Some(theirs) = theirs.filter(|theirs| theirs.is_string() == ours.is_string()) else {
                return Err(checkpoint.corrupt(section, "no value of the expected type"));
            };
            if *theirs != ours {
                let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let fix = "load it into a trainer with this algorithm and environment";
                return Err(
                    Error::config(checkpoint.file_of(section), text(&ours), text(theirs), fix).in_section(section)
                );
            }
        }
        Ok(())
    }
}

/// Counters in the manifest of a checkpoint.
struct Counters {
    seed: Option<u64>,
    timesteps: u64,
    updates: u64,
    run: Run,
    episodes: u64,
    recent: VecDeque<(f64, u32)>,
}

impl Counters {
    fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let (counters, run) = (checkpoint.object("counters")?, checkpoint.object("run")?);
        let count = |section: &str, from: &Map<String, Value>, name: &str| {
            let corrupt = || checkpoint.corrupt(section, format!("no count {name:?}"));
            // Counters grow later, so their limit leaves a margin. The target of a run is fixed.
            let fits = |count: &u64| section == "run" || *count < 1 << 62;
            from.get(name).and_then(Value::as_u64).filter(fits).ok_or_else(corrupt)
        };
        let corrupt = || checkpoint.corrupt("counters", "no returns and lengths of the last 100 episodes");
        let listed = counters.get("episodes").and_then(Value::as_object).ok_or_else(corrupt)?;
        let list = |name| listed.get(name).and_then(Value::as_array).ok_or_else(corrupt);
        let (episodes, returns, lengths) = (count("counters", listed, "count")?, list("returns")?, list("lengths")?);
        let recent = returns
            .iter()
            .zip(lengths)
            .map(|(episode_return, length)| Some((episode_return.as_f64()?, u32::try_from(length.as_u64()?).ok()?)));
        let recent: VecDeque<_> = recent.collect::<Option<_>>().ok_or_else(corrupt)?;
        if returns.len() != lengths.len() || returns.len() as u64 != episodes.min(RECENT as u64) {
            return Err(corrupt());
        }
        let run = Run { start: count("run", run, "start")?, target: count("run", run, "target")? };
        if run.start > run.target {
            return Err(checkpoint.corrupt("run", format!("a run from {} to {}", run.start, run.target)));
        }
        Ok(Self {
            seed: checkpoint.manifest.get("seed").and_then(Value::as_u64),
            timesteps: count("counters", counters, "timesteps")?,
            updates: count("counters", counters, "updates")?,
            run,
            episodes,
            recent,
        })
    }
}

/// Returns the random streams of a run that checkpoints store, with their names.
fn named_streams(streams: &Streams) -> Vec<(String, Pcg64)> {
    streams.clone().named().map(|(name, rng)| (name.to_owned(), rng.clone())).into()
}

/// Returns the state of a random stream as JSON.
///
/// The form is that of NumPy's `bit_generator.state`, but 128-bit numbers are strings.
fn stream_state(rng: &Pcg64) -> Value {
    let Pcg64State { state, inc, has_uint32, uinteger } = rng.state();
    json!({
        "bit_generator": "PCG64",
        "state": {"state": state.to_string(), "inc": inc.to_string()},
        "has_uint32": u8::from(has_uint32),
        "uinteger": uinteger,
    })
}

fn parse_stream(value: &Value) -> Option<Pcg64> {
    let number = |key| value.get("state")?.get(key)?.as_str()?.parse::<u128>().ok();
    let has_uint32 = value.get("has_uint32")?.as_u64().filter(|flag| *flag < 2)? == 1;
    let uinteger = u32::try_from(value.get("uinteger")?.as_u64()?).ok()?;
    let known = value.get("bit_generator")? == "PCG64";
    let state = Pcg64State { state: number("state")?, inc: number("inc")?, has_uint32, uinteger };
    Pcg64::from_state(state).ok().filter(|_| known)
}

/// Reads the parameters and the optimiser state, and checks both with the functions passed.
fn read_networks(
    checkpoint: &Checkpoint,
    check_tensors: impl Fn(&NamedTensors) -> Result<()>,
    check_optimizer_state: impl Fn(&NamedTensors) -> Result<()>,
) -> Result<(NamedTensors, NamedTensors)> {
    let tensors = |member: &str| {
        let result =
            checkpoint.safetensors(member).map_or_else(|| Ok(NamedTensors::default()), NamedTensors::from_safetensors);
        result.map_err(|error| in_section(error, checkpoint, member))
    };
    let (networks, optimizer) = (tensors(NETWORKS)?, tensors(OPTIMIZER)?);
    check_tensors(&networks).map_err(|error| in_section(error, checkpoint, NETWORKS))?;
    check_optimizer_state(&optimizer).map_err(|error| in_section(error, checkpoint, OPTIMIZER))?;
    Ok((networks, optimizer))
}

/// Rejects a snapshot that does not match the environments.
fn check_snapshot(checkpoint: &Checkpoint, snapshot: Option<&EnvSnapshot<'_>>, env: &dyn VectorEnv) -> Result<()> {
    let Some(snapshot) = snapshot else { return Ok(()) };
    snapshot.check(env).map_err(|error| in_section(error, checkpoint, ENVIRONMENT))
}

/// Restores the environments from the snapshot, if there is one, and then calls `after_restore`.
///
/// If either fails, the environments return to their earlier state.
///
/// `env_initialized` is `true` if the environments have current episodes. The flag becomes `false`
/// if the earlier state cannot be restored.
fn restore_envs(
    checkpoint: &Checkpoint,
    snapshot: Option<&EnvSnapshot<'_>>,
    env: &mut dyn VectorEnv,
    env_initialized: &mut bool,
    after_restore: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(snapshot) = snapshot else { return after_restore() };
    let before = if *env_initialized { EnvSnapshot::capture(env)? } else { None };
    let result = snapshot.restore_into(env).map_err(|error| in_section(error, checkpoint, ENVIRONMENT));
    result.and_then(|()| after_restore()).inspect_err(|_| {
        // Environments whose earlier state cannot be restored are reset before their next use.
        let rollback = before.map(|before| before.restore_into(env));
        *env_initialized &= rollback.is_some_and(|back| back.is_ok());
    })
}

/// Adds the file and the section of the checkpoint to an error other than [`Error::Memory`] and
/// [`Error::Closed`].
fn in_section(error: Error, checkpoint: &Checkpoint, section: &str) -> Error {
    if matches!(error, Error::Memory(_) | Error::Closed(_)) { error } else { checkpoint.in_file(error, section) }
}
