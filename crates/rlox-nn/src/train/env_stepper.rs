//! Environment steps of off-policy agents: actions, statistics, counters and the replay buffer.

use rlox_core::{
    __private::profile, Actions, ActionsMut, Normalizer, Pcg64, Policy, PolicyOut, RandomPolicy, Result, Space,
    StepOut, VectorEnv, error::check_len, vector::masked_actions,
};

use super::algorithm::Algorithm;
use super::replay::{EnvInfo, ReplayConfig, ReplayMemory, StepBatch};
use super::{IterationStreams, check_counts};
use crate::ActionScaling;
use crate::alloc::{resize, try_vec};
use crate::validate::check_finite;

/// Result of a step of the caller's environments; see [`observe`](super::OffPolicyAgent::observe).
///
/// `N` is the number of environments, `d` the number of values in an observation, and `n` the
/// number of flags in an action mask.
#[derive(Clone, Copy, Debug)]
pub struct StepResult<'a> {
    /// Observations after the step and before any reset, `[N, d]`. At the end of an episode, the
    /// last observation of that episode.
    pub next_obs: &'a [f32],
    /// Observations for the next actions, `[N, d]`.
    pub obs: &'a [f32],
    /// Rewards, `[N]`.
    pub rewards: &'a [f64],
    /// `true` for environments that reached a terminal state, `[N]`.
    pub terminated: &'a [bool],
    /// `true` for environments whose episode was cut off, for example by a time limit, `[N]`.
    pub truncated: &'a [bool],
    /// `true` for environments that stepped, `false` for those that only reset, `[N]`. `None` if all stepped.
    pub valid: Option<&'a [bool]>,
    /// Action masks at `obs`, `[N, n]`; required if [`EnvInfo::masked`] is `true`.
    pub masks: Option<&'a [bool]>,
    /// Action masks of the last states of truncated episodes, `[N, n]`. A row that allows no action
    /// marks an unknown mask; `None` marks all masks as unknown. Only rows of episodes that were
    /// truncated and not terminated are read.
    pub final_masks: Option<&'a [bool]>,
}

/// Buffers for the actions of one step.
#[derive(Debug)]
struct ActionBuffers {
    /// Integers that start at 0, `[N, a]` for `a` action components; empty for a Box.
    discrete: Vec<i64>,
    /// Numbers in [-1, 1], `[N, a]`; empty for other spaces.
    continuous: Vec<f32>,
    /// The same actions in the form that environments expect: integers with the `start` of the
    /// space added, or numbers scaled to the bounds of the Box.
    env_actions: (Vec<i64>, Vec<f32>),
    /// Scaling to the bounds of a Box; `None` for other spaces.
    scaling: Option<ActionScaling>,
    space: Space,
}

impl ActionBuffers {
    fn new(space: &Space, num_envs: usize) -> Result<Self> {
        let scaling = matches!(space, Space::Box { .. }).then(|| ActionScaling::new(space)).transpose()?;
        let (mut discrete, mut continuous) = (Vec::new(), Vec::new());
        let numbers = num_envs.saturating_mul(space.dim());
        if scaling.is_some() {
            resize("num_envs", &mut continuous, numbers, 0.0)?;
        } else {
            resize("num_envs", &mut discrete, numbers, 0)?;
        }
        let env_actions = (discrete.clone(), continuous.clone());
        Ok(Self { discrete, continuous, env_actions, scaling, space: space.clone() })
    }

    fn policy_actions_mut(&mut self) -> ActionsMut<'_> {
        if self.scaling.is_some() {
            ActionsMut::Continuous(&mut self.continuous)
        } else {
            ActionsMut::Discrete(&mut self.discrete)
        }
    }

    fn policy_actions(&self) -> Actions<'_> {
        if self.scaling.is_some() { Actions::Continuous(&self.continuous) } else { Actions::Discrete(&self.discrete) }
    }

    /// Returns numbers scaled to the bounds of the Box, or integers that start at 0.
    fn scaled_actions(&mut self) -> Result<Actions<'_>> {
        let Some(scaling) = &self.scaling else { return Ok(Actions::Discrete(&self.discrete)) };
        self.env_actions.1.copy_from_slice(&self.continuous);
        scaling.scale(&mut self.env_actions.1)?;
        Ok(Actions::Continuous(&self.env_actions.1))
    }

    /// Writes and returns the actions in the form that environments expect.
    fn write_env_actions(&mut self) -> Result<Actions<'_>> {
        let (discrete, continuous) = &mut self.env_actions;
        let actions = if let Some(scaling) = &self.scaling {
            continuous.copy_from_slice(&self.continuous);
            scaling.scale(continuous)?;
            ActionsMut::Continuous(continuous)
        } else {
            discrete.copy_from_slice(&self.discrete);
            ActionsMut::Discrete(discrete)
        };
        Ok(actions.into_env_actions(&self.space))
    }
}

