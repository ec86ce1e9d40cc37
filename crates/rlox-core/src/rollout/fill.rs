//! How a rollout is filled, step by step, and finished.

use super::{PolicySaid, RolloutBuffer, Transition};
use crate::{
    Actions, AutoresetMode, Ends, Error, Field, FieldData, FieldMut, Normalizer, ResetOptions, Result, Seeds, Space,
    StepOut, VectorEnv, check_len, compute_gae_time_major,
};

pub(super) fn f32s(field: &Field) -> &[f32] {
    let FieldData::F32(data) = field.data() else { return &[] };
    data
}

pub(super) fn f32s_mut(field: &mut Field) -> &mut [f32] {
    let FieldMut::F32(data) = field.data_mut() else { return &mut [] };
    data
}

fn bools(field: &Field) -> &[bool] {
    let FieldData::Bool(data) = field.data() else { return &[] };
    data
}

pub(super) fn bools_mut(field: &mut Field) -> &mut [bool] {
    let FieldMut::Bool(data) = field.data_mut() else { return &mut [] };
    data
}

impl RolloutBuffer {
    /// Stores row `t` of what a policy said and steps the environments with its actions.
    ///
    /// Actions of a Box space are stored as they are and clipped to the bounds on their way to the environment;
    /// Discrete actions are counted from 0, and the space's `start` is added on the way.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step, [`Error::Shape`] for wrong lengths, [`Error::Action`] for actions
    /// that the environment refuses. The environments have not been stepped then.
    pub fn step(
        &mut self,
        t: usize,
        env: &mut dyn VectorEnv,
        said: PolicySaid<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        self.store(t, said)?;
        self.advance(env, normalizer)
    }

