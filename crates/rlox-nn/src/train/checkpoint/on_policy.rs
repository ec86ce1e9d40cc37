//! On-policy trainers as checkpoints.

use std::path::Path;

use rlox_core::{Checkpoint, EnvSnapshot, Result};

use super::settings::{self, ConfigMap, ON_POLICY};
use super::{CheckpointInfo, LoadedState, check_snapshot, named_streams, read_networks, restore_envs};
use crate::ActorCritic;
use crate::train::trainer::Collector;
use crate::train::{Episodes, OnPolicy, OnPolicyAlgorithm};

impl<A: OnPolicyAlgorithm, P: ActorCritic> OnPolicy<A, P> {
    /// Writes a checkpoint into the folder `path`, or leaves what was there ([`rlox_core::Checkpoint::write`]): weights,
    /// optimiser, statistics, random streams, counters, and where the environments stand, if they can tell
    /// ([`rlox_core::VectorEnv::state`]). `PPOTrainer.load` and `A2CTrainer.load` of the Python package take it, too, where
    /// they have the same settings: policy and values with hidden layers of the same widths, an environment by its id.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Result, VecEnv, envs::CartPole};
    /// use rlox_nn::{Activation, ActorCritic, Mlp, PolicyNetworks, train::{Ppo, PpoConfig}};
    ///
    /// fn trainer(seed: u64) -> Result<Ppo<PolicyNetworks<Mlp>>> {
    ///     let env = VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?;
    ///     let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng);
    ///     Ppo::new(Box::new(env), make, PpoConfig { n_steps: 16, ..PpoConfig::default() }, seed)
    /// }
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-ppo-{}", std::process::id()));
    /// let mut first = trainer(1)?;
    /// first.train(256, |metrics| metrics.timesteps < 128)?; // the run is left halfway
    /// first.save(&folder)?;
    /// let mut second = trainer(2)?;
    /// second.load(&folder)?;
    /// first.resume(|_| true)?;
    /// second.resume(|_| true)?;
    /// assert_eq!(first.policy().tensors(), second.policy().tensors());
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`rlox_core::Checkpoint::write`], [`rlox_core::Error::Config`] for a weight or a return that is not
    /// finite; what was there stays.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), A::NAME, &self.config_map(), &self.policy, &self.collector)
    }

    /// Goes back to what [`OnPolicy::save`] wrote, or the Python package for a learner on its native backend, of a trainer
    /// with the same settings, environments and shape of the policy; [`OnPolicy::resume`] goes on from there, as if nothing
    /// had come between. Environments that could not tell where they stood start new episodes. What made the environments,
    /// beside their id and spaces, is not told.
    ///
    /// # Errors
    /// Those of [`rlox_core::Checkpoint::read`], and errors that name the file and the section that is another trainer's.
    /// Nothing has changed then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let config_map = self.config_map();
        load(path.as_ref(), A::NAME, &config_map, &mut self.policy, &mut self.collector)
    }

    /// The settings by the names that checkpoints have for them.
    fn config_map(&self) -> ConfigMap {
        let (_, normalize, collect_config) = self.config.collect_config();
        let mut config_map = self.config.config_map();
        config_map.extend(settings::normalization(normalize));
        let env = self.collector.env.as_ref();
        config_map.extend(settings::collect_config(
            env.num_envs(),
            env.has_action_masks(),
            collect_config.sde_sample_freq,
        ));
        config_map.extend(settings::policy_arch(&self.policy));
        config_map
    }
}

/// Writes all that a trainer needs to go on.
fn save(
    path: &Path,
    algorithm: &'static str,
    config_map: &ConfigMap,
    policy: &dyn ActorCritic,
    collector: &Collector,
) -> Result<()> {
    let info = info(algorithm, config_map, collector);
    let snapshot = if collector.env_initialized { EnvSnapshot::capture(collector.env.as_ref())? } else { None };
    info.checkpoint(&policy.tensors(), &policy.optimizer_state(), snapshot.as_ref())?.write(path)
}

/// Goes back to what [`save`] wrote, whole or not at all.
fn load(
    path: &Path,
    algorithm: &'static str,
    config_map: &ConfigMap,
    policy: &mut dyn ActorCritic,
    collector: &mut Collector,
) -> Result<()> {
    let checkpoint = Checkpoint::read(path)?;
    let info = info(algorithm, config_map, collector);
    info.check_kind(&checkpoint)?;
    let LoadedState { counters, streams, normalizer, snapshot } = info.read(&checkpoint)?;
    check_snapshot(&checkpoint, snapshot.as_ref(), collector.env.as_ref())?;
    let (networks, optimizer) =
        read_networks(&checkpoint, |it| policy.check_tensors(it), |state| policy.check_optimizer_state(state))?;
    restore_envs(&checkpoint, snapshot.as_ref(), collector.env.as_mut(), &mut collector.env_initialized, || Ok(()))?;
    // From here on nothing is refused: the networks' parts have been checked.
    policy.load(&networks)?;
    policy.load_optimizer_state(&optimizer)?;
    collector.env_initialized = snapshot.is_some();
    collector.normalizer = normalizer;
    for ((_, stream), stored) in collector.streams.named().into_iter().zip(streams) {
        *stream = stored;
    }
    collector.seed = counters.seed.unwrap_or(collector.seed);
    (collector.timesteps, collector.updates, collector.run) = (counters.timesteps, counters.updates, counters.run);
    collector.episodes = Episodes::new(counters.episodes, counters.recent);
    collector.episodes.discard(collector.env.as_mut());
    Ok(())
}

fn info<'a>(algorithm: &'static str, config_map: &'a ConfigMap, collector: &'a Collector) -> CheckpointInfo<'a> {
    let Collector { env, episodes, normalizer, seed, streams, timesteps, updates, run, .. } = collector;
    CheckpointInfo {
        algorithm,
        config_map,
        defaults: ON_POLICY,
        spec: env.spec(),
        num_envs: env.num_envs(),
        seed: *seed,
        run: *run,
        timesteps: *timesteps,
        updates: *updates,
        episodes,
        streams: named_streams(streams),
        normalizer: normalizer.as_ref(),
    }
}
