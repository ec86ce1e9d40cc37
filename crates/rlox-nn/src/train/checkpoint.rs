//! Trainers as checkpoints, in the form that the Python package gives its learners on the native backend.

use std::collections::VecDeque;
use std::path::Path;

use rlox_core::{Checkpoint, Error, FieldMut, Normalizer, Pcg64, Pcg64State, Result, RunningMeanStd, Standing};
use serde_json::{Map, Value, json};

use super::collector::{Collector, Run};
use super::episodes::{Episodes, RECENT};
use super::settings::{self, Settings};
use super::standing;
use crate::{ActorCritic, NamedTensors};

const NETWORKS: &str = "networks";
const OPTIMIZER: &str = "optimizer";
const NORMALIZER: &str = "normalizer";

/// Writes all that a trainer needs to go on.
pub(super) fn save(
    path: &Path,
    algorithm: &str,
    settings: &Settings,
    policy: &dyn ActorCritic,
    collector: &Collector,
) -> Result<()> {
    let mut checkpoint = Checkpoint::default();
    checkpoint.manifest = describe(algorithm, settings, collector)?;
    for (member, tensors) in [(NETWORKS, policy.tensors()), (OPTIMIZER, policy.optimizer_state())] {
        // It could not be loaded, and the former checkpoint is worth more.
        if let Some((tensor, at)) = tensors.iter().find_map(|one| Some((one, one.first_not_finite()?))) {
            let got = format!("{} in {:?}", tensor.data[at], tensor.name);
            return Err(Error::config(member, "finite numbers", got, "go back to the last checkpoint"));
        }
        if !tensors.is_empty() {
            checkpoint.put_safetensors(member, tensors.to_safetensors())?;
        }
    }
    if let Some(normalizer) = used(collector.normalizer.as_ref()) {
        let (obs, reward, returns) = (normalizer.obs(), normalizer.reward(), normalizer.returns());
        let columns = columns(obs.mean().len(), returns.len());
        let counts = [[obs.count()], [reward.count()]];
        let arrays = [obs.mean(), obs.var(), &counts[0], reward.mean(), reward.var(), &counts[1], returns];
        let named: Vec<_> =
            columns.iter().zip(arrays).map(|((name, len), array)| (*name, &len[..], array.into())).collect();
        checkpoint.put(NORMALIZER, &named)?;
    }
    if collector.started
        && let Some(standing) = Standing::of(collector.env.as_ref())?
    {
        standing::write(&mut checkpoint, &standing, collector.env.num_envs())?;
    }
    checkpoint.write(path)
}

/// A normaliser that does something.
fn used(normalizer: Option<&Normalizer>) -> Option<&Normalizer> {
    normalizer.filter(|normalizer| normalizer.options().obs || normalizer.options().reward)
}