    /// Stores row `t` of what a policy said and of what environments elsewhere answered, all of it raw.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step, [`Error::Shape`] for wrong lengths. The row is not taken then.
    pub fn record(
        &mut self,
        t: usize,
        said: PolicySaid<'_>,
        answered: Transition<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        let (n, d) = (self.num_envs, self.obs.width());
        self.check_f32()?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("next_obs", answered.next_obs.len(), n * d)?;
        check_len("rewards", answered.rewards.len(), n)?;
        check_finite("next_obs", answered.next_obs, d)?;
        check_finite("rewards", answered.rewards, 1)?;
        check_len("terminated", answered.terminated.len(), n)?;
        check_len("truncated", answered.truncated.len(), n)?;
        let cut = |i: usize| answered.truncated[i] && !answered.terminated[i] && !self.resets_next_step;
        if (0..n).any(cut) || !answered.final_obs.is_empty() {
            check_len("final_obs", answered.final_obs.len(), n * d)?;
        }
        self.store(t, said)?;
        let cut = |i: &usize| answered.truncated[*i] && !answered.terminated[*i] && !answered.final_obs.is_empty();
        for i in (0..n).filter(cut) {
            self.step_final_obs[i * d..][..d].copy_from_slice(&answered.final_obs[i * d..][..d]);
        }
        f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d].copy_from_slice(answered.next_obs);
        self.step_rewards.copy_from_slice(answered.rewards);
        bools_mut(&mut self.terminated)[t * n..][..n].copy_from_slice(answered.terminated);
        bools_mut(&mut self.truncated)[t * n..][..n].copy_from_slice(answered.truncated);
        self.commit(normalizer)
    }

    /// Writes what the policy said into row `t`, which must be the next.
    fn store(&mut self, t: usize, said: PolicySaid<'_>) -> Result<()> {
        self.check_turn(t)?;
        let n = self.num_envs;
        check_len("log_probs", said.log_probs.len(), n)?;
        check_len("values", said.values.len(), n)?;
        let width = n * self.actions.width();
        match (self.actions.data_mut(), said.actions) {
            (FieldMut::I64(stored), Actions::Discrete(given)) => {
                check_len("actions", given.len(), width)?;
                stored[t * width..][..width].copy_from_slice(given);
            }
            (FieldMut::F32(stored), Actions::Continuous(given)) => {
                check_len("actions", given.len(), width)?;
                stored[t * width..][..width].copy_from_slice(given);
            }
            (stored, _) => {
                let expected = if matches!(stored, FieldMut::I64(_)) { "integer actions" } else { "f32 actions" };
                return Err(Error::space("actions", expected, "the other kind", "pass the buffer's action dtype"));
            }
        }
        f32s_mut(&mut self.log_probs)[t * n..][..n].copy_from_slice(said.log_probs);
        f32s_mut(&mut self.values)[t * n..][..n].copy_from_slice(said.values);
        Ok(())
    }

    fn check_turn(&self, t: usize) -> Result<()> {
        if self.begun && t == self.next_step && t < self.n_steps {
            return Ok(());
        }
        let expected = match (self.begun, self.next_step) {
            (false, _) => "a rollout that was begun".into(),
            (true, next) if next < self.n_steps => format!("{next}, the next step"),
            _ => "no further step, the rollout is full".into(),
        };
        Err(Error::config("t", expected, t.to_string(), "call begin before a rollout and step with t = 0, 1, ..."))
    }

    /// Steps the environments with the actions stored in the next row and takes in what comes back.
    pub(super) fn advance(&mut self, env: &mut dyn VectorEnv, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let actions = sent(&self.actions, t * n, n, &env.spec().action, &mut self.sent, &mut self.sent_discrete)?;
        let out = StepOut {
            obs: &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d],
            reward: &mut self.step_rewards,
            terminated: &mut bools_mut(&mut self.terminated)[t * n..][..n],
            truncated: &mut bools_mut(&mut self.truncated)[t * n..][..n],
            final_obs: &mut self.step_final_obs,
        };
        env.step(actions, out)?;
        if env.autoreset_mode() == AutoresetMode::Disabled {
            self.restart(env)?;
        }
        self.commit(normalizer)
    }

    /// Keeps the last observations of the episodes that ended in this step, and starts the next ones.
    fn restart(&mut self, env: &mut dyn VectorEnv) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let flags = bools(&self.terminated)[t * n..].iter().zip(&bools(&self.truncated)[t * n..]);
        for (ended, (terminated, truncated)) in self.ended.iter_mut().zip(flags) {
            *ended = *terminated || *truncated;
        }
        if !self.ended.contains(&true) {
            return Ok(());
        }
        let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
        self.step_final_obs.copy_from_slice(next_obs);
        env.reset(Seeds::Keep, Some(&self.ended), &ResetOptions::default(), next_obs)
    }

    /// Where environments reset in the next step: marks the rows in which they did.
    fn mark_resets(&mut self) {
        let (t, n) = (self.next_step, self.num_envs);
        for i in (0..n).filter(|i| self.ended[*i]) {
            bools_mut(&mut self.valid)[t * n + i] = false;
            bools_mut(&mut self.terminated)[t * n + i] = false;
            bools_mut(&mut self.truncated)[t * n + i] = false;
            self.step_rewards[i] = 0.0;
            self.reset_rows += 1;
        }
        let flags = bools(&self.terminated)[t * n..].iter().zip(&bools(&self.truncated)[t * n..]);
        for (ended, (terminated, truncated)) in self.ended.iter_mut().zip(flags) {
            *ended = *terminated || *truncated;
        }
    }

    /// Normalises the row just written, keeps the final observations of truncated episodes, and goes on.
    fn commit(&mut self, normalizer: Option<&mut Normalizer>) -> Result<()> {
        if self.resets_next_step {
            self.mark_resets();
        }
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let terminated = &bools(&self.terminated)[t * n..][..n];
        let truncated = &bools(&self.truncated)[t * n..][..n];
        let cut = |i: &usize| truncated[*i] && !terminated[*i];
        let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
        if let Some(normalizer) = normalizer {
            // The rewards are looked at first, so that bad ones leave all statistics as they were.
            normalizer.check_rewards(&self.step_rewards)?;
            if self.resets_next_step && self.ended.contains(&true) {
                // Last observations are not acted on: in no mode do they count.
                for (row, _) in next_obs.chunks_exact(d).zip(&self.ended).filter(|(_, ended)| !**ended) {
                    normalizer.update_obs(row)?;
                }
            } else {
                normalizer.update_obs(next_obs)?;
            }
            normalizer.normalize_obs(next_obs)?;
            for i in (0..n).filter(|i| cut(i) && !self.resets_next_step) {
                normalizer.normalize_obs(&mut self.step_final_obs[i * d..][..d])?;
            }
            let valid = self.resets_next_step.then_some(&bools(&self.valid)[t * n..][..n]);
            normalizer.step_rewards_where(valid, &mut self.step_rewards, terminated, truncated)?;
        }
        let finals = if self.resets_next_step { &*next_obs } else { &self.step_final_obs };
        for i in (0..n).filter(cut) {
            self.final_index.push(t * n + i);
            self.final_obs.extend_from_slice(&finals[i * d..][..d]);
        }
        for (stored, reward) in f32s_mut(&mut self.rewards)[t * n..].iter_mut().zip(&self.step_rewards) {
            *stored = *reward as f32;
        }
        self.next_step += 1;
        Ok(())
    }

    /// Computes `advantages` and `returns` of a full rollout by DESIGN's one formula
    /// ([`crate::compute_gae`]).
    ///
    /// `last_values`, `[N]`, are the values of the last observations; `final_values`, `[K]`, those of
    /// [`RolloutBuffer::final_obs`]. Rows that are no transitions get the advantage 0.
    ///
    /// # Errors
    /// [`Error::Shape`] for wrong lengths, [`Error::Config`] if the rollout is not full or a factor is outside [0, 1].
    pub fn finish(&mut self, last_values: &[f32], final_values: &[f32], gamma: f64, gae_lambda: f64) -> Result<()> {
        if self.next_step < self.n_steps {
            let got = format!("{} of {} steps", self.next_step, self.n_steps);
            return Err(Error::config("finish", "a full rollout", got, "step until the rollout is full"));
        }
        check_len("final_values", final_values.len(), self.final_index.len())?;
        let scattered = f32s_mut(&mut self.final_values);
        scattered.fill(0.0);
        for (row, value) in self.final_index.iter().zip(final_values) {
            scattered[*row] = *value;
        }
        let ends = Ends {
            terminated: bools(&self.terminated),
            truncated: Some(bools(&self.truncated)),
            final_values: Some(f32s(&self.final_values)),
        };
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
            let (values, advantages, returns) =
                (f32s(&self.values), f32s_mut(&mut self.advantages), f32s_mut(&mut self.returns));
            for (row, _) in bools(&self.valid).iter().enumerate().filter(|(_, valid)| !**valid) {
                (advantages[row], returns[row]) = (0.0, values[row]);
            }
        }
        Ok(())
    }
}