/// Current observations, buffers of a step, random streams and the replay buffer.
pub(super) struct EnvStepper {
    pub(super) replay_memory: ReplayMemory,
    /// One stream per environment, for actions.
    pub(super) actions: Vec<Pcg64>,
    /// Stream for the choice of minibatches.
    pub(super) order: Pcg64,
    /// Stream for the random numbers of updates.
    pub(super) learning: Pcg64,
    config: ReplayConfig,
    idling: bool,
    random: RandomPolicy,
    /// `true` if `obs` are the current observations of the environments.
    pub(super) env_initialized: bool,
    action_buffers: ActionBuffers,
    /// Observations for the next actions, `[N, d]`.
    obs: Vec<f32>,
    /// Normalised copy of `obs`, `[N, d]`.
    policy_obs: Vec<f32>,
    /// Observations after the step and before any reset, `[N, d]`.
    next_obs: Vec<f32>,
    /// Observations after the step and any reset, `[N, d]`.
    after: Vec<f32>,
    rewards: Vec<f64>,
    stored_rewards: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    /// `true` for environments that stepped.
    valid: Vec<bool>,
    /// Action masks at `obs`, `[N, n]`; empty without action masks.
    masks: Vec<bool>,
    /// Action masks of the states before any reset, `[N, n]`.
    next_masks: Vec<bool>,
    /// Log-probabilities and values that the random policy writes; they are not used.
    unused: [Vec<f32>; 2],
    /// Number of transitions stored so far. `collected_steps` counts those since the start of the
    /// iteration.
    pub(super) timesteps: u64,
    pub(super) collected_steps: usize,
}

impl EnvStepper {
    pub(super) fn new(env_info: &EnvInfo<'_>, config: ReplayConfig, seeds: [u64; 2]) -> Result<Self> {
        let (n, spec) = (env_info.num_envs, env_info.spec);
        check_counts(&[("num_envs", n)])?;
        let numbers = n.saturating_mul(spec.observation.dim());
        let flags = if env_info.masked { n.saturating_mul(masked_actions(&spec.action)) } else { 0 };
        // Policies return Box actions in [-1, 1], so the random policy does as well.
        let random = match spec.action {
            Space::Box { .. } => RandomPolicy::new(&Space::uniform_box(-1.0, 1.0, &[spec.action.dim()]))?,
            _ => RandomPolicy::new(&spec.action)?,
        };
        let replay_memory = ReplayMemory::new(&config, env_info)?;
        let IterationStreams { actions, order, .. } = IterationStreams::new(seeds[0], n)?;
        let learning = IterationStreams::new(seeds[1], 0)?.order;
        let observations = || try_vec("num_envs", numbers, 0.0);
        let flag = |len| try_vec("num_envs", len, false);
        Ok(Self {
            replay_memory,
            actions,
            order,
            learning,
            config,
            idling: env_info.idling,
            random,
            env_initialized: false,
            action_buffers: ActionBuffers::new(&spec.action, n)?,
            obs: observations()?,
            policy_obs: observations()?,
            next_obs: observations()?,
            after: observations()?,
            rewards: try_vec("num_envs", n, 0.0)?,
            stored_rewards: try_vec("num_envs", n, 0.0)?,
            terminated: flag(n)?,
            truncated: flag(n)?,
            valid: try_vec("num_envs", n, true)?,
            masks: try_vec("num_envs", flags, true)?,
            next_masks: try_vec("num_envs", flags, true)?,
            unused: [try_vec("num_envs", n, 0.0)?, try_vec("num_envs", n, 0.0)?],
            timesteps: 0,
            collected_steps: 0,
        })
    }

    /// Returns the number of environments.
    pub(super) fn num_envs(&self) -> usize {
        self.rewards.len()
    }

    /// Copies the current observations and action masks of the environments.
    pub(super) fn set_current_obs(&mut self, obs: &[f32], masks: Option<&[bool]>) -> Result<()> {
        check_len("obs", obs.len(), self.obs.len())?;
        check_len("action_masks", masks.map_or(0, <[bool]>::len), self.masks.len())?;
        check_finite("obs", obs, self.obs.len() / self.num_envs())?;
        self.obs.copy_from_slice(obs);
        self.masks.copy_from_slice(masks.unwrap_or(&[]));
        self.env_initialized = true;
        Ok(())
    }

