//! Replay buffer of off-policy algorithms, which stores transitions and normalises sampled
//! minibatches.

use rlox_core::replay::{
    AnySampler, Column, FieldSpec, NStep, Prioritized, Replay, ReplayStorage, SampleIndices, TransitionBatch,
    TransitionSchema, Uniform,
};
use rlox_core::{
    Actions, EnvSpec, Error, Normalizer, Pcg64, Result, Space, VectorEnv,
    field::{DType, Field, FieldData, FieldMut},
    normalize::NormalizerOptions,
    vector::masked_actions,
};

use super::{DqnConfig, check_counts, check_share};
use crate::Discount;
use crate::alloc::{resize, try_reserve};
use crate::validate::check_not_negative;

/// Name of the field with the action masks of next states.
const NEXT_MASKS: &str = "next_masks";

/// Settings of prioritized replay ([`Prioritized`]). The exponent of the importance weights rises
/// linearly from `beta` to 1 over the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priorities {
    /// Exponent of the priorities: 0 for uniform sampling, 1 for sampling in proportion to the
    /// priorities. A common value is 0.6.
    pub alpha: f32,
    /// Exponent of the importance weights at the start of the run. A common value is 0.4.
    pub beta: f32,
}

/// The values of Schaul et al. 2016 for proportional priorities: `alpha` 0.6 and `beta` 0.4.
impl Default for Priorities {
    fn default() -> Self {
        Self { alpha: 0.6, beta: 0.4 }
    }
}

impl Priorities {
    /// Returns the exponent of the importance weights at `progress`, a fraction of the run.
    fn beta_at(self, progress: f64) -> f32 {
        (f64::from(self.beta) + (1.0 - f64::from(self.beta)) * progress).clamp(0.0, 1.0) as f32
    }
}

/// Settings for collecting and sampling transitions, common to all off-policy algorithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayConfig {
    /// Capacity of the replay buffer in transitions.
    pub buffer_size: usize,
    /// Number of environment steps with random actions, before learning starts.
    pub learning_starts: u64,
    /// Number of transitions per minibatch. Minibatches are smaller while the buffer holds fewer.
    pub batch_size: usize,
    /// Number of steps of each environment per iteration.
    pub train_freq: usize,
    /// Number of minibatches per iteration. `None` means one minibatch per transition that the
    /// iteration collected.
    pub gradient_steps: Option<usize>,
    /// Number of minibatches per collected transition, which replaces `gradient_steps`. A fraction
    /// of a minibatch carries over to the next iteration.
    pub utd_ratio: Option<f64>,
    /// Number of steps of the n-step returns.
    pub n_steps: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Normalisation of observations and rewards; `None` for no normalisation.
    pub normalize: Option<NormalizerOptions>,
    /// Prioritized replay; `None` for uniform sampling.
    pub prioritized: Option<Priorities>,
}

/// Builds a [`ReplayConfig`] from a config with fields of the same names.
///
/// Algorithms' configs repeat these fields instead of containing a [`ReplayConfig`]. A struct
/// literal with `..default()` can then set any of them, as in the Python package and
/// Stable-Baselines3.
macro_rules! replay_config {
    ($config:expr, $prioritized:expr) => {
        ReplayConfig {
            buffer_size: $config.buffer_size,
            learning_starts: $config.learning_starts,
            batch_size: $config.batch_size,
            train_freq: $config.train_freq,
            gradient_steps: $config.gradient_steps,
            utd_ratio: $config.utd_ratio,
            n_steps: $config.n_steps,
            gamma: $config.gamma,
            normalize: $config.normalize,
            prioritized: $prioritized,
        }
    };
}
pub(super) use replay_config;

/// The settings of [`DqnConfig::default`], with uniform sampling.
impl Default for ReplayConfig {
    fn default() -> Self {
        replay_config!(DqnConfig::default(), None)
    }
}

