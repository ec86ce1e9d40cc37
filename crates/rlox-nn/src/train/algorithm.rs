//! What sets one off-policy method apart: how it acts and how it learns.

use std::ops::Range;

use rlox_core::{Actions, ActionsMut, EnvSpec, Error, Normalizer, Pcg64, Result, VectorEnv};

use super::replay::{ReplayBatch, ReplayConfig};
use super::{ConfigMap, OffPolicyUpdateStats};
use crate::NamedTensors;
use crate::optimizer::check_state;

/// An off-policy method at work: how it acts and how it learns. [`DqnLearner`](super::DqnLearner),
/// [`SacLearner`](super::SacLearner) and [`Td3Learner`](super::Td3Learner) are such.
pub trait Algorithm: Send {
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

    /// As [`Algorithm::explore`], beside the iteration: what is drawn for several steps is drawn for this call, and
    /// that of the iteration stays.
    ///
    /// # Errors
    /// Those of the policy.
    fn explore_stateless(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()> {
        self.explore(obs, masks, rngs, progress, actions)
    }

    /// Adds noise to the actions of a step, those of the parse_auto that are random included, where it has noise.
    ///
    /// # Errors
    /// [`Error::Shape`] for other actions than the environments'.
    fn perturb(&mut self, rngs: &mut [Pcg64], actions: ActionsMut<'_>) -> Result<()> {
        let _ = (rngs, actions);
        Ok(())
    }

    /// The best actions it knows, as [`super::Greedy`] has them.
    ///
    /// # Errors
    /// Those of the policy.
    fn act_greedy(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;

    /// Takes notice that episodes have ended.
    fn end_episodes(&mut self, ended: &dyn Fn(usize) -> bool) {
        let _ = ended;
    }

    /// Takes notice of a step that one environment at least has made, where others may only have reset: of all transitions so
    /// far, those that came of it.
    ///
    /// # Errors
    /// Those of what it does every few steps.
    fn on_step(&mut self, timesteps: Range<u64>) -> Result<()> {
        let _ = timesteps;
        Ok(())
    }

    /// Learns from a minibatch. Schedules go by `progress`.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::NotFinite`] naming observations, outputs or gradients that are not finite.
    fn learn(&mut self, batch: &ReplayBatch<'_>, rng: &mut Pcg64, progress: f64) -> Result<OffPolicyUpdateStats>;

    /// `target - value` of each row of the last minibatch.
    fn td_errors(&self) -> &[f32];

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

    /// Checks that [`Algorithm::load`] takes these parameters.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    fn check_tensors(&self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())
    }

    /// Takes parameters by name.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// What the optimisers keep, by the parameters' names.
    fn optimizer_state(&self) -> NamedTensors;

    /// Checks that [`Algorithm::load_optimizer_state`] takes this state.
    ///
    /// # Errors
    /// Those of [`Algorithm::load_optimizer_state`].
    fn check_optimizer_state(&self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())
    }

    /// Takes what [`Algorithm::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;

    /// Where the action noise is, `[N, a]`; empty without any.
    fn noise(&self) -> &[f32] {
        &[]
    }

    /// Goes on with the noise from where [`Algorithm::noise`] said it was.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Config`] for what it never said. Nothing has changed then.
    fn set_noise(&mut self, noise: &[f32]) -> Result<()> {
        rlox_core::check_len("noise", noise.len(), 0)
    }

    /// Goes on from so many minibatches.
    fn set_updates(&mut self, updates: u64);
}

/// How an [`Algorithm`] is made of settings and networks.
pub trait Method: Algorithm + Sized {
    /// Its settings.
    type Config: Clone + std::fmt::Debug;
    /// The networks it is made of.
    type Networks;
    /// What checkpoints call it.
    const NAME: &'static str;
    /// The hidden layers that the Python package gives it.
    const HIDDEN: &'static [usize];

    /// How transitions are collected and sampled, once all settings are checked.
    ///
    /// # Errors
    /// [`Error::Config`] naming a setting that is out of range, [`Error::Space`] for an environment that the method is not
    /// for.
    fn replay_config(config: &Self::Config, spec: &EnvSpec) -> Result<ReplayConfig>;

    /// A learner with settings that [`Method::gathering`] has checked, for so many environments.
    ///
    /// # Errors
    /// [`Error::Shape`] for networks of other observations or actions than the environments'.
    fn new(config: Self::Config, networks: Self::Networks, spec: &EnvSpec, num_envs: usize) -> Result<Self>;

    /// The settings by the names that checkpoints have for them, but for those of [`Method::gathering`].
    fn config_map(config: &Self::Config) -> ConfigMap;

    /// What its networks are made of, as far as it is known, by the names that checkpoints have for that.
    fn arch(&self) -> ConfigMap {
        ConfigMap::new()
    }
}

/// Checks that networks are for the numbers of observations and of actions that there are.
pub(super) fn check_dims(name: &'static str, got: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let describe = |(obs, actions)| format!("one for observations of {obs} numbers and {actions} of actions");
    Err(Error::shape(name, describe(expected), describe(got), "make it for the environments' spaces"))
}

/// All tensors of parts whose names differ.
pub(super) fn merge_tensors(parts: &[NamedTensors]) -> NamedTensors {
    let mut all = NamedTensors::default();
    for tensor in parts.iter().flatten() {
        // The names differ: nothing is refused.
        let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
    }
    all
}

/// Those of checked tensors that a part has.
pub(super) fn select_tensors(all: &NamedTensors, template: &NamedTensors) -> NamedTensors {
    let mut own = NamedTensors::default();
    for tensor in template.iter().filter_map(|tensor| all.find(&tensor.name)) {
        let _ = own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
    }
    own
}

/// The numbers of continuous actions.
///
/// # Errors
/// [`Error::Space`] for integers.
pub(super) fn as_continuous(actions: Actions<'_>) -> Result<&[f32]> {
    match actions {
        Actions::Continuous(actions) => Ok(actions),
        Actions::Discrete(_) => Err(Error::space("actions", "f32 numbers", "integers", "use DQN, PPO or A2C")),
    }
}
