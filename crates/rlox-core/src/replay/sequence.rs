//! Sampling of sequences, for recurrent policies.
//!
//! In shapes, B is the number of sequences and T the number of steps, `burn_in + length`.

use std::ops::Range;

use super::batch::{Column, dtype_mismatch, for_each_piece, invalid_index};
use super::sampler::check_count;
use super::storage::{CONTINUES, ReplayStorage, draw};
use crate::{
    Error, Pcg64, Result, alloc,
    error::check_len,
    field::{DType, FieldMut},
    interrupt::InterruptCheck,
};

/// Number of steps between two interrupt checks.
const POLL_EVERY_STEPS: usize = 1 << 6;

/// Sampler of sequences: consecutive stored steps of one environment within one episode.
///
/// Every transition that can be sampled is equally likely as the start of a sequence. From its
/// start on, a sequence has up to `length` steps, fewer if the episode ends or is still running. Up
/// to `burn_in` stored steps of the episode precede the start, for the computation of the recurrent
/// state (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
/// Learning").
///
/// ```
/// use rlox_core::replay::{SequenceIndices, Column, ReplayBuffer, Sequences};
/// use rlox_core::{Pcg64, field::FieldMut};
///
/// let mut buffer = ReplayBuffer::new(100, 1, 1)?;
/// for i in 0..5 {
///     buffer.push_slices(&[i as f32], &[i as f32 + 1.0], &[0.0], 1.0, i == 2, false)?;
/// }
/// let mut sequence_indices = SequenceIndices::default();
/// let whole_episodes = Sequences { length: 4, burn_in: 0, whole_episodes: true };
/// whole_episodes.sample_indices(buffer.storage(), 1, &mut Pcg64::seed_from(0), &mut sequence_indices)?;
/// let mut obs = [9.0; 4];
/// sequence_indices.read(buffer.storage(), Column::Obs(0), FieldMut::F32(&mut obs))?;
/// assert_eq!((obs, sequence_indices.mask()), ([0.0, 1.0, 2.0, 0.0], &[true, true, true, false][..]));
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Maximum number of steps from the start on, at least 1.
    pub length: usize,
    /// Maximum number of steps before the start.
    pub burn_in: usize,
    /// If true, the starts are the first steps of complete episodes, all equally likely.
    ///
    /// An episode is complete if all its steps are stored. A sequence contains at most the first
    /// `length` steps of its episode.
    pub whole_episodes: bool,
}

/// Sampled sequences: B sequences of T steps, as arrays `[T, B]`.
#[derive(Clone, Debug, Default)]
pub struct SequenceIndices {
    indices: Vec<usize>,
    lengths: Vec<usize>,
    rows: Vec<usize>,
    mask: Vec<bool>,
    starts: Vec<bool>,
    /// Numbers of complete episodes, cumulative over the environments.
    counts: Vec<usize>,
    /// Generation of the storage when all steps were found, or `None` before that.
    generation: Option<(usize, usize)>,
}

impl Sequences {
    /// Samples `batch_size` sequences with the given generator into `sequence_indices`.
    ///
    /// # Errors
    /// - [`Error::Config`] if `length` is 0, `burn_in` is used with `whole_episodes`, `batch_size` is 0 or exceeds the
    ///   number of transitions that can be sampled, or no episode is complete;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, the generator is unchanged, and nothing can be read from `sequence_indices`.
    pub fn sample_indices(
        self,
        storage: &ReplayStorage,
        batch_size: usize,
        rng: &mut Pcg64,
        sequence_indices: &mut SequenceIndices,
    ) -> Result<()> {
        let before = rng.clone();
        self.draw(storage, batch_size, rng, sequence_indices)?;
        self.find(storage, sequence_indices).inspect_err(|_| *rng = before)
    }

    /// Draws the starts of sequences, the first part of [`Sequences::sample_indices`].
    ///
    /// Only this part uses the generator. Threads that share a generator can release it before they
    /// call [`Sequences::find`], the second part.
    ///
    /// # Errors
    /// The errors of [`Sequences::sample_indices`].
    pub fn draw(
        self,
        storage: &ReplayStorage,
        batch_size: usize,
        rng: &mut Pcg64,
        sequence_indices: &mut SequenceIndices,
    ) -> Result<()> {
        let valid = storage.indices();
        self.check(storage, batch_size)?;
        sequence_indices.prepare(batch_size)?;
        if self.whole_episodes {
            return storage.episodes.draw(&valid, rng, &mut sequence_indices.counts, &mut sequence_indices.indices);
        }
        draw(&valid, rng, &mut sequence_indices.indices);
        Ok(())
    }

