//! An off-policy method without environments of its own: it acts in whichever it is lent, remembers, and learns.

use rlox_core::profile::{self, Phase, StepTimer};
use rlox_core::replay::ReplayStorage;
use rlox_core::{Actions, AutoresetMode, Error, Field, Normalizer, Pcg64, Result, VectorEnv};

use super::algorithm::Algorithm;
use super::env_stepper::{EnvStepper, StepResult};
use super::replay::{EnvInfo, ReplayConfig};
use super::{OffPolicyMeans, OffPolicyUpdateStats, check_share};

/// Asked between two steps, and between two minibatches: whether to end an iteration early, or with an error.
pub type StopFn<'a> = &'a mut dyn FnMut() -> Result<bool>;

/// An off-policy method that acts, remembers and learns, in environments that it is lent.
///
/// It is lent native ones for an iteration, [`OffPolicyAgent::iterate`], once they have been reset, or tells what to do in
/// others and is told what came of it: [`OffPolicyAgent::begin`], then [`OffPolicyAgent::act`] and
/// [`OffPolicyAgent::observe`] by turns, then [`OffPolicyAgent::learn`]. Both do the same. [`OffPolicy`](super::OffPolicy)
/// has environments of its own.
///
/// ```
/// use rlox_core::{Pcg64, ResetOptions, Seeds, VectorEnv, envs};
/// use rlox_nn::train::{OffPolicyAgent, OffPolicyMethod, SacConfig, SacLearner, EnvInfo};
/// use rlox_nn::{Mlp, SquashedPolicy, CriticEnsemble};
///
/// let options = envs::MakeOptions {
///     num_envs: 1,
///     seed: None,
///     autoreset_mode: rlox_core::AutoresetMode::SameStep,
///     max_episode_steps: None,
///     arguments: &[],
/// };
/// let mut env = envs::make("Pendulum-v1", &options)?;
/// let config = SacConfig { learning_starts: 8, batch_size: 8, ..SacConfig::default() };
/// let networks = config.mlp(env.spec(), &[16, 16], &mut Pcg64::seed_from(0))?;
/// type Learner = SacLearner<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>;
/// let how = Learner::gathering(&config, env.spec())?;
/// let learner = Learner::new(config, networks, env.spec(), 1)?;
/// let mut agent = OffPolicyAgent::new(Box::new(learner), how, &EnvInfo::of(env.as_ref()), [1, 2])?;
/// env.reset(Seeds::Base(3), None, &ResetOptions::default(), &mut [0.0; 3])?;
/// agent.start(env.as_ref(), None)?;
/// while agent.timesteps() < 16 {
///     agent.iterate(env.as_mut(), None, 0.0, &mut || Ok(false))?;
/// }
/// assert_eq!(agent.updates(), 8);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct OffPolicyAgent<A: Algorithm + ?Sized> {
    config: ReplayConfig,
    stepper: EnvStepper,
    updates: u64,
    /// Minibatches that are due for transitions, where they are counted by those: less than one after learning that was not
    /// cut short.
    pending_updates: f64,
    /// How far the run was in the last iteration.
    progress: f64,
    /// How far one transition takes it.
    progress_per_step: f64,
    last_update: Option<OffPolicyUpdateStats>,
    learner: Box<A>,
}

impl<A: Algorithm + ?Sized> std::fmt::Debug for OffPolicyAgent<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OffPolicyAgent")
            .field("how", &self.config)
            .field("timesteps", &self.timesteps())
            .finish_non_exhaustive()
    }
}

impl<A: Algorithm + ?Sized> OffPolicyAgent<A> {
    /// An agent of a learner, with what its method says of gathering, for some environments. Of the seeds one decides the
    /// actions and the choice of minibatches, the other what is drawn while learning.
    ///
    /// # Errors
    /// Those of [`ReplayConfig::check`], [`Error::Memory`] for a buffer that does not fit into memory, [`Error::Space`] for
    /// actions of a Box without finite bounds.
    pub fn new(learner: Box<A>, config: ReplayConfig, env_info: &EnvInfo<'_>, seeds: [u64; 2]) -> Result<Self> {
        config.check()?;
        let stepper = EnvStepper::new(env_info, config, seeds)?;
        Ok(Self {
            config,
            stepper,
            updates: 0,
            pending_updates: 0.0,
            progress: 0.0,
            progress_per_step: 0.0,
            last_update: None,
            learner,
        })
    }