    /// Reads the current observations and action masks from the environments.
    pub(super) fn observe(&mut self, env: &dyn VectorEnv) -> Result<()> {
        let (mut obs, mut masks) = (std::mem::take(&mut self.after), std::mem::take(&mut self.next_masks));
        let mut result = env.observe(&mut obs);
        if result.is_ok() && !masks.is_empty() {
            result = env.action_masks(&mut masks);
        }
        let set_result = result.and_then(|()| self.set_current_obs(&obs, (!masks.is_empty()).then_some(&masks[..])));
        (self.after, self.next_masks) = (obs, masks);
        set_result
    }

    /// Starts new episodes in all environments.
    ///
    /// The first observations are added to the statistics of the normaliser.
    pub(super) fn begin_episodes<A: Algorithm + ?Sized>(
        &mut self,
        algorithm: &mut A,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        if let Some(normalizer) = normalizer {
            normalizer.reset_returns();
            normalizer.update_obs(&self.obs)?;
        }
        algorithm.end_episodes(&|_| true);
        Ok(())
    }

    /// Makes one step in each environment. After an error, all episodes must start again.
    pub(super) fn step<A: Algorithm + ?Sized>(
        &mut self,
        algorithm: &mut A,
        env: &mut dyn VectorEnv,
        mut normalizer: Option<&mut Normalizer>,
        progress: f64,
        steps: &mut profile::StepTimer,
    ) -> Result<()> {
        self.select_actions(algorithm, normalizer.as_deref_mut(), progress)?;
        self.env_initialized = false;
        steps.enter(profile::Phase::EnvStep);
        self.advance(env)?;
        steps.enter(profile::Phase::Buffer);
        self.finish(algorithm, normalizer)
    }

    /// Chooses actions: uniform actions for the first `learning_starts` steps, then the policy's.
    pub(super) fn select_actions<A: Algorithm + ?Sized>(
        &mut self,
        algorithm: &mut A,
        normalizer: Option<&mut Normalizer>,
        progress: f64,
    ) -> Result<()> {
        let masks = (!self.masks.is_empty()).then_some(&self.masks[..]);
        if self.timesteps < self.config.learning_starts && !algorithm.explores_at_warmup() {
            let [log_probs, values] = &mut self.unused;
            let out = PolicyOut { actions: self.action_buffers.policy_actions_mut(), log_probs, values };
            self.random.act(&self.obs, masks, &mut self.actions, out)?;
        } else {
            let policy_obs = match normalizer {
                Some(normalizer) if normalizer.options().obs => {
                    self.policy_obs.copy_from_slice(&self.obs);
                    normalizer.normalize_obs(&mut self.policy_obs)?;
                    &self.policy_obs
                }
                _ => &self.obs,
            };
            algorithm.explore(
                policy_obs,
                masks,
                &mut self.actions,
                progress,
                self.action_buffers.policy_actions_mut(),
            )?;
        }
        algorithm.perturb(&mut self.actions, self.action_buffers.policy_actions_mut())
    }

