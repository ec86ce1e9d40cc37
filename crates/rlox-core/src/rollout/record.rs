//! Recording of a rollout: start, steps, and the end with advantages and returns.
//!
//! Numbers that are not finite are rejected before they become part of the rollout.

use std::fmt::Display;

use super::{PolicyStep, RolloutBuffer, RolloutState, Transition};
use crate::advantage::check_discount;
use crate::simd::multiversion;
use crate::{
    Actions, ActionsMut, AutoresetMode, Error, Normalizer, ResetOptions, Result, Seeds, Space, StepOut, VectorEnv,
    advantage::{EpisodeEnds, compute_gae_time_major},
    alloc,
    error::check_len,
    field::{DType, Field, FieldData, FieldMut},
};

/// Maximum number of elements that are checked inline. For so few elements, the selection of an
/// instruction set would take longer than the check.
const INLINE_ELEMENTS: usize = 64;

impl RolloutBuffer {
    /// Starts a rollout with the current observations of the environments.
    ///
    /// The environments are reset if they have never been reset or if `seeds` is not
    /// [`Seeds::Keep`]. In [`AutoresetMode::Disabled`], this call and every step also reset
    /// environments whose episode has ended.
    ///
    /// # Errors
    /// [`Error::Shape`] if the environments do not match the buffer's sizes, or the buffer's
    /// observations are not f32. [`Error::Space`] if the actions of the environments have another
    /// dtype than the buffer's. [`Error::NotFinite`] if an observation is NaN or infinite. Also the
    /// errors of [`RolloutBuffer::check_normalizer`] and [`VectorEnv::reset`].
    pub fn begin(
        &mut self,
        env: &mut dyn VectorEnv,
        seeds: Seeds<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        let first = self.num_envs * self.obs.width();
        let row = &mut f32s_mut(&mut self.obs)[..first];
        let fresh = !matches!(seeds, Seeds::Keep) || env.observe(row).is_err();
        if fresh {
            env.reset(seeds, None, &ResetOptions::default(), row)?;
        }
        let mode = env.autoreset_mode();
        self.resets_next_step = mode == AutoresetMode::NextStep;
        if mode != AutoresetMode::SameStep {
            for (i, ended) in self.ended.iter_mut().enumerate() {
                *ended = env.progress(i).is_some_and(|progress| progress.finished);
            }
            if mode == AutoresetMode::Disabled && self.ended.contains(&true) {
                env.reset(Seeds::Keep, Some(&self.ended), &ResetOptions::default(), row)?;
            }
        }
        check_rows("obs", row, first / self.num_envs, 0, None)?;
        self.start(fresh, normalizer)
    }

    /// Starts a rollout with the caller's observations, `[N, d]`, of the buffer's dtype.
    ///
    /// `fresh` is true if the observations come from a reset. In that case, the normalizer adds
    /// them to its statistics and sets its running returns to 0.
    ///
    /// `ended` is `None` for environments that reset in the same step. For environments that reset
    /// in the next step ([`AutoresetMode::NextStep`]), `ended`, `[N]`, is true for each environment
    /// whose episode is over. The first row of such an environment is not a transition, because the
    /// first step only resets the environment.
    ///
    /// # Errors
    /// [`Error::Shape`] if a length or the dtype does not match the buffer. [`Error::NotFinite`] if
    /// an observation is NaN or infinite. Also the errors of [`RolloutBuffer::check_normalizer`].
    pub fn begin_with(
        &mut self,
        obs: FieldData<'_>,
        fresh: bool,
        ended: Option<&[bool]>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_obs("obs", obs)?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("obs", obs.len(), self.num_envs * self.obs.width())?;
        check_obs("obs", obs, self.obs.width(), 0, None)?;
        check_len("ended", ended.map_or(self.num_envs, <[bool]>::len), self.num_envs)?;
        self.obs.write_at(0, obs);
        self.resets_next_step = ended.is_some();
        if let Some(ended) = ended {
            self.ended.copy_from_slice(ended);
        }
        self.start(fresh, normalizer)
    }

