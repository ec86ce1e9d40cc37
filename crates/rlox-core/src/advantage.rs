//! Advantage estimators: free functions that read and write the caller's slices and allocate nothing.

mod gae;
mod lanes;
mod recurrence;
mod returns;
mod vtrace;

pub use gae::{compute_gae, compute_gae_batched, compute_gae_time_major};
pub use lanes::{Float, flags_from_numbers};
pub use returns::{
    compute_lambda_returns, compute_lambda_returns_time_major, compute_returns, compute_returns_time_major,
};
pub use vtrace::{VtraceConfig, compute_vtrace, compute_vtrace_time_major};

use crate::{Error, Result, check_len};

/// How the steps of a rollout ended; every slice is as long as the rewards.
///
/// Plain `dones` that tell no time limit from a true end go in as `terminated`, see [`EpisodeEnds::dones`].
#[derive(Clone, Copy, Debug)]
pub struct EpisodeEnds<'a, T> {
    /// The task itself ended at this step: no value follows.
    pub terminated: &'a [bool],
    /// The episode was cut at this step, by a time limit for one: the final observation's value follows.
    pub truncated: Option<&'a [bool]>,
    /// `V(final_obs_t)`, read only where a step is truncated and not terminated; the rest may hold anything.
    pub final_values: Option<&'a [T]>,
}

impl<'a, T> EpisodeEnds<'a, T> {
    /// Episodes that only ever terminate.
    ///
    /// ```
    /// let ends = rlox_core::EpisodeEnds::<f32>::dones(&[false, true]);
    /// assert!(ends.truncated.is_none());
    /// ```
    pub fn dones(dones: &'a [bool]) -> Self {
        Self { terminated: dones, truncated: None, final_values: None }
    }

    /// Checks the lengths; returns the truncated flags with the final values, where there are any.
    fn check(&self, len: usize) -> Result<Option<(&'a [bool], &'a [T])>> {
        check_len("terminated", self.terminated.len(), len)?;
        check_len("truncated", self.truncated.map_or(len, <[bool]>::len), len)?;
        check_len("final_values", self.final_values.map_or(len, <[T]>::len), len)?;
        if let (Some(truncated), None) = (self.truncated, self.final_values) {
            let cut = (0..len).find(|&t| truncated[t] && !self.terminated[t]);
            if let Some(row) = cut {
                let error = Error::shape(
                    "final_values",
                    "a value for every row that is truncated and not terminated",
                    "none",
                    "pass V(final observation) in those rows, and anything in the others",
                );
                return Err(error.at_row(row));
            }
        }
        if self.truncated.is_none() && self.final_values.is_some() {
            return Err(Error::shape(
                "truncated",
                "flags beside final_values, which are read where an episode was truncated",
                "none",
                "pass truncated, and dones as terminated, or leave final_values out",
            ));
        }
        // Without final values, every truncated row is terminated as well and changes nothing.
        Ok(self.truncated.zip(self.final_values))
    }
}

/// Checks that the rewards are whole rows.
fn check_rows(rewards: usize, name: &'static str, row: usize) -> Result<()> {
    if rewards == 0 || (row > 0 && rewards.is_multiple_of(row)) {
        return Ok(());
    }
    Err(Error::shape(
        "rewards",
        format!("a multiple of {name} = {row} elements"),
        rewards.to_string(),
        format!("pass whole rows, or the {name} they were recorded with"),
    ))
}

/// Checks that a discount or a lambda is in [0, 1].
pub(crate) fn check_discount(name: &'static str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::config(name, "a number in [0, 1]", value.to_string(), "discounts are at least 0 and at most 1"))
}
