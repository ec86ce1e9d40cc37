//! Checkpoints of off-policy trainers.

use std::ops::RangeInclusive;
use std::path::Path;

use rlox_core::{Error, Pcg64, Result, Space, checkpoint::Checkpoint, vector::EnvSnapshot};
use serde_json::{Value, json};

use super::settings::{self, ConfigMap, ConfigValue, number};
use super::{
    COUNTERS, CheckpointInfo, LoadedState, check_snapshot, in_section, named_streams, read_networks, restore_envs,
};
use crate::train::{Episodes, OffPolicy, OffPolicyMethod, OffPolicyUpdateStats};

const REPLAY: &str = "replay";

impl<A: OffPolicyMethod> OffPolicy<A> {
    /// Writes a checkpoint to the folder `path` ([`rlox_core::checkpoint::Checkpoint::write`]).
    ///
    /// The checkpoint contains weights, target networks, optimiser states, temperature, replay
    /// buffer with priorities, the normaliser's statistics, action noise, random streams and
    /// counters. If the environments support it, the checkpoint also contains a snapshot of them
    /// ([`EnvSnapshot::capture`]).
    ///
    /// `DQNTrainer.load`, `SACTrainer.load` and `TD3Trainer.load` of the Python package can load
    /// the checkpoint if Python has its settings. This requires equal hidden layers in all
    /// networks, two critics, and an environment with an id.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Result, VecEnv, envs::CartPole};
    /// use rlox_nn::train::{Dqn, DqnConfig, OffPolicyAlgorithm};
    /// use rlox_nn::{Activation, Mlp, QNetworks};
    ///
    /// fn trainer(seed: u64) -> Result<Dqn<QNetworks<Mlp>>> {
    ///     let env = VecEnv::new(2, None, AutoresetMode::SameStep, CartPole::default)?;
    ///     let make = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    ///     Dqn::new(Box::new(env), make, DqnConfig { buffer_size: 1000, ..DqnConfig::default() }, seed)
    /// }
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-dqn-{}", std::process::id()));
    /// let mut first = trainer(1)?;
    /// first.train(400, |metrics| metrics.timesteps < 200)?; // stop halfway
    /// first.save(&folder)?;
    /// let mut second = trainer(2)?;
    /// second.load(&folder)?;
    /// first.resume(|_| true)?;
    /// second.resume(|_| true)?;
    /// assert_eq!(first.learner().tensors(), second.learner().tensors());
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`rlox_core::checkpoint::Checkpoint::write`]. [`Error::NotFinite`] for weights,
    /// episode returns or noise that are not finite. [`Error::Memory`] if memory is insufficient
    /// for a copy of the replay buffer. After an error, an earlier checkpoint at `path` remains.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let (config_map, learner) = (self.config_map(), self.agent.learner());
        let env_initialized = self.env_restored || self.agent.env_initialized();
        let snapshot = if env_initialized { EnvSnapshot::capture(self.env.as_ref())? } else { None };
        let (networks, optimizer) = (learner.tensors(), learner.optimizer_state());
        let mut checkpoint = self.info(&config_map).checkpoint(&networks, &optimizer, snapshot.as_ref())?;
        let progress_state = ProgressState {
            noise: learner.noise().to_vec(),
            pending_updates: self.agent.remainder(),
            progress: self.agent.progress(),
            last_update: self.agent.last_update(),
        };
        progress_state.write(&mut checkpoint)?;
        checkpoint.insert_fields(REPLAY, &self.agent.replay_state()?)?;
        checkpoint.write(path)
    }

    /// Loads a checkpoint of [`OffPolicy::save`] or of the Python package (backend native, candle
    /// or burn).
    ///
    /// The settings, the environments and the network architecture must match those of the
    /// checkpoint. [`OffPolicy::resume`] then continues the run exactly. If the checkpoint has no
    /// snapshot, the environments start new episodes instead. Only the id and the spaces of the
    /// environments are checked, not their other arguments. A checkpoint of Python's
    /// `save(replay=False)` has no replay buffer. The buffer is then empty, and the first
    /// minibatches are small.
    ///
    /// # Errors
    /// Errors of [`rlox_core::checkpoint::Checkpoint::read`], and errors that name the file and the
    /// section that do not match. After an error, the trainer is unchanged.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let checkpoint = Checkpoint::read(path)?;
        let config_map = self.config_map();
        let info = self.info(&config_map);
        info.check_kind(&checkpoint)?;
        check_backend(&checkpoint)?;
        let LoadedState { counters, streams, normalizer, snapshot } = info.read(&checkpoint)?;
        check_snapshot(&checkpoint, snapshot.as_ref(), self.env.as_ref())?;
        let learner = self.agent.learner();
        let progress_state =
            ProgressState::read(&checkpoint, learner.noise().len(), self.agent.pending_limit(counters.timesteps))?;
        let (networks, optimizer) =
            read_networks(&checkpoint, |it| learner.check_tensors(it), |state| learner.check_optimizer_state(state))?;
        let replay = if has_replay(&checkpoint)? { Some(checkpoint.fields(REPLAY)?) } else { None };
        let Self { env, agent, env_restored, empty_replay, .. } = self;
        let replay = replay.as_ref().unwrap_or(empty_replay);
        let mut env_initialized = *env_restored || agent.env_initialized();
        let result = restore_envs(&checkpoint, snapshot.as_ref(), env.as_mut(), &mut env_initialized, || {
            agent.load_replay_state(replay).map_err(|error| in_section(error, &checkpoint, REPLAY))
        });
        if !env_initialized {
            *env_restored = false;
            agent.detach();
        }
        result?;
        // Nothing fails from here on: all parts have been checked.
        let mut streams = streams.into_iter();
        for ((_, stream), stored) in self.streams.named().into_iter().zip(&mut streams) {
            *stream = stored;
        }
        let (streams, ProgressState { noise, pending_updates, progress, last_update }) =
            (streams.collect::<Vec<_>>(), progress_state);
        agent.learner_mut().load(&networks)?;
        agent.learner_mut().load_optimizer_state(&optimizer)?;
        agent.learner_mut().set_noise(&noise)?;
        agent.load_progress_state(&streams, counters.timesteps, counters.updates, pending_updates, progress)?;
        agent.load_last_update(last_update);
        *env_restored = snapshot.is_some();
        self.normalizer = normalizer;
        self.seed = counters.seed.unwrap_or(self.seed);
        self.run = counters.run;
        self.episodes = Episodes::new(counters.episodes, counters.recent);
        self.episodes.discard(self.env.as_mut());
        Ok(())
    }

    fn info<'a>(&'a self, config_map: &'a ConfigMap) -> CheckpointInfo<'a> {
        let agent = &self.agent;
        CheckpointInfo {
            algorithm: A::NAME,
            config_map,
            defaults: settings::off_policy_defaults(A::HIDDEN),
            spec: self.env.spec(),
            num_envs: self.env.num_envs(),
            seed: self.seed,
            run: self.run,
            timesteps: agent.timesteps(),
            updates: agent.updates(),
            episodes: &self.episodes,
            streams: self.streams(),
            normalizer: self.normalizer.as_ref(),
        }
    }

    /// Returns all random streams by their names in checkpoints.
    fn streams(&self) -> Vec<(String, Pcg64)> {
        let actions = (0..self.env.num_envs()).map(|env| format!("actions.{env}"));
        let own = actions.chain(["minibatches", "learning"].map(str::to_owned));
        let mut all = named_streams(&self.streams);
        all.extend(own.zip(self.agent.streams().cloned()));
        all
    }

    /// Returns the settings under their names in checkpoints.
    fn config_map(&self) -> ConfigMap {
        let mut all = A::config_map(&self.config);
        all.extend(settings::replay_config(self.agent.replay_config()));
        all.push(("num_envs", ConfigValue::Count(self.env.num_envs())));
        if !matches!(self.env.spec().action, Space::Box { .. }) {
            all.push(("action_masks", ConfigValue::Flag(self.env.has_action_masks())));
        }
        all.extend(self.agent.learner().arch());
        all
    }
}

