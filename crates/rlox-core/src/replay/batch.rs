//! Batches of sampled transitions: their indices, and their columns in the caller's memory.
//!
//! In shapes, B is the number of sampled transitions. A row is the place of a transition in the
//! ring buffer of a [`ReplayStorage`].

use std::ops::Range;

use super::n_step::{NStep, Spans, retain};
use super::schema::{FieldSpec, TransitionSchema};
use super::storage::{ReplayStorage, STORED, TERMINATED, TRUNCATED};
use crate::simd::prefetch;
use crate::{
    Error, Result, alloc,
    error::check_len,
    field::{DType, Field, FieldData, FieldMut},
    interrupt::InterruptCheck,
};

/// Maximum number of bytes that are prefetched per transition. The hardware prefetches the rest of
/// longer rows.
const PREFETCH_BYTES: usize = 512;
/// Size of a cache line in bytes.
const CACHE_LINE: usize = 64;
/// Maximum numbers of rows and of bytes of a column that are copied between two interrupt checks.
const MAX_PIECE: (usize, usize) = (1 << 14, 1 << 20);

/// A column of stored transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// A field of the observation, by its position in the schema.
    Obs(usize),
    /// A field of the next observation, by the position of the field in the schema.
    ///
    /// For the last step of an episode, the next observation is the final observation.
    NextObs(usize),
    /// Action.
    Action,
    /// An extra field, by its position in the schema.
    Extra(usize),
    /// Reward, f32.
    Reward,
    /// Flag, true if the step reached a terminal state of the task.
    Terminated,
    /// Flag, true if the episode was truncated after the step.
    Truncated,
}

impl TransitionSchema {
    /// Returns the name, the shape per transition, the dtype and the [`Column`] of each column.
    ///
    /// The name of a next observation is the name of the observation with the prefix `next_`.
    pub fn columns(&self) -> Vec<(String, Vec<usize>, DType, Column)> {
        let schema = self;
        let each = |spec: &FieldSpec, name: String, column| (name, spec.shape.clone(), spec.dtype, column);
        let parts = schema.obs.iter().enumerate();
        let obs = parts.clone().map(|(i, spec)| each(spec, spec.name.clone(), Column::Obs(i)));
        let next = parts.map(|(i, spec)| each(spec, format!("next_{}", spec.name), Column::NextObs(i)));
        let extra = schema.extra.iter().enumerate();
        let extra = extra.map(|(i, spec)| each(spec, spec.name.clone(), Column::Extra(i)));
        let action = each(&schema.action, schema.action.name.clone(), Column::Action);
        let scalar = |name: &str, dtype, column| (name.to_owned(), Vec::new(), dtype, column);
        obs.chain(next)
            .chain([action, scalar("rewards", DType::F32, Column::Reward)])
            .chain(
                [("terminated", Column::Terminated), ("truncated", Column::Truncated)]
                    .map(|(name, column)| scalar(name, DType::Bool, column)),
            )
            .chain(extra)
            .collect()
    }
}

/// Positions in the schema of the observation fields that hold goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoalRelabel {
    /// Field of the achieved goal.
    pub achieved: usize,
    /// Field of the desired goal, which relabelling replaces.
    pub desired: usize,
}

/// Indices of sampled transitions, with their importance weights and their rows.
#[derive(Clone, Debug, Default)]
pub struct SampleIndices {
    pub(crate) indices: Vec<usize>,
    pub(crate) weights: Vec<f32>,
    rows: Vec<usize>,
    spans: Spans,
    n_step: Option<NStep>,
    /// Index of the transition whose next observation holds the new goal, for each of the first
    /// samples.
    pub(crate) goals: Vec<usize>,
    goal_rows: Vec<usize>,
    pub(crate) relabel: Option<GoalRelabel>,
    /// Bytes of the transitions, if the transitions were read from a file.
    pub(crate) records: Vec<u8>,
    /// Generation of the storage when all rows were found, or `None` before that.
    generation: Option<(usize, usize)>,
}