    /// Stores the policy outputs of step `t` and steps the environments with the actions.
    ///
    /// The buffer stores the actions of a Box space unclipped, and the environments receive them
    /// clipped to the bounds. The buffer stores Discrete actions counted from 0, and the
    /// environments receive them plus the `start` of the space.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step. [`Error::Shape`] if a length is wrong.
    /// [`Error::Space`] if the action dtype is wrong. [`Error::Action`] if the environment rejects
    /// an action. [`Error::NotFinite`] if a number is NaN or infinite. [`Error::Memory`] if the
    /// final observations do not fit into memory.
    ///
    /// After an error, step `t` is not part of the rollout. The environments have not been stepped,
    /// unless the number that is not finite is one of their results.
    pub fn step(
        &mut self,
        t: usize,
        env: &mut dyn VectorEnv,
        policy_step: PolicyStep<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        self.check_policy_step(t, policy_step)?;
        self.store(t, policy_step);
        self.advance(env, normalizer)
    }

    /// Stores the policy outputs of step `t` and the raw results of environments outside this crate.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step. [`Error::Shape`] if a length or the
    /// observation dtype is wrong. [`Error::Space`] if the action dtype is wrong.
    /// [`Error::NotFinite`] with the environment index if a number is NaN or infinite.
    /// [`Error::Memory`] if the final observations do not fit into memory. After an error, step `t`
    /// is not part of the rollout.
    pub fn record(
        &mut self,
        t: usize,
        policy_step: PolicyStep<'_>,
        transition: Transition<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        let (n, d) = (self.num_envs, self.obs.width());
        self.check_obs("next_obs", transition.next_obs)?;
        self.check_obs("final_obs", transition.final_obs)?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("next_obs", transition.next_obs.len(), n * d)?;
        check_len("rewards", transition.rewards.len(), n)?;
        check_len("terminated", transition.terminated.len(), n)?;
        check_len("truncated", transition.truncated.len(), n)?;
        if !transition.final_obs.is_empty() {
            check_len("final_obs", transition.final_obs.len(), n * d)?;
        }
        self.check_policy_step(t, policy_step)?;
        check_transition(t, transition, self.resets_next_step, normalizer.as_deref())?;
        self.reserve_finals(transition.truncated.iter().filter(|truncated| **truncated).count())?;
        self.store(t, policy_step);
        self.obs.write_at((t + 1) * n * d, transition.next_obs);
        self.step_rewards.copy_from_slice(transition.rewards);
        self.step_terminated.copy_from_slice(transition.terminated);
        self.step_truncated.copy_from_slice(transition.truncated);
        self.commit(transition.final_obs, normalizer)
    }

    /// Checks the policy outputs of step `t` as [`RolloutBuffer::record`] does.
    ///
    /// Callers with remote environments use this method before they step the environments, because
    /// that step cannot be undone if `record` fails afterwards.
    ///
    /// # Errors
    /// The errors of [`RolloutBuffer::record`] that do not depend on the results of the environments.
    pub fn check_step(&self, t: usize, policy_step: PolicyStep<'_>, normalizer: Option<&Normalizer>) -> Result<()> {
        self.check_normalizer(normalizer)?;
        self.check_policy_step(t, policy_step)
    }

    /// Checks that the normalizer has the observation size and the number of environments of the
    /// buffer.
    ///
    /// # Errors
    /// [`Error::Config`] if the normalizer normalises observations and the buffer does not store them as f32.
    /// [`Error::Shape`] if the sizes differ.
    pub fn check_normalizer(&self, normalizer: Option<&Normalizer>) -> Result<()> {
        let Some(normalizer) = normalizer else { return Ok(()) };
        if normalizer.options().obs && self.obs.dtype() != DType::F32 {
            let got = format!("a buffer of {:?} observations", self.obs.dtype());
            let hint = "create the normalizer with obs = false, or the buffer with F32";
            return Err(Error::config("normalizer", "an F32 buffer for a normalizer of observations", got, hint));
        }
        check_len("normalizer's obs_shape", normalizer.obs().mean().len(), self.obs.width())?;
        check_len("normalizer's num_envs", normalizer.returns().len(), self.num_envs)
    }