/// Returns `true` if the checkpoint has a replay buffer.
fn has_replay(checkpoint: &Checkpoint) -> Result<bool> {
    match checkpoint.manifest.get(REPLAY) {
        None => Ok(true),
        Some(Value::Bool(there)) => Ok(*there),
        Some(other) => Err(checkpoint.corrupt(REPLAY, other.to_string())),
    }
}

/// Rejects checkpoints of the torch backend, which has other random streams.
fn check_backend(checkpoint: &Checkpoint) -> Result<()> {
    if checkpoint.manifest.get("backend").and_then(Value::as_str) != Some("torch") {
        return Ok(());
    }
    let fix = "load it with the Python package";
    let expected = "the native backend, because torch has other random streams";
    Err(Error::config(checkpoint.file_of("backend"), expected, "torch", fix).in_section("backend"))
}

/// State that only checkpoints of off-policy trainers contain.
struct ProgressState {
    noise: Vec<f32>,
    pending_updates: f64,
    progress: f64,
    last_update: Option<OffPolicyUpdateStats>,
}

impl ProgressState {
    fn write(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        if let Some(non_finite) = self.noise.iter().find(|x| !x.is_finite()) {
            let fix = "lower sigma of the noise, and load the last checkpoint";
            return Err(Error::not_finite("action_noise", "finite numbers", non_finite.to_string(), fix));
        }
        let entries = [
            ("noise", json!(self.noise)),
            ("pending_updates", json!(self.pending_updates)),
            ("progress", json!(self.progress)),
            ("last_update", self.last_update.map_or(Value::Null, OffPolicyUpdateStats::to_json)),
        ];
        if let Some(Value::Object(counters)) = checkpoint.manifest.get_mut(COUNTERS) {
            counters.extend(entries.map(|(name, entry)| (name.to_owned(), entry)));
        }
        Ok(())
    }

