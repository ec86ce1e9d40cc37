//! Advantage and return estimators. They are free functions that read and write slices of the
//! caller and do not allocate memory.

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

use crate::{Error, Result, error::check_len};

/// Flags of the steps that end episodes, and values for bootstrapping at truncations. Every slice
/// has the length of the rewards.
///
/// Flags `dones` that do not distinguish termination from truncation are passed as `terminated`;
/// see [`EpisodeEnds::dones`].
#[derive(Clone, Copy, Debug)]
pub struct EpisodeEnds<'a, T> {
    /// True if the step reached a terminal state. The value after the step is 0.
    pub terminated: &'a [bool],
    /// True if the episode was truncated after the step. The value after the step is that of the
    /// final observation.
    pub truncated: Option<&'a [bool]>,
    /// `V(final_obs_t)`, the value of the final observation of the episode that ends at step t.
    /// Used only for steps that are truncated and not terminated.
    pub final_values: Option<&'a [T]>,
}

impl<'a, T> EpisodeEnds<'a, T> {
    /// Creates the ends of episodes that are terminated and never truncated.
    ///
    /// ```
    /// let ends = rlox_core::advantage::EpisodeEnds::<f32>::dones(&[false, true]);
    /// assert!(ends.truncated.is_none());
    /// ```
    pub fn dones(dones: &'a [bool]) -> Self {
        Self { terminated: dones, truncated: None, final_values: None }
    }

    /// Checks the lengths and returns the truncated flags with the final values, if both are present.
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
                    "pass V(final observation) in those rows and any number in the others",
                );
                return Err(error.at_row(row));
            }
        }
        if self.truncated.is_none() && self.final_values.is_some() {
            return Err(Error::shape(
                "truncated",
                "the truncated flags that belong to final_values",
                "none",
                "pass truncated, or omit final_values",
            ));
        }
        // Without final values, each truncated row is also terminated, so its flag has no effect.
        Ok(self.truncated.zip(self.final_values))
    }
}

/// Checks that the number of rewards is a multiple of `row`, the length of a row.
fn check_rows(rewards: usize, name: &'static str, row: usize) -> Result<()> {
    if rewards == 0 || (row > 0 && rewards.is_multiple_of(row)) {
        return Ok(());
    }
    Err(Error::shape(
        "rewards",
        format!("a multiple of {name} = {row} elements"),
        rewards.to_string(),
        format!("pass complete rows, or the {name} of the recording"),
    ))
}

/// Checks that a discount or a lambda is in [0, 1].
pub(crate) fn check_discount(name: &'static str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::config(name, "a number in [0, 1]", value.to_string(), "pass a number from 0 to 1, such as 0.99"))
}