    /// Finds the steps of drawn sequences, the second part of [`Sequences::sample_indices`].
    ///
    /// # Errors
    /// - [`Error::Config`] if a start is no longer stored;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, nothing can be read from `sequence_indices`.
    pub fn find(self, storage: &ReplayStorage, sequence_indices: &mut SequenceIndices) -> Result<()> {
        sequence_indices.generation = None;
        let valid = storage.indices();
        if let Some(invalid) = sequence_indices.indices.iter().find(|index| !valid.contains(index)) {
            return Err(invalid_index(*invalid, &valid));
        }
        sequence_indices.fill_rows(storage, &valid, self)?;
        sequence_indices.generation = Some(storage.generation());
        Ok(())
    }

    /// Checks that `batch_size` sequences can be sampled.
    ///
    /// The check does not include that complete episodes exist.
    ///
    /// # Errors
    /// The errors of [`Sequences::sample_indices`].
    pub fn check(self, storage: &ReplayStorage, batch_size: usize) -> Result<()> {
        if self.length == 0 {
            return Err(Error::config("length", "at least 1", "0", "pass a positive number"));
        }
        if self.whole_episodes && self.burn_in > 0 {
            let hint = "set burn_in to 0, because no step precedes the first step of an episode";
            return Err(Error::config("burn_in", "0 with whole_episodes", self.burn_in.to_string(), hint));
        }
        // Sequences that do not fit into memory are rejected even if the buffer is empty.
        self.check_memory(1)?;
        check_count(storage.indices().len(), storage.len(), batch_size)?;
        self.check_memory(batch_size)
    }

    /// Checks that the steps of `batch_size` sequences fit into memory.
    fn check_memory(self, batch_size: usize) -> Result<()> {
        let Self { length, burn_in, .. } = self;
        let argument = if burn_in > length { "burn_in" } else { "length" };
        let request = || {
            let before = if burn_in > 0 { format!(" after {burn_in} steps of burn-in") } else { String::new() };
            let many = if batch_size > 1 { format!(" in each of {batch_size} sequences") } else { String::new() };
            format!("{length} steps{before}{many}, which needs")
        };
        let steps = burn_in.saturating_add(length).saturating_mul(batch_size);
        alloc::check_available_for(argument, steps, size_of::<usize>() + 2, request)
    }
}

impl ReplayStorage {
    /// Returns the environment's next transition, if it belongs to the same episode and can be
    /// sampled.
    pub(super) fn next_in_episode(&self, index: usize, valid: &Range<usize>) -> Option<usize> {
        let next = index + self.num_envs;
        (next < valid.end && self.flags(self.row_of(index)) & CONTINUES != 0).then_some(next)
    }
}

impl SequenceIndices {
    /// Returns the index of the transition at the start of each sequence, `[B]`.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Returns the number of steps of each sequence from the start on, `[B]`.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Returns the mask, `[T, B]`: true for each step that exists. [`SequenceIndices::read`] writes
    /// zeros for all other steps.
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Returns the flags, `[T, B]`: true for each step that is the first step of its episode.
    pub fn episode_starts(&self) -> &[bool] {
        &self.starts
    }

    /// Returns the number of allocated bytes. The next sample reuses this memory.
    pub fn memory(&self) -> usize {
        let numbers = [&self.indices, &self.lengths, &self.rows, &self.counts].map(alloc::allocated_bytes);
        numbers.iter().sum::<usize>() + alloc::allocated_bytes(&self.mask) + alloc::allocated_bytes(&self.starts)
    }

    /// Resizes the arrays for `batch_size` starts.
    fn prepare(&mut self, batch_size: usize) -> Result<()> {
        self.generation = None;
        resize(&mut self.indices, batch_size)?;
        resize(&mut self.lengths, batch_size)
    }

    /// Resizes the arrays for the steps of all sequences, and marks all steps as missing.
    fn clear_steps(&mut self, all: usize, interrupt: &mut InterruptCheck) -> Result<()> {
        refill(&mut self.rows, all, 0, interrupt)?;
        refill(&mut self.mask, all, false, interrupt)?;
        refill(&mut self.starts, all, false, interrupt)
    }

