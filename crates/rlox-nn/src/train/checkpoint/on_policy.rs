//! What trainers of on-policy methods save, and how they go back to it.

use std::path::Path;

use rlox_core::{Checkpoint, Result, Standing};

use super::{About, Read, check_standing, learned, move_envs, named};
use crate::ActorCritic;
use crate::train::collector::Collector;
use crate::train::episodes::Episodes;
use crate::train::settings::{ON_POLICY, Settings};

fn about<'a>(algorithm: &'static str, settings: &'a Settings, collector: &'a Collector) -> About<'a> {
    let Collector { env, episodes, normalizer, seed, streams, timesteps, updates, run, .. } = collector;
    About {
        algorithm,
        settings,
        usual: ON_POLICY,
        spec: env.spec(),
        num_envs: env.num_envs(),
        seed: *seed,
        run: *run,
        timesteps: *timesteps,
        updates: *updates,
        episodes,
        streams: named(streams),
        normalizer: normalizer.as_ref(),
    }
}

/// Writes all that a trainer needs to go on.
pub(in crate::train) fn save(
    path: &Path,
    algorithm: &'static str,
    settings: &Settings,
    policy: &dyn ActorCritic,
    collector: &Collector,
) -> Result<()> {
    let about = about(algorithm, settings, collector);
    let standing = if collector.started { Standing::of(collector.env.as_ref())? } else { None };
    about.checkpoint(&policy.tensors(), &policy.optimizer_state(), standing.as_ref())?.write(path)
}

/// Goes back to what [`save`] wrote, whole or not at all.
pub(in crate::train) fn load(
    path: &Path,
    algorithm: &'static str,
    settings: &Settings,
    policy: &mut dyn ActorCritic,
    collector: &mut Collector,
) -> Result<()> {
    let saved = Checkpoint::read(path)?;
    let about = about(algorithm, settings, collector);
    about.check_kind(&saved)?;
    let Read { counted, streams, normalizer, standing } = about.read(&saved)?;
    check_standing(&saved, standing.as_ref(), collector.env.as_ref())?;
    let (networks, optimizer) =
        learned(&saved, |it| policy.check_tensors(it), |state| policy.check_optimizer_state(state))?;
    move_envs(&saved, standing.as_ref(), collector.env.as_mut(), &mut collector.started, || Ok(()))?;
    // From here on nothing is refused: the networks' parts have been checked.
    policy.load(&networks)?;
    policy.load_optimizer_state(&optimizer)?;
    collector.started = standing.is_some();
    collector.normalizer = normalizer;
    for ((_, stream), saved) in collector.streams.named().into_iter().zip(streams) {
        *stream = saved;
    }
    collector.seed = counted.seed.unwrap_or(collector.seed);
    (collector.timesteps, collector.updates, collector.run) = (counted.timesteps, counted.updates, counted.run);
    collector.episodes = Episodes::new(counted.episodes, counted.recent);
    collector.episodes.forget(collector.env.as_mut());
    Ok(())
}
