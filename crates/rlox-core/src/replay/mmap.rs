//! A replay buffer that is larger than memory and outlives its process.

mod back;
mod file;
mod format;
#[cfg(test)]
mod tests;
mod timeline;

use std::ops::Range;
use std::path::Path;

use self::file::{Cold, Disk};
use self::format::{Header, Record};
use super::ExperienceRecord;
use super::batch::{Column, SampleIndices, SampledBatch, invalid_index};
use super::sampler::check_count;
use super::schema::{RowLayout, TransitionBatch, TransitionSchema};
use super::storage::draw;
use crate::interrupt::InterruptCheck;
use crate::{Error, FieldData, FieldMut, Pcg64, Result, alloc, check_len};

/// Bytes of rows that are written together, as soon as there are so many.
const WRITE_BATCH_BYTES: usize = 1 << 18;
/// Bytes of rows between two commits: an eighth of what is held, but at least the first and at most the second.
const SLACK_BYTES: (usize, usize) = (1 << 22, 1 << 26);
/// Bytes, and rows at most, that are taken or copied from memory between two looks for an interruption.
const POLL_EVERY_BYTES: usize = 1 << 22;
const POLL_EVERY_ROWS: usize = 1 << 10;
/// Rows that are read from the file between two looks for an interruption.
const POLL_EVERY_READS: usize = 8;

/// A replay buffer whose newest rows are in memory, and which holds the others in a file; sampled uniformly.
///
/// Rows go to the file in batches, before they leave memory. [`MmapReplayBuffer::flush`] has all of them reach the disk.
/// After a crash [`MmapReplayBuffer::open`] finds every row that was flushed and that newer ones have not replaced, and
/// with a little luck newer ones. Dropping the buffer flushes it, and can tell nobody if that fails.
///
/// Each row has its number and a checksum, which are checked whenever it is read. While a buffer is open its file is
/// locked, and no other buffer opens it.
///
/// The file is read and written by position and not mapped into memory: what happens to it then, such as another
/// program's truncating it, is an error and never a signal that ends the process. The system keeps in memory what it has
/// room for either way.
///
/// Transitions are told by the number they have in the order of pushing, counted from 0.
///
/// ```
/// use rlox_core::DType;
/// use rlox_core::replay::{TransitionSchema, MmapReplayBuffer, FieldSpec, SampledBatch};
///
/// let part = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
/// let path = std::env::temp_dir().join(format!("rlox-replay-{}", std::process::id()));
/// let mut buffer = MmapReplayBuffer::create(&path, 100, 10_000, TransitionSchema::new(part("obs", 2), part("actions", 1)))?;
/// for i in 0..1000 {
///     buffer.push_slices(&[i as f32, 0.0], &[i as f32 + 1.0, 0.0], &[1.0], 0.5, false, false)?;
/// }
/// buffer.flush()?;
/// drop(buffer);
///
/// let buffer = MmapReplayBuffer::open(&path, None)?;
/// let mut batch = SampledBatch::default();
/// buffer.sample_into(&mut batch, 32, 7)?;
/// assert_eq!((buffer.len(), batch.f32s("obs").len()), (1000, 32 * 2));
/// # drop(buffer);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Debug)]
pub struct MmapReplayBuffer {
    schema: TransitionSchema,
    total_capacity: usize,
    cold: Cold,
    /// A ring of records, `[hot_capacity]`.
    hot: Vec<u8>,
    hot_capacity: usize,
    /// The first row that is in memory.
    hot_from: usize,
    /// Rows pushed so far.
    pushed: usize,
    /// No other file's.
    id: u64,
}

impl MmapReplayBuffer {
    /// An empty buffer of `total_capacity` rows, of which the newest `hot_capacity` stay in memory, and its file at
    /// `path`, where nothing is.
    ///
    /// # Errors
    /// [`Error::Config`] if a capacity is 0, more is to stay in memory than is held, the layout makes no sense or stacks
    /// frames, [`Error::Shape`] for a row without elements, [`Error::Memory`] with the number of bytes if what stays in
    /// memory does not fit, [`Error::Io`] if anything is at `path` or the system refuses. What is at `path` stays as it is.
    pub fn create(
        path: impl AsRef<Path>,
        hot_capacity: usize,
        total_capacity: usize,
        schema: TransitionSchema,
    ) -> Result<Self> {
        Self::create_with(path.as_ref(), hot_capacity, total_capacity, schema, None)
    }

