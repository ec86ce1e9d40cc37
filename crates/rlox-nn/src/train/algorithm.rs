//! The interface of off-policy algorithms: acting, exploring and learning from minibatches.
//!
//! Shapes use `N` for the number of environments, `B` for the number of transitions in a minibatch
//! and `a` for the number of action components.

use std::ops::Range;

use rlox_core::{Actions, ActionsMut, EnvSpec, Error, Normalizer, Pcg64, Result, VectorEnv};

use super::replay::{ReplayBatch, ReplayConfig};
use super::{ConfigMap, OffPolicyUpdateStats};
use crate::NamedTensors;
use crate::optimizer::check_state;

/// An off-policy algorithm with its networks, such as [`DqnLearner`](super::DqnLearner),
/// [`SacLearner`](super::SacLearner) and [`Td3Learner`](super::Td3Learner).
pub trait Algorithm: Send {
    /// Prepares an iteration, for example by drawing exploration noise.
    ///
    /// `rngs` has one random stream per environment.
    ///
    /// # Errors
    /// [`Error::Memory`] if the random numbers of the iteration do not fit into memory.
    fn begin(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        let _ = rngs;
        Ok(())
    }

    /// Returns `true` if warm-up actions come from the policy instead of a uniform distribution.
    fn explores_at_warmup(&self) -> bool {
        false
    }

    /// Writes exploratory actions for `obs`: numbers in [-1, 1], or integers that start at 0.
    ///
    /// The action for row i of `obs` is drawn from the random stream `rngs[i]`. Schedules use
    /// `progress`, the finished fraction of the run.
    ///
    /// # Errors
    /// Errors of the policy.
    fn explore(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()>;

    /// Writes exploratory actions like [`Algorithm::explore`], but keeps the exploration noise.
    ///
    /// `explore` uses the same noise for several steps if the algorithm has gSDE. This function
    /// draws separate noise for this call.
    ///
    /// # Errors
    /// Errors of the policy.
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

    /// Adds action noise, if the algorithm has any, to the actions of a step. Random warm-up actions get noise, too.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of actions is wrong.
    fn perturb(&mut self, rngs: &mut [Pcg64], actions: ActionsMut<'_>) -> Result<()> {
        let _ = (rngs, actions);
        Ok(())
    }

    /// Writes the greedy actions; see [`super::Greedy`].
    ///
    /// # Errors
    /// Errors of the policy.
    fn act_greedy(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;

    /// Handles ends of episodes, for example by resetting the action noise.
    ///
    /// `ended(i)` is `true` if the episode of environment i has ended.
    fn end_episodes(&mut self, ended: &dyn Fn(usize) -> bool) {
        let _ = ended;
    }

    /// Handles a step that added at least one transition.
    ///
    /// `timesteps` runs from the number of transitions before the step to the number after it.
    ///
    /// # Errors
    /// Errors of periodic work such as the update of target networks.
    fn on_step(&mut self, timesteps: Range<u64>) -> Result<()> {
        let _ = timesteps;
        Ok(())
    }

    /// Learns from a minibatch. Schedules use `progress`, the finished fraction of the run.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for observations, outputs or gradients that are not finite; other errors of the networks.
    fn learn(&mut self, batch: &ReplayBatch<'_>, rng: &mut Pcg64, progress: f64) -> Result<OffPolicyUpdateStats>;

    /// Returns the TD error `target - value` of each row of the last minibatch, `[B]`.
    fn td_errors(&self) -> &[f32];

    /// Returns the probability of a random action (epsilon); `None` without epsilon-greedy
    /// exploration.
    fn exploration_rate(&self, progress: f64) -> Option<f32> {
        let _ = progress;
        None
    }

    /// Returns the episode returns of the greedy policy in `env`; see [`super::evaluate_policy`].
    ///
    /// # Errors
    /// Errors of [`super::evaluate_policy`].
    fn evaluate(
        &mut self,
        env: &mut dyn VectorEnv,
        episodes: usize,
        seed: u64,
        normalizer: Option<&Normalizer>,
    ) -> Result<Vec<f64>>;

    /// Returns all parameters by name.
    fn tensors(&self) -> NamedTensors;

    /// Checks that [`Algorithm::load`] accepts these parameters.
    ///
    /// # Errors
    /// Errors of [`NamedTensors::check`].
    fn check_tensors(&self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())
    }

    /// Loads parameters by name.
    ///
    /// # Errors
    /// Errors of [`NamedTensors::check`]; nothing changes then.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// Returns the state of the optimisers by parameter name.
    fn optimizer_state(&self) -> NamedTensors;

    /// Checks that [`Algorithm::load_optimizer_state`] accepts this state.
    ///
    /// # Errors
    /// Errors of [`Algorithm::load_optimizer_state`].
    fn check_optimizer_state(&self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())
    }

    /// Loads a state that [`Algorithm::optimizer_state`] returned.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Config`] or [`Error::NotFinite`] for a state that does not match; nothing changes
    /// then.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;

    /// Returns the state of the action noise, `[N, a]`; empty without noise.
    fn noise(&self) -> &[f32] {
        &[]
    }

    /// Restores a state of the action noise that [`Algorithm::noise`] returned.
    ///
    /// # Errors
    /// [`Error::Shape`] for a slice of the wrong length, [`Error::NotFinite`] for numbers that are
    /// not finite; nothing changes then.
    fn set_noise(&mut self, noise: &[f32]) -> Result<()> {
        rlox_core::error::check_len("noise", noise.len(), 0)
    }

    /// Sets the number of minibatches learned from so far.
    fn set_updates(&mut self, updates: u64);
}

/// Construction of an [`Algorithm`] from a config and networks.
pub trait Method: Algorithm + Sized {
    /// The config of the algorithm.
    type Config: Clone + std::fmt::Debug;
    /// The networks of the algorithm.
    type Networks;
    /// Name of the algorithm in checkpoints.
    const NAME: &'static str;
    /// Default widths of the hidden layers in the Python package.
    const HIDDEN: &'static [usize];

