//! Off-policy agent without environments of its own: the caller passes environments, or the results
//! of their steps.
//!
//! Shapes use `N` for the number of environments and `d` for the number of values in an
//! observation.

use rlox_core::__private::profile::{self, Phase, StepTimer};
use rlox_core::replay::ReplayStorage;
use rlox_core::{Actions, AutoresetMode, Error, Normalizer, Pcg64, Result, VectorEnv, field::Field};

use super::algorithm::Algorithm;
use super::env_stepper::{EnvStepper, StepResult};
use super::replay::{EnvInfo, ReplayConfig};
use super::{OffPolicyMeans, OffPolicyUpdateStats, check_share};

/// Callback that is polled between steps and between minibatches.
///
/// If the callback returns `true` or an error, the iteration ends early.
pub type StopFn<'a> = &'a mut dyn FnMut() -> Result<bool>;

/// Off-policy agent with a learner and a replay buffer; the environments belong to the caller.
///
/// With a [`VectorEnv`], [`OffPolicyAgent::iterate`] runs one iteration. With other environments,
/// the caller runs an iteration in parts: [`OffPolicyAgent::begin`], then [`OffPolicyAgent::act`]
/// and [`OffPolicyAgent::observe`] for each step, then [`OffPolicyAgent::learn`]. Both ways give
/// equal results. The trainer [`OffPolicy`](super::OffPolicy) owns its environments.
///
/// ```
/// use rlox_core::{Pcg64, ResetOptions, Seeds, VectorEnv, envs};
/// use rlox_nn::train::{OffPolicyAgent, OffPolicyMethod, SacConfig, SacLearner, EnvInfo};
/// use rlox_nn::{Mlp, SquashedPolicy, CriticEnsemble};
///
/// let options = envs::MakeOptions { num_envs: 1, ..Default::default() };
/// let mut env = envs::make("Pendulum-v1", &options)?;
/// let config = SacConfig { learning_starts: 8, batch_size: 8, ..SacConfig::default() };
/// let networks = config.mlp(env.spec(), &[16, 16], &mut Pcg64::seed_from(0))?;
/// type Learner = SacLearner<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>;
/// let replay_config = Learner::replay_config(&config, env.spec())?;
/// let learner = Learner::new(config, networks, env.spec(), 1)?;
/// let mut agent = OffPolicyAgent::new(Box::new(learner), replay_config, &EnvInfo::from_env(env.as_ref()), [1, 2])?;
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
    /// Number of minibatches due for the collected transitions, if there is a ratio of minibatches
    /// to transitions. The number is below 1 after a complete [`OffPolicyAgent::learn`].
    pending_updates: f64,
    /// Finished fraction of the run at the start of the last iteration.
    progress: f64,
    /// Fraction of the run that one transition finishes.
    progress_per_step: f64,
    last_update: Option<OffPolicyUpdateStats>,
    learner: Box<A>,
}

impl<A: Algorithm + ?Sized> std::fmt::Debug for OffPolicyAgent<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OffPolicyAgent")
            .field("config", &self.config)
            .field("timesteps", &self.timesteps())
            .finish_non_exhaustive()
    }
}

impl<A: Algorithm + ?Sized> OffPolicyAgent<A> {
    /// Creates an agent for the environments that `env_info` describes.
    ///
    /// `seeds[0]` determines the actions and the choice of minibatches. `seeds[1]` determines the
    /// random numbers of updates, such as actions sampled for a loss.
    ///
    /// # Errors
    /// Errors of [`ReplayConfig::check`]. [`Error::Config`] for 0 environments, or for `n_steps`
    /// above 1 with several environments of which some may reset while others step
    /// ([`EnvInfo::idling`]). [`Error::Memory`] if the buffer does not fit into memory.
    /// [`Error::Space`] for a Box of actions without finite bounds.
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

    /// Returns the learner with its networks.
    pub fn learner(&self) -> &A {
        &self.learner
    }

    /// Returns a mutable reference to the learner, for example to load weights.
    pub fn learner_mut(&mut self) -> &mut A {
        &mut self.learner
    }

    /// Returns the settings for collecting and sampling transitions.
    pub(super) fn replay_config(&self) -> &ReplayConfig {
        &self.config
    }

    /// Returns all stored transitions and priorities as fields; see [`rlox_core::replay::Replay::state`].
    ///
    /// # Errors
    /// [`Error::Memory`] if memory is insufficient for the copy.
    pub fn replay_state(&self) -> Result<Vec<Field>> {
        self.stepper.replay_memory.state()
    }

    /// Restores fields that [`OffPolicyAgent::replay_state`] returned.
    ///
    /// # Errors
    /// Errors of [`rlox_core::replay::Replay::load_state`]; nothing changes then.
    pub fn load_replay_state(&mut self, state: &[Field]) -> Result<()> {
        self.stepper.replay_memory.load_state(state)
    }

    /// Returns the storage of the transitions.
    pub fn replay(&self) -> &ReplayStorage {
        self.stepper.replay_memory.storage()
    }