    /// Computes `advantages` and `returns` of a full rollout by generalized advantage estimation.
    ///
    /// See [`crate::compute_gae`]. `last_values`, `[N]`, are the values of the observations after
    /// the last step. `final_values`, `[K]`, are the values of [`RolloutBuffer::final_obs`]. A row
    /// of a reset (`valid` false) gets the advantage 0 and its value as the return.
    ///
    /// # Errors
    /// [`Error::Config`] if the rollout is not full, or if `gamma` or `gae_lambda` is outside [0,
    /// 1]. [`Error::Shape`] if a length is wrong. [`Error::NotFinite`] if a value is NaN or
    /// infinite.
    pub fn finish(&mut self, last_values: &[f32], final_values: &[f32], gamma: f64, gae_lambda: f64) -> Result<()> {
        if self.next_step < self.n_steps {
            let got = format!("{} of {} steps", self.next_step, self.n_steps);
            return Err(Error::config("finish", "a full rollout", got, "step until the rollout is full"));
        }
        check_discount("gamma", gamma)?;
        check_discount("gae_lambda", gae_lambda)?;
        check_len("last_values", last_values.len(), self.num_envs)?;
        check_len("final_values", final_values.len(), self.final_index.len())?;
        check_rows("last_values", last_values, 1, 0, None)?;
        for (row, value) in self.final_index.iter().zip(final_values) {
            let (t, env) = (row / self.num_envs, row % self.num_envs);
            check_rows("final_values", std::slice::from_ref(value), 1, env, Some(t))?;
        }
        self.state = RolloutState::Collecting;
        let scattered = f32s_mut(&mut self.final_values);
        scattered.fill(0.0);
        for (row, value) in self.final_index.iter().zip(final_values) {
            scattered[*row] = *value;
        }
        let (terminated, truncated) = self.flags.split_at_mut(self.n_steps * self.num_envs);
        read_flags(&self.terminated, terminated);
        read_flags(&self.truncated, truncated);
        // Without a truncated episode, the computation reads no final values.
        let cut = truncated.contains(&true);
        let final_values = cut.then(|| f32s(&self.final_values));
        let ends = EpisodeEnds { terminated, truncated: cut.then_some(&*truncated), final_values };
        compute_gae_time_major(
            f32s(&self.rewards),
            f32s(&self.values),
            ends,
            self.num_envs,
            last_values,
            gamma,
            gae_lambda,
            f32s_mut(&mut self.advantages),
            f32s_mut(&mut self.returns),
        )?;
        if self.reset_rows > 0 {
            let valid = terminated;
            read_flags(&self.valid, valid);
            let (values, advantages, returns) =
                (f32s(&self.values), f32s_mut(&mut self.advantages), f32s_mut(&mut self.returns));
            for (row, _) in valid.iter().enumerate().filter(|(_, valid)| !**valid) {
                (advantages[row], returns[row]) = (0.0, values[row]);
            }
        }
        self.state = RolloutState::Finished;
        Ok(())
    }

    fn start(&mut self, fresh: bool, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let first = self.num_envs * self.obs.width();
        if let Some(normalizer) = normalizer {
            if normalizer.options().obs {
                let row = &mut f32s_mut(&mut self.obs)[..first];
                if fresh {
                    normalizer.update_obs(row)?;
                }
                normalizer.normalize_obs(row)?;
            }
            if fresh {
                normalizer.reset_returns();
            }
        }
        (self.next_step, self.state) = (0, RolloutState::Collecting);
        if self.reset_rows > 0 {
            flags_mut(&mut self.valid).fill(1);
            self.reset_rows = 0;
        }
        self.final_index.clear();
        self.final_obs.clear();
        Ok(())
    }

