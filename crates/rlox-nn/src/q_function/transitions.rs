//! What a Q-function learns from.

use rlox_core::{Error, Result, check_len};

use super::greedy::check_masks;
use crate::{Discount, rows};

/// A minibatch of B transitions. All but the observations and masks are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct Transitions<'a> {
    /// `[B, d]`.
    pub obs: &'a [f32],
    /// Counted from 0.
    pub actions: &'a [i64],
    /// What the actions were paid.
    pub rewards: &'a [f32],
    /// `[B, d]`: the true next observations, never those of a reset.
    pub next_obs: &'a [f32],
    /// Where nothing comes after; never where the time was over.
    pub terminated: &'a [bool],
    /// What the next values count.
    pub discount: Discount<'a>,
    /// Importance weights of prioritized replay.
    pub weights: Option<&'a [f32]>,
    /// Which actions are allowed in the next states, `[B, n]`; anything where `terminated`.
    pub next_masks: Option<&'a [bool]>,
}

impl Transitions<'_> {
    /// The number of rows, of observations of `obs_dim` numbers and so many actions.
    pub(super) fn check(&self, obs_dim: usize, num_actions: usize) -> Result<usize> {
        let rows = rows::count("obs", self.obs, obs_dim)?;
        check_len("next_obs", self.next_obs.len(), self.obs.len())?;
        check_len("actions", self.actions.len(), rows)?;
        check_len("rewards", self.rewards.len(), rows)?;
        check_len("terminated", self.terminated.len(), rows)?;
        self.discount.check(rows)?;
        check_len("weights", self.weights.map_or(rows, <[f32]>::len), rows)?;
        // In a terminated state nothing is chosen.
        check_masks("next_masks", self.next_masks, rows, num_actions, |row| !self.terminated[row])?;
        if let Some(row) = self.actions.iter().position(|action| !(0..num_actions as i64).contains(action)) {
            let (expected, got) = (format!("numbers from 0 to {}", num_actions - 1), self.actions[row].to_string());
            return Err(Error::action("actions", expected, got, "correct it").at_row(row));
        }
        rows::check_finite("obs", self.obs, obs_dim)?;
        rows::check_finite("rewards", self.rewards, 1)?;
        rows::check_finite("weights", self.weights.unwrap_or(&[]), 1)?;
        self.check_next_obs(obs_dim)?;
        Ok(rows)
    }

    /// What comes after a terminated row counts for nothing, and may be anything.
    fn check_next_obs(&self, obs_dim: usize) -> Result<()> {
        let spoilt = |(next, terminated): (&[f32], &bool)| !terminated && next.iter().any(|x| !x.is_finite());
        match self.next_obs.chunks_exact(obs_dim).zip(self.terminated).position(spoilt) {
            None => Ok(()),
            Some(row) => {
                let (expected, got) = ("finite numbers where an episode goes on", "NaN or infinity");
                Err(Error::not_finite("next_obs", expected, got, "look at where it comes from").at_row(row))
            }
        }
    }
}