impl SampleIndices {
    /// Returns the indices of the transitions, `[B]`.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Returns the importance weights, `[B]`, which are all 1 for uniform sampling.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Returns the discount of the value of each next observation, `[B]`, or nothing without
    /// [`NStep`].
    ///
    /// The discount of a transition that spans k steps is `gamma^k`.
    pub fn discounts(&self) -> &[f32] {
        if self.n_step.is_some() { &self.spans.discounts } else { &[] }
    }

    /// Returns the number of transitions with a new goal, which are the first transitions of the
    /// batch.
    pub fn relabelled(&self) -> usize {
        self.goals.len()
    }

    /// Returns the number of allocated bytes. The next sample reuses this memory.
    pub fn memory(&self) -> usize {
        let numbers = [&self.indices, &self.rows, &self.goals, &self.goal_rows].map(alloc::allocated_bytes);
        let own = numbers.iter().sum::<usize>()
            + alloc::allocated_bytes(&self.weights)
            + alloc::allocated_bytes(&self.records);
        own + self.spans.memory()
    }

    /// Resizes the arrays for `count` transitions and clears the results of the previous sample.
    pub(crate) fn prepare(&mut self, count: usize) -> Result<()> {
        self.generation = None;
        self.records.clear();
        self.spans.clear();
        self.goals.clear();
        self.relabel = None;
        let missing = count.saturating_sub(self.indices.len());
        alloc::try_reserve("batch_size", &mut self.indices, missing)?;
        let missing = count.saturating_sub(self.weights.len());
        alloc::try_reserve("batch_size", &mut self.weights, missing)?;
        self.indices.resize(count, 0);
        self.weights.resize(count, 1.0);
        Ok(())
    }

    /// Finds the rows of the transitions and, with `n_step`, the steps that each transition spans.
    pub(crate) fn locate(&mut self, storage: &ReplayStorage, n_step: Option<NStep>) -> Result<()> {
        storage.locate(&self.indices, &mut self.rows)?;
        storage.locate(&self.goals, &mut self.goal_rows)?;
        self.n_step = n_step;
        n_step.map_or(Ok(()), |n_step| self.spans.find(storage, n_step, &self.rows))?;
        self.generation = Some(storage.generation());
        Ok(())
    }

    /// Fills `records` with the bytes of the transitions, which `read` reads from a file.
    pub(crate) fn fetch(&mut self, read: impl FnOnce(&[usize], &mut Vec<u8>) -> Result<()>) -> Result<()> {
        self.records.clear();
        read(&self.indices, &mut self.records)?;
        self.generation = Some((0, 0));
        Ok(())
    }

    /// Keeps the transitions whose flag in `keep`, `[B]`, is true, and removes the others.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of flags is wrong.
    pub fn retain(&mut self, keep: &[bool]) -> Result<()> {
        crate::error::check_len("keep", keep.len(), self.indices.len())?;
        let (bytes, mut positions) = (self.records.len() / keep.len().max(1), 0..);
        self.records.retain(|_| positions.next().is_some_and(|at: usize| keep[at / bytes]));
        retain(&mut self.indices, keep);
        retain(&mut self.weights, keep);
        retain(&mut self.rows, keep);
        retain(&mut self.goals, keep);
        retain(&mut self.goal_rows, keep);
        self.spans.retain(keep);
        Ok(())
    }

    /// Returns true if the rows of all transitions are found, so that the transitions can be read.
    pub(crate) fn is_found(&self) -> bool {
        self.generation.is_some()
    }

    fn check(&self, storage: &ReplayStorage) -> Result<()> {
        if self.generation == Some(storage.generation()) {
            return Ok(());
        }
        let hint = "read a sample before the next push";
        Err(Error::config("sample_indices", "a sample of the storage's current state", "another sample", hint))
    }