    /// Checks the policy outputs of step `t`.
    fn check_policy_step(&self, t: usize, policy_step: PolicyStep<'_>) -> Result<()> {
        self.check_step_index(t)?;
        check_len("log_probs", policy_step.log_probs.len(), self.num_envs)?;
        check_len("values", policy_step.values.len(), self.num_envs)?;
        let width = self.num_envs * self.actions.width();
        match (self.actions.data(), policy_step.actions) {
            (FieldData::I64(_), Actions::Discrete(actions)) => check_len("actions", actions.len(), width)?,
            (FieldData::F32(_), Actions::Continuous(actions)) => check_len("actions", actions.len(), width)?,
            (stored, _) => {
                let expected = if matches!(stored, FieldData::I64(_)) { "integer actions" } else { "f32 actions" };
                return Err(Error::space(
                    "actions",
                    expected,
                    "actions of the other type",
                    "pass actions of the buffer's dtype",
                ));
            }
        }
        check_finite_policy_step(policy_step, t)
    }

    fn check_step_index(&self, t: usize) -> Result<()> {
        let is_started = self.state != RolloutState::Empty;
        if is_started && t == self.next_step && t < self.n_steps {
            return Ok(());
        }
        let expected = match (is_started, self.next_step) {
            (false, _) => "a started rollout".into(),
            (true, next) if next < self.n_steps => format!("{next}, the next step"),
            _ => "no further step of a full rollout".into(),
        };
        Err(Error::config("t", expected, t.to_string(), "call begin once per rollout, then step with t = 0, 1, ..."))
    }

    /// Checks that observations have the buffer's dtype. Empty data of any dtype is accepted.
    fn check_obs(&self, argument: &'static str, obs: FieldData<'_>) -> Result<()> {
        if obs.is_empty() || obs.dtype() == self.obs.dtype() {
            return Ok(());
        }
        let (expected, got) = (format!("{:?} elements", self.obs.dtype()), format!("{:?}", obs.dtype()));
        Err(Error::shape(argument, expected, got, "convert the observations, or create the buffer with their dtype"))
    }

    fn check_f32(&self) -> Result<()> {
        if self.obs.dtype() == DType::F32 {
            return Ok(());
        }
        Err(Error::shape("obs dtype", "F32", format!("{:?}", self.obs.dtype()), "create the buffer with F32"))
    }

    fn check_fits(&self, env: &dyn VectorEnv) -> Result<()> {
        let spec = env.spec();
        let wanted = [env.num_envs(), spec.observation.dim(), spec.action.dim()];
        let there = [self.num_envs, self.obs.width(), self.actions.width()];
        if wanted != there {
            let say = |[n, obs, action]: [usize; 3]| {
                format!("{n} environments with observations of {obs} and actions of {action} numbers")
            };
            return Err(Error::shape("buffer", say(wanted), say(there), "create a buffer for these environments"));
        }
        let wanted = if matches!(env.spec().action, Space::Box { .. }) { DType::F32 } else { DType::I64 };
        if self.actions.dtype() != wanted {
            let got = format!("{:?}", self.actions.dtype());
            return Err(Error::space(
                "buffer's action dtype",
                format!("{wanted:?}"),
                got,
                "create a buffer for these environments",
            ));
        }
        self.check_f32()
    }

    /// Writes the checked policy outputs of step `t` into the fields.
    fn store(&mut self, t: usize, policy_step: PolicyStep<'_>) {
        let (n, width) = (self.num_envs, self.num_envs * self.actions.width());
        match (self.actions.data_mut(), policy_step.actions) {
            (FieldMut::I64(stored), Actions::Discrete(actions)) => {
                stored[t * width..][..width].copy_from_slice(actions);
            }
            (FieldMut::F32(stored), Actions::Continuous(actions)) => {
                stored[t * width..][..width].copy_from_slice(actions);
            }
            _ => {}
        }
        f32s_mut(&mut self.log_probs)[t * n..][..n].copy_from_slice(policy_step.log_probs);
        f32s_mut(&mut self.values)[t * n..][..n].copy_from_slice(policy_step.values);
    }

