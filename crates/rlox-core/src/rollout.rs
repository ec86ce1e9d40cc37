//! Rollouts: fixed-size storage, `[T, N, ...]` time-major, and the loop that fills a rollout.
//!
//! Shapes use these letters: T steps, N environments, `d` numbers per observation, `a` numbers per
//! action, and K truncated episodes. A truncated episode is one that did not also terminate. The
//! final observation of an episode is its last observation, before the environment is reset.

mod bytes;
mod collect;
pub(crate) mod record;

pub use collect::collect;

use std::collections::HashMap;

use crate::{
    Actions, EnvSpec, Error, Result, Space, VectorEnv, alloc,
    field::{DType, Field, FieldData, FieldMut},
    vector::masked_actions,
};

/// Policy outputs for one step of N environments: actions, log-probabilities and values.
#[derive(Clone, Copy, Debug)]
pub struct PolicyStep<'a> {
    /// The actions, `[N, a]`. Discrete actions are counted from 0.
    pub actions: Actions<'a>,
    /// The log-probabilities of the actions, `[N]`.
    pub log_probs: &'a [f32],
    /// The values of the observations, `[N]`.
    pub values: &'a [f32],
}

/// Results of one step of environments outside this crate, before normalisation.
///
/// Observations have the dtype of the rollout buffer.
#[derive(Clone, Copy, Debug)]
pub struct Transition<'a> {
    /// The observations for the next actions, `[N, d]`.
    pub next_obs: FieldData<'a>,
    /// The rewards, `[N]`.
    pub rewards: &'a [f64],
    /// Termination flags, `[N]`: the episode reached a terminal state of the task.
    pub terminated: &'a [bool],
    /// Truncation flags, `[N]`: a time limit or the environment cut the episode.
    pub truncated: &'a [bool],
    /// The last observations of episodes that ended in this step, `[N, d]`, before any reset.
    ///
    /// Only rows of truncated and not terminated episodes are read. The data may be empty if there
    /// are no such rows. It may also be empty for environments that reset in the next step, because
    /// their last observations are in `next_obs`.
    pub final_obs: FieldData<'a>,
}

/// One rollout of `n_steps` steps in `num_envs` environments.
///
/// Row `t * num_envs + n` of a field belongs to step `t` of environment `n`. `obs` has one more
/// time step than the other fields: the observations at which the next rollout starts. Rewards are
/// stored as f32, after normalisation if a normalizer is used. `terminated` and `truncated` are
/// separate fields. The last observations of truncated episodes, before the reset, are stored in
/// [`RolloutBuffer::final_obs`], so that their values can be bootstrapped.
///
/// For environments that reset in the next step ([`crate::AutoresetMode::NextStep`]), each reset
/// occupies a row. Such a row is not a transition: `valid` is false, and reward and advantage are
/// 0. The statistics of the normalizer exclude the row. The observation of the row is the final
/// observation of the episode that ended in the previous step.
#[derive(Debug)]
pub struct RolloutBuffer {
    n_steps: usize,
    num_envs: usize,
    obs: Field,
    actions: Field,
    log_probs: Field,
    values: Field,
    rewards: Field,
    terminated: Field,
    truncated: Field,
    valid: Field,
    final_values: Field,
    advantages: Field,
    returns: Field,
    extra: Extra,
    next_step: usize,
    state: RolloutState,
    resets_next_step: bool,
    ended: Vec<bool>,
    flags: Vec<bool>,
    reset_rows: usize,
    final_index: Vec<usize>,
    final_obs: Field,
    step_rewards: Vec<f64>,
    step_masks: Vec<bool>,
    step_terminated: Vec<bool>,
    step_truncated: Vec<bool>,
    step_valid: Vec<bool>,
    step_final_obs: Vec<f32>,
    env_actions: Vec<f32>,
    env_actions_discrete: Vec<i64>,
}

