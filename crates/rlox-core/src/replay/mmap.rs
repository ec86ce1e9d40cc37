//! A replay buffer in a file: larger than memory and persistent.
//!
//! The newest rows are in memory as well ("hot"). A row is one transition. Its bytes in the file
//! are a record.

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
use crate::{
    Error, Pcg64, Result, alloc,
    error::check_len,
    field::{FieldData, FieldMut},
};

/// Maximum number of bytes in rows that the file lacks. A push that would exceed the
/// maximum first writes these rows.
const WRITE_BATCH_BYTES: usize = 1 << 18;
/// Minimum and maximum number of bytes of rows between two commits. Within these limits, a commit
/// is written after an eighth of the capacity.
const SLACK_BYTES: (usize, usize) = (1 << 22, 1 << 26);
/// Maximum bytes and maximum rows that are copied in memory between two interrupt checks.
const POLL_EVERY_BYTES: usize = 1 << 22;
const POLL_EVERY_ROWS: usize = 1 << 10;
/// Number of rows that are read from the file between two interrupt checks.
const POLL_EVERY_READS: usize = 8;

/// Replay buffer with the newest rows in memory and all rows in a file, sampled uniformly.
///
/// Rows are written to the file in batches, before newer rows replace them in memory.
/// [`MmapReplayBuffer::flush`] writes all rows to the disk. After a crash,
/// [`MmapReplayBuffer::open`] finds every flushed row that newer rows have not replaced, and
/// possibly some newer rows. Dropping the buffer flushes it and ignores errors.
///
/// Each record contains the index of its row and a checksum, which are verified at every read. The
/// file of an open buffer is locked, so that no other buffer can open it.
///
/// Despite the name of this type, the file is not mapped into memory, but read and written at byte
/// offsets. If another program truncates the file, calls return errors, where an access to a
/// mapping would end the process by a signal. The system caches the file in both cases.
///
/// The index of a transition is its position in the order of pushes, counted from 0.
///
/// ```
/// use rlox_core::field::DType;
/// use rlox_core::replay::{FieldSpec, MmapReplayBuffer, SampledBatch, TransitionSchema};
///
/// let field = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
/// let schema = TransitionSchema::new(field("obs", 2), field("actions", 1));
/// let path = std::env::temp_dir().join(format!("rlox-replay-{}", std::process::id()));
/// let mut buffer = MmapReplayBuffer::create(&path, 100, 10_000, schema)?;
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
    /// Ring of the records of the newest rows, `[hot_capacity]`.
    hot: Vec<u8>,
    hot_capacity: usize,
    /// Index of the oldest row in memory.
    hot_from: usize,
    /// Number of rows pushed so far.
    pushed: usize,
    /// Unique id of the file.
    id: u64,
}

impl MmapReplayBuffer {
    /// Creates an empty buffer of `total_capacity` rows, with a new file at `path`.
    ///
    /// The newest `hot_capacity` rows stay in memory.
    ///
    /// # Errors
    /// - [`Error::Config`] if a capacity is 0, `hot_capacity` exceeds `total_capacity`, or the schema is invalid or
    ///   stacks frames;
    /// - [`Error::Shape`] if a row has no elements or too many axes;
    /// - [`Error::Memory`] with the number of bytes if the rows in memory do not fit;
    /// - [`Error::Io`] if `path` exists, where the existing file is unchanged, or if the system
    ///   reports an error.
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
            let (got, hint) = (schema.frame_stack.to_string(), "store complete observations, or use a ReplayBuffer");
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

    /// Opens the buffer whose file is at `path`.
    ///
    /// The newest `hot_capacity` rows stay in memory. `None` selects the capacity at creation. This
    /// call verifies the rows that it loads into memory. All other rows are verified when they are
    /// read.
    ///
    /// # Errors
    /// - [`Error::Io`] if there is no file or the system reports an error;
    /// - [`Error::Closed`] if another buffer has opened the file;
    /// - [`Error::Corrupt`] if the file is damaged; the error names the file and the damaged or
    ///   missing section;
    /// - [`Error::Config`] if the file has another version of the format or another byte order, or
    ///   if a capacity is invalid;
    /// - [`Error::Memory`] if the rows in memory do not fit;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
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

    /// Returns the schema of the transitions.
    pub fn schema(&self) -> &TransitionSchema {
        &self.schema
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.cold.disk.path()
    }

    /// Returns the maximum number of stored transitions.
    pub fn capacity(&self) -> usize {
        self.total_capacity
    }

    /// Returns the maximum number of transitions in memory.
    pub fn hot_capacity(&self) -> usize {
        self.hot_capacity
    }