    /// Copies one column of the transitions, `[B, ...]`, to `out`.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::gather`]. [`Error::Config`] if `storage` is another storage,
    /// or has changed since the indices were sampled.
    pub fn read(&self, storage: &ReplayStorage, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.check(storage)?;
        match (column, self.n_step, out) {
            (Column::Reward, Some(_), FieldMut::F32(rewards)) => {
                crate::error::check_len("out", rewards.len(), self.spans.returns.len())?;
                rewards.copy_from_slice(&self.spans.returns);
                Ok(())
            }
            (Column::Obs(part) | Column::NextObs(part), _, out) if self.is_relabelled(part) => {
                self.read_goals(storage, column, out)
            }
            (_, _, out) => storage.read(column, self.rows_of(storage, column), out),
        }
    }

    /// Returns true if `part` is the observation field whose goals are replaced.
    fn is_relabelled(&self, part: usize) -> bool {
        self.relabel.is_some_and(|relabel| relabel.desired == part)
    }

    /// Copies the desired goals, with goals that other steps achieved for the first samples.
    fn read_goals(&self, storage: &ReplayStorage, column: Column, out: FieldMut<'_>) -> Result<()> {
        let Some(relabel) = self.relabel else { return Ok(()) };
        let (count, rows) = (self.goal_rows.len(), self.rows_of(storage, column));
        let bytes = storage.memory_of(column, rows.len(), out)?;
        let (first, rest) = bytes.split_at_mut(bytes.len() / rows.len().max(1) * count);
        storage.read_bytes(Column::NextObs(relabel.achieved), &self.goal_rows, first)?;
        storage.read_bytes(column, &rows[count..], rest)
    }

    /// Copies one Boolean column as [`SampleIndices::read`] does.
    ///
    /// # Errors
    /// The errors of [`SampleIndices::read`].
    pub fn read_bools(&self, storage: &ReplayStorage, column: Column, out: &mut [bool]) -> Result<()> {
        self.check(storage)?;
        storage.read_bools(column, self.rows_of(storage, column), out)?;
        match column {
            Column::Obs(part) | Column::NextObs(part) if self.is_relabelled(part) => {
                let (relabel, each) =
                    (self.relabel.map_or(0, |relabel| relabel.achieved), out.len() / self.rows.len().max(1));
                let goals = &mut out[..each * self.goal_rows.len()];
                storage.read_bools(Column::NextObs(relabel), &self.goal_rows, goals)
            }
            _ => Ok(()),
        }
    }

    /// Returns the rows that hold a column.
    ///
    /// With n-step returns, a transition has the next observation, the flags and the `next_` fields
    /// of its last step. All other columns are those of its first step.
    fn rows_of(&self, storage: &ReplayStorage, column: Column) -> &[usize] {
        let last = match column {
            Column::Obs(_) | Column::Action | Column::Reward => false,
            Column::NextObs(_) | Column::Terminated | Column::Truncated => true,
            Column::Extra(part) => storage.schema().extra.get(part).is_some_and(|part| part.name.starts_with("next_")),
        };
        if last && self.n_step.is_some() { &self.spans.last_rows } else { &self.rows }
    }

    pub(crate) fn clear(&mut self) {
        self.generation = None;
        self.indices.clear();
        self.weights.clear();
        self.rows.clear();
        self.spans.clear();
        self.goals.clear();
        self.goal_rows.clear();
        self.records.clear();
    }
}

/// Batch of B sampled transitions. The next sample reuses the memory of the batch.
///
/// Each field is an array `[B, ...]`. The fields have the names of [`TransitionSchema::columns`],
/// usually `obs`, `next_obs`, `actions`, `rewards`, `terminated` and `truncated`.
#[derive(Clone, Debug, Default)]
pub struct SampledBatch {
    pub(crate) sample_indices: SampleIndices,
    columns: Vec<Column>,
    fields: Vec<Field>,
}

