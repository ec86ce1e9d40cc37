//! The trainer of off-policy methods: act, remember, learn from what is remembered, and again.

use rlox_core::replay::ReplayStorage;
use rlox_core::{ActionsMut, AutoresetMode, EnvSpec, Error, Normalizer, Pcg64, Result, VectorEnv, Watch};

use super::collector::Run;
use super::experience::{Gathering, Replayed};
use super::gatherer::Gatherer;
use super::streams::Streams;
use crate::NamedTensors;

/// What a minibatch of an off-policy method said, or the means of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffPolicyLearned {
    /// The loss of the critics, or of the Q-function.
    pub critic_loss: f32,
    /// The mean value of the actions that were taken.
    pub mean_value: f32,
    /// The norm of the critics' gradients, or the Q-function's, before they were clipped.
    pub grad_norm: f32,
    /// The loss of the actor, where there is one that has learned.
    pub actor_loss: Option<f32>,
    /// What entropy is worth, to SAC.
    pub ent_coef: Option<f32>,
    /// The loss of that, where it is learned.
    pub ent_coef_loss: Option<f32>,
    /// The learning rate there was.
    pub learning_rate: f32,
}

/// What an iteration of off-policy training said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffPolicyMetrics {
    /// Environment steps made so far, all environments together.
    pub timesteps: u64,
    /// The mean return of the last 100 finished episodes; NaN before the first.
    pub mean_return: f64,
    /// Their mean length, in steps.
    pub mean_length: f64,
    /// How many episodes were finished.
    pub episodes: u64,
    /// Minibatches learned from so far.
    pub updates: u64,
    /// The share of random actions, of DQN.
    pub exploration_rate: Option<f32>,
    /// Means over the minibatches of the last iteration that learned; `None` before the first.
    pub learned: Option<OffPolicyLearned>,
}

/// What sets one off-policy method apart: how it acts and how it learns. [`DqnLearner`](super::DqnLearner),
/// [`SacLearner`](super::SacLearner) and [`Td3Learner`](super::Td3Learner) are such.
pub trait Algorithm: Sized {
    /// Its settings.
    type Config: Clone + std::fmt::Debug;
    /// The networks it is made of.
    type Networks;

    /// How transitions are collected and sampled, once all settings are checked.
    ///
    /// # Errors
    /// [`Error::Config`] naming a setting that is out of range, [`Error::Space`] for an environment that the method is not
    /// for.
    fn gathering(config: &Self::Config, env: &dyn VectorEnv) -> Result<Gathering>;

    /// A learner with settings that [`Algorithm::gathering`] has checked.
    ///
    /// # Errors
    /// [`Error::Shape`] for networks of other observations or actions than the environments'.
    fn new(config: Self::Config, networks: Self::Networks, env: &dyn VectorEnv) -> Result<Self>;

    /// Begins an iteration, with a stream for each environment.
    ///
    /// # Errors
    /// [`Error::Memory`] if what it draws does not fit into memory.
    fn begin(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        let _ = rngs;
        Ok(())
    }

    /// Whether it acts by itself from the first step on, instead of at random.
    fn explores_at_warmup(&self) -> bool {
        false
    }

    /// Actions to explore with, between -1 and 1 or counted from 0: those of row i are drawn from `rngs[i]`. Schedules go by
    /// `progress`.
    ///
    /// # Errors
    /// Those of the policy.
    fn explore(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()>;

    /// Takes notice that episodes have ended.
    fn end_episodes(&mut self, ended: &dyn Fn(usize) -> bool) {
        let _ = ended;
    }

    /// Takes notice of a step of all environments.
    ///
    /// # Errors
    /// Those of what it does every few steps.
    fn stepped(&mut self) -> Result<()> {
        Ok(())
    }

    /// Learns from a minibatch. Schedules go by `progress`.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::NotFinite`] naming observations, outputs or gradients that are not finite.
    fn learn(&mut self, batch: &Replayed<'_>, rng: &mut Pcg64, progress: f64) -> Result<OffPolicyLearned>;

    /// The share of random actions, where it has one.
    fn exploration_rate(&self, progress: f64) -> Option<f32> {
        let _ = progress;
        None
    }

    /// The returns of greedy episodes ([`super::evaluate_policy`]).
    ///
    /// # Errors
    /// Those of [`super::evaluate_policy`].
    fn evaluate(
        &mut self,
        env: &mut dyn VectorEnv,
        episodes: usize,
        seed: u64,
        normalizer: Option<&Normalizer>,
    ) -> Result<Vec<f64>>;

    /// All parameters by name.
    fn tensors(&self) -> NamedTensors;
}

/// The trainer of an off-policy method, [`Dqn`](super::Dqn), [`Sac`](super::Sac) or [`Td3`](super::Td3): environments,
/// replay, networks, and the loop over them.
///
/// Each iteration makes `train_freq` steps of each environment and then, from `learning_starts` steps on, `gradient_steps`
/// updates. Replay holds raw observations, rewards and the true next observations; where they are normalised that is done
/// on sampling, by the statistics of all steps so far.
pub struct OffPolicy<A: Algorithm> {
    learner: A,
    config: A::Config,
    how: Gathering,
    gatherer: Gatherer,
    updates: u64,
    learned: Option<OffPolicyLearned>,
}

impl<A: Algorithm> std::fmt::Debug for OffPolicy<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OffPolicy")
            .field("config", &self.config)
            .field("timesteps", &self.timesteps())
            .finish_non_exhaustive()
    }
}