    /// Returns the number of transitions stored so far, over all environments.
    pub fn timesteps(&self) -> u64 {
        self.stepper.timesteps
    }

    /// Returns the number of minibatches learned from so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the finished fraction of the run that schedules used in the last iteration.
    pub fn progress(&self) -> f64 {
        self.progress
    }

    /// Returns the mean statistics of the last iteration that learned; `None` before that.
    ///
    /// A statistic that no minibatch of this iteration reported is from an earlier iteration.
    pub fn last_update(&self) -> Option<OffPolicyUpdateStats> {
        self.last_update
    }

    /// Returns `true` if the current observations are known: after a start, until a step fails.
    pub fn env_initialized(&self) -> bool {
        self.stepper.env_initialized
    }

    /// Starts new episodes in environments that the caller has reset.
    ///
    /// The first observations are added to the statistics of `normalizer`.
    ///
    /// # Errors
    /// Errors of [`OffPolicyAgent::attach`] and of the normaliser.
    pub fn start(&mut self, env: &dyn VectorEnv, normalizer: Option<&mut Normalizer>) -> Result<()> {
        self.attach(env)?;
        self.stepper.begin_episodes(self.learner.as_mut(), normalizer)
    }

    /// Starts new episodes from the first observations, `[N, d]`, and action masks of the caller's
    /// environments, as [`OffPolicyAgent::start`] does for a [`VectorEnv`].
    ///
    /// # Errors
    /// Errors of [`OffPolicyAgent::attach_at`] and of the normaliser.
    pub fn start_from_obs(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.attach_at(obs, masks)?;
        self.stepper.begin_episodes(self.learner.as_mut(), normalizer)
    }

    /// Continues the current episodes of restored environments.
    ///
    /// # Errors
    /// [`Error::Config`] for environments that are not in `SAME_STEP` mode. Errors of
    /// [`VectorEnv::observe`] and [`OffPolicyAgent::attach_at`].
    pub fn attach(&mut self, env: &dyn VectorEnv) -> Result<()> {
        check_autoreset(env)?;
        self.stepper.observe(env)
    }

    /// Continues episodes from the current observations, `[N, d]`, and action masks of the caller's
    /// environments.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices of wrong lengths, [`Error::NotFinite`] for observations that are
    /// not finite.
    pub fn attach_at(&mut self, obs: &[f32], masks: Option<&[bool]>) -> Result<()> {
        self.stepper.set_current_obs(obs, masks)
    }

    /// Makes `train_freq` steps in each environment and learns from minibatches.
    ///
    /// Schedules use `progress`, the finished fraction of the run in [0, 1]. Returns `false` if
    /// `stop` ended the iteration early. The steps before a stop are stored and counted.
    ///
    /// # Errors
    /// [`Error::Config`] before a start, for environments that are not in `SAME_STEP` mode, or for
    /// `progress` out of range. [`Error::NotFinite`] for observations, rewards, outputs or
    /// gradients that are not finite. Errors of the environments and of `stop`. Errors of a step or
    /// a minibatch contain the number of timesteps.
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

    /// Starts an iteration in which the caller steps its environments.
    ///
    /// # Errors
    /// [`Error::Config`] before a start, or for `progress` outside [0, 1].
    pub fn begin(&mut self, progress: f64) -> Result<()> {
        check_share("progress", progress)?;
        self.check_started()?;
        self.progress = progress;
        self.pending_updates = self.remainder();
        self.stepper.collected_steps = 0;
        self.learner.begin(&mut self.stepper.actions)
    }

    /// Sets the fraction of the run that one transition finishes, for exploration schedules.
    ///
    /// Exploration schedules advance by this fraction after each transition of an iteration. With
    /// the initial value 0 they are constant within an iteration. Schedules of learning always use
    /// the progress at the start of the iteration.
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside [0, 1].
    pub fn set_progress_per_step(&mut self, progress_per_step: f64) -> Result<()> {
        check_share("progress_per_step", progress_per_step)?;
        self.progress_per_step = progress_per_step;
        Ok(())
    }

    /// Returns the finished fraction of the run at the current step of an iteration.
    fn current_progress(&self) -> f64 {
        (self.progress + self.progress_per_step * self.stepper.collected_steps as f64).min(1.0)
    }

    fn check_started(&self) -> Result<()> {
        if self.env_initialized() {
            return Ok(());
        }
        Err(Error::config("env", "started environments", "environments before a start", "call start first"))
    }