    /// Finds the rows of the steps of each sequence, and sets the mask, the flags and the lengths.
    fn fill_rows(&mut self, storage: &ReplayStorage, valid: &Range<usize>, config: Sequences) -> Result<()> {
        let (batch, mut interrupt) = (self.indices.len(), InterruptCheck::default());
        self.clear_steps(config.burn_in.saturating_add(config.length).saturating_mul(batch), &mut interrupt)?;
        let mut steps = 0_usize;
        // Polls by step, because a single sequence may be very long.
        let mut poll = || {
            steps += 1;
            if steps.is_multiple_of(POLL_EVERY_STEPS) { interrupt.check() } else { Ok(()) }
        };
        for b in 0..batch {
            let start = self.indices[b];
            let mut set_step = |t: usize, index: usize| {
                let pos = t * batch + b;
                self.rows[pos] = storage.row_of(index);
                (self.mask[pos], self.starts[pos]) = (true, !storage.is_cut(index));
            };
            let mut next = Some(start);
            let mut length = 0;
            while let Some(index) = next.filter(|_| length < config.length) {
                set_step(config.burn_in + length, index);
                length += 1;
                next = storage.next_in_episode(index, valid);
                poll()?;
            }
            let (mut pos, mut before) = (start, 0);
            while before < config.burn_in && pos >= valid.start + storage.num_envs() && storage.is_cut(pos) {
                (pos, before) = (pos - storage.num_envs(), before + 1);
                set_step(config.burn_in - before, pos);
                poll()?;
            }
            self.lengths[b] = length;
            for t in (0..config.burn_in - before).chain(config.burn_in + length..config.burn_in + config.length) {
                self.rows[t * batch + b] = storage.row_of(start);
                poll()?;
            }
        }
        Ok(())
    }

    /// Copies one column of the steps, `[T, B, ...]`, to `out`, with zeros for missing steps.
    ///
    /// # Errors
    /// - [`Error::Config`] if `storage` is another storage or has changed since the sample, or if
    ///   the column is unknown;
    /// - [`Error::Space`] if the dtype of `out` differs, [`Error::Shape`] if its length differs;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, `out` is unchanged, except that an interrupted call may have written some
    /// rows.
    pub fn read(&self, storage: &ReplayStorage, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.check(storage)?;
        let bytes = storage.memory_of(column, self.rows.len(), out)?;
        let each = (bytes.len() / self.rows.len().max(1)).max(1);
        storage.read_bytes(column, &self.rows, bytes)?;
        for_each_piece(self.mask.len(), each, bytes, |some, bytes| {
            let steps = bytes.chunks_exact_mut(each).zip(&self.mask[some]);
            steps.filter(|(_, real)| !**real).for_each(|(bytes, _)| bytes.fill(0));
        })
    }

    /// Copies one Boolean column as [`SequenceIndices::read`] does.
    ///
    /// # Errors
    /// The errors of [`SequenceIndices::read`].
    pub fn read_bools(&self, storage: &ReplayStorage, column: Column, out: &mut [bool]) -> Result<()> {
        self.check(storage)?;
        let (dtype, width) = storage.shape_of(column)?;
        if dtype != DType::Bool {
            return Err(dtype_mismatch(dtype, DType::Bool));
        }
        check_len("out", out.len(), self.rows.len() * width)?;
        storage.read_bools(column, &self.rows, out)?;
        for_each_piece(self.mask.len(), width, out, |some, out| {
            for (out, real) in out.chunks_exact_mut(width).zip(&self.mask[some]) {
                for flag in out {
                    *flag &= real;
                }
            }
        })
    }

    fn check(&self, storage: &ReplayStorage) -> Result<()> {
        if self.generation == Some(storage.generation()) {
            return Ok(());
        }
        let hint = "read a sample before the next push";
        Err(Error::config("sequence_indices", "a sample of the storage's current state", "another sample", hint))
    }
}

/// Resizes a vector to `len` elements and sets all of them to `value`.
fn refill<T: Copy>(all: &mut Vec<T>, len: usize, value: T, interrupt: &mut InterruptCheck) -> Result<()> {
    alloc::try_reserve("length", all, len.saturating_sub(all.len()))?;
    all.clear();
    while all.len() < len {
        if !all.is_empty() {
            interrupt.check()?;
        }
        all.resize(len.min(all.len() + InterruptCheck::POLL_ELEMENTS), value);
    }
    Ok(())
}

/// Resizes a vector to `len` elements.
fn resize(numbers: &mut Vec<usize>, len: usize) -> Result<()> {
    alloc::try_reserve("length", numbers, len.saturating_sub(numbers.len()))?;
    numbers.resize(len, 0);
    Ok(())
}
