//! N-step returns.

use super::storage::{CONTINUES, ReplayStorage, TERMINATED, TRUNCATED};
use crate::{Error, Result, alloc, interrupt::InterruptCheck};

/// Settings of n-step returns (Sutton 1988; Hessel et al. 2018, "Rainbow").
///
/// The reward of a sampled transition is the discounted sum of the rewards of up to n steps. Its
/// next observation is the next observation of the last of these steps. A transition has fewer
/// steps if its episode ends or if fewer steps are stored. The value of the next observation is
/// bootstrapped, unless the last step terminated the episode.
///
/// Extra fields with the prefix `next_` come from the last step, all other extra fields from the
/// first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NStep {
    /// Number of steps, at least 1.
    pub n: usize,
    /// Discount per step, in [0, 1].
    pub gamma: f64,
}

impl NStep {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] if `n` is 0 or `gamma` is outside [0, 1].
    pub(crate) fn check(self) -> Result<()> {
        if self.n == 0 {
            return Err(Error::config("n_step", "at least 1", "0", "pass a positive number"));
        }
        if !(0.0..=1.0).contains(&self.gamma) {
            let got = self.gamma.to_string();
            return Err(Error::config("gamma", "a number in [0, 1]", got, "pass the discount of one step"));
        }
        Ok(())
    }
}

/// Spans of sampled transitions: the steps that each transition covers, and their n-step returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spans {
    /// Row of the last step of each transition.
    pub(crate) last_rows: Vec<usize>,
    /// Discounted sums of rewards.
    pub(crate) returns: Vec<f32>,
    /// Discounts of the value of the next observation: `gamma^k` after k steps.
    pub(crate) discounts: Vec<f32>,
}

impl Spans {
    pub(crate) fn clear(&mut self) {
        self.last_rows.clear();
        self.returns.clear();
        self.discounts.clear();
    }

    /// Keeps the transitions whose flag in `keep` is true.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        retain(&mut self.last_rows, keep);
        retain(&mut self.returns, keep);
        retain(&mut self.discounts, keep);
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn memory(&self) -> usize {
        alloc::allocated_bytes(&self.last_rows)
            + alloc::allocated_bytes(&self.returns)
            + alloc::allocated_bytes(&self.discounts)
    }

    /// Computes the spans of the transitions that start in `rows`.
    ///
    /// # Errors
    /// The errors of [`NStep::check`]. [`Error::Memory`] if an allocation fails.
    /// [`Error::Interrupted`] if the interrupt check of the process stops the call.
    pub(crate) fn find(&mut self, storage: &ReplayStorage, n_step: NStep, rows: &[usize]) -> Result<()> {
        n_step.check()?;
        self.clear();
        for numbers in [&mut self.returns, &mut self.discounts] {
            alloc::try_reserve("batch_size", numbers, rows.len())?;
        }
        alloc::try_reserve("batch_size", &mut self.last_rows, rows.len())?;
        let (waiting, mut interrupt, mut num_visited) = (storage.waiting(), InterruptCheck::default(), 0_usize);
        for &row in rows {
            let (mut index, mut sum, mut discount) = (row, f64::from(storage.reward(row)), n_step.gamma);
            for _ in 1..n_step.n {
                let flags = storage.flags(index);
                let next = storage.row_after(index, 1);
                let ended = flags & (TERMINATED | TRUNCATED) != 0 || flags & CONTINUES == 0;
                if ended || waiting.contains(&next) {
                    break;
                }
                num_visited += 1;
                if num_visited.is_multiple_of(InterruptCheck::POLL_ELEMENTS / 64) {
                    interrupt.check()?;
                }
                index = next;
                sum += discount * f64::from(storage.reward(index));
                discount *= n_step.gamma;
            }
            self.last_rows.push(index);
            self.returns.push(sum as f32);
            self.discounts.push(discount as f32);
        }
        Ok(())
    }
}

/// Keeps the values whose flag is true. There may be more flags than values.
pub(super) fn retain<T>(values: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    values.retain(|_| keep.next().is_some_and(|keep| *keep));
}
