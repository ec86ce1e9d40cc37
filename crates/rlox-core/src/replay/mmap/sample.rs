//! How transitions are chosen and read, from memory and from the file.

use super::{MmapReplayBuffer, STRETCH};
use crate::interrupt::Watch;
use crate::replay::buffer::{check_count, draw};
use crate::replay::{Chosen, Column, SampledBatch};
use crate::{FieldMut, Pcg64, Result, check_len, memory};

/// Rows that are read from the file between two looks for an interruption.
const READS: usize = 8;

impl MmapReplayBuffer {
    /// Samples `batch_size` transitions with what `seed` draws. The same seed gives the same transitions of the same
    /// buffer, wherever they lie.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::choose`].
    pub fn sample_into(&self, batch: &mut SampledBatch, batch_size: usize, seed: u64) -> Result<()> {
        self.sample_with(batch, batch_size, &mut Pcg64::seed_from(seed.into()))
    }

    /// Samples `batch_size` transitions with what a generator draws.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::choose`].
    pub fn sample_with(&self, batch: &mut SampledBatch, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        batch.prepare(&self.layout, batch_size)?;
        let sampled = self.choose(&mut batch.chosen, batch_size, rng);
        sampled
            .and_then(|()| batch.fill_by(|chosen, column, out| self.read(chosen, column, out)))
            .inspect_err(|_| batch.clear())
    }

    /// Chooses `batch_size` transitions, each as likely as another, and reads them, to be copied column by column
    /// ([`MmapReplayBuffer::read`]).
    ///
    /// # Errors
    /// [`crate::Error::Config`] for no transitions or more than are held, [`crate::Error::Memory`] if there is no room,
    /// [`crate::Error::Corrupt`] naming the file and a record that is damaged, [`crate::Error::Io`] if the system refuses,
    /// [`crate::Error::Closed`] in a forked process.
    pub fn choose(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        self.cold.disk.own()?;
        let len = self.cold.record.len;
        chosen.prepare(batch_size)?;
        let Chosen { indices, weights, records, .. } = chosen;
        let bytes = batch_size.saturating_mul(len);
        memory::grow("batch_size", records, bytes.saturating_sub(records.len()))?;
        records.resize(bytes, 0);
        draw(&self.indices(), rng, indices);
        weights.fill(1.0);
        let mut watch = Watch::default();
        for (i, (row, out)) in indices.iter().zip(records.chunks_exact_mut(len)).enumerate() {
            if *row >= self.hot_from {
                out.copy_from_slice(&self.hot[row % self.hot_capacity * len..][..len]);
            } else {
                self.cold.read(*row, out)?;
            }
            if i.is_multiple_of(if *row >= self.hot_from { STRETCH } else { READS }) {
                watch.check()?;
            }
        }
        Ok(())
    }

    /// Copies one column of transitions that this buffer chose, `[B, ...]`.
    ///
    /// # Errors
    /// [`crate::Error::Config`] for a column that is not there, [`crate::Error::Space`] for memory of another dtype,
    /// [`crate::Error::Shape`] for memory of another length or transitions of another buffer. Nothing is written then.
    pub fn read(&self, chosen: &Chosen, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.cold.record.read(&self.layout, self.records(chosen)?, column, out)
    }

    /// As [`MmapReplayBuffer::read`], of a column of booleans.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::read`].
    pub fn read_bools(&self, chosen: &Chosen, column: Column, out: &mut [bool]) -> Result<()> {
        self.cold.record.read_bools(&self.layout, self.records(chosen)?, column, out)
    }

    fn records<'a>(&self, chosen: &'a Chosen) -> Result<&'a [u8]> {
        check_len("chosen", chosen.records.len(), chosen.indices.len() * self.cold.record.len)?;
        Ok(&chosen.records)
    }

    /// Checks that so many transitions can be sampled.
    ///
    /// # Errors
    /// [`crate::Error::Config`] for no transitions or more than there are.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.len(), batch_size)
    }
}
