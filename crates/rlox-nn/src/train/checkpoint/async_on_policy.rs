//! Trainers with actors as checkpoints.

use std::path::Path;

use rlox_core::{Checkpoint, ResetOptions, Result, Seeds, Standing};
use serde_json::Value;

use super::settings::{self, ON_POLICY, Settings};
use super::{About, COUNTERS, ENVIRONMENT, Read, learned, named, of_section};
use crate::ActorCritic;
use crate::alloc::resize;
use crate::train::{AsyncOnPolicy, Episodes, ImpalaConfig, OnPolicyAlgorithm};

const ROLLOUTS: &str = "rollouts";

impl<A: OnPolicyAlgorithm, P: ActorCritic + 'static> AsyncOnPolicy<A, P> {
    /// Writes a checkpoint into the folder `path`, or leaves what was there ([`Checkpoint::write`]): weights, optimiser,
    /// random streams and counters. It is as [`OnPolicy::save`](crate::train::OnPolicy::save) writes it, and in lockstep
    /// without lag one with a single actor may be loaded by either.
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
    ///     Impala::new(vec![env], make, ImpalaConfig::default(), Ahead { max_lag: 0, lockstep: true }, seed)
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
    /// there stays. In lockstep without lag those of [`rlox_core::AsyncCollector::pause`], and of a first reset.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let standing = self.standing()?;
        let rollouts = self.collector.version()?;
        self.streams.iterations = self.collector.seeds()?;
        let (settings, policy) = (self.settings(), &self.policy);
        let (networks, optimizer) = (policy.tensors(), policy.optimizer_state());
        let mut checkpoint = self.about(&settings).checkpoint(&networks, &optimizer, standing.as_ref())?;
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
    /// Actors begin new rollouts with the weights that were loaded, and the bound of their lag holds from there on. Where
    /// the checkpoint does not say where environments stand, or the bound is not 0 in lockstep, they begin new episodes;
    /// lockstep is still repeatable. Actors whose environments are elsewhere ([`rlox_core::Collect::state`]) go on with the
    /// episodes they are in.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`], and errors that name the file and the section that is another trainer's. Nothing has
    /// changed then. Those of [`rlox_core::AsyncCollector::pause`].
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let saved = Checkpoint::read(path)?;
        let settings = self.settings();
        let about = self.about(&settings);
        about.check_kind(&saved)?;
        let Read { counted, streams, standing, .. } = about.read(&saved)?;
        let rollouts = rollouts(&saved)?;
        let policy = &self.policy;
        let (networks, optimizer) =
            learned(&saved, |it| policy.check_tensors(it), |state| policy.check_optimizer_state(state))?;
        let mut all = self.streams.clone();
        for ((_, stream), saved) in all.named().into_iter().zip(streams) {
            *stream = saved;
        }
        if let Some(standing) = standing.filter(|_| self.by_turns()) {
            self.put(&saved, &standing)?;
        } else {
            let mut reset = all.reset();
            for actor in self.collector.pause()? {
                if let Some(state) = actor.state() {
                    *state.reset = Some(reset);
                }
                reset += self.envs.1 as u64;
            }
        }
        // From here on nothing is refused: the networks' parts have been checked.
        self.policy.load(&networks)?;
        self.policy.load_optimizer_state(&optimizer)?;
        self.collector.rewind(rollouts, self.policy.tensors(), all.iterations.clone())?;
        self.streams = all;
        self.seed = counted.seed.unwrap_or(self.seed);
        (self.timesteps, self.updates, self.run, self.lag) = (counted.timesteps, counted.updates, counted.run, 0);
        self.episodes = Episodes::new(counted.episodes, counted.recent);
        Ok(())
    }

    /// Whether nothing is under way between two iterations.
    fn by_turns(&self) -> bool {
        self.ahead.lockstep && self.ahead.max_lag == 0
    }

    /// Where the environments of all actors stand, one actor's after another's; `None` if that is not known.
    fn standing(&mut self) -> Result<Option<Standing<'static>>> {
        if !self.by_turns() {
            return Ok(None);
        }
        let (spec, each, _) = &self.envs;
        let actors = self.collector.pause()?;
        if actors.iter_mut().any(|actor| actor.state().is_none()) {
            return Ok(None);
        }
        let mut all: Option<Standing<'static>> = None;
        for state in actors.iter_mut().filter_map(|actor| actor.state()) {
            // It was to come before the first rollout, and may as well come now.
            if let Some(seed) = *state.reset {
                let mut obs = Vec::new();
                resize("num_envs", &mut obs, each * spec.observation.dim(), 0.0)?;
                state.env.reset(Seeds::Base(seed), None, &ResetOptions::default(), &mut obs)?;
                *state.reset = None;
            }
            let Some(one) = Standing::of(state.env)? else { return Ok(None) };
            match &mut all {
                Some(all) => all.append(&one),
                None => all = Some(one),
            }
        }
        Ok(all)
    }

    /// Puts the environments of all actors where they stood, or leaves them where they are.
    fn put(&mut self, saved: &Checkpoint, standing: &Standing<'_>) -> Result<()> {
        let (each, blame) = (self.envs.1, |error| of_section(error, saved, ENVIRONMENT));
        let part = |number: usize| standing.rows(number * each..(number + 1) * each);
        let actors = self.collector.pause()?;
        let mut before = Vec::new();
        for (number, actor) in actors.iter_mut().enumerate() {
            let Some(state) = actor.state() else { continue };
            part(number).check(state.env).map_err(blame)?;
            // What stands nowhere yet is reset before it is used, wherever it is put.
            before.push(if state.reset.is_none() { Standing::of(state.env)? } else { None });
        }
        let (states, mut refused) = (actors.iter_mut().map(|actor| actor.state()).enumerate(), None);
        let mut put = Vec::new();
        for (number, state) in states.filter_map(|(number, state)| Some((number, state?))) {
            let done = part(number).put(state.env);
            put.push(state);
            if let Err(error) = done {
                refused = Some(blame(error));
                break;
            }
        }
        let Some(error) = refused else {
            for state in put {
                *state.reset = None;
            }
            return Ok(());
        };
        // Environments that broke their word.
        for (state, before) in put.into_iter().zip(before) {
            let back = before.is_some_and(|before| before.put(state.env).is_ok());
            if !back && state.reset.is_none() {
                *state.reset = Some(self.seed);
            }
        }
        Err(error)
    }

    fn about<'a>(&'a self, settings: &'a Settings) -> About<'a> {
        let (spec, each, _) = &self.envs;
        About {
            algorithm: A::NAME,
            settings,
            usual: ON_POLICY,
            spec,
            num_envs: each * self.num_actors,
            seed: self.seed,
            run: self.run,
            timesteps: self.timesteps,
            updates: self.updates,
            episodes: &self.episodes,
            streams: named(&self.streams),
            normalizer: None,
        }
    }

    /// The settings by the names that checkpoints have for them.
    fn settings(&self) -> Settings {
        let ((_, normalize, how), (_, each, masks)) = (self.config.collection(), &self.envs);
        let mut settings = self.config.settings();
        settings.extend(settings::actors(self.num_actors, self.ahead));
        settings.extend(settings::normalization(normalize));
        settings.extend(settings::collection(each * self.num_actors, *masks, how.sde_sample_freq));
        settings.extend(settings::shape(&self.policy));
        settings
    }
}

/// How many rollouts there were; trainers whose actors have no turns do not tell.
fn rollouts(saved: &Checkpoint) -> Result<u64> {
    match saved.object(COUNTERS)?.get(ROLLOUTS) {
        None => Ok(0),
        Some(told) => {
            let wrong = || saved.corrupt(COUNTERS, format!("no count {ROLLOUTS:?}"));
            told.as_u64().filter(|count| *count < 1 << 62).ok_or_else(wrong)
        }
    }
}