impl ReplayConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for the first setting out of range.
    pub fn check(&self) -> Result<()> {
        check_counts(&[
            ("buffer_size", self.buffer_size),
            ("batch_size", self.batch_size),
            ("train_freq", self.train_freq),
            ("gradient_steps", self.gradient_steps.unwrap_or(1)),
            ("n_steps", self.n_steps),
        ])?;
        check_share("gamma", self.gamma)?;
        self.utd_ratio.map_or(Ok(()), |ratio| check_not_negative("utd_ratio", ratio as f32))?;
        if let Some(Priorities { alpha, beta }) = self.prioritized {
            check_share("priority_alpha", f64::from(alpha))?;
            check_share("priority_beta", f64::from(beta))?;
        }
        // The constructor rejects options that are out of range.
        self.normalize.map_or(Ok(()), |options| Normalizer::new(1, 1, options).map(|_| ()))
    }
}

/// Description of an [`OffPolicyAgent`](super::OffPolicyAgent)'s environments.
#[derive(Clone, Copy, Debug)]
pub struct EnvInfo<'a> {
    /// Spec of each environment.
    pub spec: &'a EnvSpec,
    /// Number of environments.
    pub num_envs: usize,
    /// `true` if the environments have action masks.
    pub masked: bool,
    /// `true` if environments may reset while others step ([`rlox_core::AutoresetMode::NextStep`]).
    pub idling: bool,
}

impl<'a> EnvInfo<'a> {
    /// Returns the description of a vector of environments.
    pub fn from_env(env: &'a dyn VectorEnv) -> Self {
        let idling = env.autoreset_mode() == rlox_core::AutoresetMode::NextStep;
        Self { spec: env.spec(), num_envs: env.num_envs(), masked: env.has_action_masks(), idling }
    }
}

/// Normalised minibatch of `B` transitions.
///
/// Fields without a shape below have the shape `[B]`. `d` is the number of values in an
/// observation, `a` the number of action components, and `n` the number of flags in an action mask.
#[derive(Clone, Copy, Debug)]
pub struct ReplayBatch<'a> {
    /// Observations, `[B, d]`.
    pub obs: &'a [f32],
    /// Integers that start at 0, or numbers in [-1, 1], `[B, a]`.
    pub actions: Actions<'a>,
    /// Rewards, or discounted sums of rewards for n-step returns.
    pub rewards: &'a [f32],
    /// Next observations, `[B, d]`. For a transition that ends an episode, the last observation of
    /// the episode.
    pub next_obs: &'a [f32],
    /// `true` for transitions into a terminal state, `false` for truncated episodes.
    pub terminated: &'a [bool],
    /// Discount factors of the values of the next observations.
    pub discount: Discount<'a>,
    /// Importance weights; `None` for uniform sampling.
    pub weights: Option<&'a [f32]>,
    /// Action masks of the next states, `[B, n]`. Each mask allows an action unless the transition
    /// is `terminated`.
    pub next_masks: Option<&'a [bool]>,
}

/// One step of all environments, in the form that the replay buffer stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepBatch<'a> {
    pub(super) obs: &'a [f32],
    pub(super) actions: Actions<'a>,
    pub(super) rewards: &'a [f32],
    pub(super) terminated: &'a [bool],
    pub(super) truncated: &'a [bool],
    pub(super) next_obs: &'a [f32],
    /// Action masks of the next states, `[N, n]`; empty if the environments have no masks. A row
    /// that allows no action belongs to a terminal state or marks an unknown mask.
    pub(super) next_masks: &'a [bool],
}

