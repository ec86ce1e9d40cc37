//! Stretches of episodes, for policies that remember.

use std::ops::Range;

use super::batch::{Column, dtype_mismatch, for_each_piece, invalid_index};
use super::sampler::check_count;
use super::storage::{CONTINUES, ReplayStorage, draw};
use crate::{DType, Error, FieldMut, InterruptCheck, Pcg64, Result, alloc, check_len};

/// Steps between two looks for an interruption.
const POLL_EVERY_STEPS: usize = 1 << 6;

/// Chooses stretches of episodes: steps of one environment that follow each other, never across an episode's end, and
/// never beyond what is stored.
///
/// Every transition that is stored is as likely to be a start as another. A stretch goes on from there for `length` steps,
/// or fewer where the episode ends before, or still runs. Up to `burn_in` steps come before it, as many as the episode has
/// that are stored; a recurrent state is brought up to date on them (Kapturowski et al. 2019, "Recurrent Experience Replay
/// in Distributed Reinforcement Learning").
///
/// ```
/// use rlox_core::replay::{SequenceIndices, Column, ReplayBuffer, Sequences};
/// use rlox_core::{FieldMut, Pcg64};
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
    /// The most steps from the start on, at least 1.
    pub length: usize,
    /// The most steps before the start.
    pub burn_in: usize,
    /// Whether only the first steps of episodes are starts, each as likely as another, of which every step to the end is
    /// stored. Of a longer episode the first `length` steps come.
    pub whole_episodes: bool,
}

/// Which sequences were chosen: B of T = `burn_in + length` steps, `[T, B]`.
#[derive(Clone, Debug, Default)]
pub struct SequenceIndices {
    indices: Vec<usize>,
    lengths: Vec<usize>,
    rows: Vec<usize>,
    mask: Vec<bool>,
    starts: Vec<bool>,
    /// How many whole episodes there are of the environments up to each.
    counts: Vec<usize>,
    /// The storage as it was; none before all steps are found.
    generation: Option<(usize, usize)>,
}

impl Sequences {
    /// Chooses `batch_size` sequences with what a generator draws, in place of those that `sequence_indices` had.
    ///
    /// # Errors
    /// [`Error::Config`] for a length of 0, steps before whole episodes, no transitions or more sequences than there are,
    /// and where no episode is stored whole; [`Error::Memory`] if there is no room, [`Error::Interrupted`] if it was told
    /// to stop. Nothing is drawn then, and nothing can be read from `sequence_indices`.
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

    /// The first half of [`Sequences::sample_indices`], all that draws: threads that share a generator need it no longer than
    /// that.
    ///
    /// # Errors
    /// Those of [`Sequences::sample_indices`].
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

    /// The second half of [`Sequences::sample_indices`]: finds the steps of sequences whose starts were drawn.
    ///
    /// # Errors
    /// [`Error::Config`] if the starts are not held any more, [`Error::Memory`] if there is no room,
    /// [`Error::Interrupted`] if it was told to stop. Nothing can be read from `sequence_indices` then.
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

    /// Checks that so many sequences of a storage can be chosen, but for whether episodes are stored whole.
    ///
    /// # Errors
    /// Those of [`Sequences::sample_indices`].
    pub fn check(self, storage: &ReplayStorage, batch_size: usize) -> Result<()> {
        if self.length == 0 {
            return Err(Error::config("length", "at least 1", "0", "pass a positive number"));
        }
        if self.whole_episodes && self.burn_in > 0 {
            let hint = "nothing comes before an episode's first step";
            return Err(Error::config("burn_in", "0 with whole episodes", self.burn_in.to_string(), hint));
        }
        // More steps than fit are refused of an empty buffer, too.
        self.check_memory(1)?;
        check_count(storage.indices().len(), storage.len(), batch_size)?;
        self.check_memory(batch_size)
    }

    /// Checks that the steps of so many sequences fit into memory.
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
    /// The environment's next transition, if it is of the same episode and can be sampled.
    pub(super) fn next_in_episode(&self, index: usize, valid: &Range<usize>) -> Option<usize> {
        let next = index + self.num_envs;
        (next < valid.end && self.flags(self.row_of(index)) & CONTINUES != 0).then_some(next)
    }
}

impl SequenceIndices {
    /// The numbers of the transitions that sequences start with, `[B]`.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// How many steps there are from the start on, `[B]`.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Which steps there are, `[T, B]`; the others are zeros.
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Which steps are the first of an episode, `[T, B]`.
    pub fn episode_starts(&self) -> &[bool] {
        &self.starts
    }

    /// Bytes of memory, which the next choice uses again.
    pub fn memory(&self) -> usize {
        let numbers = [&self.indices, &self.lengths, &self.rows, &self.counts].map(alloc::allocated_bytes);
        numbers.iter().sum::<usize>() + alloc::allocated_bytes(&self.mask) + alloc::allocated_bytes(&self.starts)
    }

    /// Room for so many starts.
    fn prepare(&mut self, batch_size: usize) -> Result<()> {
        self.generation = None;
        resize(&mut self.indices, batch_size)?;
        resize(&mut self.lengths, batch_size)
    }

    /// Room for the steps of all sequences, none of which is there yet.
    fn clear_steps(&mut self, all: usize, interrupt: &mut InterruptCheck) -> Result<()> {
        refill(&mut self.rows, all, 0, interrupt)?;
        refill(&mut self.mask, all, false, interrupt)?;
        refill(&mut self.starts, all, false, interrupt)
    }

    /// Finds the steps of each sequence.
    fn fill_rows(&mut self, storage: &ReplayStorage, valid: &Range<usize>, config: Sequences) -> Result<()> {
        let (batch, mut interrupt) = (self.indices.len(), InterruptCheck::default());
        self.clear_steps(config.burn_in.saturating_add(config.length).saturating_mul(batch), &mut interrupt)?;
        let mut steps = 0_usize;
        // One sequence may be all there is.
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

    /// Copies one column of the steps, `[T, B, ...]`; zeros where there are none.
    ///
    /// # Errors
    /// [`Error::Config`] for another storage, or one that has taken more since, or a column that is not there,
    /// [`Error::Space`] and [`Error::Shape`] for memory of another dtype or length. Nothing is written then.
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

    /// As [`SequenceIndices::read`], of a column of booleans.
    ///
    /// # Errors
    /// Those of [`SequenceIndices::read`].
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
        let hint = "read what was chosen before the next push";
        Err(Error::config("sequence_indices", "sequences of this storage as it is", "others", hint))
    }
}

/// Has so many, all of this value.
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

/// Has so many numbers.
fn resize(numbers: &mut Vec<usize>, len: usize) -> Result<()> {
    alloc::try_reserve("length", numbers, len.saturating_sub(numbers.len()))?;
    numbers.resize(len, 0);
    Ok(())
}
