//! Native environments as Python objects, locked during each call.

pub(crate) mod make;
pub(crate) mod snapshot;
mod step_arrays;
pub(crate) mod vec_env;

use rlox_core::{Error, Result, VectorEnv, error::check_len, interrupt::InterruptCheck, vector::EnvSnapshot};

use crate::alloc::zeroed;
use crate::sync::interrupt::poll_interrupt;

/// Environments, and data that is needed between two calls.
pub(crate) struct Inner {
    pub(crate) env: Box<dyn VectorEnv>,
    final_obs: Vec<f32>,
    drained: u64,
    dropped: u64,
}

impl Inner {
    /// Returns the number of f64 values in the state of one environment.
    ///
    /// Before the first reset, the error names the method `call`.
    pub(crate) fn state_width(&self, call: &'static str) -> Result<usize> {
        let mut obs = zeroed(self.env.num_envs() * self.env.spec().observation.dim())?;
        self.env.observe(&mut obs).map_err(|error| error.rename_argument("observe", call))?;
        let snapshot = EnvSnapshot::capture(self.env.as_ref())?.ok_or_else(state_unavailable)?;
        Ok(snapshot.states.len() / self.env.num_envs())
    }

    /// Copies the state of every environment into a row of `width` numbers.
    pub(crate) fn states(&self, width: usize, rows: &mut [f64]) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        for (i, row) in rows.chunks_exact_mut(width.max(1)).enumerate() {
            poll_interrupt(&mut interrupt, i)?;
            let state = self.state(i)?;
            check_len("states", state.len(), width)?;
            row.copy_from_slice(&state);
        }
        Ok(())
    }

    /// Appends the returns and lengths of the episodes that ended since the last call.
    ///
    /// The environments keep only the newest episodes. The result is the number of episodes that
    /// they dropped since the last call.
    pub(crate) fn drain(&mut self, returns: &mut Vec<f64>, lengths: &mut Vec<u32>) -> u64 {
        let log = self.env.episodes();
        let (num_logged, total) = (log.len() as u64, log.total());
        log.drain(returns, lengths);
        let dropped = total - self.drained - num_logged;
        (self.drained, self.dropped) = (total, dropped);
        dropped
    }

    fn state(&self, index: usize) -> Result<Vec<f64>> {
        self.env.state(index).ok_or_else(state_unavailable)
    }
}

/// Returns the error for environments that do not support [`VectorEnv::state`].
pub(crate) fn state_unavailable() -> Error {
    Error::config(
        "states",
        "environments that support state",
        "environments without state",
        "avoid calls that need the state",
    )
}