/// Replay buffer with the buffers for one minibatch.
#[derive(Debug)]
pub(super) struct ReplayMemory {
    replay: Replay<AnySampler>,
    sample_indices: SampleIndices,
    batch_size: usize,
    gamma: f32,
    n_steps: usize,
    priorities: Option<Priorities>,
    /// Absolute temporal difference errors of the last minibatch.
    errors: Vec<f32>,
    /// Transitions excluded from the last minibatch, because the masks of their next states are unknown.
    excluded_indices: Vec<usize>,
    obs_dim: usize,
    /// Number of components of an action.
    action_dim: usize,
    discrete: bool,
    /// Number of flags in an action mask; 0 if the environments have no masks.
    mask_width: usize,
    /// Copies of the rows of environments that stepped, for steps in which others only reset.
    packed: Packed,
    obs: Vec<f32>,
    next_obs: Vec<f32>,
    /// Actions; either `integers` or `numbers` is empty.
    integers: Vec<i64>,
    numbers: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
    next_masks: Vec<bool>,
    mask_bytes: Vec<u8>,
}

impl ReplayMemory {
    /// Creates an empty buffer for the transitions of the environments.
    pub(super) fn new(config: &ReplayConfig, env_info: &EnvInfo<'_>) -> Result<Self> {
        let EnvInfo { spec, num_envs, masked, idling } = *env_info;
        let obs = FieldSpec::new("obs", &[spec.observation.dim()], DType::F32);
        let discrete = !matches!(spec.action, Space::Box { .. });
        let action = if discrete {
            FieldSpec::new("actions", &spec.action.shape(), DType::I64)
        } else {
            FieldSpec::new("actions", &[spec.action.dim()], DType::F32)
        };
        let mut schema = TransitionSchema::new(obs, action);
        let mask_width = if masked { masked_actions(&spec.action) } else { 0 };
        if masked {
            schema.extra.push(FieldSpec::new(NEXT_MASKS, &[mask_width], DType::Bool));
        }
        if idling && num_envs > 1 && config.n_steps > 1 {
            let (expected, fix) = ("1 for environments in NEXT_STEP mode", "create them in SAME_STEP mode");
            return Err(Error::config("n_steps", expected, config.n_steps.to_string(), fix));
        }
        // The storage expects one transition per environment in every step. Environments that idle
        // in different steps are therefore stored as one environment.
        let streams = if idling { 1 } else { num_envs };
        let storage = ReplayStorage::new(config.buffer_size, streams, schema)
            .map_err(|error| error.rename_argument("capacity", "buffer_size"))?;
        let sampler: AnySampler = match config.prioritized {
            None => Uniform.into(),
            Some(Priorities { alpha, beta }) => Prioritized::new(&storage, alpha, beta)
                .map_err(|error| error.rename_argument("capacity", "buffer_size"))?
                .into(),
        };
        let mut replay = Replay::from_parts(storage, sampler)?;
        if config.n_steps > 1 {
            replay = replay.with_n_step(NStep { n: config.n_steps, gamma: config.gamma })?;
        }
        Ok(Self {
            replay,
            sample_indices: SampleIndices::default(),
            batch_size: config.batch_size,
            gamma: config.gamma as f32,
            n_steps: config.n_steps,
            priorities: config.prioritized,
            errors: Vec::new(),
            excluded_indices: Vec::new(),
            obs_dim: spec.observation.dim(),
            action_dim: spec.action.dim(),
            discrete,
            mask_width,
            packed: Packed::default(),
            obs: Vec::new(),
            next_obs: Vec::new(),
            integers: Vec::new(),
            numbers: Vec::new(),
            rewards: Vec::new(),
            terminated: Vec::new(),
            next_masks: Vec::new(),
            mask_bytes: Vec::new(),
        })
    }

    /// Returns all stored transitions and priorities as fields ([`Replay::state`]).
    pub(super) fn state(&self) -> Result<Vec<Field>> {
        self.replay.state()
    }

    /// Restores fields that [`ReplayMemory::state`] returned ([`Replay::load_state`]).
    pub(super) fn load_state(&mut self, state: &[Field]) -> Result<()> {
        self.replay.load_state(state)
    }