impl<A: Algorithm> OffPolicy<A> {
    /// A learner of environments, which reset in the same step, and of the networks that `make` makes for them. The seed
    /// decides everything random: initial weights, environments, actions, minibatches.
    ///
    /// # Errors
    /// [`Error::Config`] naming a setting that is out of range, [`Error::Space`] for a space that the method is not for,
    /// [`Error::Memory`] for a buffer that does not fit into memory, and those of `make`.
    pub fn new(
        env: Box<dyn VectorEnv>,
        make: impl FnOnce(&EnvSpec, &mut Pcg64) -> Result<A::Networks>,
        config: A::Config,
        seed: u64,
    ) -> Result<Self> {
        if env.autoreset_mode() != AutoresetMode::SameStep {
            let got = format!("{:?}", env.autoreset_mode());
            return Err(Error::config("env", "AutoresetMode::SameStep", got, "make the environments so"));
        }
        let how = A::gathering(&config, env.as_ref())?;
        how.check()?;
        let mut streams = Streams::new(seed);
        let networks = make(env.spec(), &mut streams.policy)?;
        let learner = A::new(config.clone(), networks, env.as_ref())?;
        let gatherer = Gatherer::new(env, how, streams)?;
        Ok(Self { learner, config, how, gatherer, updates: 0, learned: None })
    }

    /// What acts and learns: the networks.
    pub fn learner(&self) -> &A {
        &self.learner
    }

    /// The same, to act with.
    pub fn learner_mut(&mut self) -> &mut A {
        &mut self.learner
    }

    /// The settings.
    pub fn config(&self) -> &A::Config {
        &self.config
    }

    /// The transitions that are remembered.
    pub fn replay(&self) -> &ReplayStorage {
        self.gatherer.experience.storage()
    }

