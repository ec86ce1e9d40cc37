//! Independent components that are 0 or 1. Each network output is a logit, the log odds of a 1.

use rlox_core::{Error, Pcg64, Result};

use super::{DistInputs, add_log_prob, check_allowed, check_evaluated, ensure_len};
use crate::alloc::try_reserve;
use crate::kernels::activations::{exp_or_zero_in_place, ln_in_place};

/// Logit of a component that its mask sets to 1. A component that is set to 0 has the negative
/// logit.
const CERTAIN: f32 = 1e6;

/// Distribution of a MultiBinary space. A mask has two flags per component, for the values 0 and 1.
#[derive(Clone, Debug)]
pub(super) struct Bernoulli {
    pub(super) dim: usize,
    /// Logits of the last batch after masking, `[N, dim]`. The length is exactly that of the batch.
    logits: Vec<f32>,
    /// Probabilities of a 1 in the last batch, `[N, dim]`. The vector may be longer.
    probs: Vec<f32>,
    /// Softplus `ln(1 + e^z)` of each logit z. The vector may be longer than the batch.
    softplus: Vec<f32>,
    /// Number of rows of the last evaluation; 0 if another method was called after it.
    evaluated: usize,
}

impl Bernoulli {
    pub(super) fn new(dim: usize) -> Self {
        Self { dim, logits: Vec::new(), probs: Vec::new(), softplus: Vec::new(), evaluated: 0 }
    }

    /// Computes the probabilities and the softplus of the logits z.
    ///
    /// Let `t = e^-|z|`, which cannot overflow. Then `ln(1 + e^z) = max(z, 0) + ln(1 + t)`. A `t`
    /// below the smallest normal number becomes 0, so that masked components have a probability of
    /// exactly 0 or 1.
    fn prepare(&mut self, inputs: DistInputs<'_>) -> Result<()> {
        self.mask(inputs)?;
        let outputs = &self.logits;
        let probs = ensure_len(&mut self.probs, outputs.len())?;
        let softplus = ensure_len(&mut self.softplus, outputs.len())?;
        for (t, z) in probs.iter_mut().zip(outputs) {
            *t = -z.abs();
        }
        exp_or_zero_in_place(probs);
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
        Ok(())
    }

    /// Computes the logits of the outputs after masking.
    fn mask(&mut self, inputs: DistInputs<'_>) -> Result<()> {
        self.evaluated = 0;
        self.logits.clear();
        try_reserve("outputs", &mut self.logits, inputs.outputs.len())?;
        self.logits.extend_from_slice(inputs.outputs);
        for (index, (logit, allowed)) in
            self.logits.iter_mut().zip(inputs.masks.into_iter().flat_map(pairs)).enumerate()
        {
            match allowed {
                [true, true] => {}
                [true, false] => *logit = -CERTAIN,
                [false, true] => *logit = CERTAIN,
                [false, false] => {
                    let hint = "allow an action in every row";
                    let error = Error::action("masks", "at least one allowed action", "none", hint);
                    return Err(error.at_row(index / self.dim));
                }
            }
        }
        Ok(())
    }

    pub(super) fn mode(&mut self, inputs: DistInputs<'_>, actions: &mut [i64]) -> Result<()> {
        self.mask(inputs)?;
        actions.iter_mut().zip(&self.logits).for_each(|(action, logit)| *action = i64::from(*logit > 0.0));
        Ok(())
    }

    pub(super) fn sample(
        &mut self,
        inputs: DistInputs<'_>,
        rngs: &mut [Pcg64],
        actions: &mut [i64],
        log_probs: &mut [f32],
    ) -> Result<()> {
        self.prepare(inputs)?;
        for (index, (action, p)) in actions.iter_mut().zip(&self.probs).enumerate() {
            *action = i64::from(rngs[index / self.dim].random() < f64::from(*p));
        }
        self.sum_log_probs(actions, log_probs);
        Ok(())
    }

    fn sum_log_probs(&self, actions: &[i64], log_probs: &mut [f32]) {
        log_probs.fill(0.0);
        for (index, ((z, action), softplus)) in self.logits.iter().zip(actions).zip(&self.softplus).enumerate() {
            add_log_prob(&mut log_probs[index / self.dim], if *action == 1 { z - softplus } else { -softplus });
        }
    }

    pub(super) fn evaluate(
        &mut self,
        inputs: DistInputs<'_>,
        actions: &[i64],
        log_probs: &mut [f32],
        entropies: &mut [f32],
    ) -> Result<()> {
        self.check_actions(actions)?;
        self.prepare(inputs)?;
        if let Some(masks) = inputs.masks {
            let forbidden = pairs(masks).zip(actions).position(|(allowed, action)| !allowed[*action as usize]);
            check_allowed(actions, self.dim, forbidden)?;
        }
        self.sum_log_probs(actions, log_probs);
        entropies.fill(0.0);
        let known = self.probs.iter().zip(&self.softplus);
        for (index, (z, (p, softplus))) in self.logits.iter().zip(known).enumerate() {
            entropies[index / self.dim] += softplus - z * p;
        }
        self.evaluated = entropies.len();
        Ok(())
    }