    /// Returns the storage of the transitions.
    pub(super) fn storage(&self) -> &ReplayStorage {
        self.replay.storage()
    }

    /// Stores a step of the environments whose flag in `valid` is `true`, or of all for `None`.
    pub(super) fn push(&mut self, step: &StepBatch<'_>, valid: Option<&[bool]>) -> Result<()> {
        let result = match valid {
            Some(valid) if valid.contains(&false) => {
                let mut packed = std::mem::take(&mut self.packed);
                let result = packed.pack(step, valid).and_then(|()| self.push_all(&packed.as_batch(self.discrete)));
                self.packed = packed;
                result
            }
            _ => self.push_all(step),
        };
        result.map_err(|error| error.rename_argument("capacity", "buffer_size"))
    }

    fn push_all(&mut self, step: &StepBatch<'_>) -> Result<()> {
        if step.rewards.is_empty() {
            return Ok(());
        }
        let masks = [FieldData::from(step.next_masks)];
        self.replay.push_batch(&TransitionBatch {
            obs: &[FieldData::F32(step.obs)],
            actions: match step.actions {
                Actions::Discrete(actions) => FieldData::I64(actions),
                Actions::Continuous(actions) => FieldData::F32(actions),
            },
            rewards: step.rewards,
            terminated: step.terminated,
            truncated: step.truncated,
            next_obs: Some(&[FieldData::F32(step.next_obs)]),
            extra: if self.mask_width > 0 { &masks } else { &[] },
        })
    }

    /// Sets the exponent of the importance weights for the progress of the run.
    pub(super) fn set_progress(&mut self, progress: f64) -> Result<()> {
        match (self.replay.sampler_mut(), self.priorities) {
            (AnySampler::Prioritized(sampler), Some(priorities)) => sampler.set_beta(priorities.beta_at(progress)),
            _ => Ok(()),
        }
    }

    /// Sets the priorities of the last minibatch from its temporal difference errors, `[B]`.
    pub(super) fn update_priorities(&mut self, td_errors: &[f32]) -> Result<()> {
        let Self { replay, sample_indices, errors, excluded_indices, .. } = self;
        let (storage, AnySampler::Prioritized(sampler)) = replay.parts_mut() else { return Ok(()) };
        errors.clear();
        errors.extend(td_errors.iter().map(|error| error.abs()));
        sampler.update_priorities(storage, sample_indices.indices(), errors)?;
        if excluded_indices.is_empty() {
            return Ok(());
        }
        // Excluded transitions get the smallest priority. Otherwise they would keep the largest
        // priority and fill later minibatches.
        let least = errors.iter().copied().reduce(f32::min).unwrap_or(0.0);
        errors.clear();
        errors.resize(excluded_indices.len(), least);
        sampler.update_priorities(storage, excluded_indices, errors)
    }

