//! Batches of sampled transitions: their indices, and their columns in the caller's memory.

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

/// Bytes of a row and the next one that are prefetched. The hardware prefetches longer rows.
const PREFETCH_BYTES: usize = 512;
const CACHE_LINE: usize = 64;
/// Maximum number of rows, and of bytes of a column, between two interruption checks.
const MAX_PIECE: (usize, usize) = (1 << 14, 1 << 20);

/// A stored column of transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// A field of the observation, by its position in the schema.
    Obs(usize),
    /// The same field of the next observation; of the final observation if the episode ended.
    NextObs(usize),
    /// Action.
    Action,
    /// An extra field, by its position in the schema.
    Extra(usize),
    /// Reward, f32.
    Reward,
    /// True if the task ended.
    Terminated,
    /// True if the episode was truncated.
    Truncated,
}

impl TransitionSchema {
    /// Returns the columns in the order of the schema: name, row shape, dtype and column.
    ///
    /// The names of next observations are those of observations with the prefix `next_`.
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

/// Positions of the observation fields that hold goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoalRelabel {
    /// Field of the achieved goal.
    pub achieved: usize,
    /// Field of the desired goal, which relabelling replaces.
    pub desired: usize,
}

/// Indices of sampled transitions, with their weights and locations.
#[derive(Clone, Debug, Default)]
pub struct SampleIndices {
    pub(crate) indices: Vec<usize>,
    pub(crate) weights: Vec<f32>,
    rows: Vec<usize>,
    spans: Spans,
    n_step: Option<NStep>,
    /// Transitions whose next observations hold the new goals of the first samples.
    pub(crate) goals: Vec<usize>,
    goal_rows: Vec<usize>,
    pub(crate) relabel: Option<GoalRelabel>,
    /// Bytes of the transitions, if they were read from a file.
    pub(crate) records: Vec<u8>,
    /// State of the storage when all rows were located; `None` before.
    generation: Option<(usize, usize)>,
}

impl SampleIndices {
    /// Returns the indices of the transitions, `[B]`.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Returns the importance weights, `[B]`; all 1 for uniform sampling.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Returns the discounts of the next observation's value, `[B]`; empty without [`NStep`].
    ///
    /// The discount after k steps is `gamma^k`.
    pub fn discounts(&self) -> &[f32] {
        if self.n_step.is_some() { &self.spans.discounts } else { &[] }
    }

    /// Returns the number of transitions with a new goal. These are the first ones.
    pub fn relabelled(&self) -> usize {
        self.goals.len()
    }

    /// Returns the allocated bytes, which the next sample reuses.
    pub fn memory(&self) -> usize {
        let numbers = [&self.indices, &self.rows, &self.goals, &self.goal_rows].map(alloc::allocated_bytes);
        let own = numbers.iter().sum::<usize>()
            + alloc::allocated_bytes(&self.weights)
            + alloc::allocated_bytes(&self.records);
        own + self.spans.memory()
    }

    /// Resizes the arrays for `count` transitions.
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

    /// Locates the rows of the indices.
    pub(crate) fn locate(&mut self, storage: &ReplayStorage, n_step: Option<NStep>) -> Result<()> {
        storage.locate(&self.indices, &mut self.rows)?;
        storage.locate(&self.goals, &mut self.goal_rows)?;
        self.n_step = n_step;
        n_step.map_or(Ok(()), |n_step| self.spans.find(storage, n_step, &self.rows))?;
        self.generation = Some(storage.generation());
        Ok(())
    }

    /// Reads the transitions of the indices into `records` with the given function.
    pub(crate) fn fetch(&mut self, read: impl FnOnce(&[usize], &mut Vec<u8>) -> Result<()>) -> Result<()> {
        self.records.clear();
        read(&self.indices, &mut self.records)?;
        self.generation = Some((0, 0));
        Ok(())
    }

    /// Keeps the transitions whose flag in `keep`, `[B]`, is true, in their order.
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

    /// Returns true if all transitions are located and can be read.
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

    /// Copies one column of the transitions, `[B, ...]`.
    ///
    /// # Errors
    /// As [`ReplayStorage::gather`]; also [`Error::Config`] for another storage, or after another push.
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

    /// Returns true if a field of the observation contains new goals.
    fn is_relabelled(&self, part: usize) -> bool {
        self.relabel.is_some_and(|relabel| relabel.desired == part)
    }

    /// Copies the desired goals. The first ones are goals that other steps achieved.
    fn read_goals(&self, storage: &ReplayStorage, column: Column, out: FieldMut<'_>) -> Result<()> {
        let Some(relabel) = self.relabel else { return Ok(()) };
        let (count, rows) = (self.goal_rows.len(), self.rows_of(storage, column));
        let bytes = storage.memory_of(column, rows.len(), out)?;
        let (first, rest) = bytes.split_at_mut(bytes.len() / rows.len().max(1) * count);
        storage.read_bytes(Column::NextObs(relabel.achieved), &self.goal_rows, first)?;
        storage.read_bytes(column, &rows[count..], rest)
    }