impl RolloutBuffer {
    /// Creates a buffer for `n_steps` steps of `num_envs` environments.
    ///
    /// `obs` and `action` are the shape for one environment and the dtype of observations and
    /// actions.
    ///
    /// ```
    /// use rlox_core::{RolloutBuffer, field::DType};
    ///
    /// let buffer = RolloutBuffer::new(128, 8, (&[4], DType::F32), (&[], DType::I64))?;
    /// assert_eq!(buffer.field("obs").unwrap().rows(), 129 * 8);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if `n_steps` or `num_envs` is 0. [`Error::Space`] if the action dtype is neither i64 nor f32.
    /// [`Error::Memory`] if the buffer does not fit into memory.
    pub fn new(n_steps: usize, num_envs: usize, obs: (&[usize], DType), action: (&[usize], DType)) -> Result<Self> {
        for (name, value) in [("n_steps", n_steps), ("num_envs", num_envs)] {
            if value == 0 {
                return Err(Error::config(name, "at least 1", "0", "pass a positive number"));
            }
        }
        if !matches!(action.1, DType::F32 | DType::I64) {
            let got = format!("{:?}", action.1);
            return Err(Error::space(
                "action dtype",
                "i64 or f32",
                got,
                "store discrete actions as i64, others as f32",
            ));
        }
        let rows = n_steps.saturating_mul(num_envs);
        let width = |shape: &[usize]| shape.iter().fold(1, |width: usize, n| width.saturating_mul(*n));
        let bytes = |(shape, dtype): (&[usize], DType)| width(shape).saturating_mul(dtype.size());
        // One check for the whole buffer, because the system counts allocated but unwritten memory
        // as free.
        let widest = if bytes(obs) > 1 << 30 { "obs_shape" } else { "n_steps" };
        let each = bytes(obs).saturating_add(bytes(action)).saturating_add(29);
        alloc::check_bytes(widest, (n_steps as u128 * num_envs as u128).saturating_mul(each as u128))?;
        let named = |error: Error| {
            error
                .rename_argument("rows", widest)
                .rename_argument("final_obs", "obs_shape")
                .rename_argument("actions", "action_shape")
        };
        let scalar = |name: &str, dtype| Field::new(name, rows, &[], dtype).map_err(named);
        let row = |shape, wanted| if wanted { width(shape).saturating_mul(num_envs) } else { 0 };
        let obs_row = row(obs.0, obs.1 == DType::F32);
        let mut final_obs = Field::new("final_obs", 0, obs.0, obs.1).map_err(named)?;
        final_obs.reserve(num_envs).map_err(named)?;
        Ok(Self {
            n_steps,
            num_envs,
            obs: Field::new("obs", rows.saturating_add(num_envs), obs.0, obs.1).map_err(named)?,
            actions: Field::new("actions", rows, action.0, action.1).map_err(named)?,
            log_probs: scalar("log_probs", DType::F32)?,
            values: scalar("values", DType::F32)?,
            rewards: scalar("rewards", DType::F32)?,
            terminated: scalar("terminated", DType::Bool)?,
            truncated: scalar("truncated", DType::Bool)?,
            valid: all_true(scalar("valid", DType::Bool)?),
            final_values: scalar("final_values", DType::F32)?,
            advantages: scalar("advantages", DType::F32)?,
            returns: scalar("returns", DType::F32)?,
            extra: Extra::default(),
            next_step: 0,
            state: RolloutState::Empty,
            resets_next_step: false,
            ended: alloc::zeroed("num_envs", num_envs)?,
            flags: alloc::zeroed("n_steps", 2 * rows)?,
            reset_rows: 0,
            final_index: alloc::with_capacity("num_envs", num_envs)?,
            final_obs,
            step_masks: Vec::new(),
            step_rewards: alloc::zeroed("num_envs", num_envs)?,
            step_terminated: alloc::zeroed("num_envs", num_envs)?,
            step_truncated: alloc::zeroed("num_envs", num_envs)?,
            step_valid: alloc::zeroed("num_envs", num_envs)?,
            step_final_obs: alloc::zeroed("num_envs", obs_row)?,
            env_actions: alloc::zeroed("num_envs", row(action.0, action.1 == DType::F32))?,
            env_actions_discrete: alloc::zeroed("num_envs", row(action.0, action.1 == DType::I64))?,
        })
    }

    /// Creates a buffer for the spaces of an environment.
    ///
    /// For environments with action masks, the buffer has a field `action_masks`, `[T, N, n]` of
    /// dtype Bool, for `n` actions. The field stores the masks passed to the policy.
    ///
    /// # Errors
    /// The errors of [`RolloutBuffer::new`].
    pub fn for_env(n_steps: usize, env: &dyn VectorEnv) -> Result<Self> {
        Self::for_spec(n_steps, env.num_envs(), env.spec(), env.has_action_masks())
    }

    /// Creates a buffer as [`RolloutBuffer::for_env`] does, from a description of the environments.
    ///
    /// `masks` is true if the environments have action masks.
    ///
    /// # Errors
    /// The errors of [`RolloutBuffer::new`].
    pub fn for_spec(n_steps: usize, num_envs: usize, spec: &EnvSpec, masks: bool) -> Result<Self> {
        let dtype = if matches!(spec.action, Space::Box { .. }) { DType::F32 } else { DType::I64 };
        let obs = spec.observation.shape();
        let buffer = Self::new(n_steps, num_envs, (&obs, DType::F32), (&spec.action.shape(), dtype))?;
        if !masks {
            return Ok(buffer);
        }
        let mut buffer = buffer.with_field(MASKS, &[masked_actions(&spec.action)], DType::Bool)?;
        if let Some(FieldMut::Bool(masks)) = buffer.field_mut(MASKS) {
            masks.fill(1);
        }
        Ok(buffer)
    }