/// The actions as the environment wants them: Box clipped to its bounds, Discrete counted from `start`.
fn sent<'a>(
    actions: &'a Field,
    from: usize,
    rows: usize,
    space: &Space,
    clipped: &'a mut [f32],
    shifted: &'a mut [i64],
) -> Result<Actions<'a>> {
    let width = actions.width();
    match (actions.data(), space) {
        (FieldData::F32(data), Space::Box { low, high, .. }) => {
            let data = &data[from * width..][..rows * width];
            if let Some(at) = data.iter().position(|x| !x.is_finite()) {
                let got = format!("{} for environment {}", data[at], at / width);
                return Err(Error::action("actions", "finite numbers", got, "keep actions finite"));
            }
            for (row, out) in data.chunks_exact(width).zip(clipped.chunks_exact_mut(width)) {
                for ((x, out), (low, high)) in row.iter().zip(out).zip(low.iter().zip(high)) {
                    *out = x.clamp(*low, *high);
                }
            }
            Ok(Actions::Continuous(clipped))
        }
        (FieldData::I64(data), Space::Discrete { start, .. }) if *start != 0 => {
            for (out, action) in shifted.iter_mut().zip(&data[from * width..]) {
                *out = action.wrapping_add(*start);
            }
            Ok(Actions::Discrete(shifted))
        }
        (FieldData::I64(data), _) => Ok(Actions::Discrete(&data[from * width..][..rows * width])),
        _ => Ok(Actions::Continuous(&[])),
    }
}

pub(super) fn check_finite<T: Copy + Into<f64>>(argument: &'static str, numbers: &[T], width: usize) -> Result<()> {
    let Some(at) = numbers.iter().position(|x| !(*x).into().is_finite()) else { return Ok(()) };
    let got = format!("{} from environment {}", numbers[at].into(), at / width);
    Err(Error::space(argument, "finite numbers", got, "find out where it comes from"))
}
