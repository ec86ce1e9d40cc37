//! What workers' answers mean for the rows of their environments.

use std::ops::Range;

use rlox_core::{AutoresetMode, EnvSpec, EpisodeLog, Error, Result};

use crate::v1::reply;
use crate::wire::{self, Slab};
use crate::worker::LARGEST_MESSAGE;

/// What was seen last of all environments.
pub(super) struct Seen {
    dim: usize,
    mask: usize,
    mode: AutoresetMode,
    pub(super) obs: Vec<f32>,
    pub(super) masks: Vec<bool>,
    pub(super) final_masks: Vec<bool>,
    pub(super) reward: Vec<f64>,
    pub(super) terminated: Vec<bool>,
    pub(super) truncated: Vec<bool>,
    pub(super) final_obs: Vec<f32>,
    pub(super) episodes: EpisodeLog,
}

impl Seen {
    /// Room for that, where a worker could send it.
    pub(super) fn new(n: usize, spec: &EnvSpec, mode: AutoresetMode, mask: usize) -> Result<Self> {
        let dim = spec.observation.dim();
        let bytes = n.saturating_mul(dim.saturating_mul(8).saturating_add(2 * mask));
        if bytes > LARGEST_MESSAGE {
            let expected = format!("observations and masks of at most {LARGEST_MESSAGE} bytes");
            let fix = "ask for fewer environments, or name more workers";
            return Err(Error::config("num_envs", expected, format!("{bytes} bytes of {n}"), fix));
        }
        Ok(Self {
            dim,
            mask,
            mode,
            obs: vec![0.0; n * dim],
            masks: vec![true; n * mask],
            final_masks: vec![false; n * mask],
            reward: vec![0.0; n],
            terminated: vec![false; n],
            truncated: vec![false; n],
            final_obs: vec![0.0; n * dim],
            episodes: EpisodeLog::default(),
        })
    }

    /// Whose episodes the last step ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = bool> {
        self.terminated.iter().zip(&self.truncated).map(|(terminated, truncated)| *terminated || *truncated)
    }

    /// Takes in what a worker says of its rows; `stepped` says whether it is the answer to a step.
    pub(super) fn take(&mut self, rows: Range<usize>, what: reply::What, stepped: bool) -> Result<()> {
        let reply::What::Stepped(said) = what else {
            let fix = "install the same version of rlox on both sides";
            return Err(Error::config("reply", "observations", "another answer", fix));
        };
        let mut slab = Slab::new("a worker's reply", &said.slab);
        slab.read(&mut self.obs[rows.start * self.dim..rows.end * self.dim])?;
        if stepped {
            slab.read(&mut self.reward[rows.clone()])?;
            slab.flags(&mut self.terminated[rows.clone()])?;
            slab.flags(&mut self.truncated[rows.clone()])?;
            self.finals(rows.clone(), said.finals, &mut slab)?;
            let returns: Vec<f64> = slab.vec(said.episodes as usize)?;
            let lengths: Vec<u32> = slab.vec(said.episodes as usize)?;
            returns.iter().zip(&lengths).for_each(|(total, length)| self.episodes.push(*total, *length));
        }
        slab.flags(&mut self.masks[rows.start * self.mask..rows.end * self.mask])?;
        if stepped {
            for row in wire::truncated_rows(&self.terminated[rows.clone()], &self.truncated[rows.clone()]) {
                slab.flags(&mut self.final_masks[(rows.start + row) * self.mask..][..self.mask])?;
            }
        }
        slab.end()
    }

    /// The last observations of the episodes that ended.
    fn finals(&mut self, rows: Range<usize>, said: u32, slab: &mut Slab<'_>) -> Result<()> {
        let ended = |row: &usize| self.terminated[*row] || self.truncated[*row];
        let ends = if self.mode == AutoresetMode::SameStep { rows.clone().filter(ended).count() } else { 0 };
        if said as usize != ends {
            let (expected, got) = (format!("{ends}, of the episodes that ended"), said.to_string());
            let fix = "install the same version of rlox on both sides";
            return Err(Error::corrupt("last observations", expected, got, fix));
        }
        for row in rows {
            if ends > 0 && (self.terminated[row] || self.truncated[row]) {
                slab.read(&mut self.final_obs[row * self.dim..(row + 1) * self.dim])?;
            }
        }
        Ok(())
    }
}