    /// Returns the number of stored transitions.
    pub fn len(&self) -> usize {
        self.pushed.min(self.total_capacity)
    }

    /// Returns true if no transitions are stored.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Returns the indices of the stored transitions.
    pub fn indices(&self) -> Range<usize> {
        self.pushed - self.len()..self.pushed
    }

    /// Returns the number of allocated bytes.
    pub fn memory(&self) -> usize {
        self.hot.len()
    }

    /// Appends any number of rows, each with its next observation.
    ///
    /// If the rows do not fit into memory, they are stored in pieces of `hot_capacity` rows. If a
    /// piece fails, the earlier pieces are stored, and [`MmapReplayBuffer::indices`] includes them.
    /// The text of an [`Error::Io`] contains the number of rows in the earlier pieces.
    ///
    /// # Errors
    /// - [`Error::Shape`] if a number of rows or elements is wrong;
    /// - [`Error::Space`] if a dtype is wrong;
    /// - [`Error::NotFinite`] if a number is not finite;
    /// - [`Error::Config`] if next observations are missing;
    /// - [`Error::Closed`] in a forked process;
    /// - [`Error::Io`] if the system cannot write earlier rows, as on a full disk. These rows stay in memory, and the
    ///   next push tries again;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// No row of the failed piece is stored.
    pub fn push_batch(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        batch.check(&self.schema, &mut interrupt)?;
        batch.check_obs(&self.schema, &mut interrupt)?;
        if batch.next_obs.is_none() {
            let hint = "pass next_obs with every row; where an episode ends, pass its final observation";
            return Err(Error::config("next_obs", "the observation after each row", "none", hint));
        }
        // A forked process cannot write rows to the file.
        self.cold.disk.check_process()?;
        let rows = batch.rows();
        for first in (0..rows).step_by(self.hot_capacity) {
            let piece = first..rows.min(first + self.hot_capacity);
            self.push_piece(batch, piece, &mut interrupt).map_err(|error| with_progress(error, first, rows))?;
        }
        Ok(())
    }

    /// Returns true if a push of `rows` rows would write to the file and wait for the disk.
    pub fn is_write_due(&self, rows: usize) -> bool {
        let batch = self.hot_capacity.min(WRITE_BATCH_BYTES / self.cold.record.len).max(1);
        (self.pushed - self.cold.written).saturating_add(rows) > batch
    }

    /// Appends all rows of a piece or none. A piece has at most `hot_capacity` rows.
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
                // The rows that were replaced in memory are in the file, so that `pushed` can be
                // reset.
                interrupt.check().inspect_err(|_| self.pushed = before)?;
            }
        }
        Ok(())
    }

    /// Appends one transition.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::push_batch`].
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

    /// Appends one transition.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::push_batch`].
    pub fn push(&mut self, record: &ExperienceRecord) -> Result<()> {
        let ExperienceRecord { obs, next_obs, action, reward, terminated, truncated } = record;
        self.push_slices(obs, next_obs, action, *reward, *terminated, *truncated)
    }

    /// Writes all rows to the disk, so that they survive a crash.
    ///
    /// # Errors
    /// - [`Error::Io`] if the system reports an error, as on a full disk. No row is lost, and another flush tries
    ///   again;
    /// - [`Error::Closed`] in a forked process;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    pub fn flush(&mut self) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        self.cold.write(&self.hot, self.hot_from..self.pushed, &mut || interrupt.check())?;
        self.cold.commit()
    }

    /// Returns true if all rows are on the disk.
    ///
    /// The result is true after a flush and after the file is opened, until the next push.
    pub fn is_flushed(&self) -> bool {
        self.cold.safe == self.pushed
    }

    /// Reads and verifies the complete file: header, commits and every stored transition.
    ///
    /// # Errors
    /// - [`Error::Corrupt`] if the file is damaged; the error names the file and the damaged
    ///   section;
    /// - [`Error::Io`] if the system reports an error;
    /// - [`Error::Closed`] in a forked process;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    pub fn verify(&self) -> Result<()> {
        self.cold.disk.check_process()?;
        self.cold.verify()?;
        let mut interrupt = InterruptCheck::default();
        self.cold.for_each_checked_row(self.indices().start..self.cold.written, &mut || interrupt.check(), |_, _| ())
    }
}

impl MmapReplayBuffer {
    /// Samples `batch_size` transitions with a generator of the given seed.
    ///
    /// The same seed samples the same transitions from the same buffer, in memory or in the file.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::sample_indices`].
    pub fn sample_into(&self, batch: &mut SampledBatch, batch_size: usize, seed: u64) -> Result<()> {
        self.sample_with(batch, batch_size, &mut Pcg64::seed_from(seed.into()))
    }

