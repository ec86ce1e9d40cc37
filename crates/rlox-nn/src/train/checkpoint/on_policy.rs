//! Checkpoints of on-policy trainers.

use std::path::Path;

use rlox_core::{Result, checkpoint::Checkpoint, vector::EnvSnapshot};

use super::settings::{self, ConfigMap, ON_POLICY};
use super::{CheckpointInfo, LoadedState, check_snapshot, named_streams, read_networks, restore_envs};
use crate::ActorCritic;
use crate::train::trainer::Collector;
use crate::train::{Episodes, OnPolicy, OnPolicyAlgorithm};

impl<A: OnPolicyAlgorithm, P: ActorCritic> OnPolicy<A, P> {
    /// Writes a checkpoint to the folder `path` ([`rlox_core::checkpoint::Checkpoint::write`]).
    ///
    /// The checkpoint contains the weights, the optimiser state, the normaliser's statistics, the
    /// random streams and the counters. If the environments support it, the checkpoint also
    /// contains a snapshot of them ([`EnvSnapshot::capture`]). `PPOTrainer.load` and
    /// `A2CTrainer.load` of the Python package can load the checkpoint if Python has its settings.
    /// This requires equal hidden layers in both networks, and an environment with an id.
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
    /// first.train(256, |metrics| metrics.timesteps < 128)?; // stop halfway
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
    /// Errors of [`rlox_core::checkpoint::Checkpoint::write`]. [`rlox_core::Error::NotFinite`] for
    /// weights or episode returns that are not finite. After an error, an earlier checkpoint at
    /// `path` remains.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), A::NAME, &self.config_map(), &self.policy, &self.collector)
    }

    /// Loads a checkpoint of [`OnPolicy::save`] or of the Python package (backend native, candle or
    /// burn).
    ///
    /// The settings, the environments and the network architecture must match those of the
    /// checkpoint. [`OnPolicy::resume`] then continues the run exactly. If the checkpoint has no
    /// snapshot, the environments start new episodes instead. Only the id and the spaces of the
    /// environments are checked, not their other arguments.
    ///
    /// # Errors
    /// Errors of [`rlox_core::checkpoint::Checkpoint::read`], and errors that name the file and the
    /// section that do not match. After an error, the trainer is unchanged.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let config_map = self.config_map();
        load(path.as_ref(), A::NAME, &config_map, &mut self.policy, &mut self.collector)
    }

    /// Returns the settings under their names in checkpoints.
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

/// Writes the complete state of a trainer.
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

/// Loads a checkpoint of [`save`]. After an error, the trainer is unchanged.
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
    // Nothing fails from here on: all parts have been checked.
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