    fn create_with(
        path: &Path,
        hot: usize,
        total: usize,
        schema: TransitionSchema,
        slack: Option<usize>,
    ) -> Result<Self> {
        check_capacities(hot, total)?;
        if schema.frame_stack != 1 {
            let (got, hint) = (schema.frame_stack.to_string(), "store whole observations, or use a ReplayBuffer");
            return Err(Error::config("frame_stack", "1", got, hint));
        }
        RowLayout::new(&schema)?;
        let record = Record::new(&schema, 0).len;
        let memory = hot_memory(hot, record)?;
        let rows = |bytes: usize| bytes / record;
        let slack = slack.unwrap_or_else(|| (total / 8).clamp(rows(SLACK_BYTES.0), rows(SLACK_BYTES.1)).max(1));
        let [low, high] = Disk::id().map(u64::from);
        let header = Header { schema, hot_capacity: hot, total_capacity: total, slack, id: high << 32 | low };
        let cold = Cold::create(path, &header)?;
        Ok(Self::from_cold(cold, header, memory, hot))
    }

    fn from_cold(cold: Cold, header: Header, hot: Vec<u8>, hot_capacity: usize) -> Self {
        let pushed = cold.written;
        let Header { schema, total_capacity, id, .. } = header;
        Self { schema, total_capacity, cold, hot, hot_capacity, hot_from: pushed, pushed, id }
    }

    /// The buffer whose file is at `path`. `hot_capacity` rows stay in memory; without it as many as it was created with.
    ///
    /// # Errors
    /// [`Error::Io`] if nothing is there or the system refuses, [`Error::Closed`] if another buffer has the file open,
    /// [`Error::Corrupt`] naming the file and the section that is damaged, missing or not a replay buffer's,
    /// [`Error::Config`] for a newer format or a capacity that makes no sense, [`Error::Memory`] if what stays in memory
    /// does not fit. Rows older than those are checked when they are read.
    pub fn open(path: impl AsRef<Path>, hot_capacity: impl Into<Option<usize>>) -> Result<Self> {
        let mut interrupt = InterruptCheck::default();
        let (cold, header) = Cold::open(path.as_ref(), &mut || interrupt.check())?;
        let hot_capacity = hot_capacity.into().unwrap_or(header.hot_capacity);
        check_capacities(hot_capacity, header.total_capacity)?;
        let hot = hot_memory(hot_capacity, cold.record.len)?;
        let mut buffer = Self::from_cold(cold, header, hot, hot_capacity);
        buffer.hot_from = buffer.pushed.saturating_sub(hot_capacity);
        let Self { cold, hot, hot_from, pushed, .. } = &mut buffer;
        let len = cold.record.len;
        cold.for_each_checked_row(*hot_from..*pushed, &mut || interrupt.check(), |row, bytes| {
            hot[row % hot_capacity * len..][..len].copy_from_slice(bytes);
        })?;
        Ok(buffer)
    }

    /// What transitions are made of.
    pub fn schema(&self) -> &TransitionSchema {
        &self.schema
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.cold.disk.path()
    }

    /// How many transitions can be held.
    pub fn capacity(&self) -> usize {
        self.total_capacity
    }

    /// How many of them stay in memory.
    pub fn hot_capacity(&self) -> usize {
        self.hot_capacity
    }