    /// Copies one column of booleans as [`SampleIndices::read`] does.
    ///
    /// # Errors
    /// As [`SampleIndices::read`].
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

    /// Returns the rows of a column: the last step's for next states, else the first step's.
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

/// A batch of B transitions, whose memory the next sample reuses.
///
/// The fields are `obs`, `next_obs`, `actions`, `rewards`, `terminated` and `truncated`, or have the names of the
/// [`TransitionSchema`]; each is `[B, ...]`.
#[derive(Clone, Debug, Default)]
pub struct SampledBatch {
    pub(crate) sample_indices: SampleIndices,
    columns: Vec<Column>,
    fields: Vec<Field>,
}

impl SampledBatch {
    /// Removes the transitions and keeps the memory.
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

    /// Returns the sampled indices with weights and locations.
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

    /// Returns the discounts of the next observation's value, `[B]`; empty without [`NStep`].
    pub fn discounts(&self) -> &[f32] {
        self.sample_indices.discounts()
    }

    /// Returns a field by its name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// Returns the elements of a field for changes in place, such as normalisation.
    pub fn field_mut(&mut self, name: &str) -> Option<FieldMut<'_>> {
        self.fields.iter_mut().find(|field| field.name() == name).map(Field::data_mut)
    }

    /// Returns the numbers of an f32 field; empty if there is no such field.
    pub fn f32s(&self, name: &str) -> &[f32] {
        match self.field(name).map(Field::data) {
            Some(FieldData::F32(numbers)) => numbers,
            _ => &[],
        }
    }

    /// Returns the numbers of an i64 field; empty if there is no such field.
    pub fn i64s(&self, name: &str) -> &[i64] {
        match self.field(name).map(Field::data) {
            Some(FieldData::I64(numbers)) => numbers,
            _ => &[],
        }
    }

    /// Returns the flags of a boolean field as bytes; empty if there is no such field.
    pub fn flags(&self, name: &str) -> &[u8] {
        match self.field(name).map(Field::data) {
            Some(FieldData::Bool(flags)) => flags,
            _ => &[],
        }
    }

    /// Resizes the fields for `count` transitions of a schema.
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

    /// Returns true if the fields match a schema. Does not allocate.
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

    /// Fills each field with the given function.
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

    /// Replaces `rows` by the rows of the transitions, for [`ReplayStorage::read`].
    ///
    /// # Errors
    /// - [`Error::Config`] that names an index outside [`ReplayStorage::indices`];
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
        // Stored transitions are at most one lap behind.
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
                // Prefetches a small row and the start of the next one.
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

    /// Copies one column of the transitions with the given indices, `[B, ...]`.
    ///
    /// # Errors
    /// - [`Error::Config`] that names an index outside [`ReplayStorage::indices`] or an unknown column;
    /// - [`Error::Space`] if the dtype of `out` differs, [`Error::Shape`] if its length differs;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// Nothing is written then, except that an interrupted call may have written the first rows.
    pub fn gather(&self, column: Column, indices: &[usize], out: FieldMut<'_>) -> Result<()> {
        let mut rows = Vec::new();
        self.locate(indices, &mut rows)?;
        self.read(column, &rows, out)
    }

    /// Copies one column of located rows.
    pub(crate) fn read(&self, column: Column, rows: &[usize], out: FieldMut<'_>) -> Result<()> {
        self.read_bytes(column, rows, self.memory_of(column, rows.len(), out)?)
    }

    /// Checks the memory for `rows` rows of a column, and returns its bytes.
    pub(super) fn memory_of<'a>(&self, column: Column, rows: usize, out: FieldMut<'a>) -> Result<&'a mut [u8]> {
        let (dtype, width) = self.shape_of(column)?;
        if out.dtype() != dtype {
            return Err(dtype_mismatch(dtype, out.dtype()));
        }
        check_len("out", out.len(), rows.saturating_mul(width))?;
        Ok(out.into_bytes())
    }

    /// Copies an existing column into memory of the right size.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; the first rows may be written then.
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

    /// Copies a column of booleans of located rows.
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

    /// Returns the dtype and the number of elements per row of a column.
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

    /// Returns the offset of a column in a row. Flags and next observations have no offset.
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

/// Calls `read` for pieces of rows of `each` elements, with an interruption check before each piece.
///
/// # Errors
/// [`Error::Interrupted`]; the first rows may be written then.
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

/// Returns the error for an output of another dtype than the column's.
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

/// Copies `width` bytes per row from the slices of `at`. Small widths are copied without a call.
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