    /// Adds a custom field with one row per step and environment.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is in use, and the errors of [`Field::new`].
    pub fn with_field(mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Self> {
        if self.field(name).is_some() {
            return Err(Error::config("name", "a new field name", format!("{name:?}"), "choose another name"));
        }
        let rows = self.n_steps * self.num_envs;
        let width = shape.iter().fold(dtype.size(), |width: usize, n| width.saturating_mul(*n));
        let fixed_bytes: usize = self.builtin_fields().iter().map(|field| field.width() * field.dtype().size()).sum();
        alloc::check_available("extra", rows, width.saturating_add(fixed_bytes + self.extra.row_bytes))?;
        let field = Field::new(alloc::try_to_string("extra", name)?, rows, shape, dtype)?;
        let Extra { fields, index_by_name, row_bytes } = &mut self.extra;
        let out_of_memory = |_| alloc::out_of_memory("extra", fields.len() + 1, size_of::<(String, usize)>());
        index_by_name.try_reserve(1).map_err(out_of_memory)?;
        alloc::push("extra", fields, field)?;
        index_by_name.insert(alloc::try_to_string("extra", name)?, fields.len() - 1);
        *row_bytes += width;
        Ok(self)
    }

    /// Returns the number of steps T.
    pub fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// Returns the number of environments N.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Returns the index of the next step to store, or T if the rollout is full.
    pub fn next_step(&self) -> usize {
        self.next_step
    }

    /// Returns true after [`RolloutBuffer::finish`], until the next rollout starts.
    ///
    /// While the result is true, `advantages` and `returns` belong to the stored rollout.
    /// Otherwise, these fields hold zeros or the values of an earlier rollout.
    ///
    /// ```
    /// use rlox_core::{RolloutBuffer, field::DType};
    ///
    /// assert!(!RolloutBuffer::new(2, 1, (&[4], DType::F32), (&[], DType::I64))?.is_finished());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        self.state == RolloutState::Finished
    }

    /// Returns the number of stored transitions: all filled rows except those of a reset (`valid`
    /// false).
    pub fn transitions(&self) -> usize {
        self.next_step * self.num_envs - self.reset_rows
    }

    /// Returns all fields.
    ///
    /// The fields are `obs` (T + 1 steps), `actions`, `log_probs`, `values`, `rewards`, `terminated`, `truncated`,
    /// `valid`, `final_values`, `advantages`, `returns`, and the custom fields.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.builtin_fields().into_iter().chain(&self.extra.fields)
    }

    fn builtin_fields(&self) -> [&Field; 11] {
        let Self { obs, actions, log_probs, values, rewards, terminated, truncated, valid, .. } = self;
        let Self { final_values, advantages, returns, .. } = self;
        [obs, actions, log_probs, values, rewards, terminated, truncated, valid, final_values, advantages, returns]
    }

    /// Returns the field `name`, or `None` if there is no such field.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let own = || self.extra.index_by_name.get(name).map(|index| &self.extra.fields[*index]);
        self.builtin_fields().into_iter().find(|field| field.name() == name).or_else(own)
    }

    /// Returns the elements of the field `name` mutably, for example to fill a custom field.
    ///
    /// ```
    /// use rlox_core::{RolloutBuffer, field::{DType, FieldMut}};
    ///
    /// let buffer = RolloutBuffer::new(2, 1, (&[4], DType::F32), (&[], DType::I64))?;
    /// let mut buffer = buffer.with_field("costs", &[], DType::F64)?;
    /// let Some(FieldMut::F64(costs)) = buffer.field_mut("costs") else { unreachable!() };
    /// costs[1] = 0.5;
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn field_mut(&mut self, name: &str) -> Option<FieldMut<'_>> {
        if let Some(index) = self.extra.index_by_name.get(name) {
            return Some(self.extra.fields[*index].data_mut());
        }
        let fixed = [&mut self.obs, &mut self.actions, &mut self.log_probs, &mut self.values, &mut self.rewards];
        let flags = [&mut self.terminated, &mut self.truncated, &mut self.valid];
        let computed = [&mut self.final_values, &mut self.advantages, &mut self.returns];
        let mut fields = fixed.into_iter().chain(flags).chain(computed);
        fields.find(|field| field.name() == name).map(Field::data_mut)
    }

    /// Returns the indices `t * N + n` of truncated and not terminated rows, `[K]`, in order of
    /// collection.
    pub fn final_index(&self) -> &[usize] {
        &self.final_index
    }

    /// Returns the last observations of truncated episodes, `[K, d]`, normalised like `obs`.
    ///
    /// They belong to the rows of [`RolloutBuffer::final_index`] and precede the reset.
    pub fn final_obs(&self) -> FieldData<'_> {
        self.final_obs.data()
    }
}

/// Custom fields.
#[derive(Debug, Default)]
struct Extra {
    fields: Vec<Field>,
    /// Index into `fields` by name.
    index_by_name: HashMap<String, usize>,
    /// Bytes per row of all custom fields together.
    row_bytes: usize,
}

/// State of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RolloutState {
    Empty,
    Collecting,
    /// The rollout is full and has advantages.
    Finished,
}

/// Name of the field that stores the action masks passed to the policy.
const MASKS: &str = "action_masks";

fn all_true(mut field: Field) -> Field {
    if let FieldMut::Bool(flags) = field.data_mut() {
        flags.fill(1);
    }
    field
}