    /// Reads the state.
    ///
    /// Rejects other than `noise` numbers of action noise, and more than `pending_limit` pending
    /// minibatches.
    fn read(checkpoint: &Checkpoint, noise: usize, pending_limit: f64) -> Result<Self> {
        let counters = checkpoint.object(COUNTERS)?;
        let within = |name, range: RangeInclusive<f64>| {
            let corrupt = || {
                checkpoint.corrupt(COUNTERS, format!("no number in {} to {} as {name:?}", range.start(), range.end()))
            };
            counters.get(name).and_then(Value::as_f64).filter(|number| range.contains(number)).ok_or_else(corrupt)
        };
        let numbers = counters.get("noise").and_then(Value::as_array).filter(|numbers| numbers.len() == noise);
        let finite = |x: &Value| x.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let numbers = numbers.and_then(|numbers| numbers.iter().map(finite).collect());
        let corrupt = || checkpoint.corrupt(COUNTERS, format!("no list of {noise} finite numbers as \"noise\""));
        let last_update = match counters.get("last_update") {
            None | Some(Value::Null) => None,
            Some(value) => {
                let corrupt = || checkpoint.corrupt(COUNTERS, "no statistics as \"last_update\"");
                Some(OffPolicyUpdateStats::from_json(value).ok_or_else(corrupt)?)
            }
        };
        let (pending_updates, progress) =
            (within("pending_updates", 0.0..=pending_limit)?, within("progress", 0.0..=1.0)?);
        Ok(Self { noise: numbers.ok_or_else(corrupt)?, pending_updates, progress, last_update })
    }
}

impl OffPolicyUpdateStats {
    fn to_json(self) -> Value {
        let to_value = |x: Option<f32>| x.map_or(Value::Null, |x| number(x.into()));
        let Self { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } = self;
        json!({
            "critic_loss": to_value(Some(critic_loss)),
            "mean_value": to_value(Some(mean_value)),
            "grad_norm": to_value(Some(grad_norm)),
            "actor_loss": to_value(actor_loss),
            "ent_coef": to_value(ent_coef),
            "ent_coef_loss": to_value(ent_coef_loss),
            "learning_rate": to_value(Some(learning_rate)),
        })
    }

    /// Parses the result of [`OffPolicyUpdateStats::to_json`]. Returns `None` for other values.
    fn from_json(value: &Value) -> Option<Self> {
        let field = |name: &str| match value.get(name)? {
            Value::Null => Some(None),
            Value::String(word) => Some(Some(word.parse().ok()?)),
            number => Some(Some(number.as_f64()? as f32)),
        };
        Some(Self {
            critic_loss: field("critic_loss")??,
            mean_value: field("mean_value")??,
            grad_norm: field("grad_norm")??,
            actor_loss: field("actor_loss")?,
            ent_coef: field("ent_coef")?,
            ent_coef_loss: field("ent_coef_loss")?,
            learning_rate: field("learning_rate")??,
        })
    }
}
