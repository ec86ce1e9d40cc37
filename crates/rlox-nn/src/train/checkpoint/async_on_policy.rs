//! Checkpoints of on-policy trainers with actors.

use std::path::Path;

use rlox_core::{ResetOptions, Result, Seeds, checkpoint::Checkpoint, vector::EnvSnapshot};
use serde_json::Value;

use super::settings::{self, ConfigMap, ON_POLICY};
use super::{COUNTERS, CheckpointInfo, ENVIRONMENT, LoadedState, in_section, named_streams, read_networks};
use crate::ActorCritic;
use crate::alloc::resize;
use crate::train::{AsyncOnPolicy, Episodes, ImpalaConfig, OnPolicyAlgorithm};

const ROLLOUTS: &str = "rollouts";

impl<A: OnPolicyAlgorithm, P: ActorCritic + 'static> AsyncOnPolicy<A, P> {
    /// Writes a checkpoint to the folder `path` ([`Checkpoint::write`]).
    ///
    /// The checkpoint contains weights, optimiser state, random streams and counters.
    ///
    /// The format is that of [`OnPolicy::save`](crate::train::OnPolicy::save). With one actor,
    /// `max_staleness` 0 and `deterministic`, both trainers can load the checkpoint.
    ///
    /// The checkpoint does not contain the rollouts that actors are collecting, which continue
    /// during the call. With `max_staleness` 0 and `deterministic`, no rollout is in progress
    /// between iterations. The checkpoint then contains a snapshot of all environments
    /// ([`EnvSnapshot::capture`]), if they support snapshots and run in this process. A run that
    /// loads such a checkpoint continues exactly. The rollout of an interrupted iteration is lost
    /// in any case.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Result, VecEnv, VectorEnv, envs::CartPole, pipeline::StalenessPolicy};
    /// use rlox_nn::{Activation, ActorCritic, Mlp, PolicyNetworks, train::{Impala, ImpalaConfig}};
    ///
    /// fn trainer(seed: u64) -> Result<Impala<PolicyNetworks<Mlp>>> {
    ///     let env: Box<dyn VectorEnv> = Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?);
    ///     let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng);
    ///     let staleness_policy = StalenessPolicy { max_staleness: 0, deterministic: true };
    ///     Impala::new(vec![env], make, ImpalaConfig::default(), staleness_policy, seed)
    /// }
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-impala-{}", std::process::id()));
    /// let mut first = trainer(1)?;
    /// first.train(400, |metrics| metrics.timesteps < 200)?; // stop halfway
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
    /// Errors of [`Checkpoint::write`]. [`rlox_core::Error::NotFinite`] for weights or episode
    /// returns that are not finite. With `max_staleness` 0 and `deterministic`, also errors of
    /// [`rlox_core::AsyncCollector::quiesce`] and of the first reset. After an error, an earlier
    /// checkpoint at `path` remains.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let snapshot = self.snapshot()?;
        let rollouts = self.collector.version()?;
        self.streams.iterations = self.collector.seeds()?;
        let (config_map, policy) = (self.config_map(), &self.policy);
        let (networks, optimizer) = (policy.tensors(), policy.optimizer_state());
        let mut checkpoint = self.info(&config_map).checkpoint(&networks, &optimizer, snapshot.as_ref())?;
        let mut add = |section: &str, name: &str, value: Value| {
            if let Some(Value::Object(entries)) = checkpoint.manifest.get_mut(section) {
                entries.insert(name.to_owned(), value);
            }
        };
        add(COUNTERS, ROLLOUTS, rollouts.into());
        // Only PPO and A2C have this setting in Python, because IMPALA always has actors.
        if A::NAME != ImpalaConfig::NAME {
            add("settings", "async_collect", true.into());
        }
        checkpoint.write(path)
    }

    /// Loads a checkpoint of [`AsyncOnPolicy::save`] or of the Python package (backend native,
    /// candle or burn).
    ///
    /// The settings, the number of actors, the environments and the network architecture must match
    /// those of the checkpoint. [`AsyncOnPolicy::resume`] then continues the run. Actors start new
    /// rollouts with the loaded weights, so the staleness of the first rollout is 0.
    ///
    /// Environments continue the episodes of the checkpoint if there is a snapshot, `max_staleness`
    /// is 0 and `deterministic` is set. Otherwise environments start new episodes, and
    /// deterministic runs are still repeatable. Actors whose environments run elsewhere
    /// ([`rlox_core::pipeline::Collect::state`] returns `None`) continue their current episodes.
    ///
    /// # Errors
    /// Errors of [`Checkpoint::read`] and [`rlox_core::AsyncCollector::quiesce`], and errors that
    /// name the file and the section that do not match. After an error, the trainer is unchanged.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let checkpoint = Checkpoint::read(path)?;
        let config_map = self.config_map();
        let info = self.info(&config_map);
        info.check_kind(&checkpoint)?;
        let LoadedState { counters, streams, snapshot, .. } = info.read(&checkpoint)?;
        let rollouts = read_rollouts(&checkpoint)?;
        let policy = &self.policy;
        let (networks, optimizer) =
            read_networks(&checkpoint, |it| policy.check_tensors(it), |state| policy.check_optimizer_state(state))?;
        let mut all = self.streams.clone();
        for ((_, stream), stored) in all.named().into_iter().zip(streams) {
            *stream = stored;
        }
        if let Some(snapshot) = snapshot.filter(|_| self.is_synchronous()) {
            self.restore_envs(&checkpoint, &snapshot)?;
        } else {
            let mut reset = all.reset();
            for actor in self.collector.quiesce()? {
                if let Some(state) = actor.state() {
                    *state.reset = Some(reset);
                }
                reset += self.envs.1 as u64;
            }
        }
        // Nothing fails from here on: all parts have been checked.
        self.policy.load(&networks)?;
        self.policy.load_optimizer_state(&optimizer)?;
        self.collector.restart_from(rollouts, self.policy.tensors(), all.iterations.clone())?;
        self.streams = all;
        self.seed = counters.seed.unwrap_or(self.seed);
        (self.timesteps, self.updates, self.run, self.staleness) =
            (counters.timesteps, counters.updates, counters.run, 0);
        self.episodes = Episodes::new(counters.episodes, counters.recent);
        Ok(())
    }

    /// Returns `true` if no rollout is in progress between two iterations.
    fn is_synchronous(&self) -> bool {
        self.staleness_policy.deterministic && self.staleness_policy.max_staleness == 0
    }

    /// Returns a snapshot of the environments of all actors, in the order of actors.
    ///
    /// Returns `None` if rollouts are in progress or if an actor cannot provide a snapshot.
    fn snapshot(&mut self) -> Result<Option<EnvSnapshot<'static>>> {
        if !self.is_synchronous() {
            return Ok(None);
        }
        let (spec, envs_per_actor, _) = &self.envs;
        let actors = self.collector.quiesce()?;
        if actors.iter_mut().any(|actor| actor.state().is_none()) {
            return Ok(None);
        }
        let mut all: Option<EnvSnapshot<'static>> = None;
        for state in actors.iter_mut().filter_map(|actor| actor.state()) {
            // A snapshot needs environments that have been reset, so the first reset happens here.
            if let Some(seed) = *state.reset {
                let mut obs = Vec::new();
                resize("num_envs", &mut obs, envs_per_actor * spec.observation.dim(), 0.0)?;
                state.env.reset(Seeds::Base(seed), None, &ResetOptions::default(), &mut obs)?;
                *state.reset = None;
            }
            let Some(snapshot) = EnvSnapshot::capture(state.env)? else { return Ok(None) };
            match &mut all {
                Some(all) => all.append(&snapshot),
                None => all = Some(snapshot),
            }
        }
        Ok(all)
    }

    /// Restores the environments of all actors, or none of them after an error.
    fn restore_envs(&mut self, checkpoint: &Checkpoint, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        let (envs_per_actor, locate) = (self.envs.1, |error| in_section(error, checkpoint, ENVIRONMENT));
        let actor_snapshot = |number: usize| snapshot.rows(number * envs_per_actor..(number + 1) * envs_per_actor);
        let actors = self.collector.quiesce()?;
        let mut before = Vec::new();
        for (number, actor) in actors.iter_mut().enumerate() {
            let Some(state) = actor.state() else { continue };
            actor_snapshot(number).check(state.env).map_err(locate)?;
            // Environments before their first reset need no rollback.
            before.push(if state.reset.is_none() { EnvSnapshot::capture(state.env)? } else { None });
        }
        let (states, mut failure) = (actors.iter_mut().map(|actor| actor.state()).enumerate(), None);
        let mut restored = Vec::new();
        for (number, state) in states.filter_map(|(number, state)| Some((number, state?))) {
            let result = actor_snapshot(number).restore_into(state.env);
            restored.push(state);
            if let Err(error) = result {
                failure = Some(locate(error));
                break;
            }
        }
        let Some(error) = failure else {
            for state in restored {
                *state.reset = None;
            }
            return Ok(());
        };
        // A snapshot passed the check, but could not be restored: undo the restored ones.
        for (state, before) in restored.into_iter().zip(before) {
            let rolled_back = before.is_some_and(|before| before.restore_into(state.env).is_ok());
            if !rolled_back && state.reset.is_none() {
                *state.reset = Some(self.seed);
            }
        }
        Err(error)
    }

    fn info<'a>(&'a self, config_map: &'a ConfigMap) -> CheckpointInfo<'a> {
        let (spec, envs_per_actor, _) = &self.envs;
        CheckpointInfo {
            algorithm: A::NAME,
            config_map,
            defaults: ON_POLICY,
            spec,
            num_envs: envs_per_actor * self.num_actors,
            seed: self.seed,
            run: self.run,
            timesteps: self.timesteps,
            updates: self.updates,
            episodes: &self.episodes,
            streams: named_streams(&self.streams),
            normalizer: None,
        }
    }

    /// Returns the settings under their names in checkpoints.
    fn config_map(&self) -> ConfigMap {
        let ((_, normalize, collect_config), (_, envs_per_actor, masks)) = (self.config.collect_config(), &self.envs);
        let mut config_map = self.config.config_map();
        config_map.extend(settings::actors(self.num_actors, self.staleness_policy));
        config_map.extend(settings::normalization(normalize));
        config_map.extend(settings::collect_config(
            envs_per_actor * self.num_actors,
            *masks,
            collect_config.sde_sample_freq,
        ));
        config_map.extend(settings::policy_arch(&self.policy));
        config_map
    }
}

/// Reads the number of rollouts; 0 for checkpoints of [`OnPolicy`](crate::train::OnPolicy), which
/// do not store it.
fn read_rollouts(checkpoint: &Checkpoint) -> Result<u64> {
    match checkpoint.object(COUNTERS)?.get(ROLLOUTS) {
        None => Ok(0),
        Some(value) => {
            let corrupt = || checkpoint.corrupt(COUNTERS, format!("no count {ROLLOUTS:?}"));
            value.as_u64().filter(|count| *count < 1 << 62).ok_or_else(corrupt)
        }
    }
}
