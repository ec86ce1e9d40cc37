//! How a rollout is filled, step by step.

use super::finite::{check_obs, check_rewards, check_said};
use super::{PolicySaid, RolloutBuffer, Stage, Transition};
use crate::{
    Actions, ActionsMut, AutoresetMode, Error, Field, FieldData, FieldMut, Normalizer, ResetOptions, Result, Seeds,
    Space, StepOut, VectorEnv, check_len, memory,
};

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

/// Writes flags into a field, a byte each.
fn put_flags(field: &mut Field, from: usize, flags: &[bool]) {
    flags_mut(field)[from..from + flags.len()].copy_from_slice(bytemuck::cast_slice(flags));
}

impl RolloutBuffer {
    /// Stores row `t` of what a policy said and steps the environments with its actions.
    ///
    /// Actions of a Box space are stored as they are and clipped to the bounds on their way to the environment;
    /// Discrete actions are counted from 0, and the space's `start` is added on the way.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step, [`Error::Shape`] for wrong lengths, [`Error::Action`] for actions
    /// that the environment refuses, [`Error::Space`] for other numbers that are not finite, [`Error::Memory`] if there is
    /// no room for final observations. The environments have not been stepped then, unless they are what gave such a
    /// number; the row is not taken.
    pub fn step(
        &mut self,
        t: usize,
        env: &mut dyn VectorEnv,
        said: PolicySaid<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        self.check_said(t, said)?;
        self.store(t, said);
        self.advance(env, normalizer)
    }

    /// Stores row `t` of what a policy said and of what environments elsewhere answered, all of it raw.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step, [`Error::Shape`] for wrong lengths, [`Error::Space`] or
    /// [`Error::Action`] for numbers that are not finite, with their environment, [`Error::Memory`] if there is no room for
    /// the final observations. The row is not taken then.
    pub fn record(
        &mut self,
        t: usize,
        said: PolicySaid<'_>,
        answered: Transition<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        let (n, d) = (self.num_envs, self.obs.width());
        self.check_obs("next_obs", answered.next_obs)?;
        self.check_obs("final_obs", answered.final_obs)?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("next_obs", answered.next_obs.len(), n * d)?;
        check_len("rewards", answered.rewards.len(), n)?;
        check_len("terminated", answered.terminated.len(), n)?;
        check_len("truncated", answered.truncated.len(), n)?;
        if !answered.final_obs.is_empty() {
            check_len("final_obs", answered.final_obs.len(), n * d)?;
        }
        self.check_said(t, said)?;
        check_answer(t, answered, self.resets_next_step, normalizer.as_deref())?;
        self.make_room(answered.truncated.iter().filter(|truncated| **truncated).count())?;
        self.store(t, said);
        self.obs.put((t + 1) * n * d, answered.next_obs);
        self.step_rewards.copy_from_slice(answered.rewards);
        self.step_terminated.copy_from_slice(answered.terminated);
        self.step_truncated.copy_from_slice(answered.truncated);
        self.commit(answered.final_obs, normalizer)
    }

    /// Refuses what [`RolloutBuffer::record`] would refuse of a step before it is made: for environments elsewhere, which
    /// no error can take back.
    ///
    /// # Errors
    /// Those of `record` that do not depend on what environments answer.
    pub fn check_step(&self, t: usize, said: PolicySaid<'_>, normalizer: Option<&Normalizer>) -> Result<()> {
        self.check_normalizer(normalizer)?;
        self.check_said(t, said)
    }

    /// Refuses what row `t` cannot take.
    fn check_said(&self, t: usize, said: PolicySaid<'_>) -> Result<()> {
        self.check_turn(t)?;
        check_len("log_probs", said.log_probs.len(), self.num_envs)?;
        check_len("values", said.values.len(), self.num_envs)?;
        let width = self.num_envs * self.actions.width();
        match (self.actions.data(), said.actions) {
            (FieldData::I64(_), Actions::Discrete(given)) => check_len("actions", given.len(), width)?,
            (FieldData::F32(_), Actions::Continuous(given)) => check_len("actions", given.len(), width)?,
            (stored, _) => {
                let expected = if matches!(stored, FieldData::I64(_)) { "integer actions" } else { "f32 actions" };
                return Err(Error::space("actions", expected, "the other kind", "pass the buffer's action dtype"));
            }
        }
        check_said(said, t)
    }

    /// Writes what the policy said, which was checked, into row `t`.
    fn store(&mut self, t: usize, said: PolicySaid<'_>) {
        let (n, width) = (self.num_envs, self.num_envs * self.actions.width());
        match (self.actions.data_mut(), said.actions) {
            (FieldMut::I64(stored), Actions::Discrete(given)) => {
                stored[t * width..][..width].copy_from_slice(given);
            }
            (FieldMut::F32(stored), Actions::Continuous(given)) => {
                stored[t * width..][..width].copy_from_slice(given);
            }
            _ => {}
        }
        f32s_mut(&mut self.log_probs)[t * n..][..n].copy_from_slice(said.log_probs);
        f32s_mut(&mut self.values)[t * n..][..n].copy_from_slice(said.values);
    }

    fn check_turn(&self, t: usize) -> Result<()> {
        let begun = self.stage != Stage::Empty;
        if begun && t == self.next_step && t < self.n_steps {
            return Ok(());
        }
        let expected = match (begun, self.next_step) {
            (false, _) => "a rollout that was begun".into(),
            (true, next) if next < self.n_steps => format!("{next}, the next step"),
            _ => "no further step, the rollout is full".into(),
        };
        Err(Error::config("t", expected, t.to_string(), "call begin before a rollout and step with t = 0, 1, ..."))
    }