    /// Samples `batch_size` transitions with the given generator.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::sample_indices`].
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

    /// Samples `batch_size` transitions uniformly and reads their records into `sample_indices`.
    ///
    /// [`MmapReplayBuffer::read`] copies columns of these records.
    ///
    /// # Errors
    /// - [`Error::Config`] if `batch_size` is 0 or exceeds the number of stored transitions;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Corrupt`] if a record is damaged; the error names the file and the record;
    /// - [`Error::Io`] if the system reports an error;
    /// - [`Error::Closed`] in a forked process;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// The generator is unchanged after an error.
    pub fn sample_indices(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        let before = rng.clone();
        self.draw(sample_indices, batch_size, rng)?;
        self.find(sample_indices).inspect_err(|_| *rng = before)
    }

    /// Draws indices, the first part of [`MmapReplayBuffer::sample_indices`].
    ///
    /// Only this part uses the generator. Threads that share a generator can release it before they
    /// call [`MmapReplayBuffer::find`], the second part.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::sample_indices`], except the errors of reads.
    pub fn draw(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        self.cold.disk.check_process()?;
        sample_indices.prepare(batch_size)?;
        draw(&self.indices(), rng, &mut sample_indices.indices);
        sample_indices.weights.fill(1.0);
        Ok(())
    }

    /// Reads the records of drawn transitions, the second part of
    /// [`MmapReplayBuffer::sample_indices`].
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::sample_indices`]. [`Error::Config`] if a transition is no
    /// longer stored. The indices are cleared after an error.
    pub fn find(&self, sample_indices: &mut SampleIndices) -> Result<()> {
        sample_indices.fetch(|indices, records| self.fetch(indices, records)).inspect_err(|_| sample_indices.clear())
    }

    /// Appends the records of the transitions with these indices to `records`.
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

    /// Copies one column of the transitions that this buffer sampled, `[B, ...]`, to `out`.
    ///
    /// # Errors
    /// - [`Error::Config`] if the column is unknown;
    /// - [`Error::Space`] if the dtype of `out` differs;
    /// - [`Error::Shape`] if the length of `out` differs, or if another buffer drew the sample;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, `out` is unchanged, except that an interrupted call may have written the
    /// first rows.
    pub fn read(&self, sample_indices: &SampleIndices, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.cold.record.read(&self.schema, self.records(sample_indices)?, column, out)
    }

    /// Copies one Boolean column as [`MmapReplayBuffer::read`] does.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::read`].
    pub fn read_bools(&self, sample_indices: &SampleIndices, column: Column, out: &mut [bool]) -> Result<()> {
        self.cold.record.read_bools(&self.schema, self.records(sample_indices)?, column, out)
    }

    fn records<'a>(&self, sample_indices: &'a SampleIndices) -> Result<&'a [u8]> {
        let found = if sample_indices.is_found() { sample_indices.records.len() } else { 0 };
        check_len("sample_indices", found, sample_indices.indices.len() * self.cold.record.len)?;
        Ok(&sample_indices.records)
    }

    /// Checks that `batch_size` transitions can be sampled.
    ///
    /// # Errors
    /// [`Error::Config`] if `batch_size` is 0 or exceeds the number of stored transitions.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.len(), self.len(), batch_size)
    }
}

impl Drop for MmapReplayBuffer {
    fn drop(&mut self) {
        // After reads only, the file stays unchanged. In a forked process, the write fails, so that
        // the file is left to the parent.
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
        let (expected, hint) = (format!("at most total_capacity = {total}"), "pass a smaller hot_capacity");
        return Err(Error::config("hot_capacity", expected, hot.to_string(), hint));
    }
    Ok(())
}

/// Allocates the memory for the newest rows.
fn hot_memory(rows: usize, bytes_each: usize) -> Result<Vec<u8>> {
    alloc::check_available("hot_capacity", rows, bytes_each)?;
    alloc::zeroed("hot_capacity", rows.saturating_mul(bytes_each))
}

/// Adds the number of stored rows to the text of an error of a push in pieces.
fn with_progress(error: Error, num_pushed: usize, rows: usize) -> Error {
    match error {
        Error::Io { path, source } if num_pushed > 0 => {
            let message = format!("{source}; {num_pushed} of {rows} rows were stored");
            Error::Io { path, source: std::io::Error::new(source.kind(), message) }
        }
        error => error,
    }
}