    /// What acts and learns: the networks.
    pub fn learner(&self) -> &A {
        &self.learner
    }

    /// The same, to act with or to load weights into.
    pub fn learner_mut(&mut self) -> &mut A {
        &mut self.learner
    }

    /// How it gathers.
    pub(super) fn replay_config(&self) -> &ReplayConfig {
        &self.config
    }

    /// Everything that is remembered, and the priorities, as fields ([`rlox_core::replay::Replay::state`]).
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for a copy.
    pub fn replay_state(&self) -> Result<Vec<Field>> {
        self.stepper.replay_memory.state()
    }

    /// Goes back to what [`OffPolicyAgent::replay_state`] gave.
    ///
    /// # Errors
    /// Those of [`rlox_core::replay::Replay::load_state`]; nothing has changed then.
    pub fn load_replay_state(&mut self, state: &[Field]) -> Result<()> {
        self.stepper.replay_memory.load_state(state)
    }

    /// The transitions that are remembered.
    pub fn replay(&self) -> &ReplayStorage {
        self.stepper.replay_memory.storage()
    }

    /// QBatch made so far, all environments together.
    pub fn timesteps(&self) -> u64 {
        self.stepper.timesteps
    }

    /// Minibatches learned from so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// How far the run was in the last iteration: schedules went by it.
    pub fn progress(&self) -> f64 {
        self.progress
    }

    /// What was learned in the last iteration that did; what no minibatch of it told is older.
    pub fn last_update(&self) -> Option<OffPolicyUpdateStats> {
        self.last_update
    }

    /// Whether it knows where the environments stand: not before the first reset, nor after a step that failed.
    pub fn env_initialized(&self) -> bool {
        self.stepper.env_initialized
    }

    /// Begins episodes everywhere, in environments that have been reset. A normaliser counts the observations.
    ///
    /// # Errors
    /// Those of [`OffPolicyAgent::attach`], and of the normaliser.
    pub fn start(&mut self, env: &dyn VectorEnv, normalizer: Option<&mut Normalizer>) -> Result<()> {
        self.attach(env)?;
        self.stepper.begin_episodes(self.learner.as_mut(), normalizer)
    }

    /// The same of environments elsewhere, with their observations, `[N, d]`, and what is allowed there if they say so.
    ///
    /// # Errors
    /// Those of [`OffPolicyAgent::attach_at`], and of the normaliser.
    pub fn start_from_obs(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.attach_at(obs, masks)?;
        self.stepper.begin_episodes(self.learner.as_mut(), normalizer)
    }

    /// Goes on in the middle of episodes, where environments were put.
    ///
    /// # Errors
    /// Those of [`VectorEnv::observe`].
    pub fn attach(&mut self, env: &dyn VectorEnv) -> Result<()> {
        check_autoreset(env)?;
        self.stepper.observe(env)
    }

    /// The same of environments elsewhere.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit, [`Error::NotFinite`] for observations.
    pub fn attach_at(&mut self, obs: &[f32], masks: Option<&[bool]>) -> Result<()> {
        self.stepper.set_current_obs(obs, masks)
    }

    /// Makes `train_freq` steps of each environment, which have been started, and learns. Schedules go by `progress`,
    /// between 0 and 1.
    ///
    /// Returns false if `pause` ended it before it was done; the steps that were made count.
    ///
    /// # Errors
    /// [`Error::Config`] before a start, or for a progress outside of its range; [`Error::Space`], [`Error::Config`] and
    /// [`Error::NotFinite`] naming observations, rewards, outputs or gradients that are not finite, and the steps before;
    /// those of `pause`.
    pub fn iterate(
        &mut self,
        env: &mut dyn VectorEnv,
        mut normalizer: Option<&mut Normalizer>,
        progress: f64,
        stop: StopFn<'_>,
    ) -> Result<bool> {
        check_autoreset(env)?;
        self.begin(progress)?;
        let mut steps = StepTimer::new(self.stepper.num_envs());
        for _ in 0..self.config.train_freq {
            steps.begin(Phase::Inference);
            if stop()? {
                return Ok(false);
            }
            let current_progress = self.current_progress();
            let result =
                self.stepper.step(self.learner.as_mut(), env, normalizer.as_deref_mut(), current_progress, &mut steps);
            result.map_err(|error| error.at_timestep(self.stepper.timesteps))?;
        }
        drop(steps);
        self.learn(normalizer.as_deref(), stop)
    }