    fn check_actions(&self, actions: &[i64]) -> Result<()> {
        let Some(index) = actions.iter().position(|action| !(0..=1).contains(action)) else { return Ok(()) };
        let got = actions[index].to_string();
        Err(Error::action("actions", "zeros and ones", got, "pass 0 or 1").at_row(index / self.dim))
    }

    /// Computes the gradient of a loss with respect to the logits z.
    ///
    /// For the action a, the probability p of a 1 and the entropy H: `d log_prob / d z = a - p`,
    /// and `d H / d z = -z p (1 - p)`.
    pub(super) fn backward(
        &mut self,
        actions: &[i64],
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        self.check_actions(actions)?;
        check_evaluated(self.evaluated, d_log_probs.len())?;
        let rows = d_outputs.iter_mut().zip(&self.logits).zip(actions.iter().zip(&self.probs));
        for (index, ((out, z), (action, p))) in rows.enumerate() {
            *out = d_log_probs[index / self.dim] * (*action as f32 - p) - d_entropy * (z * p * (1.0 - p));
        }
        Ok(())
    }
}

/// Returns an iterator over the two flags of each component.
fn pairs(masks: &[bool]) -> impl Iterator<Item = [bool; 2]> {
    masks.as_chunks().0.iter().copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use rlox_core::rng::Pcg64State;

    use super::*;

    #[test]
    fn masked_components_are_certain_and_get_no_gradient() {
        let mut bits = Bernoulli::new(3);
        // The masks allow only 0, only 1, and both values.
        let masks = [true, false, false, true, true, true];
        let inputs = DistInputs { outputs: &[2.0, -2.0, 0.0], hidden: &[], masks: Some(&masks) };
        let (mut log_probs, mut entropies) = ([0.0], [0.0]);
        bits.evaluate(inputs, &[0, 1, 1], &mut log_probs, &mut entropies).unwrap();
        assert!((log_probs[0] - 0.5_f32.ln()).abs() < 1e-6, "{log_probs:?}");
        assert!((entropies[0] - 2.0_f32.ln()).abs() < 1e-6, "{entropies:?}");
        let mut d_outputs = [9.0; 3];
        bits.backward(&[0, 1, 1], &[1.0], 0.5, &mut d_outputs).unwrap();
        assert!(d_outputs[..2].iter().all(|d| d.abs() < 1e-20) && d_outputs[2] == 0.5, "{d_outputs:?}");
        let mut actions = [9; 3];
        bits.mode(inputs, &mut actions).unwrap();
        assert_eq!(actions[..2], [0, 1]);
        for seed in 0..50 {
            bits.sample(inputs, &mut [Pcg64::seed_from(seed)], &mut actions, &mut log_probs).unwrap();
            assert_eq!(actions[..2], [0, 1]);
        }
        // A smaller batch follows a larger batch.
        let two = DistInputs { outputs: &[0.0; 6], hidden: &[], masks: None };
        bits.evaluate(two, &[0; 6], &mut [0.0; 2], &mut [0.0; 2]).unwrap();
        bits.evaluate(inputs, &[0, 1, 1], &mut log_probs, &mut entropies).unwrap();
        assert!((entropies[0] - 2.0_f32.ln()).abs() < 1e-6, "{entropies:?}");
        let none = DistInputs { masks: Some(&[true, false, false, false, true, true]), ..inputs };
        let rejected =
            rlox_core::__private::testing::assert_rejects(bits.mode(none, &mut actions), Error::Action, "masks");
        assert_eq!((&rejected.got[..], rejected.at.row), ("none", Some(0)));
    }

    #[test]
    fn forbidden_actions_are_never_drawn() {
        let next = |bits: u64| {
            let inc = (u128::from(bits) << 64) | 1;
            Pcg64::from_state(Pcg64State { state: 0, inc, has_uint32: false, uinteger: 0 }).unwrap()
        };
        // These are the limits of random numbers: 0, and 1 - 2^-53, which f32 rounds to 1.
        assert_eq!((next(0).random(), next(!1).random() as f32), (0.0, 1.0));
        for bits in [0, !1] {
            for (only, masks) in [(0, [true, false]), (1, [false, true])] {
                for logit in [-2.0, 0.0, f32::MAX] {
                    let inputs = DistInputs { outputs: &[logit], hidden: &[], masks: Some(&masks) };
                    let (mut action, mut log_prob) = ([9], [9.0]);
                    Bernoulli::new(1).sample(inputs, &mut [next(bits)], &mut action, &mut log_prob).unwrap();
                    assert_eq!((action, log_prob), ([only], [0.0]), "{bits} {logit}");
                }
            }
        }
    }
}
