//! Native environments, locked per call, as Python sees them.

pub(crate) mod make;
pub(crate) mod snapshot;
mod step_arrays;
pub(crate) mod vec_env;

use rlox_core::{EnvSnapshot, Error, InterruptCheck, Result, VectorEnv, check_len};

use crate::alloc::zeroed;
use crate::sync::interrupt::poll_interrupt;

/// Environments, and what they keep between two calls.
pub(crate) struct Inner {
    pub(crate) env: Box<dyn VectorEnv>,
    final_obs: Vec<f32>,
    drained: u64,
    dropped: u64,
}

impl Inner {
    /// How many numbers an environment's state has. Refuses before the first reset, in the name of `call`.
    pub(crate) fn state_width(&self, call: &'static str) -> Result<usize> {
        let mut obs = zeroed(self.env.num_envs() * self.env.spec().observation.dim())?;
        self.env.observe(&mut obs).map_err(|error| error.rename_argument("observe", call))?;
        let snapshot = EnvSnapshot::capture(self.env.as_ref())?.ok_or_else(state_unavailable)?;
        Ok(snapshot.states.len() / self.env.num_envs())
    }

    /// What every environment remembers, `width` numbers each.
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

    /// Puts the episodes that ended since the last time after what is there: returns and lengths of the newest, and how
    /// many there were besides.
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

/// The error of environments that do not tell where they stand.
pub(crate) fn state_unavailable() -> Error {
    Error::config("states", "environments that tell their state", "others", "do without")
}