    /// Begins an iteration that is made step by step.
    ///
    /// # Errors
    /// [`Error::Config`] before a start, or for a progress outside of 0 to 1.
    pub fn begin(&mut self, progress: f64) -> Result<()> {
        check_share("progress", progress)?;
        self.check_started()?;
        self.progress = progress;
        self.pending_updates = self.remainder();
        self.stepper.collected_steps = 0;
        self.learner.begin(&mut self.stepper.actions)
    }

    /// Has exploration go on within iterations, each transition taking the run so far on; 0, which it is until then, has it
    /// stand still. Learning goes by where an iteration began.
    ///
    /// # Errors
    /// [`Error::Config`] for a share outside of 0 to 1.
    pub fn set_progress_per_step(&mut self, progress_per_step: f64) -> Result<()> {
        check_share("progress_per_step", progress_per_step)?;
        self.progress_per_step = progress_per_step;
        Ok(())
    }

    /// How far the run is, between two steps of an iteration.
    fn current_progress(&self) -> f64 {
        (self.progress + self.progress_per_step * self.stepper.collected_steps as f64).min(1.0)
    }

    fn check_started(&self) -> Result<()> {
        if self.env_initialized() {
            return Ok(());
        }
        Err(Error::config("env", "environments that have been started", "others", "call start first"))
    }