/// The arrays of a normaliser, and how many numbers are in them.
fn columns(dim: usize, num_envs: usize) -> [(&'static str, [usize; 1]); 7] {
    [
        ("obs_mean", [dim]),
        ("obs_var", [dim]),
        ("obs_count", [1]),
        ("return_mean", [1]),
        ("return_var", [1]),
        ("return_count", [1]),
        ("returns", [num_envs]),
    ]
}

fn describe(algorithm: &str, settings: &Settings, collector: &Collector) -> Result<Map<String, Value>> {
    let Collector { env, episodes: Episodes { recent, total, .. }, timesteps, updates, run, .. } = collector;
    if let Some((wrong, _)) = recent.iter().find(|(episode_return, _)| !episode_return.is_finite()) {
        let fix = "keep rewards in a range whose sums are finite";
        return Err(Error::config("episode returns", "finite numbers", wrong.to_string(), fix));
    }
    let (returns, lengths): (Vec<f64>, Vec<u32>) = recent.iter().copied().unzip();
    let spec = env.spec();
    let mut streams = collector.streams.clone();
    let streams: Map<_, _> =
        streams.named().map(|(name, rng)| (name.to_owned(), stream_state(rng))).into_iter().collect();
    let manifest = json!({
        "algorithm": algorithm,
        "backend": "native",
        "env": spec.id,
        "env_kwargs": {"max_episode_steps": spec.max_episode_steps.map_or(json!(-1), |limit| json!(limit))},
        "seed": collector.seed,
        "settings": settings::to_json(settings),
        "spaces": {"observation": spec.observation.describe(), "action": spec.action.describe()},
        "run": {"start": run.start, "target": run.target},
        "counters": {
            "timesteps": timesteps,
            "updates": updates,
            "episodes": {"count": total, "returns": returns, "lengths": lengths},
        },
        "streams": streams,
    });
    Ok(if let Value::Object(manifest) = manifest { manifest } else { Map::new() })
}

/// As NumPy's `bit_generator.state`, with its 128-bit numbers as strings.
fn stream_state(rng: &Pcg64) -> Value {
    let Pcg64State { state, inc, has_uint32, uinteger } = rng.state();
    json!({
        "bit_generator": "PCG64",
        "state": {"state": state.to_string(), "inc": inc.to_string()},
        "has_uint32": u8::from(has_uint32),
        "uinteger": uinteger,
    })
}

fn stream_of(saved: &Value) -> Option<Pcg64> {
    let number = |key| saved.get("state")?.get(key)?.as_str()?.parse::<u128>().ok();
    let has_uint32 = saved.get("has_uint32")?.as_u64().filter(|flag| *flag < 2)? == 1;
    let uinteger = u32::try_from(saved.get("uinteger")?.as_u64()?).ok()?;
    let known = saved.get("bit_generator")? == "PCG64";
    let state = Pcg64State { state: number("state")?, inc: number("inc")?, has_uint32, uinteger };
    Pcg64::from_state(state).ok().filter(|_| known)
}

/// Goes back to what [`save`] wrote, whole or not at all.
pub(super) fn load(
    path: &Path,
    algorithm: &str,
    settings: &Settings,
    policy: &mut dyn ActorCritic,
    collector: &mut Collector,
) -> Result<()> {
    let saved = Checkpoint::read(path)?;
    check_kind(&saved, algorithm, collector)?;
    settings::check(settings, &saved)?;
    let counted = Counted::read(&saved)?;
    let mut streams = collector.streams.clone();
    let there = saved.object("streams")?;
    for (name, rng) in streams.named() {
        let wrong = || saved.corrupt("streams", format!("no PCG64's state as {name:?}"));
        *rng = there.get(name).and_then(stream_of).ok_or_else(wrong)?;
    }
    let normalizer = read_normalizer(&saved, collector)?;
    let standing = standing::read(&saved, collector.env.num_envs())?;
    if let Some(standing) = &standing {
        standing.check(collector.env.as_ref()).map_err(|error| of_section(error, &saved, "environment"))?;
    }
    let (networks, optimizer) = read_policy(&saved, policy)?;
    move_envs(&saved, standing.as_ref(), collector)?;
    // From here on nothing is refused: the networks' parts have been checked.
    policy.load(&networks)?;
    policy.load_optimizer_state(&optimizer)?;
    collector.started = standing.is_some();
    collector.normalizer = normalizer;
    collector.streams = streams;
    collector.seed = counted.seed.unwrap_or(collector.seed);
    (collector.timesteps, collector.updates, collector.run) = (counted.timesteps, counted.updates, counted.run);
    collector.episodes = Episodes::new(counted.episodes, counted.recent);
    collector.episodes.forget(collector.env.as_mut());
    Ok(())
}

/// Refuses a checkpoint of another algorithm, or of other environments.
fn check_kind(saved: &Checkpoint, algorithm: &str, collector: &Collector) -> Result<()> {
    let spec = collector.env.spec();
    let spaces = saved.object("spaces")?;
    let (observation, action) = (spec.observation.describe(), spec.action.describe());
    for (section, theirs, ours) in [
        ("algorithm", saved.manifest.get("algorithm"), algorithm),
        ("env", saved.manifest.get("env").filter(|id| !id.is_null()).or(Some(&spec.id.clone().into())), &spec.id),
        ("spaces", spaces.get("observation"), &observation),
        ("spaces", spaces.get("action"), &action),
    ] {
        let Some(theirs) = theirs.and_then(Value::as_str) else {
            return Err(saved.corrupt(section, "no word"));
        };
        if theirs != ours {
            let fix = "load it into a trainer of the same kind";
            return Err(Error::config(saved.section(section), ours, theirs, fix));
        }
    }
    Ok(())
}

/// What a manifest counts.
struct Counted {
    seed: Option<u64>,
    timesteps: u64,
    updates: u64,
    run: Run,
    episodes: u64,
    recent: VecDeque<(f64, u32)>,
}

impl Counted {
    fn read(saved: &Checkpoint) -> Result<Self> {
        let (counters, run) = (saved.object("counters")?, saved.object("run")?);
        let count = |section: &str, from: &Map<String, Value>, name: &str| {
            let wrong = || saved.corrupt(section, format!("no count {name:?}"));
            // Counters go on from there; a run may end nowhere.
            let fits = |count: &u64| section == "run" || *count < 1 << 62;
            from.get(name).and_then(Value::as_u64).filter(fits).ok_or_else(wrong)
        };
        let wrong = || saved.corrupt("counters", "other than the last 100 episodes' returns and lengths");
        let listed = counters.get("episodes").and_then(Value::as_object).ok_or_else(wrong)?;
        let list = |name| listed.get(name).and_then(Value::as_array).ok_or_else(wrong);
        let (episodes, returns, lengths) = (count("counters", listed, "count")?, list("returns")?, list("lengths")?);
        let recent = returns
            .iter()
            .zip(lengths)
            .map(|(episode_return, length)| Some((episode_return.as_f64()?, u32::try_from(length.as_u64()?).ok()?)));
        let recent: VecDeque<_> = recent.collect::<Option<_>>().ok_or_else(wrong)?;
        if returns.len() != lengths.len() || returns.len() as u64 != episodes.min(RECENT as u64) {
            return Err(wrong());
        }
        let run = Run { start: count("run", run, "start")?, target: count("run", run, "target")? };
        if run.start > run.target {
            return Err(saved.corrupt("run", format!("a run from {} to {}", run.start, run.target)));
        }
        Ok(Self {
            seed: saved.manifest.get("seed").and_then(Value::as_u64),
            timesteps: count("counters", counters, "timesteps")?,
            updates: count("counters", counters, "updates")?,
            run,
            episodes,
            recent,
        })
    }
}

fn read_normalizer(saved: &Checkpoint, collector: &Collector) -> Result<Option<Normalizer>> {
    let Some(ours) = used(collector.normalizer.as_ref()) else {
        return if saved.safetensors(NORMALIZER).is_none() {
            Ok(collector.normalizer.clone())
        } else {
            Err(saved.corrupt(NORMALIZER, "statistics, though nothing is normalised"))
        };
    };
    let mut arrays = Vec::new();
    for (name, len) in columns(ours.obs().mean().len(), ours.returns().len()) {
        let mut array = vec![0.0; len[0]];
        saved.array(NORMALIZER, name, &len, FieldMut::F64(&mut array))?;
        arrays.push(array);
    }
    let mut next = arrays.into_iter().map(|array: Vec<f64>| (array.first().copied().unwrap_or(0.0), array));
    let mut statistics = || {
        let [(_, mean), (_, var), (count, _)] = [next.next(), next.next(), next.next()].map(Option::unwrap_or_default);
        RunningMeanStd::from_parts(mean, var, count)
    };
    let mut normalizer = ours.clone();
    let read = statistics().and_then(|obs| Ok((obs, statistics()?)));
    let returns = next.next().unwrap_or_default().1;
    let restored = read.and_then(|(obs, reward)| normalizer.restore(obs, reward, &returns));
    restored.map_err(|error| of_section(error, saved, NORMALIZER))?;
    Ok(Some(normalizer))
}

/// Parameters and the optimiser's state, which the policy takes.
fn read_policy(saved: &Checkpoint, policy: &dyn ActorCritic) -> Result<(NamedTensors, NamedTensors)> {
    let tensors = |member: &str| {
        let read =
            saved.safetensors(member).map_or_else(|| Ok(NamedTensors::default()), NamedTensors::from_safetensors);
        read.map_err(|error| of_section(error, saved, member))
    };
    let (networks, optimizer) = (tensors(NETWORKS)?, tensors(OPTIMIZER)?);
    policy.check_tensors(&networks).map_err(|error| of_section(error, saved, NETWORKS))?;
    policy.check_optimizer_state(&optimizer).map_err(|error| of_section(error, saved, OPTIMIZER))?;
    Ok((networks, optimizer))
}

/// Puts environments where they stood, or leaves them where they are.
fn move_envs(saved: &Checkpoint, standing: Option<&Standing<'_>>, collector: &mut Collector) -> Result<()> {
    let Some(standing) = standing else { return Ok(()) };
    let before = if collector.started { Standing::of(collector.env.as_ref())? } else { None };
    standing.put(collector.env.as_mut()).map_err(|error| {
        // What stood nowhere is reset before it is used.
        let back = before.map(|before| before.put(collector.env.as_mut()));
        collector.started &= back.is_some_and(|back| back.is_ok());
        of_section(error, saved, "environment")
    })
}

/// The same error, of a section of a checkpoint.
fn of_section(mut error: Error, saved: &Checkpoint, section: &str) -> Error {
    if let Error::Shape(wrong) | Error::Space(wrong) | Error::Config(wrong) | Error::Corrupt(wrong) = &mut error {
        wrong.argument = format!("{}, {}", saved.section(section), wrong.argument).into();
    }
    error
}