    /// The running statistics of observations and rewards, where they are normalised.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.gatherer.normalizer.as_ref()
    }

    /// Environment steps made so far, all environments together.
    pub fn timesteps(&self) -> u64 {
        self.gatherer.timesteps
    }

    /// The returns of whole greedy episodes of other environments ([`super::evaluate_policy`]), observed as these are.
    ///
    /// # Errors
    /// Those of [`super::evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        self.learner.evaluate(env, episodes, seed, self.gatherer.normalizer.as_ref())
    }

    /// Trains for at least `total_timesteps` more steps, all environments together, or until `progress` returns false; it
    /// is called after each iteration.
    ///
    /// # Errors
    /// Those of [`OffPolicy::iterate`].
    pub fn train(
        &mut self,
        total_timesteps: u64,
        progress: impl FnMut(&OffPolicyMetrics) -> bool,
    ) -> Result<OffPolicyMetrics> {
        self.begin(total_timesteps);
        self.resume(progress)
    }

    /// Goes on with a run that was ended early to where [`OffPolicy::train`] was to end. Schedules go on, too.
    ///
    /// # Errors
    /// Those of [`OffPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&OffPolicyMetrics) -> bool) -> Result<OffPolicyMetrics> {
        loop {
            let metrics = self.iterate()?;
            if !progress(&metrics) || self.timesteps() >= self.gatherer.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Begins a run of so many steps more, one at least, that schedules go by; [`OffPolicy::iterate`] makes them.
    pub fn begin(&mut self, total_timesteps: u64) {
        self.gatherer.run = Run::new(self.timesteps(), total_timesteps);
    }

    /// Makes `train_freq` steps of each environment and learns from what is remembered.
    ///
    /// # Errors
    /// [`Error::Config`] if no run was begun, or it has ended; [`Error::Space`], [`Error::Config`] and [`Error::NotFinite`]
    /// naming observations, rewards, outputs or gradients that are not finite, and the steps before;
    /// [`Error::Interrupted`] between two steps ([`rlox_core::set_interrupt_check`]).
    pub fn iterate(&mut self) -> Result<OffPolicyMetrics> {
        self.gatherer.run.progress(self.timesteps())?;
        let done = self.gather().and_then(|()| self.learn());
        done.map_err(|error| after(error, self.timesteps()))?;
        Ok(self.metrics())
    }

    fn gather(&mut self) -> Result<()> {
        let Self { learner, how, gatherer, .. } = self;
        let mut watch = Watch::default();
        gatherer.start(learner)?;
        learner.begin(&mut gatherer.actions)?;
        for _ in 0..how.train_freq {
            watch.check()?;
            gatherer.step(learner)?;
        }
        Ok(())
    }

    fn learn(&mut self) -> Result<()> {
        let Self { learner, how, gatherer, updates, learned, .. } = self;
        if gatherer.timesteps <= how.learning_starts {
            return Ok(());
        }
        let count = how.gradient_steps.unwrap_or(how.train_freq * gatherer.env.num_envs());
        let (mut means, mut watch) = (Means::default(), Watch::default());
        let progress = gatherer.progress();
        for _ in 0..count {
            watch.check()?;
            let Gatherer { experience, normalizer, order, learning, .. } = gatherer;
            let batch = experience.sample(normalizer.as_ref(), order)?;
            means.add(&learner.learn(&batch, learning, progress)?);
            *updates += 1;
        }
        *learned = Some(means.mean(learned.as_ref()));
        Ok(())
    }

    fn metrics(&self) -> OffPolicyMetrics {
        let Gatherer { episodes, timesteps, .. } = &self.gatherer;
        OffPolicyMetrics {
            timesteps: *timesteps,
            mean_return: episodes.mean_return,
            mean_length: episodes.mean_length,
            episodes: episodes.total,
            updates: self.updates,
            exploration_rate: self.learner.exploration_rate(self.gatherer.progress()),
            learned: self.learned,
        }
    }
}

/// The same error, which came after so many steps.
fn after(mut error: Error, timesteps: u64) -> Error {
    if let Some(wrong) = error.mismatch_mut() {
        wrong.got = format!("{}, after {timesteps} steps", wrong.got);
    }
    error
}

/// Means of what minibatches say.
#[derive(Debug, Default)]
struct Means {
    /// How many said something, and the sum.
    sums: [(f64, f64); 6],
    learning_rate: f32,
}

impl Means {
    fn add(&mut self, said: &OffPolicyLearned) {
        let OffPolicyLearned { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } =
            *said;
        let all = [Some(critic_loss), Some(mean_value), Some(grad_norm), actor_loss, ent_coef, ent_coef_loss];
        for ((count, sum), x) in self.sums.iter_mut().zip(all) {
            if let Some(x) = x {
                *count += 1.0;
                *sum += f64::from(x);
            }
        }
        self.learning_rate = learning_rate;
    }

    /// The means; what no minibatch told is as it was before.
    fn mean(&self, before: Option<&OffPolicyLearned>) -> OffPolicyLearned {
        let [critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss] =
            self.sums.map(|(count, sum)| (count > 0.0).then_some((sum / count) as f32));
        let or = |mean: Option<f32>, of: fn(&OffPolicyLearned) -> Option<f32>| mean.or(before.and_then(of));
        OffPolicyLearned {
            critic_loss: critic_loss.unwrap_or_default(),
            mean_value: mean_value.unwrap_or_default(),
            grad_norm: grad_norm.unwrap_or_default(),
            actor_loss: or(actor_loss, |before| before.actor_loss),
            ent_coef: or(ent_coef, |before| before.ent_coef),
            ent_coef_loss: or(ent_coef_loss, |before| before.ent_coef_loss),
            learning_rate: self.learning_rate,
        }
    }
}

/// Checks that networks are for the numbers of observations and of actions that there are.
pub(super) fn check_dims(name: &'static str, got: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let said = |(obs, actions)| format!("one for observations of {obs} numbers and {actions} of actions");
    Err(Error::shape(name, said(expected), said(got), "make it for the environments' spaces"))
}

/// All tensors of parts whose names differ.
pub(super) fn together(parts: &[NamedTensors]) -> NamedTensors {
    let mut all = NamedTensors::default();
    for part in parts {
        for tensor in part {
            // The names differ: nothing is refused.
            let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
        }
    }
    all
}
