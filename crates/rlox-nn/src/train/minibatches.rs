//! Minibatches of a rollout's transitions, and V-trace targets for rollouts from older policies.

use std::ops::Range;

use rlox_core::{
    Actions, Error, Pcg64, Result, RolloutBuffer,
    advantage::{EpisodeEnds, VtraceConfig},
    field::{Field, FieldData},
    interrupt::InterruptCheck,
};

use super::Encoding;
use crate::alloc::{resize, try_reserve};
use crate::losses::explained_variance;
use crate::{ActorCritic, Minibatch, Trajectories, VtraceTargets};

/// Reusable buffers for the minibatches of rollouts.
#[derive(Debug)]
pub struct Minibatches {
    encoding: Encoding,
    /// Row numbers of the transitions in the order of the current epoch.
    pub(super) index: Vec<usize>,
    obs: Vec<f32>,
    discrete: Vec<i64>,
    continuous: Vec<f32>,
    masks: Vec<bool>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    pub(super) advantages: Vec<f32>,
    returns: Vec<f32>,
    /// Advantages and returns of V-trace, which replace those of the rollout for IMPALA.
    pub(super) corrected: Corrected,
}

impl Minibatches {
    /// Creates empty buffers for observations with this encoding.
    pub fn new(encoding: Encoding) -> Self {
        let [obs, continuous, log_probs, values, advantages, returns] = Default::default();
        let (index, discrete, masks, corrected) = Default::default();
        Self { encoding, index, obs, discrete, continuous, masks, log_probs, values, advantages, returns, corrected }
    }

    /// Returns the encoding, which converts observations to network inputs.
    pub(super) fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// Selects all transitions in the order of the rollout.
    ///
    /// # Errors
    /// [`Error::Config`] for a rollout that is unfinished or has no transitions.
    pub(super) fn select_all(&mut self, buffer: &RolloutBuffer) -> Result<()> {
        if !buffer.is_finished() || buffer.transitions() == 0 {
            let got = if buffer.is_finished() { "a rollout with only resets" } else { "an unfinished rollout" };
            return Err(Error::config("buffer", "a finished rollout with transitions", got, "collect a rollout first"));
        }
        self.index.clear();
        try_reserve("batch_size", &mut self.index, buffer.transitions())?;
        if let Some(FieldData::Bool(valid)) = buffer.field("valid").map(Field::data) {
            self.index.extend(valid.iter().enumerate().filter(|(_, valid)| **valid != 0).map(|(row, _)| row));
        }
        Ok(())
    }

    /// Shuffles the selected rows (Fisher-Yates). Returns `false` if `stop` ended the shuffle.
    pub(super) fn shuffle(&mut self, rng: &mut Pcg64, stop: &mut dyn FnMut() -> bool) -> bool {
        for i in (1..self.index.len()).rev() {
            if i.is_multiple_of(InterruptCheck::POLL_ELEMENTS) && stop() {
                return false;
            }
            let j = rng.integers(0, i as i64 + 1) as usize;
            self.index.swap(i, j);
        }
        true
    }

    /// Copies a minibatch: the data of the range `rows` of the selected rows.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `stop` returns `true`. [`Error::Shape`] for observations of the
    /// wrong size. [`Error::Memory`] if memory is insufficient. Errors of [`Encoding::encode`].
    pub(super) fn gather(
        &mut self,
        buffer: &RolloutBuffer,
        rows: Range<usize>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let index = &self.index[rows];
        if let Some(obs) = buffer.field("obs") {
            self.encoding.check(obs)?;
            let width = self.encoding.inputs();
            self.obs.clear();
            try_reserve("batch_size", &mut self.obs, index.len().saturating_mul(width))?;
            for rows in index.chunks((InterruptCheck::POLL_ELEMENTS / width.max(1)).max(1)) {
                if stop() {
                    return Err(Error::Interrupted);
                }
                self.encoding.append(obs.data(), rows.iter().copied(), &mut self.obs)?;
            }
        }
        for (name, out) in [
            ("log_probs", &mut self.log_probs),
            ("values", &mut self.values),
            ("advantages", &mut self.advantages),
            ("returns", &mut self.returns),
        ] {
            gather_rows(index, f32_field(buffer, name), 1, out)?;
        }
        // An earlier rollout may have had the other kind of actions.
        self.discrete.clear();
        self.continuous.clear();
        if let Some(field) = buffer.field("actions") {
            match field.data() {
                FieldData::F32(actions) => gather_rows(index, actions, field.width(), &mut self.continuous)?,
                FieldData::I64(actions) => gather_rows(index, actions, field.width(), &mut self.discrete)?,
                _ => {}
            }
        }
        self.masks.clear();
        if let Some(field) = buffer.field("action_masks")
            && let FieldData::Bool(masks) = field.data()
        {
            try_reserve("batch_size", &mut self.masks, index.len() * field.width())?;
            let rows = index.iter().flat_map(|row| &masks[row * field.width()..][..field.width()]);
            self.masks.extend(rows.map(|flag| *flag != 0));
        }
        Ok(())
    }

