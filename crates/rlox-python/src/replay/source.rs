//! `Source`: the storage that transitions are pushed to and sampled from.

use rlox_core::replay::{
    AnySampler, Chosen, Column, Layout, MmapReplayBuffer, Prioritized, Replay, ReplayStorage, Steps,
};
use rlox_core::{Error, FieldMut, Pcg64, Result};

use crate::sync::cell::ANEW;

pub(super) trait Source: Send + Sync {
    /// Whether sampling may wait for a disk.
    const WAITS: bool;
    /// What to do when it was closed.
    const REOPEN: &'static str;

    fn layout(&self) -> &Layout;
    fn num_envs(&self) -> usize;
    fn capacity(&self) -> usize;
    fn len(&self) -> usize;
    /// Whether pushing so many rows waits for a disk.
    fn is_due(&self, rows: usize) -> bool;
    fn push(&mut self, steps: &Steps<'_>, in_order: bool) -> Result<()>;
    fn check_batch_size(&self, batch_size: usize) -> Result<()>;
    /// How much weights are to make up for priorities from now on; gives how much they did.
    fn set_beta(&mut self, beta: f32) -> Result<f32>;
    /// All of choosing that draws.
    fn draw(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()>;
    /// The rest of it.
    fn find(&self, chosen: &mut Chosen) -> Result<()>;
    fn read(&self, chosen: &Chosen, column: Column, out: FieldMut<'_>) -> Result<()>;
    fn read_bools(&self, chosen: &Chosen, column: Column, out: &mut [bool]) -> Result<()>;
}

impl Source for Replay<AnySampler> {
    const WAITS: bool = false;
    const REOPEN: &'static str = ANEW;

    fn layout(&self) -> &Layout {
        self.storage().layout()
    }

    fn num_envs(&self) -> usize {
        self.storage().num_envs()
    }

    fn capacity(&self) -> usize {
        self.storage().capacity()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn is_due(&self, _rows: usize) -> bool {
        false
    }

    fn push(&mut self, steps: &Steps<'_>, in_order: bool) -> Result<()> {
        if in_order { self.push_in_order(steps) } else { self.push_batch(steps) }
    }

    fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        self.check_batch_size(batch_size)
    }

    fn set_beta(&mut self, beta: f32) -> Result<f32> {
        let (_, sampler) = parts(self)?;
        let before = sampler.beta();
        sampler.set_beta(beta)?;
        Ok(before)
    }

    fn draw(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.draw(chosen, batch_size, rng)
    }

    fn find(&self, chosen: &mut Chosen) -> Result<()> {
        self.find(chosen)
    }

    fn read(&self, chosen: &Chosen, column: Column, out: FieldMut<'_>) -> Result<()> {
        chosen.read(self.storage(), column, out)
    }

    fn read_bools(&self, chosen: &Chosen, column: Column, out: &mut [bool]) -> Result<()> {
        chosen.read_bools(self.storage(), column, out)
    }
}

impl Source for MmapReplayBuffer {
    const WAITS: bool = true;
    const REOPEN: &'static str = "open its file again with MmapReplayBuffer.open(path)";

    fn layout(&self) -> &Layout {
        self.layout()
    }

    fn num_envs(&self) -> usize {
        1
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn is_due(&self, rows: usize) -> bool {
        self.is_due(rows)
    }

    /// Every row has its own next observation: their order is nothing to it.
    fn push(&mut self, steps: &Steps<'_>, _in_order: bool) -> Result<()> {
        self.push_batch(steps)
    }

    fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        self.check_batch_size(batch_size)
    }

    fn set_beta(&mut self, beta: f32) -> Result<f32> {
        Ok(beta)
    }

    fn draw(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.draw(chosen, batch_size, rng)
    }

    fn find(&self, chosen: &mut Chosen) -> Result<()> {
        self.find(chosen)
    }

    fn read(&self, chosen: &Chosen, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.read(chosen, column, out)
    }

    fn read_bools(&self, chosen: &Chosen, column: Column, out: &mut [bool]) -> Result<()> {
        self.read_bools(chosen, column, out)
    }
}

/// The storage, and the sampler of a buffer that has priorities.
pub(super) fn parts(buffer: &mut Replay<AnySampler>) -> Result<(&ReplayStorage, &mut Prioritized)> {
    match buffer.parts_mut() {
        (storage, AnySampler::Prioritized(sampler)) => Ok((storage, sampler)),
        (_, AnySampler::Uniform(_) | AnySampler::Hindsight(_)) => Err(none()),
    }
}

/// The error of a buffer without priorities.
pub(super) fn none() -> Error {
    Error::config("buffer", "one with priorities", "one without", "make another")
}
