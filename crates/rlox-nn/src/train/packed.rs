//! The rows of a step that environments made, side by side.

use rlox_core::{Actions, Result};

use super::experience::Stepped;
use crate::room::make_room;

/// Memory of rows of a step.
#[derive(Debug, Default)]
pub(super) struct Packed {
    obs: Vec<f32>,
    next_obs: Vec<f32>,
    /// One of the two is empty.
    integers: Vec<i64>,
    numbers: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    next_masks: Vec<bool>,
}

impl Packed {
    /// Takes the rows that are valid.
    pub(super) fn pack(&mut self, step: &Stepped<'_>, valid: &[bool]) -> Result<()> {
        take(&mut self.obs, step.obs, valid)?;
        take(&mut self.next_obs, step.next_obs, valid)?;
        match step.actions {
            Actions::Discrete(actions) => take(&mut self.integers, actions, valid)?,
            Actions::Continuous(actions) => take(&mut self.numbers, actions, valid)?,
        }
        take(&mut self.rewards, step.rewards, valid)?;
        take(&mut self.terminated, step.terminated, valid)?;
        take(&mut self.truncated, step.truncated, valid)?;
        take(&mut self.next_masks, step.next_masks, valid)
    }

    /// What was taken.
    pub(super) fn stepped(&self, discrete: bool) -> Stepped<'_> {
        Stepped {
            obs: &self.obs,
            actions: if discrete { Actions::Discrete(&self.integers) } else { Actions::Continuous(&self.numbers) },
            rewards: &self.rewards,
            terminated: &self.terminated,
            truncated: &self.truncated,
            next_obs: &self.next_obs,
            next_masks: &self.next_masks,
        }
    }
}

/// The rows of `all` that are valid, in the place of what was there.
fn take<T: Copy>(rows: &mut Vec<T>, all: &[T], valid: &[bool]) -> Result<()> {
    rows.clear();
    make_room("num_envs", rows, all.len())?;
    let width = (all.len() / valid.len().max(1)).max(1);
    for (row, _) in all.chunks_exact(width).zip(valid).filter(|(_, valid)| **valid) {
        rows.extend_from_slice(row);
    }
    Ok(())
}
