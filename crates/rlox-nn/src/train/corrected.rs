//! A rollout's targets by the policy as it is, for one that an older policy collected.

use rlox_core::{Ends, Field, FieldData, Result, RolloutBuffer, Vtrace};

use super::Minibatches;
use super::minibatches::numbers;
use crate::room::{make_room, resize};
use crate::{ActorCritic, Minibatch, Trajectories, VtraceTargets};

/// Memory for them, to be used again.
#[derive(Debug, Default)]
pub(super) struct Corrected {
    vtrace: VtraceTargets,
    next_inputs: Vec<f32>,
    final_inputs: Vec<f32>,
    cut_values: Vec<f32>,
    final_values: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    log_rhos: Vec<f32>,
    /// Of the transitions.
    pub(super) values: Vec<f32>,
    pub(super) advantages: Vec<f32>,
    pub(super) returns: Vec<f32>,
}

/// How far the policy is from the one that acted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Distance {
    /// The mean of `(rho - 1) - ln rho` (Schulman 2020), which estimates the divergence of the one that acted from it.
    pub(super) kl: f32,
    /// The share of ratios above the bar.
    pub(super) clipped: f32,
}

impl Corrected {
    /// Gathers the transitions of a finished rollout, and computes their values, V-trace advantages and returns.
    ///
    /// # Errors
    /// Those of [`Minibatches::gather`], of the policy and of [`VtraceTargets::minibatch`].
    pub(super) fn compute(
        &mut self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        settings: Vtrace,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Distance> {
        minibatches.all(buffer)?;
        let (rows, whole) = (buffer.n_steps() * buffer.num_envs(), buffer.transitions());
        // Rows that only reset have their place among the others, and are left out afterwards.
        if whole < rows {
            minibatches.index.clear();
            make_room("batch_size", &mut minibatches.index, rows)?;
            minibatches.index.extend(0..rows);
        }
        minibatches.gather(buffer, 0..rows, stop)?;
        self.follow(policy, buffer, minibatches)?;
        self.correct(policy, buffer, &minibatches.minibatch(), settings)?;
        if whole < rows {
            minibatches.all(buffer)?;
            for kept in [&mut self.log_rhos, &mut self.values, &mut self.advantages, &mut self.returns] {
                for (to, row) in minibatches.index.iter().enumerate() {
                    kept[to] = kept[*row];
                }
                kept.truncate(whole);
            }
            minibatches.gather(buffer, 0..whole, stop)?;
        }
        Ok(distance(&self.log_rhos, settings.rho_bar))
    }

    /// V-trace over all rows.
    fn correct(
        &mut self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        all: &Minibatch<'_>,
        settings: Vtrace,
    ) -> Result<()> {
        let Self { vtrace, next_inputs, final_values, terminated, truncated, .. } = self;
        let cut = !buffer.final_index().is_empty();
        let (truncated, final_values) = (cut.then_some(&truncated[..]), cut.then_some(&final_values[..]));
        let steps = Trajectories {
            obs: all.obs,
            next_obs: next_inputs,
            actions: all.actions,
            masks: all.masks,
            log_probs: all.log_probs,
            rewards: numbers(buffer, "rewards"),
            ends: Ends { terminated, truncated, final_values },
            num_envs: buffer.num_envs(),
        };
        let targets = vtrace.minibatch(policy, &steps, settings)?;
        for (kept, all) in [
            (&mut self.values, targets.values),
            (&mut self.advantages, targets.advantages),
            (&mut self.returns, targets.returns),
        ] {
            kept.clear();
            make_room("batch_size", kept, all.len())?;
            kept.extend_from_slice(all);
        }
        self.log_rhos.clear();
        make_room("batch_size", &mut self.log_rhos, self.values.len())?;
        self.log_rhos.extend_from_slice(vtrace.log_rhos());
        Ok(())
    }

    /// What follows the last steps, and those at which episodes were cut; and how all of them ended.
    fn follow(
        &mut self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &Minibatches,
    ) -> Result<()> {
        let (n, steps, cuts) = (buffer.num_envs(), buffer.n_steps(), buffer.final_index());
        if let Some(obs) = buffer.field("obs") {
            minibatches.encoding().encode(obs.data(), steps * n..(steps + 1) * n, &mut self.next_inputs)?;
        }
        minibatches.encoding().encode(buffer.final_obs(), 0..cuts.len(), &mut self.final_inputs)?;
        resize("batch_size", &mut self.cut_values, cuts.len(), 0.0)?;
        policy.value(&self.final_inputs, &mut self.cut_values)?;
        self.final_values.clear();
        resize("batch_size", &mut self.final_values, steps * n, 0.0)?;
        for (row, value) in cuts.iter().zip(&self.cut_values) {
            self.final_values[*row] = *value;
        }
        flags(buffer, "terminated", &mut self.terminated)?;
        flags(buffer, "truncated", &mut self.truncated)
    }
}

fn flags(buffer: &RolloutBuffer, name: &str, out: &mut Vec<bool>) -> Result<()> {
    out.clear();
    if let Some(FieldData::Bool(bytes)) = buffer.field(name).map(Field::data) {
        make_room("batch_size", out, bytes.len())?;
        out.extend(bytes.iter().map(|byte| *byte != 0));
    }
    Ok(())
}

fn distance(log_rhos: &[f32], bar: f64) -> Distance {
    let (mut kl, mut above, mut count) = (0.0, 0.0, 0.0);
    for log_rho in log_rhos.iter().copied().map(f64::from) {
        let rho = log_rho.exp();
        kl += rho - 1.0 - log_rho;
        above += f64::from(u8::from(rho > bar));
        count += 1.0;
    }
    Distance { kl: (kl / count) as f32, clipped: (above / count) as f32 }
}
