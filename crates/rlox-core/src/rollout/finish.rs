//! How a rollout is finished: its advantages and returns.

use super::fill::{f32s, f32s_mut};
use super::finite::check_rows;
use super::{RolloutBuffer, Stage};
use crate::advantage::check_discount;
use crate::{Ends, Error, Field, FieldData, Result, check_len, compute_gae_time_major};

impl RolloutBuffer {
    /// Computes `advantages` and `returns` of a full rollout by generalized advantage estimation
    /// ([`crate::compute_gae`]).
    ///
    /// `last_values`, `[N]`, are the values of the last observations; `final_values`, `[K]`, those of
    /// [`RolloutBuffer::final_obs`]. Rows that are no transitions get the advantage 0.
    ///
    /// # Errors
    /// [`Error::Shape`] for wrong lengths, [`Error::Config`] if the rollout is not full or a factor is outside [0, 1],
    /// [`Error::Space`] for values that are not finite.
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
        self.stage = Stage::Begun;
        let scattered = f32s_mut(&mut self.final_values);
        scattered.fill(0.0);
        for (row, value) in self.final_index.iter().zip(final_values) {
            scattered[*row] = *value;
        }
        let (terminated, truncated) = self.flags.split_at_mut(self.n_steps * self.num_envs);
        read_flags(&self.terminated, terminated);
        read_flags(&self.truncated, truncated);
        // Where nothing was cut, nothing is read of what followed.
        let cut = truncated.contains(&true);
        let final_values = cut.then(|| f32s(&self.final_values));
        let ends = Ends { terminated, truncated: cut.then_some(&*truncated), final_values };
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
        self.stage = Stage::Finished;
        Ok(())
    }
}

/// Copies a field's flags: its bytes may be any, as other programs may write to them.
fn read_flags(field: &Field, flags: &mut [bool]) {
    let FieldData::Bool(bytes) = field.data() else { return };
    for (flag, byte) in flags.iter_mut().zip(bytes) {
        *flag = *byte != 0;
    }
}