impl SampledBatch {
    /// Removes the transitions and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.sample_indices.clear();
        self.fields.iter_mut().for_each(Field::clear);
    }

    /// Returns the number of transitions.
    pub fn len(&self) -> usize {
        self.sample_indices.indices.len()
    }

    /// Returns true if there are no transitions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sampled indices, with importance weights and rows.
    pub fn sample_indices(&self) -> &SampleIndices {
        &self.sample_indices
    }

    /// Returns the indices of the transitions, `[B]`.
    pub fn indices(&self) -> &[usize] {
        self.sample_indices.indices()
    }

    /// Returns the importance weights, `[B]`.
    pub fn weights(&self) -> &[f32] {
        self.sample_indices.weights()
    }

    /// Returns the discount of the value of each next observation, `[B]`, or nothing without
    /// [`NStep`].
    pub fn discounts(&self) -> &[f32] {
        self.sample_indices.discounts()
    }

    /// Returns a field by its name, or `None` if there is no such field.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// Returns the elements of a field mutably, for example for normalisation in place.
    pub fn field_mut(&mut self, name: &str) -> Option<FieldMut<'_>> {
        self.fields.iter_mut().find(|field| field.name() == name).map(Field::data_mut)
    }

    /// Returns the numbers of an f32 field, or an empty slice if there is no such field.
    pub fn f32s(&self, name: &str) -> &[f32] {
        match self.field(name).map(Field::data) {
            Some(FieldData::F32(numbers)) => numbers,
            _ => &[],
        }
    }

    /// Returns the numbers of an i64 field, or an empty slice if there is no such field.
    pub fn i64s(&self, name: &str) -> &[i64] {
        match self.field(name).map(Field::data) {
            Some(FieldData::I64(numbers)) => numbers,
            _ => &[],
        }
    }

    /// Returns the flags of a Boolean field as bytes, or an empty slice if there is no such field.
    pub fn flags(&self, name: &str) -> &[u8] {
        match self.field(name).map(Field::data) {
            Some(FieldData::Bool(flags)) => flags,
            _ => &[],
        }
    }

    /// Resizes the fields for `count` transitions with this schema.
    pub(crate) fn prepare(&mut self, schema: &TransitionSchema, count: usize) -> Result<()> {
        if !self.fits(schema) {
            let columns = schema.columns();
            let fields = columns.iter().map(|(name, shape, dtype, _)| Field::new(name.clone(), 0, shape, *dtype));
            self.fields = fields.collect::<Result<_>>()?;
            self.columns = columns.into_iter().map(|(.., column)| column).collect();
        }
        for field in &mut self.fields {
            field.set_rows(count).map_err(|error| error.rename_argument("rows", "batch_size"))?;
        }
        self.sample_indices.prepare(count)
    }

    /// Returns true if the fields match a schema, without an allocation.
    fn fits(&self, schema: &TransitionSchema) -> bool {
        let next = |name: &str, base: &str| name.strip_prefix("next_") == Some(base);
        let fit = |(field, column): (&Field, &Column)| {
            let (spec, named) = match *column {
                Column::Obs(i) => (schema.obs.get(i), false),
                Column::NextObs(i) => (schema.obs.get(i), true),
                Column::Action => (Some(&schema.action), false),
                Column::Extra(i) => (schema.extra.get(i), false),
                Column::Reward | Column::Terminated | Column::Truncated => return true,
            };
            spec.is_some_and(|spec| {
                let name = if named { next(field.name(), &spec.name) } else { field.name() == spec.name };
                name && (field.shape(), field.dtype()) == (&spec.shape[..], spec.dtype)
            })
        };
        self.fields.len() == 2 * schema.obs.len() + schema.extra.len() + 4
            && self.fields.iter().zip(&self.columns).all(fit)
    }

    /// Fills the memory of each field by a call of `read`.
    pub(crate) fn fill_by(&mut self, read: impl Fn(&SampleIndices, Column, FieldMut<'_>) -> Result<()>) -> Result<()> {
        let Self { sample_indices, columns, fields } = self;
        columns.iter().zip(fields).try_for_each(|(column, field)| read(sample_indices, *column, field.data_mut()))
    }
}