    /// Samples and normalises a minibatch. The minibatch is smaller if the buffer holds fewer
    /// transitions.
    ///
    /// Transitions whose target needs an unknown action mask are excluded. Returns `None` if no
    /// transitions remain.
    pub(super) fn sample(
        &mut self,
        normalizer: Option<&Normalizer>,
        rng: &mut Pcg64,
    ) -> Result<Option<ReplayBatch<'_>>> {
        let rows = self.batch_size.min(self.replay.storage().indices().len());
        if self.read(rows, rng)? == 0 {
            return Ok(None);
        }
        if let Some(normalizer) = normalizer {
            normalizer.normalize_obs(&mut self.obs)?;
            normalizer.normalize_obs(&mut self.next_obs)?;
            normalize_rewards(normalizer, &mut self.rewards);
        }
        let actions =
            if self.discrete { Actions::Discrete(&self.integers) } else { Actions::Continuous(&self.numbers) };
        Ok(Some(ReplayBatch {
            obs: &self.obs,
            actions,
            rewards: &self.rewards,
            next_obs: &self.next_obs,
            terminated: &self.terminated,
            discount: if self.n_steps > 1 {
                Discount::Each(self.sample_indices.discounts())
            } else {
                Discount::Same(self.gamma)
            },
            weights: self.priorities.is_some().then(|| self.sample_indices.weights()),
            next_masks: (self.mask_width > 0).then_some(&self.next_masks[..]),
        }))
    }

    /// Samples `rows` transitions and reads those with known action masks. Returns their number.
    fn read(&mut self, rows: usize, rng: &mut Pcg64) -> Result<usize> {
        self.replay.sample_indices(&mut self.sample_indices, rows, rng)?;
        self.exclude_unknown_masks()?;
        let Self { replay, sample_indices, obs, next_obs, integers, numbers, rewards, terminated, .. } = self;
        let rows = sample_indices.indices().len();
        let storage = replay.storage();
        resize("batch_size", obs, rows * self.obs_dim, 0.0)?;
        resize("batch_size", next_obs, rows * self.obs_dim, 0.0)?;
        resize("batch_size", rewards, rows, 0.0)?;
        resize("batch_size", terminated, rows, false)?;
        sample_indices.read(storage, Column::Obs(0), FieldMut::F32(obs))?;
        sample_indices.read(storage, Column::NextObs(0), FieldMut::F32(next_obs))?;
        sample_indices.read(storage, Column::Reward, FieldMut::F32(rewards))?;
        sample_indices.read_bools(storage, Column::Terminated, terminated)?;
        if self.discrete {
            resize("batch_size", integers, rows * self.action_dim, 0)?;
            sample_indices.read(storage, Column::Action, FieldMut::I64(integers))?;
        } else {
            resize("batch_size", numbers, rows * self.action_dim, 0.0)?;
            sample_indices.read(storage, Column::Action, FieldMut::F32(numbers))?;
        }
        Ok(rows)
    }

    /// Reads the masks of next states, and excludes transitions whose target needs an unknown mask.
    fn exclude_unknown_masks(&mut self) -> Result<()> {
        self.excluded_indices.clear();
        if self.mask_width == 0 {
            return Ok(());
        }
        self.read_next_masks()?;
        let rows = self.next_masks.chunks_exact(self.mask_width).zip(&self.terminated);
        let known = rows.map(|(mask, terminated)| *terminated || mask.contains(&true));
        if known.clone().all(|known| known) {
            return Ok(());
        }
        let known: Vec<_> = known.collect();
        let excluded = self.sample_indices.indices().iter().zip(&known).filter(|(_, known)| !**known);
        self.excluded_indices.extend(excluded.map(|(index, _)| *index));
        self.sample_indices.retain(&known)?;
        self.read_next_masks()
    }

    fn read_next_masks(&mut self) -> Result<()> {
        let Self { replay, sample_indices, terminated, next_masks, mask_bytes, mask_width, .. } = self;
        let (storage, rows) = (replay.storage(), sample_indices.indices().len());
        resize("batch_size", terminated, rows, false)?;
        resize("batch_size", next_masks, rows * *mask_width, false)?;
        resize("batch_size", mask_bytes, next_masks.len(), 0)?;
        sample_indices.read_bools(storage, Column::Terminated, terminated)?;
        sample_indices.read(storage, Column::Extra(0), FieldMut::Bool(mask_bytes))?;
        next_masks.iter_mut().zip(mask_bytes).for_each(|(mask, byte)| *mask = *byte != 0);
        Ok(())
    }
}

/// Divides rewards by the standard deviation of discounted returns, and clips the quotients.
///
/// For n-step returns, the discounted sum of the rewards is divided and clipped, not each reward.
fn normalize_rewards(normalizer: &Normalizer, rewards: &mut [f32]) {
    let options = normalizer.options();
    if !options.reward {
        return;
    }
    let deviation = (normalizer.reward().var()[0] + options.epsilon).sqrt();
    let clip = options.clip_reward;
    for reward in rewards {
        *reward = (f64::from(*reward) / deviation).clamp(-clip, clip) as f32;
    }
}

