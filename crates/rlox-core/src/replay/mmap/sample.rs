//! How transitions are chosen and read, from memory and from the file.

use super::{COPIED, MmapReplayBuffer, STRETCH};
use crate::interrupt::Watch;
use crate::replay::buffer::{check_count, draw};
use crate::replay::gather::not_held;
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
        let before = rng.clone();
        let prepared = batch.prepare(&self.layout, batch_size);
        prepared
            .and_then(|()| self.choose(&mut batch.chosen, batch_size, rng))
            .and_then(|()| batch.fill_by(|chosen, column, out| self.read(chosen, column, out)))
            .inspect_err(|_| {
                batch.clear();
                *rng = before;
            })
    }

    /// Chooses `batch_size` transitions, each as likely as another, and reads them, to be copied column by column
    /// ([`MmapReplayBuffer::read`]).
    ///
    /// # Errors
    /// [`crate::Error::Config`] for no transitions or more than are held, [`crate::Error::Memory`] if there is no room,
    /// [`crate::Error::Corrupt`] naming the file and a record that is damaged, [`crate::Error::Io`] if the system refuses,
    /// [`crate::Error::Closed`] in a forked process.
    pub fn choose(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        let before = rng.clone();
        self.draw(chosen, batch_size, rng)?;
        self.find(chosen).inspect_err(|_| *rng = before)
    }

    /// The first half of [`MmapReplayBuffer::choose`], all that draws: threads that share a generator need it no longer
    /// than that.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::choose`] but for damage.
    pub fn draw(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        self.cold.disk.own()?;
        chosen.prepare(batch_size)?;
        draw(&self.indices(), rng, &mut chosen.indices);
        chosen.weights.fill(1.0);
        Ok(())
    }

    /// The second half of [`MmapReplayBuffer::choose`]: reads transitions that were drawn.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::choose`], and [`crate::Error::Config`] if they are not held any more. Nothing can be
    /// read from `chosen` then.
    pub fn find(&self, chosen: &mut Chosen) -> Result<()> {
        chosen.fetch(|indices, records| self.fetch(indices, records)).inspect_err(|_| chosen.clear())
    }

    /// Appends the records of transitions.
    fn fetch(&self, indices: &[usize], records: &mut Vec<u8>) -> Result<()> {
        self.cold.disk.own()?;
        let (held, len) = (self.indices(), self.cold.record.len);
        if let Some(wrong) = indices.iter().find(|index| !held.contains(index)) {
            return Err(not_held(*wrong, &held));
        }
        memory::grow("batch_size", records, indices.len().saturating_mul(len))?;
        let (mut watch, copies) = (Watch::default(), (COPIED / len).clamp(1, STRETCH));
        for (i, row) in indices.iter().enumerate() {
            let hot = *row >= self.hot_from;
            if hot {
                records.extend_from_slice(&self.hot[row % self.hot_capacity * len..][..len]);
            } else {
                let at = records.len();
                records.resize(at + len, 0);
                self.cold.read(*row, &mut records[at..])?;
            }
            if i.is_multiple_of(if hot { copies } else { READS }) {
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
        let found = if chosen.is_found() { chosen.records.len() } else { 0 };
        check_len("chosen", found, chosen.indices.len() * self.cold.record.len)?;
        Ok(&chosen.records)
    }

    /// Checks that so many transitions can be sampled.
    ///
    /// # Errors
    /// [`crate::Error::Config`] for no transitions or more than there are.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.len(), self.len(), batch_size)
    }
}