    /// Steps the environments with the stored actions of the next step and records the results.
    pub(super) fn advance(&mut self, env: &mut dyn VectorEnv, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        // Memory for a final observation of each environment is reserved first, because a step
        // cannot be undone.
        self.reserve_finals(n)?;
        let actions = env_actions(
            &self.actions,
            t * n,
            n,
            &env.spec().action,
            &mut self.env_actions,
            &mut self.env_actions_discrete,
        );
        let out = StepOut {
            obs: &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d],
            reward: &mut self.step_rewards,
            terminated: &mut self.step_terminated,
            truncated: &mut self.step_truncated,
            final_obs: &mut self.step_final_obs,
        };
        env.step(actions, out)?;
        if env.autoreset_mode() == AutoresetMode::Disabled {
            self.restart(env)?;
        }
        let transition = Transition {
            next_obs: self.obs.data().slice((t + 1) * n * d, n * d),
            rewards: &self.step_rewards,
            terminated: &self.step_terminated,
            truncated: &self.step_truncated,
            final_obs: FieldData::F32(&self.step_final_obs),
        };
        check_transition(t, transition, self.resets_next_step, normalizer.as_deref())?;
        let finals = std::mem::take(&mut self.step_final_obs);
        let result = self.commit(FieldData::F32(&finals), normalizer);
        self.step_final_obs = finals;
        result
    }

    /// Reserves memory for the final observations of `episodes` more truncated episodes.
    fn reserve_finals(&mut self, episodes: usize) -> Result<()> {
        alloc::try_reserve("num_envs", &mut self.final_index, episodes)?;
        self.final_obs.reserve(episodes).map_err(|error| error.rename_argument("rows", "final_obs"))
    }

    /// Copies the last observations of episodes that ended in this step, and resets their
    /// environments.
    fn restart(&mut self, env: &mut dyn VectorEnv) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        self.record_ended();
        if !self.ended.contains(&true) {
            return Ok(());
        }
        let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
        self.step_final_obs.copy_from_slice(next_obs);
        env.reset(Seeds::Keep, Some(&self.ended), &ResetOptions::default(), next_obs)
    }

    /// Sets `ended` to true for the environments whose episodes ended in this step, else to false.
    fn record_ended(&mut self) {
        let flags = self.step_terminated.iter().zip(&self.step_truncated);
        for (ended, (terminated, truncated)) in self.ended.iter_mut().zip(flags) {
            *ended = *terminated || *truncated;
        }
    }

    /// Marks the rows of environments that were only reset as invalid, and clears their flags and
    /// rewards.
    fn blank_resets(&mut self) {
        for (i, ended) in self.ended.iter().enumerate() {
            self.step_valid[i] = !ended;
            if *ended {
                (self.step_terminated[i], self.step_truncated[i], self.step_rewards[i]) = (false, false, 0.0);
            }
        }
    }

    /// Normalises the results of the current step, stores final observations and advances to the
    /// next step.
    ///
    /// `finals`, `[N, d]`, holds the final observations. For environments that reset in the next
    /// step, `finals` is not read, because the final observations are in `obs`.
    fn commit(&mut self, finals: FieldData<'_>, mut normalizer: Option<&mut Normalizer>) -> Result<()> {
        if self.resets_next_step {
            self.blank_resets();
        }
        if let Some(normalizer) = normalizer.as_deref() {
            // Rewards are checked first, so that an error leaves all statistics unchanged.
            normalizer.check_rewards(&self.step_rewards)?;
        }
        if self.resets_next_step {
            self.reset_rows += self.ended.iter().filter(|ended| **ended).count();
            self.record_ended();
        }
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let cut = |i: &usize| self.step_truncated[*i] && !self.step_terminated[*i];
        if let Some(normalizer) = normalizer.as_deref_mut() {
            if normalizer.options().obs {
                let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
                if self.resets_next_step && self.ended.contains(&true) {
                    // In every autoreset mode, the last observation of an episode is not part of
                    // the statistics.
                    for (row, _) in next_obs.chunks_exact(d).zip(&self.ended).filter(|(_, ended)| !**ended) {
                        normalizer.update_obs(row)?;
                    }
                } else {
                    normalizer.update_obs(next_obs)?;
                }
                normalizer.normalize_obs(next_obs)?;
            }
            let (terminated, truncated) = (&self.step_terminated, &self.step_truncated);
            let valid = self.resets_next_step.then_some(&self.step_valid[..]);
            normalizer.step_rewards_where(valid, &mut self.step_rewards, terminated, truncated)?;
        }
        let normalizer = normalizer.filter(|normalizer| normalizer.options().obs);
        for i in (0..n).filter(cut) {
            self.final_index.push(t * n + i);
            if self.resets_next_step {
                self.final_obs.push(self.obs.data().slice(((t + 1) * n + i) * d, d));
                continue;
            }
            self.final_obs.push(finals.slice(i * d, d));
            if let Some(normalizer) = &normalizer {
                let from = self.final_obs.rows() * d - d;
                normalizer.normalize_obs(&mut f32s_mut(&mut self.final_obs)[from..])?;
            }
        }
        for (stored, reward) in f32s_mut(&mut self.rewards)[t * n..].iter_mut().zip(&self.step_rewards) {
            *stored = *reward as f32;
        }
        write_flags(&mut self.terminated, t * n, &self.step_terminated);
        write_flags(&mut self.truncated, t * n, &self.step_truncated);
        if self.resets_next_step {
            write_flags(&mut self.valid, t * n, &self.step_valid);
        }
        self.next_step += 1;
        Ok(())
    }
}

