//! What one worker's answers mean for its rows.

use rlox_core::{EpisodeLog, Error, Result};

use crate::v1::reply;
use crate::wire::Slab;

/// The rows of a worker's environments.
pub(super) struct Rows<'a> {
    pub(super) obs: &'a mut [f32],
    pub(super) final_obs: &'a mut [f32],
    pub(super) masks: &'a mut [bool],
    pub(super) reward: &'a mut [f64],
    pub(super) terminated: &'a mut [bool],
    pub(super) truncated: &'a mut [bool],
    pub(super) episodes: &'a mut EpisodeLog,
}

impl Rows<'_> {
    /// Takes an answer in; `stepped` says whether it is that of a step.
    pub(super) fn take(self, what: reply::What, stepped: bool) -> Result<()> {
        let reply::What::Stepped(said) = what else {
            let fix = "install the same version of rlox on both sides";
            return Err(Error::config("reply", "observations", "another answer", fix));
        };
        let mut slab = Slab::new("a worker's reply", &said.slab);
        slab.read(self.obs)?;
        if stepped {
            slab.read(self.reward)?;
            slab.flags(self.terminated)?;
            slab.flags(self.truncated)?;
            if said.finals > 0 {
                let dim = self.obs.len() / self.reward.len();
                let ends = self.terminated.iter().zip(&*self.truncated).map(|(a, b)| *a || *b);
                let rows = self.final_obs.chunks_exact_mut(dim).zip(ends).filter(|(_, ended)| *ended);
                for (row, _) in rows.take(said.finals as usize) {
                    slab.read(row)?;
                }
            }
            let returns: Vec<f64> = slab.vec(said.episodes as usize)?;
            let lengths: Vec<u32> = slab.vec(said.episodes as usize)?;
            returns.iter().zip(&lengths).for_each(|(total, length)| self.episodes.push(*total, *length));
        }
        slab.flags(self.masks)?;
        slab.end()
    }
}