    /// What to do next: integers counted from 0, or numbers within a Box's bounds.
    ///
    /// # Errors
    /// [`Error::Config`] before a start, and those of the policy.
    pub fn act(&mut self, normalizer: Option<&mut Normalizer>) -> Result<Actions<'_>> {
        self.check_started()?;
        let current_progress = self.current_progress();
        let Self { learner, stepper, .. } = self;
        let result = stepper.select_actions(learner.as_mut(), normalizer, current_progress);
        result.map_err(|error| error.at_timestep(stepper.timesteps))?;
        stepper.scaled_actions()
    }

    /// Remembers what came of [`OffPolicyAgent::act`].
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit; [`Error::Config`] and [`Error::NotFinite`] naming what is not finite. The
    /// environments have to be started again then.
    pub fn observe(&mut self, step_result: &StepResult<'_>, normalizer: Option<&mut Normalizer>) -> Result<()> {
        self.check_started()?;
        let Self { learner, stepper, .. } = self;
        stepper.env_initialized = false;
        let result = stepper.load_step_result(step_result).and_then(|()| stepper.finish(learner.as_mut(), normalizer));
        result.map_err(|error| error.at_timestep(stepper.timesteps))
    }

    /// Learns from what is remembered, from `learning_starts` steps on: as many minibatches as are meant after the steps
    /// since [`OffPolicyAgent::begin`].
    ///
    /// Returns false if `pause` ended it before it was done.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::NotFinite`] naming what is not finite, and the steps before; those of `pause`.
    pub fn learn(&mut self, normalizer: Option<&Normalizer>, stop: StopFn<'_>) -> Result<bool> {
        self.pending_updates = self.remainder();
        self.stepper.collected_steps = 0;
        let count = match self.updates_per_step() {
            _ if self.timesteps() <= self.config.learning_starts => 0,
            None => self.config.gradient_steps.unwrap_or(0) as u64,
            // Sums of shares such as 0.1 come to a hair less than a whole.
            Some(_) => (self.pending_updates + 1e-9).floor() as u64,
        };
        let (mut means, before) = (OffPolicyMeans::default(), self.updates);
        let result = self.run_updates(count, &mut means, normalizer, stop);
        if self.updates_per_step().is_some() {
            self.pending_updates = (self.pending_updates - (self.updates - before) as f64).max(0.0);
        }
        self.last_update = means.mean(self.last_update.as_ref()).or(self.last_update);
        result.map_err(|error| error.at_timestep(self.timesteps()))
    }

    /// Minibatches for each transition; none where they are counted by iterations.
    fn updates_per_step(&self) -> Option<f64> {
        self.config.utd_ratio.or(if self.config.gradient_steps.is_none() { Some(1.0) } else { None })
    }

    fn run_updates(
        &mut self,
        count: u64,
        means: &mut OffPolicyMeans,
        normalizer: Option<&Normalizer>,
        stop: StopFn<'_>,
    ) -> Result<bool> {
        let Self { learner, stepper, updates, progress, .. } = self;
        let EnvStepper { replay_memory, order, learning, .. } = stepper;
        profile::enter(Phase::Buffer);
        replay_memory.set_progress(*progress)?;
        for _ in 0..count {
            if stop()? {
                return Ok(false);
            }
            if let Some(batch) = replay_memory.sample(normalizer, order)? {
                profile::enter(Phase::GradientUpdate);
                means.add(&learner.learn(&batch, learning, *progress)?);
                profile::enter(Phase::Buffer);
                replay_memory.update_priorities(learner.td_errors())?;
            } else {
                replay_memory.update_priorities(&[])?;
            }
            *updates += 1;
        }
        Ok(true)
    }

    /// The random streams: one for each environment's actions, that of the minibatches, that of learning.
    pub fn streams(&self) -> impl Iterator<Item = &Pcg64> {
        let EnvStepper { actions, order, learning, .. } = &self.stepper;
        actions.iter().chain([order, learning])
    }

    /// Counts, streams as [`OffPolicyAgent::streams`] gave them, [`OffPolicyAgent::remainder`] and
    /// [`OffPolicyAgent::progress`], to go on from. The environments have to be started.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of streams, [`Error::Config`] for what is left over below 0 or above what so many
    /// timesteps leave, or a progress outside of 0 to 1. Nothing has changed then.
    pub fn load_progress_state(
        &mut self,
        streams: &[Pcg64],
        timesteps: u64,
        updates: u64,
        pending_updates: f64,
        progress: f64,
    ) -> Result<()> {
        let n = self.stepper.num_envs();
        rlox_core::check_len("streams", streams.len(), n + 2)?;
        let limit = self.pending_limit(timesteps);
        if !(0.0..=limit).contains(&pending_updates) {
            let expected = format!("a number between 0 and {limit} at {timesteps} timesteps");
            return Err(Error::config(
                "pending_updates",
                expected,
                pending_updates.to_string(),
                "pass what left_over returned",
            ));
        }
        check_share("progress", progress)?;
        let EnvStepper { actions, order, learning, .. } = &mut self.stepper;
        actions.clone_from_slice(&streams[..n]);
        (*order, *learning) = (streams[n].clone(), streams[n + 1].clone());
        (self.stepper.timesteps, self.stepper.env_initialized) = (timesteps, false);
        (self.updates, self.pending_updates, self.progress, self.last_update) =
            (updates, pending_updates, progress, None);
        self.learner.set_updates(updates);
        Ok(())
    }

    /// Returns how many minibatches can be due after so many timesteps.
    pub fn pending_limit(&self, timesteps: u64) -> f64 {
        // Sums are rounded, and of other settings less than one minibatch can be due.
        let sum = self.updates_per_step().unwrap_or(0.0) * timesteps as f64 * (1.0 + 1e-9);
        (sum + 1.0).min(9e15)
    }

    /// Tells [`OffPolicyAgent::learned`] what was learned before [`OffPolicyAgent::load_progress_state`], which forgets it.
    pub fn load_last_update(&mut self, last_update: Option<OffPolicyUpdateStats>) {
        self.last_update = last_update;
    }

    /// Does not know any more where the environments stand.
    pub(super) fn detach(&mut self) {
        self.stepper.env_initialized = false;
    }

    /// Minibatches that are due for transitions, be it less than one of them: those of an iteration that was cut short, too.
    pub fn remainder(&self) -> f64 {
        let past_warmup = self.timesteps() > self.config.learning_starts;
        self.pending_updates
            + self
                .updates_per_step()
                .filter(|_| past_warmup)
                .map_or(0.0, |each| each * self.stepper.collected_steps as f64)
    }
}

/// Checks that environments reset in the step that ends an episode.
pub(super) fn check_autoreset(env: &dyn VectorEnv) -> Result<()> {
    if env.autoreset_mode() == AutoresetMode::SameStep {
        return Ok(());
    }
    let got = format!("{:?}", env.autoreset_mode());
    Err(Error::config("env", "AutoresetMode::SameStep", got, "make the environments so"))
}