/// Buffers for the rows of a step whose environments stepped.
#[derive(Debug, Default)]
struct Packed {
    obs: Vec<f32>,
    next_obs: Vec<f32>,
    /// Actions; either `integers` or `numbers` is empty.
    integers: Vec<i64>,
    numbers: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    next_masks: Vec<bool>,
}

impl Packed {
    /// Copies the rows of `step` whose flag in `valid` is `true`.
    fn pack(&mut self, step: &StepBatch<'_>, valid: &[bool]) -> Result<()> {
        copy_valid_rows(&mut self.obs, step.obs, valid)?;
        copy_valid_rows(&mut self.next_obs, step.next_obs, valid)?;
        match step.actions {
            Actions::Discrete(actions) => copy_valid_rows(&mut self.integers, actions, valid)?,
            Actions::Continuous(actions) => copy_valid_rows(&mut self.numbers, actions, valid)?,
        }
        copy_valid_rows(&mut self.rewards, step.rewards, valid)?;
        copy_valid_rows(&mut self.terminated, step.terminated, valid)?;
        copy_valid_rows(&mut self.truncated, step.truncated, valid)?;
        copy_valid_rows(&mut self.next_masks, step.next_masks, valid)
    }

    /// Returns the copied rows.
    fn as_batch(&self, discrete: bool) -> StepBatch<'_> {
        StepBatch {
            obs: &self.obs,
            actions: if discrete { Actions::Discrete(&self.integers) } else { Actions::Continuous(&self.numbers) },
            rewards: &self.rewards,
            terminated: &self.terminated,
            truncated: &self.truncated,
            next_obs: &self.next_obs,
            next_masks: &self.next_masks,
        }
    }
}