    /// Returns the next actions: integers that start at 0, or numbers within the bounds of the Box.
    ///
    /// # Errors
    /// [`Error::Config`] before a start; errors of the policy.
    pub fn act(&mut self, normalizer: Option<&mut Normalizer>) -> Result<Actions<'_>> {
        self.check_started()?;
        let current_progress = self.current_progress();
        let Self { learner, stepper, .. } = self;
        let result = stepper.select_actions(learner.as_mut(), normalizer, current_progress);
        result.map_err(|error| error.at_timestep(stepper.timesteps))?;
        stepper.scaled_actions()
    }

    /// Stores the result of the step that the caller made with the actions of
    /// [`OffPolicyAgent::act`].
    ///
    /// # Errors
    /// [`Error::Config`] before a start, [`Error::Shape`] for slices of wrong lengths, [`Error::NotFinite`] for numbers
    /// that are not finite. After an error the environments must be started again.
    pub fn observe(&mut self, step_result: &StepResult<'_>, normalizer: Option<&mut Normalizer>) -> Result<()> {
        self.check_started()?;
        let Self { learner, stepper, .. } = self;
        stepper.env_initialized = false;
        let result = stepper.load_step_result(step_result).and_then(|()| stepper.finish(learner.as_mut(), normalizer));
        result.map_err(|error| error.at_timestep(stepper.timesteps))
    }

    /// Learns from the minibatches that are due for the steps since [`OffPolicyAgent::begin`].
    ///
    /// No minibatches are due for the first `learning_starts` transitions. Returns `false` if
    /// `stop` ended the updates early.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for outputs or gradients that are not finite. Errors of the networks
    /// and of `stop`.
    pub fn learn(&mut self, normalizer: Option<&Normalizer>, stop: StopFn<'_>) -> Result<bool> {
        self.pending_updates = self.remainder();
        self.stepper.collected_steps = 0;
        let count = match self.updates_per_step() {
            _ if self.timesteps() <= self.config.learning_starts => 0,
            None => self.config.gradient_steps.unwrap_or(0) as u64,
            // Rounding may leave a sum of ratios such as 0.1 slightly below an integer.
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

    /// Returns the number of minibatches per transition; `None` if each iteration has a fixed number.
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

    /// Returns the random streams: one for the actions of each environment, one for the choice of
    /// minibatches, and one for the random numbers of updates.
    pub fn streams(&self) -> impl Iterator<Item = &Pcg64> {
        let EnvStepper { actions, order, learning, .. } = &self.stepper;
        actions.iter().chain([order, learning])
    }

    /// Restores random streams and counters. The environments must be started or attached
    /// afterwards.
    ///
    /// The arguments are the results of [`OffPolicyAgent::streams`], [`OffPolicyAgent::timesteps`],
    /// [`OffPolicyAgent::updates`], [`OffPolicyAgent::remainder`] and [`OffPolicyAgent::progress`].
    ///
    /// # Errors
    /// [`Error::Shape`] for a wrong number of streams, [`Error::Config`] for `pending_updates` below 0 or above
    /// [`OffPolicyAgent::pending_limit`], or for `progress` outside [0, 1]. Nothing changes then.
    pub fn load_progress_state(
        &mut self,
        streams: &[Pcg64],
        timesteps: u64,
        updates: u64,
        pending_updates: f64,
        progress: f64,
    ) -> Result<()> {
        let n = self.stepper.num_envs();
        rlox_core::error::check_len("streams", streams.len(), n + 2)?;
        let limit = self.pending_limit(timesteps);
        if !(0.0..=limit).contains(&pending_updates) {
            let expected = format!("a number between 0 and {limit} at {timesteps} timesteps");
            return Err(Error::config(
                "pending_updates",
                expected,
                pending_updates.to_string(),
                "pass the result of remainder",
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

    /// Returns the largest possible number of pending minibatches after `timesteps` transitions.
    pub fn pending_limit(&self, timesteps: u64) -> f64 {
        // The factor allows for rounded sums. Without a ratio, less than one minibatch is pending.
        let sum = self.updates_per_step().unwrap_or(0.0) * timesteps as f64 * (1.0 + 1e-9);
        (sum + 1.0).min(9e15)
    }

    /// Sets [`OffPolicyAgent::last_update`], which [`OffPolicyAgent::load_progress_state`] clears.
    pub fn load_last_update(&mut self, last_update: Option<OffPolicyUpdateStats>) {
        self.last_update = last_update;
    }

    /// Marks the current observations as unknown.
    pub(super) fn detach(&mut self) {
        self.stepper.env_initialized = false;
    }

    /// Returns the number of pending minibatches: due for stored transitions, but not learned yet.
    ///
    /// The number includes fractions of a minibatch, and the minibatches of an interrupted
    /// iteration. It is 0 for a fixed number of minibatches per iteration.
    pub fn remainder(&self) -> f64 {
        let past_warmup = self.timesteps() > self.config.learning_starts;
        self.pending_updates
            + self
                .updates_per_step()
                .filter(|_| past_warmup)
                .map_or(0.0, |each| each * self.stepper.collected_steps as f64)
    }
}

/// Checks that environments reset in the same step that ends an episode.
pub(super) fn check_autoreset(env: &dyn VectorEnv) -> Result<()> {
    if env.autoreset_mode() == AutoresetMode::SameStep {
        return Ok(());
    }
    let got = format!("{:?}", env.autoreset_mode());
    Err(Error::config("env", "AutoresetMode::SameStep", got, "create the environments with this mode"))
}
