//! Returns over several steps.

use super::storage::{CONTINUES, ReplayStorage, TERMINATED, TRUNCATED};
use crate::{Error, InterruptCheck, Result, alloc};

/// Transitions that span up to n steps: rewards are summed with discounts, and what comes next is what came after the last
/// of them (Sutton 1988; Hessel et al. 2018, "Rainbow").
///
/// They end where the episode ends, and before that where it is not stored any further: a truncated episode and one that
/// still goes on are worth the value of the observation they stopped at, a terminated one nothing more. Further parts
/// whose names begin with `next_` are those of the last step, others those of the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NStep {
    /// The number of steps, at least 1.
    pub n: usize,
    /// The discount of a step.
    pub gamma: f64,
}

impl NStep {
    /// # Errors
    /// [`Error::Config`] for no steps or a discount outside of [0, 1].
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

/// What transitions over several steps are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spans {
    /// The row of the last step of each.
    pub(crate) last_rows: Vec<usize>,
    /// The discounted sums of rewards.
    pub(crate) returns: Vec<f32>,
    /// What the value of the next observation counts, `gamma^k` after k steps.
    pub(crate) discounts: Vec<f32>,
}

impl Spans {
    pub(crate) fn clear(&mut self) {
        self.last_rows.clear();
        self.returns.clear();
        self.discounts.clear();
    }

    /// Drops the transitions whose flag is false.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        retain(&mut self.last_rows, keep);
        retain(&mut self.returns, keep);
        retain(&mut self.discounts, keep);
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        alloc::allocated_bytes(&self.last_rows)
            + alloc::allocated_bytes(&self.returns)
            + alloc::allocated_bytes(&self.discounts)
    }

    /// Finds them for rows that were located.
    ///
    /// # Errors
    /// Those of [`NStep::check`], [`Error::Memory`] if there is no room.
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

/// Drops the values whose flag is false; there may be more flags than values.
pub(super) fn retain<T>(values: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    values.retain(|_| keep.next().is_some_and(|keep| *keep));
}