/// Checks that the results of step `t` are finite and include the final observations of truncated
/// episodes.
fn check_transition(
    t: usize,
    transition: Transition<'_>,
    resets_next_step: bool,
    normalizer: Option<&Normalizer>,
) -> Result<()> {
    let Transition { next_obs, rewards, terminated, truncated, final_obs } = transition;
    let d = next_obs.len() / rewards.len();
    check_obs("next_obs", next_obs, d, 0, Some(t))?;
    check_rewards(rewards, normalizer.is_some_and(|normalizer| normalizer.options().reward), t)?;
    if resets_next_step {
        return Ok(());
    }
    let mut cut = (0..rewards.len()).filter(|i| truncated[*i] && !terminated[*i]).peekable();
    if cut.peek().is_some() {
        check_len("final_obs", final_obs.len(), next_obs.len())?;
    }
    cut.try_for_each(|i| check_obs("final_obs", final_obs.slice(i * d, d), d, i, Some(t)))
}

/// Returns the actions of `rows` rows, from row `from` on, as [`ActionsMut::into_env_actions`]
/// converts them.
///
/// The converted actions are written to `clipped` or `shifted`. The stored actions stay unchanged.
fn env_actions<'a>(
    actions: &'a Field,
    from: usize,
    rows: usize,
    space: &Space,
    clipped: &'a mut [f32],
    shifted: &'a mut [i64],
) -> Actions<'a> {
    let row = from * actions.width()..(from + rows) * actions.width();
    match (actions.data(), space) {
        (FieldData::F32(data), Space::Box { .. }) => {
            clipped.copy_from_slice(&data[row]);
            ActionsMut::Continuous(clipped).into_env_actions(space)
        }
        (FieldData::I64(data), Space::Discrete { start, .. }) if *start != 0 => {
            shifted.copy_from_slice(&data[row]);
            ActionsMut::Discrete(shifted).into_env_actions(space)
        }
        (FieldData::I64(data), _) => Actions::Discrete(&data[row]),
        _ => Actions::Continuous(&[]),
    }
}

