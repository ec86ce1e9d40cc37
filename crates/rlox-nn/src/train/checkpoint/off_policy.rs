//! Off-policy trainers as checkpoints.

use std::ops::RangeInclusive;
use std::path::Path;

use rlox_core::{Checkpoint, Error, Pcg64, Result, Space, Standing};
use serde_json::{Value, json};

use super::settings::{self, Setting, Settings, number};
use super::{About, COUNTERS, Read, check_standing, learned, move_envs, named, of_section};
use crate::train::{Episodes, OffPolicy, OffPolicyLearned, OffPolicyMethod};

const REPLAY: &str = "replay";

impl<A: OffPolicyMethod> OffPolicy<A> {
    /// Writes a checkpoint into the folder `path`, or leaves what was there ([`rlox_core::Checkpoint::write`]): weights,
    /// target networks, optimisers, temperature, all that is remembered with its priorities, statistics, noise, random
    /// streams, counters, and where the environments stand, if they can tell ([`rlox_core::VectorEnv::state`]).
    /// `DQNTrainer.load`, `SACTrainer.load` and `TD3Trainer.load` of the Python package take it, too, where they have the
    /// same settings: hidden layers of the same widths everywhere, two critics, an environment by its id.
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
    /// first.train(400, |metrics| metrics.timesteps < 200)?; // the run is left halfway
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
    /// Those of [`rlox_core::Checkpoint::write`], [`Error::Config`] for a weight, a return or noise that is not finite,
    /// [`Error::Memory`] if there is no room for a copy of what is remembered; what was there stays.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let (settings, learner) = (self.settings(), self.agent.learner());
        let stands = self.put || self.agent.started();
        let standing = if stands { Standing::of(self.env.as_ref())? } else { None };
        let (networks, optimizer) = (learner.tensors(), learner.optimizer_state());
        let mut checkpoint = self.about(&settings).checkpoint(&networks, &optimizer, standing.as_ref())?;
        let beside = Beside {
            noise: learner.noise().to_vec(),
            due: self.agent.left_over(),
            progress: self.agent.progress(),
            learned: self.agent.learned(),
        };
        beside.write(&mut checkpoint)?;
        checkpoint.put_fields(REPLAY, &self.agent.replay_state()?)?;
        checkpoint.write(path)
    }

    /// Goes back to what [`OffPolicy::save`] wrote, or the Python package for a learner on its native backend, of a trainer
    /// with the same settings, environments and shape of the networks; [`OffPolicy::resume`] goes on from there, as if
    /// nothing had come between. Environments that could not tell where they stood start new episodes. What made the
    /// environments, beside their id and spaces, is not told. Where Python's `save(replay=False)` left out what was
    /// remembered, nothing is: learning goes on from what comes then, in small minibatches at first.
    ///
    /// # Errors
    /// Those of [`rlox_core::Checkpoint::read`], and errors that name the file and the section that is another trainer's.
    /// Nothing has changed then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let saved = Checkpoint::read(path)?;
        let settings = self.settings();
        let about = self.about(&settings);
        about.check_kind(&saved)?;
        check_backend(&saved)?;
        let Read { counted, streams, normalizer, standing } = about.read(&saved)?;
        check_standing(&saved, standing.as_ref(), self.env.as_ref())?;
        let learner = self.agent.learner();
        let beside = Beside::read(&saved, learner.noise().len(), self.agent.due_limit(counted.timesteps))?;
        let (networks, optimizer) =
            learned(&saved, |it| learner.check_tensors(it), |state| learner.check_optimizer_state(state))?;
        let replay = if has_replay(&saved)? { Some(saved.fields(REPLAY)?) } else { None };
        let Self { env, agent, put, nothing, .. } = self;
        let replay = replay.as_ref().unwrap_or(nothing);
        let mut stands = *put || agent.started();
        let moved = move_envs(&saved, standing.as_ref(), env.as_mut(), &mut stands, || {
            agent.load_replay_state(replay).map_err(|error| of_section(error, &saved, REPLAY))
        });
        if !stands {
            *put = false;
            agent.lose();
        }
        moved?;
        // From here on nothing is refused: all of it has been checked.
        let mut streams = streams.into_iter();
        for ((_, stream), saved) in self.streams.named().into_iter().zip(&mut streams) {
            *stream = saved;
        }
        let (streams, Beside { noise, due, progress, learned }) = (streams.collect::<Vec<_>>(), beside);
        agent.learner_mut().load(&networks)?;
        agent.learner_mut().load_optimizer_state(&optimizer)?;
        agent.learner_mut().set_noise(&noise)?;
        agent.set_standing(&streams, counted.timesteps, counted.updates, due, progress)?;
        agent.set_learned(learned);
        *put = standing.is_some();
        self.normalizer = normalizer;
        self.seed = counted.seed.unwrap_or(self.seed);
        self.run = counted.run;
        self.episodes = Episodes::new(counted.episodes, counted.recent);
        self.episodes.forget(self.env.as_mut());
        Ok(())
    }

    fn about<'a>(&'a self, settings: &'a Settings) -> About<'a> {
        let agent = &self.agent;
        About {
            algorithm: A::NAME,
            settings,
            usual: settings::off_policy(A::HIDDEN),
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

    /// All random streams by the names that checkpoints have for them.
    fn streams(&self) -> Vec<(String, Pcg64)> {
        let actions = (0..self.env.num_envs()).map(|env| format!("actions.{env}"));
        let own = actions.chain(["minibatches", "learning"].map(str::to_owned));
        let mut all = named(&self.streams);
        all.extend(own.zip(self.agent.streams().cloned()));
        all
    }

    /// The settings by the names that checkpoints have for them.
    fn settings(&self) -> Settings {
        let mut all = A::settings(&self.config);
        all.extend(settings::gathering(self.agent.gathering()));
        all.push(("num_envs", Setting::Count(self.env.num_envs())));
        if !matches!(self.env.spec().action, Space::Box { .. }) {
            all.push(("action_masks", Setting::Flag(self.env.has_action_masks())));
        }
        all.extend(self.agent.learner().shape());
        all
    }
}

/// Whether what was remembered is there.
fn has_replay(saved: &Checkpoint) -> Result<bool> {
    match saved.manifest.get(REPLAY) {
        None => Ok(true),
        Some(Value::Bool(there)) => Ok(*there),
        Some(other) => Err(saved.corrupt(REPLAY, other.to_string())),
    }
}

/// Refuses what PyTorch has learned: it draws otherwise.
fn check_backend(saved: &Checkpoint) -> Result<()> {
    if saved.manifest.get("backend").and_then(Value::as_str) != Some("torch") {
        return Ok(());
    }
    let fix = "load it with the Python package";
    let expected = "one in Rust, as torch has other random streams";
    Err(Error::config(saved.file_of("backend"), expected, "torch", fix).in_section("backend"))
}

/// What off-policy trainers count beside what all do.
struct Beside {
    noise: Vec<f32>,
    due: f64,
    progress: f64,
    learned: Option<OffPolicyLearned>,
}

impl Beside {
    fn write(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        if let Some(wrong) = self.noise.iter().find(|x| !x.is_finite()) {
            let fix = "lower the noise's sigma, and go back to the last checkpoint";
            return Err(Error::not_finite("action_noise", "finite numbers", wrong.to_string(), fix));
        }
        let entries = [
            ("noise", json!(self.noise)),
            ("due", json!(self.due)),
            ("progress", json!(self.progress)),
            ("learned", self.learned.map_or(Value::Null, OffPolicyLearned::to_json)),
        ];
        if let Some(Value::Object(counters)) = checkpoint.manifest.get_mut(COUNTERS) {
            counters.extend(entries.map(|(name, entry)| (name.to_owned(), entry)));
        }
        Ok(())
    }

    /// Reads noise of so many numbers from a manifest, at most `due_limit` minibatches that are due, and the rest.
    fn read(saved: &Checkpoint, noise: usize, due_limit: f64) -> Result<Self> {
        let counters = saved.object(COUNTERS)?;
        let within = |name, range: RangeInclusive<f64>| {
            let wrong =
                || saved.corrupt(COUNTERS, format!("no number in {} to {} as {name:?}", range.start(), range.end()));
            counters.get(name).and_then(Value::as_f64).filter(|number| range.contains(number)).ok_or_else(wrong)
        };
        let numbers = counters.get("noise").and_then(Value::as_array).filter(|numbers| numbers.len() == noise);
        let finite = |x: &Value| x.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let numbers = numbers.and_then(|numbers| numbers.iter().map(finite).collect());
        let wrong = || saved.corrupt(COUNTERS, format!("other than {noise} finite numbers as \"noise\""));
        let learned = match counters.get("learned") {
            None | Some(Value::Null) => None,
            Some(said) => {
                let wrong = || saved.corrupt(COUNTERS, "no means as \"learned\"");
                Some(OffPolicyLearned::from_json(said).ok_or_else(wrong)?)
            }
        };
        let (due, progress) = (within("due", 0.0..=due_limit)?, within("progress", 0.0..=1.0)?);
        Ok(Self { noise: numbers.ok_or_else(wrong)?, due, progress, learned })
    }
}

impl OffPolicyLearned {
    fn to_json(self) -> Value {
        let told = |x: Option<f32>| x.map_or(Value::Null, |x| number(x.into()));
        let Self { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } = self;
        json!({
            "critic_loss": told(Some(critic_loss)),
            "mean_value": told(Some(mean_value)),
            "grad_norm": told(Some(grad_norm)),
            "actor_loss": told(actor_loss),
            "ent_coef": told(ent_coef),
            "ent_coef_loss": told(ent_coef_loss),
            "learning_rate": told(Some(learning_rate)),
        })
    }

    /// What [`OffPolicyLearned::to_json`] made; `None` of anything else.
    fn from_json(saved: &Value) -> Option<Self> {
        let some = |name: &str| match saved.get(name)? {
            Value::Null => Some(None),
            Value::String(word) => Some(Some(word.parse().ok()?)),
            number => Some(Some(number.as_f64()? as f32)),
        };
        Some(Self {
            critic_loss: some("critic_loss")??,
            mean_value: some("mean_value")??,
            grad_norm: some("grad_norm")??,
            actor_loss: some("actor_loss")?,
            ent_coef: some("ent_coef")?,
            ent_coef_loss: some("ent_coef_loss")?,
            learning_rate: some("learning_rate")??,
        })
    }
}
