//! Trainers with actors as checkpoints.

use std::path::Path;

use rlox_core::{Checkpoint, EnvSnapshot, ResetOptions, Result, Seeds};
use serde_json::Value;

use super::settings::{self, ConfigMap, ON_POLICY};
use super::{COUNTERS, CheckpointInfo, ENVIRONMENT, LoadedState, in_section, named_streams, read_networks};
use crate::ActorCritic;
use crate::alloc::resize;
use crate::train::{AsyncOnPolicy, Episodes, ImpalaConfig, OnPolicyAlgorithm};

const ROLLOUTS: &str = "rollouts";

impl<A: OnPolicyAlgorithm, P: ActorCritic + 'static> AsyncOnPolicy<A, P> {
    /// Writes a checkpoint into the folder `path`, or leaves what was there ([`Checkpoint::write`]): weights, optimiser,
    /// random streams and counters. It is as [`OnPolicy::save`](crate::train::OnPolicy::save) writes it, and in lockstep
    /// without staleness one with a single actor may be loaded by either.
    ///
    /// Rollouts under way are not in it, and go on. With a bound of 0 in lockstep there are none: where all environments
    /// stand is saved too, if they can tell ([`rlox_core::VectorEnv::state`]) and are actors' in this process, and a
    /// trainer that loads it goes on as this one does, bit for bit. What an iteration had collected when it was interrupted
    /// is lost to either.
    ///
    /// ```
    /// use rlox_core::{Ahead, AutoresetMode, Result, VecEnv, VectorEnv, envs::CartPole};
    /// use rlox_nn::{Activation, ActorCritic, Mlp, PolicyNetworks, train::{Impala, ImpalaConfig}};
    ///
    /// fn trainer(seed: u64) -> Result<Impala<PolicyNetworks<Mlp>>> {
    ///     let env: Box<dyn VectorEnv> = Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?);
    ///     let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng);
    ///     Impala::new(vec![env], make, ImpalaConfig::default(), Ahead { max_staleness: 0, deterministic: true }, seed)
    /// }
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-impala-{}", std::process::id()));
    /// let mut first = trainer(1)?;
    /// first.train(400, |metrics| metrics.timesteps < 200)?; // the run is left halfway
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
    /// Those of [`Checkpoint::write`], [`rlox_core::Error::Config`] for a weight or a return that is not finite; what was
    /// there stays. In lockstep without staleness those of [`rlox_core::AsyncCollector::pause`], and of a first reset.
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
        // In Python IMPALA has actors always, and no such setting.
        if A::NAME != ImpalaConfig::NAME {
            add("settings", "async_collect", true.into());
        }
        checkpoint.write(path)
    }

    /// Goes back to what [`AsyncOnPolicy::save`] wrote, or the Python package for a learner on its native backend, of a
    /// trainer with the same settings, as many actors with as many environments, and the same shape of the policy;
    /// [`AsyncOnPolicy::resume`] goes on from there.
    ///
    /// Actors begin new rollouts with the weights that were loaded, and the bound of their staleness holds from there on. Where
    /// the checkpoint does not say where environments stand, or the bound is not 0 in deterministic, they begin new episodes;
    /// lockstep is still repeatable. Actors whose environments are elsewhere ([`rlox_core::Collect::state`]) go on with the
    /// episodes they are in.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`], and errors that name the file and the section that is another trainer's. Nothing has
    /// changed then. Those of [`rlox_core::AsyncCollector::pause`].
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
        // From here on nothing is refused: the networks' parts have been checked.
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

    /// Whether nothing is under way between two iterations.
    fn is_synchronous(&self) -> bool {
        self.staleness_policy.deterministic && self.staleness_policy.max_staleness == 0
    }

    /// Where the environments of all actors stand, one actor's after another's; `None` if that is not known.
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
            // It was to come before the first rollout, and may as well come now.
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

    /// Puts the environments of all actors where they stood, or leaves them where they are.
    fn restore_envs(&mut self, checkpoint: &Checkpoint, snapshot: &EnvSnapshot<'_>) -> Result<()> {
        let (envs_per_actor, locate) = (self.envs.1, |error| in_section(error, checkpoint, ENVIRONMENT));
        let actor_snapshot = |number: usize| snapshot.rows(number * envs_per_actor..(number + 1) * envs_per_actor);
        let actors = self.collector.quiesce()?;
        let mut before = Vec::new();
        for (number, actor) in actors.iter_mut().enumerate() {
            let Some(state) = actor.state() else { continue };
            actor_snapshot(number).check(state.env).map_err(locate)?;
            // What stands nowhere yet is reset before it is used, wherever it is put.
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
        // Environments that broke their word.
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

    /// The settings by the names that checkpoints have for them.
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

/// How many rollouts there were; trainers whose actors have no turns do not tell.
fn read_rollouts(checkpoint: &Checkpoint) -> Result<u64> {
    match checkpoint.object(COUNTERS)?.get(ROLLOUTS) {
        None => Ok(0),
        Some(value) => {
            let corrupt = || checkpoint.corrupt(COUNTERS, format!("no count {ROLLOUTS:?}"));
            value.as_u64().filter(|count| *count < 1 << 62).ok_or_else(corrupt)
        }
    }
}