pub(super) fn f32s(field: &Field) -> &[f32] {
    let FieldData::F32(data) = field.data() else { return &[] };
    data
}

pub(super) fn f32s_mut(field: &mut Field) -> &mut [f32] {
    let FieldMut::F32(data) = field.data_mut() else { return &mut [] };
    data
}

pub(super) fn flags_mut(field: &mut Field) -> &mut [u8] {
    let FieldMut::Bool(data) = field.data_mut() else { return &mut [] };
    data
}

/// Writes flags into a Bool field from row `from` on, one byte per flag.
fn write_flags(field: &mut Field, from: usize, flags: &[bool]) {
    flags_mut(field)[from..from + flags.len()].copy_from_slice(bytemuck::cast_slice(flags));
}

/// Copies the flags of a Bool field into `flags`. Every byte except 0 is true.
///
/// Other programs share the memory of the field and may write bytes other than 0 and 1.
fn read_flags(field: &Field, flags: &mut [bool]) {
    let FieldData::Bool(bytes) = field.data() else { return };
    for (flag, byte) in flags.iter_mut().zip(bytes) {
        *flag = *byte != 0;
    }
}

/// Floating-point types with a check of magnitudes.
trait Bounded: Copy + Display + PartialOrd {
    /// The largest finite number.
    const LARGEST: Self;

    /// Returns true if the magnitude of every number is at most `limit`. A NaN gives false.
    fn all_within(numbers: &[Self], limit: Self) -> bool;

    /// Returns true if the magnitude of this number is at most `limit`.
    fn is_within(self, limit: Self) -> bool;
}

macro_rules! bounded {
    ($float:ident, $bits:ident) => {
        impl Bounded for $float {
            const LARGEST: Self = Self::MAX;

            // Adding `margin` to the bits of a magnitude sets the sign bit if it exceeds `limit`.
            // Without branches, the loop vectorises.
            #[inline(always)]
            fn all_within(numbers: &[Self], limit: Self) -> bool {
                const POSITIVE: $bits = $bits::MAX >> 1;
                let margin = POSITIVE - limit.to_bits();
                numbers.iter().fold(0, |over, x| over | ((x.to_bits() & POSITIVE) + margin)) <= POSITIVE
            }

            fn is_within(self, limit: Self) -> bool {
                self.abs() <= limit
            }
        }
    };
}
bounded!(f32, u32);
bounded!(f64, u64);

multiversion! {
    fn many_within<T: Bounded>(numbers: &[T], limit: T) -> bool {
        T::all_within(numbers, limit)
    }
}

/// Checks that all numbers are finite.
///
/// Row `i` has `width` numbers and belongs to environment `first + i`.
///
/// `t` is the step of the rows, or `None` if the rows belong to no step.
fn check_rows<T: Bounded>(
    argument: &'static str,
    rows: &[T],
    width: usize,
    first: usize,
    t: Option<usize>,
) -> Result<()> {
    let Some((env, got)) = find_outside(rows, T::LARGEST, width) else { return Ok(()) };
    let error = Error::not_finite(argument, "finite numbers", got.to_string(), "check the policy and the environment");
    let error = error.at_env(first + env);
    Err(if let Some(t) = t { error.at_row(t) } else { error })
}

/// Checks that observations are finite as [`check_rows`] does. Integers are always finite.
fn check_obs(argument: &'static str, rows: FieldData<'_>, width: usize, first: usize, t: Option<usize>) -> Result<()> {
    match rows {
        FieldData::F32(rows) => check_rows(argument, rows, width, first, t),
        FieldData::F64(rows) => check_rows(argument, rows, width, first, t),
        FieldData::I64(_) | FieldData::U8(_) | FieldData::Bool(_) => Ok(()),
    }
}

