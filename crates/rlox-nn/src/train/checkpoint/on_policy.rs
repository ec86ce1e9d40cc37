//! On-policy trainers as checkpoints.

use std::path::Path;

use rlox_core::{Checkpoint, Result, Standing};

use super::settings::{self, ON_POLICY, Settings};
use super::{About, Read, check_standing, learned, move_envs, named};
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
        save(path.as_ref(), A::NAME, &self.settings(), &self.policy, &self.collector)
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
        let settings = self.settings();
        load(path.as_ref(), A::NAME, &settings, &mut self.policy, &mut self.collector)
    }

    /// The settings by the names that checkpoints have for them.
    fn settings(&self) -> Settings {
        let (_, normalize, how) = self.config.collection();
        let mut settings = self.config.settings();
        settings.extend(settings::normalization(normalize));
        let env = self.collector.env.as_ref();
        settings.extend(settings::collection(env.num_envs(), env.has_action_masks(), how.sde_sample_freq));
        settings.extend(settings::shape(&self.policy));
        settings
    }
}

/// Writes all that a trainer needs to go on.
fn save(
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
fn load(
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
