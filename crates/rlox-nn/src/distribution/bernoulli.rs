//! Independent zeros and ones; an output is the logarithm of the odds of a one.

use rlox_core::{Error, Pcg64, Result};

use super::{Given, room};
use crate::simd::elementary::{exp_in_place, ln_in_place};

/// The components of a MultiBinary space.
#[derive(Clone, Debug)]
pub struct Bernoulli {
    pub(super) dim: usize,
    /// The probabilities of ones in the last batch, `[N, dim]`.
    probs: Vec<f32>,
    /// `ln(1 + e^z)`.
    softplus: Vec<f32>,
}

impl Bernoulli {
    pub(super) fn new(dim: usize) -> Self {
        Self { dim, probs: Vec::new(), softplus: Vec::new() }
    }

    /// With `t = e^-|z|`, which cannot overflow: `ln(1 + e^z) = max(z, 0) + ln(1 + t)`.
    fn prepare(&mut self, outputs: &[f32]) {
        let probs = room(&mut self.probs, outputs.len());
        let softplus = room(&mut self.softplus, outputs.len());
        for (t, z) in probs.iter_mut().zip(outputs) {
            *t = -z.abs();
        }
        exp_in_place(probs);
        for (sum, t) in softplus.iter_mut().zip(&*probs) {
            *sum = 1.0 + t;
        }
        for ((p, sum), z) in probs.iter_mut().zip(&*softplus).zip(outputs) {
            *p = if *z < 0.0 { *p / sum } else { 1.0 / sum };
        }
        ln_in_place(softplus);
        for (log, z) in softplus.iter_mut().zip(outputs) {
            *log += if *z > 0.0 { *z } else { 0.0 };
        }
    }

    pub(super) fn sample(&mut self, given: Given<'_>, rngs: &mut [Pcg64], actions: &mut [i64], log_probs: &mut [f32]) {
        self.prepare(given.outputs);
        for (index, (action, p)) in actions.iter_mut().zip(&self.probs).enumerate() {
            *action = i64::from((rngs[index / self.dim].random() as f32) < *p);
        }
        self.sum_log_probs(given.outputs, actions, log_probs);
    }

    fn sum_log_probs(&self, outputs: &[f32], actions: &[i64], log_probs: &mut [f32]) {
        log_probs.fill(0.0);
        for (index, ((z, action), softplus)) in outputs.iter().zip(actions).zip(&self.softplus).enumerate() {
            log_probs[index / self.dim] += if *action == 1 { z - softplus } else { -softplus };
        }
    }

    pub(super) fn evaluate(
        &mut self,
        given: Given<'_>,
        actions: &[i64],
        log_probs: &mut [f32],
        entropies: &mut [f32],
    ) -> Result<()> {
        if let Some(index) = actions.iter().position(|action| !(0..=1).contains(action)) {
            let got = format!("{} in row {}", actions[index], index / self.dim);
            return Err(Error::action("actions", "zeros and ones", got, "correct it"));
        }
        self.prepare(given.outputs);
        self.sum_log_probs(given.outputs, actions, log_probs);
        entropies.fill(0.0);
        let known = self.probs.iter().zip(&self.softplus);
        for (index, (z, (p, softplus))) in given.outputs.iter().zip(known).enumerate() {
            entropies[index / self.dim] += softplus - z * p;
        }
        Ok(())
    }

    /// With p the probability of a one: `d log_prob / d z = a - p` and `d H / d z = -z p (1 - p)`.
    pub(super) fn backward(
        &mut self,
        given: Given<'_>,
        actions: &[i64],
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) {
        let rows = d_outputs.iter_mut().zip(given.outputs).zip(actions.iter().zip(&self.probs));
        for (index, ((out, z), (action, p))) in rows.enumerate() {
            *out = d_log_probs[index / self.dim] * (*action as f32 - p) - d_entropy * z * p * (1.0 - p);
        }
    }
}
