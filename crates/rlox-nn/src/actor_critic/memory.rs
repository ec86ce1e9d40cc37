//! Memory of a batch, and what is computed in it.

use rlox_core::Result;

use super::{ActorCriticLoss, ActorCriticStats, Minibatch, PolicyLoss};
use crate::losses::{clipped_policy_loss, policy_gradient_loss, value_loss};
use crate::room::resize;
use crate::{Distribution, Given};

/// Memory of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// `[policy | value]` rows of a shared trunk.
    pub(super) joint: Vec<f32>,
    pub(super) policy: PolicyMemory,
    pub(super) value: ValueMemory,
    /// Whether it holds what an evaluation said, to go back from.
    pub(super) evaluated: bool,
    /// Whether two threads have computed gradients since the last step.
    pub(super) apart: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PolicyMemory {
    pub(super) outputs: Vec<f32>,
    pub(super) hidden: Vec<f32>,
    pub(super) log_probs: Vec<f32>,
    pub(super) entropies: Vec<f32>,
    pub(super) d_log_probs: Vec<f32>,
    pub(super) d_outputs: Vec<f32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ValueMemory {
    pub(super) values: Vec<f32>,
    pub(super) d_values: Vec<f32>,
}

impl Memory {
    /// Makes every slice as long as a minibatch of `rows` needs, and no longer.
    pub(super) fn make_room(&mut self, rows: usize, outputs: usize, joint: usize, hidden: usize) -> Result<()> {
        resize("obs", &mut self.joint, rows * joint, 0.0)?;
        let PolicyMemory { outputs: policy, hidden: last, log_probs, entropies, d_log_probs, d_outputs } =
            &mut self.policy;
        resize("obs", last, rows * hidden, 0.0)?;
        for vector in [policy, d_outputs] {
            resize("obs", vector, rows * outputs, 0.0)?;
        }
        let ValueMemory { values, d_values } = &mut self.value;
        for vector in [log_probs, entropies, d_log_probs, values, d_values] {
            resize("obs", vector, rows, 0.0)?;
        }
        Ok(())
    }
}

impl PolicyMemory {
    /// The policy's part of the loss, and the gradient of it times `share`; that of what is learned beside the network
    /// waits for [`Distribution::add_gradients`].
    pub(super) fn learn(
        &mut self,
        distribution: &mut Distribution,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        share: f32,
    ) -> Result<ActorCriticStats> {
        let Self { outputs, hidden, log_probs, entropies, d_log_probs, d_outputs } = self;
        let given = Given { outputs, hidden, masks: batch.masks };
        distribution.evaluate(given, batch.actions, log_probs, entropies)?;
        let mut said = ActorCriticStats::default();
        match loss.policy {
            PolicyLoss::Clipped { clip_coef } => {
                let clipped =
                    clipped_policy_loss(log_probs, batch.log_probs, batch.advantages, clip_coef, d_log_probs)?;
                said.policy_loss = clipped.loss;
                (said.approx_kl, said.clip_fraction) = (clipped.approx_kl, clipped.clip_fraction);
            }
            PolicyLoss::Gradient => {
                said.policy_loss = policy_gradient_loss(log_probs, batch.advantages, d_log_probs)?;
            }
        }
        let rows = entropies.len();
        said.entropy_loss = -(entropies.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64) as f32;
        for d in d_log_probs.iter_mut() {
            *d *= share;
        }
        let d_entropy = -loss.ent_coef * share / rows as f32;
        distribution.differentiate(given, batch.actions, d_log_probs, d_entropy, d_outputs)?;
        Ok(said)
    }
}

impl ValueMemory {
    /// The value loss, and the gradient of it times `share`.
    pub(super) fn learn(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss, share: f32) -> Result<f32> {
        let clip = loss.clip_coef_vf.map(|most| (batch.values, most));
        value_loss(&self.values, batch.returns, clip, loss.vf_coef * share, &mut self.d_values)
    }
}

/// Policy rows and values as `[policy | value]` rows.
pub(super) fn merge(joint: &mut [f32], width: usize, outputs: &[f32], values: &[f32]) {
    for (row, (policy, value)) in joint.chunks_exact_mut(width + 1).zip(outputs.chunks_exact(width).zip(values)) {
        row[..width].copy_from_slice(policy);
        row[width] = *value;
    }
}

/// The policy rows of `[policy | value]` rows.
pub(super) fn policies_of(joint: &[f32], width: usize, outputs: &mut [f32]) {
    for (row, out) in joint.chunks_exact(width + 1).zip(outputs.chunks_exact_mut(width)) {
        out.copy_from_slice(&row[..width]);
    }
}

/// The values of `[policy | value]` rows.
pub(super) fn values_of(joint: &[f32], width: usize, values: &mut [f32]) {
    values.iter_mut().zip(joint.chunks_exact(width + 1)).for_each(|(value, row)| *value = row[width]);
}