    /// Steps the environments with the actions stored in the next row and takes in what comes back.
    pub(super) fn advance(&mut self, env: &mut dyn VectorEnv, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        // As much as all of them may need, since a step cannot be taken back.
        self.make_room(n)?;
        let actions = sent(&self.actions, t * n, n, &env.spec().action, &mut self.sent, &mut self.sent_discrete);
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
        let answered = Transition {
            next_obs: self.obs.data().part((t + 1) * n * d, n * d),
            rewards: &self.step_rewards,
            terminated: &self.step_terminated,
            truncated: &self.step_truncated,
            final_obs: FieldData::F32(&self.step_final_obs),
        };
        check_answer(t, answered, self.resets_next_step, normalizer.as_deref())?;
        let finals = std::mem::take(&mut self.step_final_obs);
        let taken = self.commit(FieldData::F32(&finals), normalizer);
        self.step_final_obs = finals;
        taken
    }

    /// Makes room for the last observations of so many more episodes that are truncated.
    fn make_room(&mut self, episodes: usize) -> Result<()> {
        memory::grow("num_envs", &mut self.final_index, episodes)?;
        self.final_obs.reserve(episodes).map_err(|error| error.rename_argument("rows", "final_obs"))
    }

    /// Keeps the last observations of the episodes that ended in this step, and starts the next ones.
    fn restart(&mut self, env: &mut dyn VectorEnv) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        self.note_ends();
        if !self.ended.contains(&true) {
            return Ok(());
        }
        let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
        self.step_final_obs.copy_from_slice(next_obs);
        env.reset(Seeds::Keep, Some(&self.ended), &ResetOptions::default(), next_obs)
    }

    /// Notes whose episodes ended in this step.
    fn note_ends(&mut self) {
        let flags = self.step_terminated.iter().zip(&self.step_truncated);
        for (ended, (terminated, truncated)) in self.ended.iter_mut().zip(flags) {
            *ended = *terminated || *truncated;
        }
    }

    /// Where environments reset in the next step: blanks the rows in which they did.
    fn blank_resets(&mut self) {
        for (i, ended) in self.ended.iter().enumerate() {
            self.step_valid[i] = !ended;
            if *ended {
                (self.step_terminated[i], self.step_truncated[i], self.step_rewards[i]) = (false, false, 0.0);
            }
        }
    }

    /// Normalises the row just written, keeps the final observations of truncated episodes, which are the rows of
    /// `finals` unless environments reset in the next step, and goes on.
    fn commit(&mut self, finals: FieldData<'_>, mut normalizer: Option<&mut Normalizer>) -> Result<()> {
        if self.resets_next_step {
            self.blank_resets();
        }
        if let Some(normalizer) = normalizer.as_deref() {
            // The rewards are looked at first, so that bad ones leave everything as it was.
            normalizer.check_rewards(&self.step_rewards)?;
        }
        if self.resets_next_step {
            self.reset_rows += self.ended.iter().filter(|ended| **ended).count();
            self.note_ends();
        }
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let cut = |i: &usize| self.step_truncated[*i] && !self.step_terminated[*i];
        if let Some(normalizer) = normalizer.as_deref_mut() {
            if normalizer.options().obs {
                let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
                if self.resets_next_step && self.ended.contains(&true) {
                    // Last observations are not acted on: in no mode do they count.
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
                self.final_obs.push(self.obs.data().part(((t + 1) * n + i) * d, d));
                continue;
            }
            self.final_obs.push(finals.part(i * d, d));
            if let Some(normalizer) = &normalizer {
                let from = self.final_obs.rows() * d - d;
                normalizer.normalize_obs(&mut f32s_mut(&mut self.final_obs)[from..])?;
            }
        }
        for (stored, reward) in f32s_mut(&mut self.rewards)[t * n..].iter_mut().zip(&self.step_rewards) {
            *stored = *reward as f32;
        }
        put_flags(&mut self.terminated, t * n, &self.step_terminated);
        put_flags(&mut self.truncated, t * n, &self.step_truncated);
        if self.resets_next_step {
            put_flags(&mut self.valid, t * n, &self.step_valid);
        }
        self.next_step += 1;
        Ok(())
    }
}

/// Refuses an answer to step `t` with numbers that are not finite, or without final observations where it needs them.
fn check_answer(
    t: usize,
    answered: Transition<'_>,
    resets_next_step: bool,
    normalizer: Option<&Normalizer>,
) -> Result<()> {
    let Transition { next_obs, rewards, terminated, truncated, final_obs } = answered;
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
    cut.try_for_each(|i| check_obs("final_obs", final_obs.part(i * d, d), d, i, Some(t)))
}

/// The actions as the environment wants them, beside those that are stored; see [`ActionsMut::sent`].
fn sent<'a>(
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
            ActionsMut::Continuous(clipped).sent(space)
        }
        (FieldData::I64(data), Space::Discrete { start, .. }) if *start != 0 => {
            shifted.copy_from_slice(&data[row]);
            ActionsMut::Discrete(shifted).sent(space)
        }
        (FieldData::I64(data), _) => Actions::Discrete(&data[row]),
        _ => Actions::Continuous(&[]),
    }
}