    /// How many transitions are held.
    pub fn len(&self) -> usize {
        self.pushed.min(self.total_capacity)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// The numbers of the transitions that are held.
    pub fn indices(&self) -> Range<usize> {
        self.pushed - self.len()..self.pushed
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.hot.len()
    }

    /// Adds any number of rows, each with its next observation.
    ///
    /// More rows than stay in memory are taken in pieces of so many: where the system refuses in the middle, those before
    /// are taken, and the error says how many. So they are where it is told to stop; [`MmapReplayBuffer::indices`] tells
    /// how many then.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of rows or elements, [`Error::Space`] for other dtypes or numbers that are not
    /// finite, [`Error::Config`] without next observations, [`Error::Io`] if the system refuses to write rows that were
    /// pushed before, as on a full disk: they stay in memory, and pushing again tries again. Nothing has changed then.
    /// [`Error::Interrupted`] if it was told to stop.
    pub fn push_batch(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        batch.check(&self.schema, &mut interrupt)?;
        batch.check_obs(&self.schema, &mut interrupt)?;
        if batch.next_obs.is_none() {
            let hint = "pass next_obs, which every row of a file has of its own: of an episode that ended its last";
            return Err(Error::config("next_obs", "the observation after each row", "none", hint));
        }
        // A forked child could not keep what it was given.
        self.cold.disk.check_process()?;
        let rows = batch.rows();
        for first in (0..rows).step_by(self.hot_capacity) {
            let piece = first..rows.min(first + self.hot_capacity);
            self.push_piece(batch, piece, &mut interrupt).map_err(|error| with_progress(error, first, rows))?;
        }
        Ok(())
    }

    /// Whether pushing so many rows would write to the file, and wait for the disk.
    pub fn is_write_due(&self, rows: usize) -> bool {
        let batch = self.hot_capacity.min(WRITE_BATCH_BYTES / self.cold.record.len).max(1);
        (self.pushed - self.cold.written).saturating_add(rows) > batch
    }

    /// Adds no more rows than stay in memory: all of them or none.
    fn push_piece(
        &mut self,
        batch: &TransitionBatch<'_>,
        rows: Range<usize>,
        interrupt: &mut InterruptCheck,
    ) -> Result<()> {
        let (before, len) = (self.pushed, self.cold.record.len);
        if self.is_write_due(rows.len()) {
            self.cold.write(&self.hot, self.hot_from..before, &mut || interrupt.check())?;
        }
        let poll_rows = (POLL_EVERY_BYTES / len).clamp(1, POLL_EVERY_ROWS);
        for row in rows {
            let out = &mut self.hot[self.pushed % self.hot_capacity * len..][..len];
            self.cold.record.write(out, self.pushed, batch, row);
            self.pushed += 1;
            self.hot_from = self.hot_from.max(self.pushed.saturating_sub(self.hot_capacity));
            if self.pushed.is_multiple_of(poll_rows) {
                // Rows that were replaced in memory are in the file.
                interrupt.check().inspect_err(|_| self.pushed = before)?;
            }
        }
        Ok(())
    }

    /// Adds one transition.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::push_batch`].
    pub fn push_slices(
        &mut self,
        obs: &[f32],
        next_obs: &[f32],
        action: &[f32],
        reward: f32,
        terminated: bool,
        truncated: bool,
    ) -> Result<()> {
        self.push_batch(&TransitionBatch {
            obs: &[FieldData::F32(obs)],
            actions: FieldData::F32(action),
            rewards: &[reward],
            terminated: &[terminated],
            truncated: &[truncated],
            next_obs: Some(&[FieldData::F32(next_obs)]),
            extra: &[],
        })
    }

    /// Adds one transition.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::push_batch`].
    pub fn push(&mut self, record: &ExperienceRecord) -> Result<()> {
        let ExperienceRecord { obs, next_obs, action, reward, terminated, truncated } = record;
        self.push_slices(obs, next_obs, action, *reward, *terminated, *truncated)
    }

    /// Has all rows reach the disk: after a crash they are there.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, as on a full disk: nothing is lost, and flushing again tries again.
    /// [`Error::Closed`] in a forked process.
    pub fn flush(&mut self) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        self.cold.write(&self.hot, self.hot_from..self.pushed, &mut || interrupt.check())?;
        self.cold.commit()
    }

    /// Whether all rows have reached the disk, as after a flush, or where none was pushed since the file was opened.
    pub fn is_flushed(&self) -> bool {
        self.cold.safe == self.pushed
    }

    /// Reads and checks the whole file: its header, its commits and every transition that it holds.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the file and the section that is damaged, [`Error::Io`] if the system refuses,
    /// [`Error::Closed`] in a forked process.
    pub fn verify(&self) -> Result<()> {
        self.cold.disk.check_process()?;
        self.cold.verify()?;
        let mut interrupt = InterruptCheck::default();
        self.cold.for_each_checked_row(self.indices().start..self.cold.written, &mut || interrupt.check(), |_, _| ())
    }
}

impl MmapReplayBuffer {
    /// Samples `batch_size` transitions with what `seed` draws. The same seed gives the same transitions of the same
    /// buffer, wherever they lie.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::sample_indices`].
    pub fn sample_into(&self, batch: &mut SampledBatch, batch_size: usize, seed: u64) -> Result<()> {
        self.sample_with(batch, batch_size, &mut Pcg64::seed_from(seed.into()))
    }

    /// Samples `batch_size` transitions with what a generator draws.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::sample_indices`].
    pub fn sample_with(&self, batch: &mut SampledBatch, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        let before = rng.clone();
        let prepared = batch.prepare(&self.schema, batch_size);
        prepared
            .and_then(|()| self.sample_indices(&mut batch.sample_indices, batch_size, rng))
            .and_then(|()| batch.fill_by(|sample_indices, column, out| self.read(sample_indices, column, out)))
            .inspect_err(|_| {
                batch.clear();
                *rng = before;
            })
    }

    /// Chooses `batch_size` transitions, each as likely as another, and reads them, to be copied column by column
    /// ([`MmapReplayBuffer::read`]).
    ///
    /// # Errors
    /// [`Error::Config`] for no transitions or more than are held, [`Error::Memory`] if there is no room,
    /// [`Error::Corrupt`] naming the file and a record that is damaged, [`Error::Io`] if the system refuses,
    /// [`Error::Closed`] in a forked process.
    pub fn sample_indices(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        let before = rng.clone();
        self.draw(sample_indices, batch_size, rng)?;
        self.find(sample_indices).inspect_err(|_| *rng = before)
    }