    /// Returns the minibatch that the last call of `gather` copied.
    pub(super) fn minibatch(&self) -> Minibatch<'_> {
        let discrete = self.continuous.is_empty();
        Minibatch {
            obs: &self.obs,
            actions: if discrete { Actions::Discrete(&self.discrete) } else { Actions::Continuous(&self.continuous) },
            masks: (!self.masks.is_empty()).then_some(&self.masks[..]),
            log_probs: &self.log_probs,
            values: &self.values,
            advantages: &self.advantages,
            returns: &self.returns,
        }
    }

    /// Returns the explained variance of the values, `1 - Var(returns - values) / Var(returns)`.
    pub(super) fn explained_variance(&mut self, buffer: &RolloutBuffer) -> Result<f32> {
        self.select_all(buffer)?;
        gather_rows(&self.index, f32_field(buffer, "values"), 1, &mut self.values)?;
        gather_rows(&self.index, f32_field(buffer, "returns"), 1, &mut self.returns)?;
        explained_variance(&self.values, &self.returns)
    }
}

fn gather_rows<T: Copy>(index: &[usize], from: &[T], width: usize, out: &mut Vec<T>) -> Result<()> {
    out.clear();
    try_reserve("batch_size", out, index.len().saturating_mul(width))?;
    for row in index {
        out.extend_from_slice(&from[row * width..][..width]);
    }
    Ok(())
}

/// V-trace targets of a rollout under the current policy, in reusable buffers.
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
    /// Values of the current networks for the observations of the transitions.
    pub(super) values: Vec<f32>,
    pub(super) advantages: Vec<f32>,
    pub(super) returns: Vec<f32>,
}

/// Distance between the policy that collected a rollout and the current policy.
///
/// `rho` is the importance ratio: the probability of an action under the current policy, divided by
/// that under the policy that collected the rollout.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Distance {
    /// Mean of `(rho - 1) - ln rho` (Schulman 2020), an estimate of `KL(p || q)` for the policy `p`
    /// that collected the rollout and the current policy `q`.
    pub(super) kl: f32,
    /// Fraction of ratios `rho` above `rho_bar`.
    pub(super) clipped: f32,
}

impl Corrected {
    /// Gathers the transitions of a finished rollout and computes values, V-trace advantages and returns.
    ///
    /// # Errors
    /// Errors of [`Minibatches::gather`], the policy and [`VtraceTargets::minibatch`].
    pub(super) fn compute(
        &mut self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        minibatches: &mut Minibatches,
        config: VtraceConfig,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Distance> {
        minibatches.select_all(buffer)?;
        let (rows, num_transitions) = (buffer.n_steps() * buffer.num_envs(), buffer.transitions());
        // V-trace needs all rows in the order of steps, including steps that only reset. Rows of
        // such steps are removed after V-trace.
        if num_transitions < rows {
            minibatches.index.clear();
            try_reserve("batch_size", &mut minibatches.index, rows)?;
            minibatches.index.extend(0..rows);
        }
        minibatches.gather(buffer, 0..rows, stop)?;
        self.compute_next_values(policy, buffer, minibatches)?;
        self.correct(policy, buffer, &minibatches.minibatch(), config)?;
        if num_transitions < rows {
            minibatches.select_all(buffer)?;
            for vector in [&mut self.log_rhos, &mut self.values, &mut self.advantages, &mut self.returns] {
                for (to, row) in minibatches.index.iter().enumerate() {
                    vector[to] = vector[*row];
                }
                vector.truncate(num_transitions);
            }
            minibatches.gather(buffer, 0..num_transitions, stop)?;
        }
        Ok(distance(&self.log_rhos, config.rho_bar))
    }

    /// Computes V-trace values, advantages, returns and ratios of all rows.
    fn correct(
        &mut self,
        policy: &mut dyn ActorCritic,
        buffer: &RolloutBuffer,
        all: &Minibatch<'_>,
        config: VtraceConfig,
    ) -> Result<()> {
        let Self { vtrace, next_inputs, final_values, terminated, truncated, .. } = self;
        let cut = !buffer.final_index().is_empty();
        let (truncated, final_values) = (cut.then_some(&truncated[..]), cut.then_some(&final_values[..]));
        let trajectories = Trajectories {
            obs: all.obs,
            next_obs: next_inputs,
            actions: all.actions,
            masks: all.masks,
            log_probs: all.log_probs,
            rewards: f32_field(buffer, "rewards"),
            ends: EpisodeEnds { terminated, truncated, final_values },
            num_envs: buffer.num_envs(),
        };
        let targets = vtrace.minibatch(policy, &trajectories, config)?;
        for (out, all) in [
            (&mut self.values, targets.values),
            (&mut self.advantages, targets.advantages),
            (&mut self.returns, targets.returns),
        ] {
            out.clear();
            try_reserve("batch_size", out, all.len())?;
            out.extend_from_slice(all);
        }
        self.log_rhos.clear();
        try_reserve("batch_size", &mut self.log_rhos, self.values.len())?;
        self.log_rhos.extend_from_slice(vtrace.log_rhos());
        Ok(())
    }

    /// Encodes the observations after the last step, computes the values of the last observations
    /// of truncated episodes, and reads the flags of episode ends.
    fn compute_next_values(
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
        try_reserve("batch_size", out, bytes.len())?;
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

/// Returns the data of an f32 field, or an empty slice if there is no such field.
fn f32_field<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [f32] {
    match buffer.field(name).map(Field::data) {
        Some(FieldData::F32(numbers)) => numbers,
        _ => &[],
    }
}