/// Replaces the content of `rows` by the rows of `all` whose flag in `valid` is `true`.
fn copy_valid_rows<T: Copy>(rows: &mut Vec<T>, all: &[T], valid: &[bool]) -> Result<()> {
    rows.clear();
    try_reserve("num_envs", rows, all.len())?;
    let width = (all.len() / valid.len().max(1)).max(1);
    for (row, _) in all.chunks_exact(width).zip(valid).filter(|(_, valid)| **valid) {
        rows.extend_from_slice(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rlox_core::{AutoresetMode, Env, ResetOptions, Step, VecEnv};

    use super::*;
    use crate::train::{Dqn, DqnConfig};
    use crate::{Activation, Optimizer, QFunction, QNetworks};

    /// Environment with reward -1 per step, in which action 1 is never allowed.
    #[derive(Clone)]
    struct Endless {
        spec: EnvSpec,
    }

    impl Endless {
        fn new(limit: u32) -> Self {
            let (id, observation, action) = ("Endless".into(), Space::uniform_box(0.0, 1.0, &[1]), Space::discrete(2));
            Self { spec: EnvSpec { id, observation, action, max_episode_steps: Some(limit) } }
        }
    }

    impl Env for Endless {
        type Action = i64;
        fn spec(&self) -> &EnvSpec {
            &self.spec
        }
        fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
            obs[0] = 1.0;
        }
        fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
            assert_eq!(*action, 0);
            obs[0] = 1.0;
            Step { reward: -1.0, terminated: false, truncated: false }
        }
        fn has_action_mask(&self) -> bool {
            true
        }
        fn action_mask(&self, mask: &mut [bool]) {
            mask.copy_from_slice(&[true, false]);
        }
    }

    #[test]
    fn truncated_episodes_bootstrap_from_allowed_actions_only() {
        for (limit, n_steps) in [(1000, 1), (5, 1), (1, 1), (5, 3)] {
            let env = VecEnv::new(2, None, AutoresetMode::SameStep, || Endless::new(limit)).unwrap();
            let config = DqnConfig {
                gamma: 0.9,
                learning_starts: 8,
                batch_size: 16,
                train_freq: 1,
                tau: 0.2,
                target_update_interval: 1,
                n_steps,
                optimizer: Optimizer::adam(0.1),
                ..DqnConfig::default()
            };
            let make = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[], Activation::Relu, rng);
            let mut dqn = Dqn::new(Box::new(env), make, config, 0).unwrap();
            dqn.train(800, |_| true).unwrap();
            let mut values = [0.0; 2];
            dqn.learner_mut().q_function_mut().values(&[1.0], &mut values).unwrap();
            assert!((values[0] + 10.0).abs() < 0.1, "{values:?} with episodes of {limit} steps");
        }
    }

    /// Returns a buffer with four transitions of one environment.
    ///
    /// The third and the fourth transition end episodes. The action mask after the third is
    /// unknown.
    fn replay_memory(n_steps: usize) -> ReplayMemory {
        let config = ReplayConfig {
            buffer_size: 8,
            learning_starts: 0,
            batch_size: 64,
            train_freq: 1,
            gradient_steps: Some(1),
            utd_ratio: None,
            n_steps,
            gamma: 0.5,
            normalize: None,
            prioritized: Some(Priorities { alpha: 0.5, beta: 1.0 }),
        };
        let env = Endless::new(1);
        let envs = EnvInfo { spec: env.spec(), num_envs: 1, masked: true, idling: false };
        let mut replay_memory = ReplayMemory::new(&config, &envs).unwrap();
        for i in 0..4_u8 {
            let (obs, next_obs) = ([f32::from(i)], [f32::from(i) + 1.0]);
            replay_memory
                .push_all(&StepBatch {
                    obs: &obs,
                    actions: Actions::Discrete(&[0]),
                    rewards: &[1.0],
                    terminated: &[i == 3],
                    truncated: &[i == 2],
                    next_obs: &next_obs,
                    next_masks: &[i < 2, false],
                })
                .unwrap();
        }
        replay_memory
    }

    #[test]
    fn sample_leaves_out_transitions_with_unknown_next_masks() {
        // With n_steps = 2, the second transition ends in the same state as the third.
        for (n_steps, expected_obs) in [(1, &[0.0, 1.0, 3.0][..]), (2, &[0.0, 3.0])] {
            let (mut replay_memory, mut rng) = (replay_memory(n_steps), Pcg64::seed_from(0));
            // A minibatch may miss some of the stored transitions, so several are sampled.
            let mut sampled_obs = Vec::new();
            for _ in 0..50 {
                let Some(batch) = replay_memory.sample(None, &mut rng).unwrap() else { continue };
                let rows = batch.obs.len();
                assert!(batch.rewards.len() == rows && batch.weights.is_some_and(|weights| weights.len() == rows));
                assert!(batch.next_masks.is_some_and(|masks| masks.len() == 2 * rows));
                for (row, obs) in batch.obs.iter().enumerate() {
                    let steps = if n_steps == 2 && *obs < 3.0 { 2.0 } else { 1.0 };
                    assert_eq!(batch.next_obs[row], obs + steps);
                    assert_eq!(batch.terminated[row], *obs == 3.0);
                }
                sampled_obs.extend_from_slice(batch.obs);
                replay_memory.update_priorities(&vec![0.25; rows]).unwrap();
            }
            sampled_obs.sort_by(f32::total_cmp);
            sampled_obs.dedup();
            assert_eq!(sampled_obs, expected_obs);
            let priorities =
                replay_memory.state().unwrap().into_iter().find(|field| field.name() == "priorities").unwrap();
            let FieldData::F32(priorities) = priorities.data() else { unreachable!() };
            assert!(priorities.iter().all(|priority| (priority - 0.5).abs() < 1e-4), "{priorities:?}");
        }
    }
}