/// Returns the row index and the value of the first number that is not finite.
///
/// Rows have `width` numbers.
pub(crate) fn first_not_finite(rows: FieldData<'_>, width: usize) -> Option<(usize, f64)> {
    match rows {
        FieldData::F32(rows) => find_outside(rows, f32::MAX, width).map(|(row, x)| (row, x.into())),
        FieldData::F64(rows) => find_outside(rows, f64::MAX, width),
        FieldData::I64(_) | FieldData::U8(_) | FieldData::Bool(_) => None,
    }
}

/// Checks that the rewards of step `t` are finite in f32, the dtype in which they are stored.
///
/// Rewards that a normalizer rescales (`rescaled`) need only be finite in f64.
fn check_rewards(rewards: &[f64], rescaled: bool, t: usize) -> Result<()> {
    let (largest, expected) =
        if rescaled { (f64::MAX, "finite numbers") } else { (f64::from(f32::MAX), "numbers finite in f32") };
    let Some((env, got)) = find_outside(rewards, largest, 1) else { return Ok(()) };
    let error = Error::not_finite("rewards", expected, got.to_string(), "check the reward of the environment");
    Err(error.at_env(env).at_row(t))
}

/// Checks that the policy outputs of step `t` are finite.
pub(super) fn check_finite_policy_step(policy_step: PolicyStep<'_>, t: usize) -> Result<()> {
    if let Actions::Continuous(actions) = policy_step.actions {
        let width = actions.len() / policy_step.values.len().max(1);
        if let Some((env, got)) = find_outside(actions, f32::MAX, width) {
            let error = Error::not_finite("actions", "finite numbers", got.to_string(), "keep actions finite");
            return Err(error.at_env(env).at_row(t));
        }
    }
    check_rows("log_probs", policy_step.log_probs, 1, 0, Some(t))?;
    check_rows("values", policy_step.values, 1, 0, Some(t))
}

/// Returns the row index and the value of the first number that is NaN or exceeds `limit` in
/// magnitude.
#[inline]
fn find_outside<T: Bounded>(rows: &[T], limit: T, width: usize) -> Option<(usize, T)> {
    let all = if rows.len() <= INLINE_ELEMENTS { T::all_within(rows, limit) } else { many_within(rows, limit) };
    if all { None } else { first_outside(rows, limit, width) }
}

#[cold]
fn first_outside<T: Bounded>(rows: &[T], limit: T, width: usize) -> Option<(usize, T)> {
    let index = rows.iter().position(|x| !x.is_within(limit))?;
    Some((index / width.max(1), rows[index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_outside_is_found_on_every_instruction_set() {
        for len in [1, 7, 64, 65, 300] {
            for (limit, inside, bad) in [
                (f64::MAX, f64::MAX, [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -f64::NAN]),
                (f64::from(f32::MAX), f64::from(f32::MAX), [1e39, -1e39, f64::NAN, f64::INFINITY]),
            ] {
                let good: Vec<_> = (0..len).map(|i| if i % 2 == 0 { inside } else { -inside }).collect();
                for found in crate::simd::tests::on_each_isa(|| find_outside(&good, limit, 1).is_some()) {
                    assert!(!found);
                }
                for bad in bad {
                    let mut numbers = good.clone();
                    numbers[len - 1] = bad;
                    for found in crate::simd::tests::on_each_isa(|| find_outside(&numbers, limit, 2)) {
                        assert_eq!(found.map(|(env, x)| (env, x.to_bits())), Some(((len - 1) / 2, bad.to_bits())));
                    }
                }
            }
        }
        assert!(find_outside(&[f32::MAX, f32::MIN, -0.0], f32::MAX, 1).is_none());
        assert!(find_outside(&[0.0, f32::NAN], f32::MAX, 1).is_some_and(|(env, _)| env == 1));
    }
}
