//! Independent choices of integers. The probabilities of a choice are the softmax of its logits.

use rlox_core::{Error, Pcg64, Result};

use super::{DistInputs, add_log_prob, check_allowed, check_evaluated, ensure_len};
use crate::kernels::activations::{exp_or_zero_in_place, ln_in_place};

/// Distribution of a Discrete or MultiDiscrete space. Actions that a mask forbids have probability
/// 0.
#[derive(Clone, Debug)]
pub(super) struct Categorical {
    counts: Vec<usize>,
    outputs: usize,
    /// Probabilities of the last batch, `[N, outputs]`.
    probs: Vec<f32>,
    log_probs: Vec<f32>,
    /// Logarithm of the softmax denominator of each choice, `[N, choices]`.
    sums: Vec<f32>,
    /// Entropy of each choice, `[N, choices]`.
    entropies: Vec<f32>,
    /// Number of rows of the last evaluation; 0 if another method was called after it.
    evaluated: usize,
}

impl Categorical {
    /// Creates a distribution; `counts` are the numbers of values of each choice, with the sum
    /// `outputs`.
    pub(super) fn new(counts: &[i64], outputs: usize) -> Self {
        let counts: Vec<usize> = counts.iter().map(|n| *n as usize).collect();
        let [probs, log_probs, sums, entropies] = Default::default();
        Self { counts, outputs, probs, log_probs, sums, entropies, evaluated: 0 }
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn action_dim(&self) -> usize {
        self.counts.len()
    }

    /// Computes all probabilities and their logarithms.
    fn prepare(&mut self, inputs: DistInputs<'_>) -> Result<()> {
        self.evaluated = 0;
        let (len, choices) = (inputs.outputs.len(), self.counts.len());
        let rows = len / self.outputs;
        let log_probs = ensure_len(&mut self.log_probs, len)?;
        let probs = ensure_len(&mut self.probs, len)?;
        let sums = ensure_len(&mut self.sums, rows * choices)?;
        match inputs.masks {
            None => log_probs.copy_from_slice(inputs.outputs),
            Some(masks) => {
                for ((out, logit), allowed) in log_probs.iter_mut().zip(inputs.outputs).zip(masks) {
                    *out = if *allowed { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
        for (index, choice) in blocks_mut(log_probs, &self.counts).enumerate() {
            let largest = choice.iter().fold(f32::NEG_INFINITY, |most, x| x.max(most));
            if largest == f32::NEG_INFINITY {
                let error =
                    Error::action("masks", "at least one allowed action", "none", "allow an action in every row");
                return Err(error.at_row(index / choices));
            }
            for x in &mut *choice {
                // The difference of two logits may overflow. The limit also replaces -infinity of
                // forbidden actions.
                *x = (*x - largest).max(f32::MIN);
            }
        }
        probs.copy_from_slice(log_probs);
        exp_or_zero_in_place(probs);
        for (sum, choice) in sums.iter_mut().zip(blocks_mut(probs, &self.counts)) {
            *sum = choice.iter().sum();
            let scale = 1.0 / *sum;
            for p in &mut *choice {
                *p *= scale;
            }
        }
        ln_in_place(sums);
        for (sum, choice) in sums.iter().zip(blocks_mut(log_probs, &self.counts)) {
            for x in &mut *choice {
                *x -= sum;
            }
        }
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
        log_probs.fill(0.0);
        let choices = self.counts.len();
        let rows = blocks(&self.probs, &self.counts).zip(blocks(&self.log_probs, &self.counts)).zip(actions);
        for (index, ((probs, logs), action)) in rows.enumerate() {
            let mut remaining = rngs[index / choices].random() as f32;
            // If rounding errors leave a rest after all probabilities, the result is the last
            // action with a positive probability.
            let mut action_index = 0;
            for (i, p) in probs.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                action_index = i;
                remaining -= p;
                if remaining < 0.0 {
                    break;
                }
            }
            *action = action_index as i64;
            add_log_prob(&mut log_probs[index / choices], logs[action_index]);
        }
        Ok(())
    }

    pub(super) fn mode(&mut self, inputs: DistInputs<'_>, actions: &mut [i64]) -> Result<()> {
        self.prepare(inputs)?;
        for (probs, action) in blocks(&self.probs, &self.counts).zip(actions) {
            let (mut likeliest, mut most) = (0, f32::NEG_INFINITY);
            for (i, p) in probs.iter().enumerate() {
                if *p > most {
                    (likeliest, most) = (i, *p);
                }
            }
            *action = likeliest as i64;
        }
        Ok(())
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
        let choices = self.counts.len();
        if let Some(masks) = inputs.masks {
            let forbidden = blocks(masks, &self.counts).zip(actions).position(|(mask, action)| !mask[*action as usize]);
            check_allowed(actions, choices, forbidden)?;
        }
        log_probs.fill(0.0);
        entropies.fill(0.0);
        let choice_entropies = ensure_len(&mut self.entropies, actions.len())?;
        let rows = blocks(&self.probs, &self.counts).zip(blocks(&self.log_probs, &self.counts)).zip(actions);
        for (index, ((probs, logs), action)) in rows.enumerate() {
            add_log_prob(&mut log_probs[index / choices], logs[*action as usize]);
            let entropy = probs.iter().zip(logs).map(|(p, log)| -p * log).sum();
            choice_entropies[index] = entropy;
            entropies[index / choices] += entropy;
        }
        self.evaluated = entropies.len();
        Ok(())
    }

    fn check_actions(&self, actions: &[i64]) -> Result<()> {
        let choices = self.counts.len();
        for (index, action) in actions.iter().enumerate() {
            let n = self.counts[index % choices];
            if !(0..n as i64).contains(action) {
                let expected = format!("integers from 0 to {}", n - 1);
                let error = Error::action("actions", expected, action.to_string(), "number the actions from 0");
                return Err(error.at_row(index / choices));
            }
        }
        Ok(())
    }

    /// Computes the gradient of a loss with respect to the logits z.
    ///
    /// For a choice with the action a, the probabilities p and the entropy H:
    /// `d log p_a / d z_j = [j = a] - p_j` and `d H / d z_j = -p_j (log p_j + H)`. `[j = a]` is 1
    /// if j is the action and 0 otherwise.
    pub(super) fn backward(
        &mut self,
        actions: &[i64],
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        self.check_actions(actions)?;
        check_evaluated(self.evaluated, d_log_probs.len())?;
        let choices = self.counts.len();
        let known = blocks(&self.probs, &self.counts).zip(blocks(&self.log_probs, &self.counts));
        let rows = blocks_mut(d_outputs, &self.counts).zip(known).zip(actions.iter().zip(&self.entropies));
        for (index, ((out, (probs, logs)), (action, entropy))) in rows.enumerate() {
            let d_log_prob = d_log_probs[index / choices];
            for ((out, p), log) in out.iter_mut().zip(probs).zip(logs) {
                // p log p tends to 0 if p tends to 0.
                let surprise = if *p > 0.0 { log + entropy } else { 0.0 };
                *out = -p * (d_log_prob + d_entropy * surprise);
            }
            out[*action as usize] += d_log_prob;
        }
        Ok(())
    }
}

/// Returns an iterator over the choices of all rows, as slices with the elements of one choice.
fn blocks<'a, T>(mut rows: &'a [T], counts: &'a [usize]) -> impl Iterator<Item = &'a [T]> {
    counts.iter().cycle().map_while(move |count| {
        let (block, rest) = rows.split_at_checked(*count)?;
        rows = rest;
        Some(block)
    })
}

fn blocks_mut<'a>(rows: &'a mut [f32], counts: &'a [usize]) -> impl Iterator<Item = &'a mut [f32]> {
    let mut rest = Some(rows);
    counts.iter().cycle().map_while(move |count| {
        let (block, others) = rest.take()?.split_at_mut_checked(*count)?;
        rest = Some(others);
        Some(block)
    })
}
