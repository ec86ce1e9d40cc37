//! Arrays of the caller that environment steps write their results to.

use pyo3::prelude::*;
use rlox_core::StepOut;

use crate::convert::args::{expect_shape, output};
use crate::convert::policy_output::ActionArgument;
use crate::sync::borrow::{DisjointBorrows, Output, has_borrows};

/// Output arguments of `step_into`.
pub(crate) struct StepArrays<'a, 'py> {
    pub(crate) obs: &'a Bound<'py, PyAny>,
    pub(crate) rewards: &'a Bound<'py, PyAny>,
    pub(crate) terminated: &'a Bound<'py, PyAny>,
    pub(crate) truncated: &'a Bound<'py, PyAny>,
    pub(crate) final_obs: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> StepArrays<'a, 'py> {
    /// Borrows the arrays for one step of `n` environments without guards; see [`DisjointBorrows`].
    ///
    /// Returns `None` if this is not possible. The caller then uses [`StepArrays::guarded_borrow`],
    /// whose error names the reason.
    pub(crate) fn fast_borrow(&self, n: usize, dim: usize, actions: &ActionArgument<'_>) -> Option<StepOut<'a>> {
        if has_borrows() {
            return None;
        }
        let mut borrows = DisjointBorrows::default();
        let out = StepOut {
            obs: borrows.output(self.obs, &[n, dim])?,
            reward: borrows.output(self.rewards, &[n])?,
            terminated: borrows.output(self.terminated, &[n])?,
            truncated: borrows.output(self.truncated, &[n])?,
            final_obs: self.final_obs.map_or(Some(&mut [][..]), |array| borrows.output(array, &[n, dim]))?,
        };
        actions.is_disjoint(&mut borrows).then_some(out)
    }

    /// Borrows the arrays with guards.
    ///
    /// Rows of `obs` and `final_obs` have the shape `each_obs`, and other rows the shape `each`.
    pub(crate) fn guarded_borrow(
        &self,
        rows: usize,
        each: &[usize],
        each_obs: &[usize],
    ) -> PyResult<GuardedArrays<'py>> {
        let guarded = GuardedArrays {
            obs: output("obs", self.obs)?,
            rewards: output("rewards", self.rewards)?,
            terminated: output("terminated", self.terminated)?,
            truncated: output("truncated", self.truncated)?,
            final_obs: self.final_obs.map(|array| output("final_obs", array)).transpose()?,
        };
        expect_shape("obs", guarded.obs.shape(), rows, each_obs)?;
        expect_shape("rewards", guarded.rewards.shape(), rows, each)?;
        expect_shape("terminated", guarded.terminated.shape(), rows, each)?;
        expect_shape("truncated", guarded.truncated.shape(), rows, each)?;
        if let Some(final_obs) = &guarded.final_obs {
            expect_shape("final_obs", final_obs.shape(), rows, each_obs)?;
        }
        Ok(guarded)
    }
}

/// Output arrays, borrowed with guards.
pub(crate) struct GuardedArrays<'py> {
    obs: Output<'py, f32>,
    rewards: Output<'py, f64>,
    terminated: Output<'py, bool>,
    truncated: Output<'py, bool>,
    final_obs: Option<Output<'py, f32>>,
}

impl GuardedArrays<'_> {
    pub(crate) fn out(&mut self) -> StepOut<'_> {
        StepOut {
            obs: self.obs.slice(),
            reward: self.rewards.slice(),
            terminated: self.terminated.slice(),
            truncated: self.truncated.slice(),
            final_obs: self.final_obs.as_mut().map_or(&mut [][..], Output::slice),
        }
    }
}