    /// Returns the chosen actions: integers that start at 0, or numbers in the bounds of the Box.
    pub(super) fn scaled_actions(&mut self) -> Result<Actions<'_>> {
        self.action_buffers.scaled_actions()
    }

    /// Steps the environments and reads the results.
    fn advance(&mut self, env: &mut dyn VectorEnv) -> Result<()> {
        let out = StepOut {
            obs: &mut self.after,
            reward: &mut self.rewards,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            final_obs: &mut self.next_obs,
        };
        env.step(self.action_buffers.write_env_actions()?, out)?;
        let dim = self.after.len() / self.rewards.len();
        for (env, after) in self.after.chunks_exact(dim).enumerate() {
            if !(self.terminated[env] || self.truncated[env]) {
                self.next_obs[env * dim..][..dim].copy_from_slice(after);
            }
        }
        if self.masks.is_empty() {
            return Ok(());
        }
        if self.cuts().any(|cut| cut) {
            env.final_action_masks(&mut self.next_masks)?;
        }
        env.action_masks(&mut self.masks)
    }

    /// Returns, per environment, `true` if the last step truncated the episode without terminating it.
    fn cuts(&self) -> impl Iterator<Item = bool> {
        self.terminated.iter().zip(&self.truncated).map(|(terminated, truncated)| *truncated && !*terminated)
    }

    /// Checks and copies the result of a step of the caller's environments.
    pub(super) fn load_step_result(&mut self, step_result: &StepResult<'_>) -> Result<()> {
        let StepResult { next_obs, obs, rewards, terminated, truncated, valid, masks, final_masks } = *step_result;
        let n = self.num_envs();
        check_len("next_obs", next_obs.len(), self.next_obs.len())?;
        check_len("obs", obs.len(), self.obs.len())?;
        check_len("rewards", rewards.len(), n)?;
        check_len("terminated", terminated.len(), n)?;
        check_len("truncated", truncated.len(), n)?;
        check_len("valid", valid.map_or(n, <[bool]>::len), n)?;
        check_len("action_masks", masks.map_or(0, <[bool]>::len), self.masks.len())?;
        check_len("final_action_masks", final_masks.map_or(self.masks.len(), <[bool]>::len), self.masks.len())?;
        check_finite("obs", obs, obs.len() / n)?;
        self.next_obs.copy_from_slice(next_obs);
        self.after.copy_from_slice(obs);
        self.rewards.copy_from_slice(rewards);
        self.terminated.copy_from_slice(terminated);
        self.truncated.copy_from_slice(truncated);
        match valid {
            Some(valid) => self.valid.copy_from_slice(valid),
            None => self.valid.fill(true),
        }
        self.masks.copy_from_slice(masks.unwrap_or(&[]));
        match final_masks {
            Some(final_masks) => self.next_masks.copy_from_slice(final_masks),
            None => self.next_masks.fill(false),
        }
        Ok(())
    }

    /// Stores the step, and makes the observations after the step the current observations.
    pub(super) fn finish<A: Algorithm + ?Sized>(
        &mut self,
        algorithm: &mut A,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.stored_rewards.iter_mut().zip(&self.rewards).for_each(|(stored, reward)| *stored = *reward as f32);
        self.complete_next_masks();
        let batch = StepBatch {
            obs: &self.obs,
            actions: self.action_buffers.policy_actions(),
            rewards: &self.stored_rewards,
            terminated: &self.terminated,
            truncated: &self.truncated,
            next_obs: &self.next_obs,
            next_masks: &self.next_masks,
        };
        self.replay_memory.push(&batch, self.idling.then_some(&self.valid[..]))?;
        normalizer.map_or(Ok(()), |normalizer| self.update_normalizer(normalizer))?;
        std::mem::swap(&mut self.obs, &mut self.after);
        self.env_initialized = true;
        let Self { terminated, truncated, valid, .. } = self;
        // An environment that only reset starts an episode, so its action noise restarts as well.
        let ended = |env: usize| terminated[env] || truncated[env] || !valid[env];
        if (0..valid.len()).any(ended) {
            algorithm.end_episodes(&ended);
        }
        let stored = valid.iter().filter(|valid| **valid).count();
        let before = self.timesteps;
        self.timesteps += stored as u64;
        self.collected_steps += stored;
        // A call in which all environments only reset does not count as a step.
        if stored > 0 { algorithm.on_step(before..self.timesteps) } else { Ok(()) }
    }

    /// Updates the normaliser with the next observations and the rewards.
    fn update_normalizer(&mut self, normalizer: &mut Normalizer) -> Result<()> {
        let Self { after, policy_obs, rewards, terminated, truncated, valid, idling, .. } = self;
        if *idling {
            // The last observation of an episode is left out, because the policy never acts on it.
            let dim = after.len() / rewards.len();
            policy_obs.clear();
            let acted =
                after.chunks_exact(dim).zip(terminated.iter().zip(&*truncated)).filter(|(_, (a, b))| !(**a || **b));
            acted.for_each(|(row, _)| policy_obs.extend_from_slice(row));
            let result = normalizer.update_obs(policy_obs);
            policy_obs.resize(after.len(), 0.0);
            result?;
        } else {
            normalizer.update_obs(after)?;
        }
        normalizer.step_rewards_where(Some(valid), rewards, terminated, truncated)
    }

    /// Fills in the masks of next states. The masks of truncated episodes are already present.
    fn complete_next_masks(&mut self) {
        let Self { masks, next_masks, terminated, truncated, .. } = self;
        let width = (masks.len() / terminated.len()).max(1);
        let rows = next_masks.chunks_exact_mut(width).zip(masks.chunks_exact(width));
        for ((next, now), (terminated, truncated)) in rows.zip(terminated.iter().zip(truncated)) {
            if *terminated {
                next.fill(false);
            } else if !*truncated {
                next.copy_from_slice(now);
            }
        }
    }
}
