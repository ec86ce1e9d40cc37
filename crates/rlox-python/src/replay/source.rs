//! What transitions are pushed to and sampled from.

use rlox_core::replay::{Chosen, Column, Layout, MmapReplayBuffer, Replay, Sampler, Steps};
use rlox_core::{FieldMut, Pcg64, Result};

pub(super) trait Source: Send {
    /// Whether sampling may wait for a disk.
    const WAITS: bool;

    fn layout(&self) -> &Layout;
    fn num_envs(&self) -> usize;
    fn len(&self) -> usize;
    /// Whether pushing so many rows waits for a disk.
    fn is_due(&self, rows: usize) -> bool;
    fn push(&mut self, steps: &Steps<'_>, in_order: bool) -> Result<()>;
    fn check_batch_size(&self, batch_size: usize) -> Result<()>;
    fn choose(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()>;
    fn read(&self, chosen: &Chosen, column: Column, out: FieldMut<'_>) -> Result<()>;
    fn read_bools(&self, chosen: &Chosen, column: Column, out: &mut [bool]) -> Result<()>;
}

impl<S: Sampler> Source for Replay<S> {
    const WAITS: bool = false;

    fn layout(&self) -> &Layout {
        self.storage().layout()
    }

    fn num_envs(&self) -> usize {
        self.storage().num_envs()
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

    fn choose(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.choose(chosen, batch_size, rng)
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

    fn layout(&self) -> &Layout {
        self.layout()
    }

    fn num_envs(&self) -> usize {
        1
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

    fn choose(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.choose(chosen, batch_size, rng)
    }

    fn read(&self, chosen: &Chosen, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.read(chosen, column, out)
    }

    fn read_bools(&self, chosen: &Chosen, column: Column, out: &mut [bool]) -> Result<()> {
        self.read_bools(chosen, column, out)
    }
}