impl ReplayStorage {
    /// Returns the columns of the schema, as [`TransitionSchema::columns`] does.
    pub fn columns(&self) -> Vec<(String, Vec<usize>, DType, Column)> {
        self.schema.columns()
    }

    /// Replaces the contents of `rows` by the rows of the transitions, for [`ReplayStorage::read`].
    ///
    /// # Errors
    /// - [`Error::Config`] if an index is outside [`ReplayStorage::indices`]; the error names the
    ///   index;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    pub(crate) fn locate(&self, indices: &[usize], rows: &mut Vec<usize>) -> Result<()> {
        let valid = self.indices();
        rows.clear();
        alloc::try_reserve("indices", rows, indices.len())?;
        if let Some(invalid) = indices.iter().find(|index| !valid.contains(index)) {
            return Err(invalid_index(*invalid, &valid));
        }
        let (all, stride) = (self.capacity_steps() * self.num_envs, self.row_layout.stride);
        // The index minus `base` is less than two laps of the ring, so a subtraction replaces a
        // division.
        let base = valid.start / all * all;
        let mut interrupt = InterruptCheck::default();
        for (i, indices) in indices.chunks(MAX_PIECE.0).enumerate() {
            if i > 0 {
                interrupt.check()?;
            }
            for index in indices {
                let row = index - base;
                let row = if row >= all { row - all } else { row };
                rows.push(row);
                // Prefetches the start of the row and of the next row, which may hold the next
                // observation.
                let from = row * stride;
                for line in (from..(from + 2 * stride).min(from + PREFETCH_BYTES)).step_by(CACHE_LINE) {
                    if let Some(place) = self.data.get(line) {
                        prefetch(place);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies one column of the transitions with the given indices, `[B, ...]`, to `out`.
    ///
    /// # Errors
    /// - [`Error::Config`] if an index is outside [`ReplayStorage::indices`] or the column is
    ///   unknown;
    /// - [`Error::Space`] if the dtype of `out` differs, [`Error::Shape`] if its length differs;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, `out` is unchanged, except that an interrupted call may have written the
    /// first rows.
    pub fn gather(&self, column: Column, indices: &[usize], out: FieldMut<'_>) -> Result<()> {
        let mut rows = Vec::new();
        self.locate(indices, &mut rows)?;
        self.read(column, &rows, out)
    }

    /// Copies one column of the given rows to `out`.
    pub(crate) fn read(&self, column: Column, rows: &[usize], out: FieldMut<'_>) -> Result<()> {
        self.read_bytes(column, rows, self.memory_of(column, rows.len(), out)?)
    }

    /// Checks the dtype and the length of `out` for `rows` rows of a column, and returns the bytes
    /// of `out`.
    pub(super) fn memory_of<'a>(&self, column: Column, rows: usize, out: FieldMut<'a>) -> Result<&'a mut [u8]> {
        let (dtype, width) = self.shape_of(column)?;
        if out.dtype() != dtype {
            return Err(dtype_mismatch(dtype, out.dtype()));
        }
        check_len("out", out.len(), rows.saturating_mul(width))?;
        Ok(out.into_bytes())
    }

    /// Copies one column of the given rows to `out`.
    ///
    /// The caller has checked that the column exists and that `out` has the right size.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the interrupt check returns true. The first rows may have been
    /// written.
    pub(super) fn read_bytes(&self, column: Column, rows: &[usize], out: &mut [u8]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let each = out.len() / rows.len();
        for_each_piece(rows.len(), each, out, |some, out| self.read_piece(column, &rows[some], each, out))
    }

    fn read_piece(&self, column: Column, rows: &[usize], each: usize, out: &mut [u8]) {
        let (row_layout, stride) = (&self.row_layout, self.row_layout.stride);
        let flag = |flag: u8, out: &mut [u8]| {
            for (out, row) in out.iter_mut().zip(rows) {
                *out = u8::from(self.flags(*row) & flag != 0);
            }
        };
        match column {
            Column::Terminated => flag(TERMINATED, out),
            Column::Truncated => flag(TRUNCATED, out),
            Column::Obs(_) if self.schema.frame_stack > 1 => self.read_frames(rows, out),
            Column::NextObs(_) if self.schema.frame_stack > 1 => self.read_next_frames(rows, out),
            Column::NextObs(part) => {
                let from = self.offset_of(Column::Obs(part));
                copy(rows.iter().copied(), each, out, |row| {
                    if self.flags(row) & STORED != 0 {
                        &self.overflow_obs.row(self.slot(row, row_layout.stored))[from..]
                    } else {
                        &self.data[self.row_after(row, 1) * stride + from..]
                    }
                });
            }
            _ => {
                let from = self.offset_of(column);
                copy(rows.iter().copied(), each, out, |row| &self.data[row * stride + from..]);
            }
        }
    }

    /// Copies one Boolean column of the given rows to `out`.
    pub(crate) fn read_bools(&self, column: Column, rows: &[usize], out: &mut [bool]) -> Result<()> {
        let (dtype, width) = self.shape_of(column)?;
        if dtype != DType::Bool {
            return Err(dtype_mismatch(dtype, DType::Bool));
        }
        check_len("out", out.len(), rows.len().saturating_mul(width))?;
        let flag = match column {
            Column::Terminated => TERMINATED,
            Column::Truncated => TRUNCATED,
            _ => {
                let mut bytes = alloc::zeroed("batch_size", out.len())?;
                self.read(column, rows, FieldMut::Bool(&mut bytes))?;
                return for_each_piece(rows.len(), width, out, |some, out| {
                    out.iter_mut().zip(&bytes[some.start * width..]).for_each(|(out, byte)| *out = *byte != 0);
                });
            }
        };
        for_each_piece(rows.len(), 1, out, |some, out| {
            out.iter_mut().zip(&rows[some]).for_each(|(out, row)| *out = self.flags(*row) & flag != 0);
        })
    }

    /// Returns the dtype of a column and its number of elements per row.
    pub(crate) fn shape_of(&self, column: Column) -> Result<(DType, usize)> {
        let schema = &self.schema;
        let spec = match column {
            Column::Obs(part) | Column::NextObs(part) => schema.obs.get(part),
            Column::Action => Some(&schema.action),
            Column::Extra(part) => schema.extra.get(part),
            Column::Reward => return Ok((DType::F32, 1)),
            Column::Terminated | Column::Truncated => return Ok((DType::Bool, 1)),
        };
        let spec = spec.ok_or_else(|| unknown_column(schema, column))?;
        Ok((spec.dtype, spec.width()))
    }

    /// Returns the byte offset of a column in a row, for columns other than flags and next
    /// observations.
    fn offset_of(&self, column: Column) -> usize {
        let (schema, row_layout) = (&self.schema, &self.row_layout);
        let bytes = |specs: &[FieldSpec]| specs.iter().map(FieldSpec::bytes).sum::<usize>();
        match column {
            Column::Obs(part) => bytes(&schema.obs[..part]),
            Column::Action => row_layout.action,
            Column::Extra(part) => row_layout.action + schema.action.bytes() + bytes(&schema.extra[..part]),
            _ => row_layout.reward,
        }
    }

    fn read_frames(&self, rows: &[usize], out: &mut [u8]) {
        let frames = self.schema.frame_stack;
        for (out, row) in out.chunks_exact_mut(self.row_layout.obs).zip(rows) {
            for (i, out) in out.chunks_exact_mut(self.row_layout.frame).enumerate() {
                out.copy_from_slice(self.frame(*row, frames - 1 - i));
            }
        }
    }

    fn read_next_frames(&self, rows: &[usize], out: &mut [u8]) {
        let (frames, size) = (self.schema.frame_stack, self.row_layout.frame);
        for (out, &row) in out.chunks_exact_mut(self.row_layout.obs).zip(rows) {
            if self.flags(row) & STORED != 0 {
                out.copy_from_slice(self.overflow_obs.row(self.slot(row, self.row_layout.stored)));
                continue;
            }
            let (older, newest) = out.split_at_mut((frames - 1) * size);
            for (i, out) in older.chunks_exact_mut(size).enumerate() {
                out.copy_from_slice(self.frame(row, frames - 2 - i));
            }
            newest.copy_from_slice(self.newest(self.row_after(row, 1)));
        }
    }
}

/// Calls `read` with the range and the output of consecutive pieces of rows.
///
/// A row has `each` elements in `out`. If there are several pieces, an interrupt check precedes
/// each piece.
///
/// # Errors
/// [`Error::Interrupted`] if the interrupt check returns true. The first rows may have been
/// written.
pub(super) fn for_each_piece<T>(
    rows: usize,
    each: usize,
    out: &mut [T],
    mut read: impl FnMut(Range<usize>, &mut [T]),
) -> Result<()> {
    let piece_rows = (MAX_PIECE.1 / each.max(1)).clamp(1, MAX_PIECE.0);
    if rows <= piece_rows {
        read(0..rows, out);
        return Ok(());
    }
    let mut interrupt = InterruptCheck::default();
    for (i, out) in out.chunks_mut(piece_rows * each.max(1)).enumerate() {
        interrupt.check()?;
        read(i * piece_rows..rows.min((i + 1) * piece_rows), out);
    }
    Ok(())
}

/// Returns the error for a column that a schema does not have.
#[cold]
pub(super) fn unknown_column(schema: &TransitionSchema, column: Column) -> Error {
    let expected = format!("one of {} observation fields and {} extra fields", schema.obs.len(), schema.extra.len());
    Error::config("column", expected, format!("{column:?}"), "pass a position counted from 0")
}

/// Returns the error for an output array whose dtype is not that of the column.
#[cold]
pub(super) fn dtype_mismatch(dtype: DType, out: DType) -> Error {
    Error::space("out", format!("{dtype:?}"), format!("{out:?}"), "pass an array of the column's dtype")
}

/// Returns the error for a transition that cannot be sampled.
#[cold]
pub(crate) fn invalid_index(index: usize, valid: &Range<usize>) -> Error {
    let expected = format!("indices of stored transitions, {} to {}", valid.start, valid.end.saturating_sub(1));
    Error::config("indices", expected, index.to_string(), "pass indices from a sample")
}

/// Copies the first `width` bytes of the slice `at(row)` for each row.
///
/// For frequent widths, the compiler knows the width, so that no function is called for the copy.
#[inline(always)]
pub(super) fn copy<'a>(
    rows: impl Iterator<Item = usize>,
    width: usize,
    out: &mut [u8],
    at: impl Fn(usize) -> &'a [u8],
) {
    macro_rules! of_widths {
        ($($width:literal)*) => {
            match width {
                $($width => {
                    for (out, row) in out.as_chunks_mut::<$width>().0.iter_mut().zip(rows) {
                        out.copy_from_slice(&at(row)[..$width]);
                    }
                })*
                _ => {
                    for (out, row) in out.chunks_exact_mut(width).zip(rows) {
                        out.copy_from_slice(&at(row)[..width]);
                    }
                }
            }
        };
    }
    of_widths!(1 2 4 8 12 16 24 32 48 64 68);
}