    /// The first half of [`MmapReplayBuffer::sample_indices`], all that draws: threads that share a generator need it no longer
    /// than that.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::sample_indices`] but for damage.
    pub fn draw(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        self.cold.disk.check_process()?;
        sample_indices.prepare(batch_size)?;
        draw(&self.indices(), rng, &mut sample_indices.indices);
        sample_indices.weights.fill(1.0);
        Ok(())
    }

    /// The second half of [`MmapReplayBuffer::sample_indices`]: reads transitions that were drawn.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::sample_indices`], and [`Error::Config`] if they are not held any more. Nothing can be
    /// read from `sample_indices` then.
    pub fn find(&self, sample_indices: &mut SampleIndices) -> Result<()> {
        sample_indices.fetch(|indices, records| self.fetch(indices, records)).inspect_err(|_| sample_indices.clear())
    }

    /// Appends the records of transitions.
    fn fetch(&self, indices: &[usize], records: &mut Vec<u8>) -> Result<()> {
        self.cold.disk.check_process()?;
        let (valid, len) = (self.indices(), self.cold.record.len);
        if let Some(invalid) = indices.iter().find(|index| !valid.contains(index)) {
            return Err(invalid_index(*invalid, &valid));
        }
        alloc::try_reserve("batch_size", records, indices.len().saturating_mul(len))?;
        let (mut interrupt, copies) = (InterruptCheck::default(), (POLL_EVERY_BYTES / len).clamp(1, POLL_EVERY_ROWS));
        for (i, row) in indices.iter().enumerate() {
            let hot = *row >= self.hot_from;
            if hot {
                records.extend_from_slice(&self.hot[row % self.hot_capacity * len..][..len]);
            } else {
                let offset = records.len();
                records.resize(offset + len, 0);
                self.cold.read(*row, &mut records[offset..])?;
            }
            if i.is_multiple_of(if hot { copies } else { POLL_EVERY_READS }) {
                interrupt.check()?;
            }
        }
        Ok(())
    }

    /// Copies one column of transitions that this buffer chose, `[B, ...]`.
    ///
    /// # Errors
    /// [`Error::Config`] for a column that is not there, [`Error::Space`] for memory of another dtype,
    /// [`Error::Shape`] for memory of another length or transitions of another buffer. Nothing is written then.
    pub fn read(&self, sample_indices: &SampleIndices, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.cold.record.read(&self.schema, self.records(sample_indices)?, column, out)
    }

    /// As [`MmapReplayBuffer::read`], of a column of booleans.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::read`].
    pub fn read_bools(&self, sample_indices: &SampleIndices, column: Column, out: &mut [bool]) -> Result<()> {
        self.cold.record.read_bools(&self.schema, self.records(sample_indices)?, column, out)
    }

    fn records<'a>(&self, sample_indices: &'a SampleIndices) -> Result<&'a [u8]> {
        let found = if sample_indices.is_found() { sample_indices.records.len() } else { 0 };
        check_len("sample_indices", found, sample_indices.indices.len() * self.cold.record.len)?;
        Ok(&sample_indices.records)
    }

    /// Checks that so many transitions can be sampled.
    ///
    /// # Errors
    /// [`Error::Config`] for no transitions or more than there are.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.len(), self.len(), batch_size)
    }
}

impl Drop for MmapReplayBuffer {
    fn drop(&mut self) {
        // What was only read is not written to. The parent's rows are the parent's to write.
        if !self.is_flushed() && self.cold.write(&self.hot, self.hot_from..self.pushed, &mut || Ok(())).is_ok() {
            let _ = self.cold.commit();
        }
    }
}

fn check_capacities(hot: usize, total: usize) -> Result<()> {
    for (name, count) in [("hot_capacity", hot), ("total_capacity", total)] {
        if count == 0 {
            return Err(Error::config(name, "at least 1", "0", "pass a positive number"));
        }
    }
    if hot > total {
        let (expected, hint) = (format!("at most total_capacity = {total}"), "keep no more in memory than there is");
        return Err(Error::config("hot_capacity", expected, hot.to_string(), hint));
    }
    Ok(())
}

/// Memory for the newest rows.
fn hot_memory(rows: usize, bytes_each: usize) -> Result<Vec<u8>> {
    alloc::check_available("hot_capacity", rows, bytes_each)?;
    alloc::zeroed("hot_capacity", rows.saturating_mul(bytes_each))
}

/// The error of a push in pieces, of which some were taken.
fn with_progress(error: Error, num_pushed: usize, rows: usize) -> Error {
    match error {
        Error::Io { path, source } if num_pushed > 0 => {
            let message = format!("{source}; {num_pushed} of {rows} rows were stored");
            Error::Io { path, source: std::io::Error::new(source.kind(), message) }
        }
        error => error,
    }
}