    /// Checks the config and returns its settings for collecting and sampling transitions.
    ///
    /// # Errors
    /// [`Error::Config`] for the first setting out of range, [`Error::Space`] for unsupported spaces.
    fn replay_config(config: &Self::Config, spec: &EnvSpec) -> Result<ReplayConfig>;

    /// Creates a learner for `num_envs` environments from a config that [`Method::replay_config`] checked.
    ///
    /// # Errors
    /// [`Error::Shape`] for networks whose observations or actions do not match the environments.
    fn new(config: Self::Config, networks: Self::Networks, spec: &EnvSpec, num_envs: usize) -> Result<Self>;

    /// Returns the settings under their names in checkpoints, without those of [`Method::replay_config`].
    fn config_map(config: &Self::Config) -> ConfigMap;

    /// Returns the architecture of the networks, as far as it is known, under its names in
    /// checkpoints.
    fn arch(&self) -> ConfigMap {
        ConfigMap::new()
    }
}

/// Checks the observation size and the action size of a network against those of the environments.
pub(super) fn check_dims(name: &'static str, got: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let describe = |(obs, actions)| format!("a network with observation size {obs} and action size {actions}");
    Err(Error::shape(name, describe(expected), describe(got), "create it for the spaces of the environments"))
}

/// Returns all tensors of `parts`, whose names are distinct.
pub(super) fn merge_tensors(parts: &[NamedTensors]) -> NamedTensors {
    let mut all = NamedTensors::default();
    for tensor in parts.iter().flatten() {
        // Tensors with distinct names cannot fail.
        let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
    }
    all
}

/// Returns the tensors of `all` whose names are in `template`.
pub(super) fn select_tensors(all: &NamedTensors, template: &NamedTensors) -> NamedTensors {
    let mut own = NamedTensors::default();
    for tensor in template.iter().filter_map(|tensor| all.find(&tensor.name)) {
        let _ = own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
    }
    own
}

/// Returns the numbers of continuous actions.
///
/// # Errors
/// [`Error::Space`] for integers.
pub(super) fn as_continuous(actions: Actions<'_>) -> Result<&[f32]> {
    match actions {
        Actions::Continuous(actions) => Ok(actions),
        Actions::Discrete(_) => Err(Error::space("actions", "f32 numbers", "integers", "use DQN, PPO or A2C")),
    }
}
