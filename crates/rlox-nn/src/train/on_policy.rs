//! The trainer of on-policy methods: collect with the policy, learn from it, and again.

use std::path::Path;

use rlox_core::{EnvSpec, NormalizerOptions, Pcg64, Result, RolloutBuffer, VectorEnv, Watch};

use super::collector::{Collector, Run};
use super::settings::{self, Settings};
use super::streams::Streams;
use super::{Collection, Learned, Metrics, Minibatches, check_share, checkpoint, evaluate_policy};
use crate::ActorCritic;

/// What sets one on-policy method apart: its settings, and how it learns from a rollout.
pub trait Algorithm: std::fmt::Debug {
    /// What checkpoints call it.
    const NAME: &'static str;

    /// Checks the settings for so many environments.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] naming the one that is out of range.
    fn check_for(&self, num_envs: usize) -> Result<()>;

    /// Steps from each environment in an iteration, what is normalised, and the rest of how they are collected.
    fn collection(&self) -> (usize, Option<NormalizerOptions>, Collection);

    /// Learns from a finished rollout, until `stop` ends it; what was learned before stays. `order` decides the order of
    /// the steps; schedules go by `progress`.
    ///
    /// # Errors
    /// Those of [`ActorCritic::update`].
    fn update(
        &self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        order: &mut Pcg64,
        progress: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Learned>;

    /// The settings by the names that checkpoints have for them, but for those of normalisation.
    fn settings(&self) -> Settings;
}

/// The trainer of an on-policy method with the settings `A`, [`Ppo`](super::Ppo) or [`A2c`](super::A2c): environments,
/// policy, optimiser, and the loop over them.
pub struct OnPolicy<A, P> {
    policy: P,
    config: A,
    collector: Collector,
    /// Of all iterations: each alone may be too short to be asked whether to stop.
    watch: Watch,
}

impl<A: Algorithm, P> std::fmt::Debug for OnPolicy<A, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnPolicy")
            .field("config", &self.config)
            .field("timesteps", &self.collector.timesteps)
            .finish_non_exhaustive()
    }
}

impl<A: Algorithm, P: ActorCritic> OnPolicy<A, P> {
    /// A learner of environments and of the policy that `make` makes for them. The seed decides everything random:
    /// initial weights, environments, actions, minibatches.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] naming a setting that is out of range, and those of `make`.
    pub fn new(
        env: Box<dyn VectorEnv>,
        make: impl FnOnce(&EnvSpec, &mut Pcg64) -> Result<P>,
        config: A,
        seed: u64,
    ) -> Result<Self> {
        config.check_for(env.num_envs())?;
        let mut streams = Streams::new(seed);
        let policy = make(env.spec(), &mut streams.policy)?;
        let (n_steps, normalize, how) = config.collection();
        let collector = Collector::new(env, n_steps, normalize, how, (seed, streams))?;
        Ok(Self { policy, config, collector, watch: Watch::default() })
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, to act with or to load weights into.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The running statistics of observations and rewards, where they are normalised.
    pub fn normalizer(&self) -> Option<&rlox_core::Normalizer> {
        self.collector.normalizer.as_ref()
    }

    /// The returns of whole greedy episodes of other environments ([`evaluate_policy`]), observed as these are.
    ///
    /// # Errors
    /// Those of [`evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        evaluate_policy(&mut self.policy, env, episodes, seed, self.collector.normalizer.as_ref())
    }

    /// Environment steps learned from so far.
    pub fn timesteps(&self) -> u64 {
        self.collector.timesteps
    }

    /// Trains for at least `total_timesteps` more steps, all environments together, or until `progress` returns false; it
    /// is called after each iteration.
    ///
    /// # Errors
    /// Those of [`OnPolicy::iterate`].
    pub fn train(&mut self, total_timesteps: u64, progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        self.collector.run = Run::new(self.timesteps(), total_timesteps);
        self.resume(progress)
    }

    /// Goes on with a run that `progress` ended early, or that was loaded, to where [`OnPolicy::train`] was to end.
    /// Schedules go on, too.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] if there is no such run, and those of [`OnPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        loop {
            let metrics = self.iterate(self.collector.run.progress(self.timesteps())?)?;
            if !progress(&metrics) || self.timesteps() >= self.collector.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Writes a checkpoint into the folder `path`, or leaves what was there ([`rlox_core::Checkpoint::write`]): weights,
    /// optimiser, statistics, random streams, counters, and where the environments stand, if they can tell
    /// ([`VectorEnv::state`]). `PPOTrainer.load` and `A2CTrainer.load` of the Python package take it, too, where they have
    /// the same settings: policy and values with hidden layers of the same widths, an environment by its id.
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
        checkpoint::save(path.as_ref(), A::NAME, &self.settings(), &self.policy, &self.collector)
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
        checkpoint::load(path.as_ref(), A::NAME, &settings, &mut self.policy, &mut self.collector)
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

    /// Collects steps from each environment and learns from them. Schedules go by `progress`, between 0 and 1.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a progress outside of it; [`rlox_core::Error::Space`], [`rlox_core::Error::NotFinite`]
    /// and [`rlox_core::Error::Config`] naming observations, outputs or gradients that are not finite, and the steps before;
    /// [`rlox_core::Error::Interrupted`] between two steps or minibatches ([`rlox_core::set_interrupt_check`]): what was
    /// learned before stays.
    pub fn iterate(&mut self, progress: f64) -> Result<Metrics> {
        check_share("progress", progress)?;
        let Self { policy, config, collector, watch } = self;
        watch.check()?;
        let timesteps = collector.timesteps;
        collector.collect(policy).map_err(|error| error.at_timestep(timesteps))?;
        let Collector { buffer, minibatches, iteration, .. } = collector;
        let mut stopped = Ok(());
        let mut stop = || {
            stopped = watch.check();
            stopped.is_err()
        };
        let learned = config
            .update(policy, buffer, minibatches, &mut iteration.order, progress, &mut stop)
            .map_err(|error| error.at_timestep(timesteps))?;
        if learned.updates > 0 {
            collector.updates += learned.updates;
            collector.count_steps();
        }
        stopped?;
        Ok(Metrics { learned, ..collector.metrics() })
    }
}
