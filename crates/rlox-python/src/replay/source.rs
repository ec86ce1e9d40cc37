//! The trait `ReplayBackend`: storage that transitions are pushed to and sampled from.

use rlox_core::replay::{
    AnySampler, Column, MmapReplayBuffer, Prioritized, Replay, ReplayStorage, SampleIndices, TransitionBatch,
    TransitionSchema,
};
use rlox_core::{Error, Pcg64, Result, field::FieldMut};

use crate::sync::cell::RECREATE_HINT;

pub(super) trait ReplayBackend: Send + Sync {
    /// True if pushes and samples may wait for a disk.
    const DOES_IO: bool;
    /// Hint of the error after the buffer was closed.
    const REOPEN_HINT: &'static str;

    fn schema(&self) -> &TransitionSchema;
    fn num_envs(&self) -> usize;
    fn capacity(&self) -> usize;
    fn len(&self) -> usize;
    /// Returns true if pushing this many rows waits for writes to a disk.
    fn is_write_due(&self, rows: usize) -> bool;
    fn push(&mut self, batch: &TransitionBatch<'_>, in_order: bool) -> Result<()>;
    fn check_batch_size(&self, batch_size: usize) -> Result<()>;
    /// Sets the exponent of the importance weights, and returns the previous exponent.
    fn set_beta(&mut self, beta: f32) -> Result<f32>;
    /// Performs the first part of a sample, which draws random numbers.
    fn draw(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()>;
    /// Performs the second part of a sample, which draws no random numbers.
    fn find(&self, sample_indices: &mut SampleIndices) -> Result<()>;
    fn read(&self, sample_indices: &SampleIndices, column: Column, out: FieldMut<'_>) -> Result<()>;
    fn read_bools(&self, sample_indices: &SampleIndices, column: Column, out: &mut [bool]) -> Result<()>;
}

impl ReplayBackend for Replay<AnySampler> {
    const DOES_IO: bool = false;
    const REOPEN_HINT: &'static str = RECREATE_HINT;

    fn schema(&self) -> &TransitionSchema {
        self.storage().schema()
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

    fn is_write_due(&self, _rows: usize) -> bool {
        false
    }

    fn push(&mut self, batch: &TransitionBatch<'_>, in_order: bool) -> Result<()> {
        if in_order { self.push_in_order(batch) } else { self.push_batch(batch) }
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

    fn draw(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.draw(sample_indices, batch_size, rng)
    }

    fn find(&self, sample_indices: &mut SampleIndices) -> Result<()> {
        self.find(sample_indices)
    }

    fn read(&self, sample_indices: &SampleIndices, column: Column, out: FieldMut<'_>) -> Result<()> {
        sample_indices.read(self.storage(), column, out)
    }

    fn read_bools(&self, sample_indices: &SampleIndices, column: Column, out: &mut [bool]) -> Result<()> {
        sample_indices.read_bools(self.storage(), column, out)
    }
}

impl ReplayBackend for MmapReplayBuffer {
    const DOES_IO: bool = true;
    const REOPEN_HINT: &'static str = "open the file again with MmapReplayBuffer.open(path)";

    fn schema(&self) -> &TransitionSchema {
        self.schema()
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

    fn is_write_due(&self, rows: usize) -> bool {
        self.is_write_due(rows)
    }

    /// Adds rows. `in_order` has no effect, because every row has its own next observation.
    fn push(&mut self, batch: &TransitionBatch<'_>, _in_order: bool) -> Result<()> {
        self.push_batch(batch)
    }

    fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        self.check_batch_size(batch_size)
    }

    fn set_beta(&mut self, beta: f32) -> Result<f32> {
        Ok(beta)
    }

    fn draw(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.draw(sample_indices, batch_size, rng)
    }

    fn find(&self, sample_indices: &mut SampleIndices) -> Result<()> {
        self.find(sample_indices)
    }

    fn read(&self, sample_indices: &SampleIndices, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.read(sample_indices, column, out)
    }

    fn read_bools(&self, sample_indices: &SampleIndices, column: Column, out: &mut [bool]) -> Result<()> {
        self.read_bools(sample_indices, column, out)
    }
}

/// Returns the storage and the sampler of a buffer with priorities.
pub(super) fn parts(buffer: &mut Replay<AnySampler>) -> Result<(&ReplayStorage, &mut Prioritized)> {
    match buffer.parts_mut() {
        (storage, AnySampler::Prioritized(sampler)) => Ok((storage, sampler)),
        (_, AnySampler::Uniform(_) | AnySampler::Hindsight(_)) => Err(no_priorities()),
    }
}

/// Returns the error for a buffer without priorities.
pub(super) fn no_priorities() -> Error {
    Error::config("buffer", "a buffer with priorities", "a buffer without priorities", "use PrioritizedReplayBuffer")
}
