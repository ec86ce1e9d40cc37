//! How transitions are read from the ring into memory of the caller's.

use std::ops::Range;

use super::layout::Layout;
use super::storage::{ReplayStorage, STORED, TERMINATED, TRUNCATED};
use crate::simd::prefetch::prefetch;
use crate::{DType, Error, FieldMut, Result, Watch, check_len, memory};

/// Bytes of a row, and of the next one, that are asked for before they are copied: longer ones come in by themselves.
const NEAR: usize = 512;
const LINE: usize = 64;
/// Rows, and bytes of a column, that are read between two looks for an interruption.
const TOGETHER: (usize, usize) = (1 << 14, 1 << 20);

/// Something that is stored of each transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// A part of the observation, by its number.
    Obs(usize),
    /// The same part of the next observation: the episode's last one where it ended.
    NextObs(usize),
    /// The action.
    Action,
    /// A further part, by its number.
    Extra(usize),
    /// The reward, f32.
    Reward,
    /// Whether the task itself ended.
    Terminated,
    /// Whether the episode was cut.
    Truncated,
}

impl Layout {
    /// What is stored of each transition, in the layout's order: name, row shape, dtype and column.
    ///
    /// Next observations are called as observations are, with `next_` before it.
    pub fn columns(&self) -> Vec<(String, Vec<usize>, DType, Column)> {
        let layout = self;
        let each = |part: &super::Part, name: String, column| (name, part.shape.clone(), part.dtype, column);
        let parts = layout.obs.iter().enumerate();
        let obs = parts.clone().map(|(i, part)| each(part, part.name.clone(), Column::Obs(i)));
        let next = parts.map(|(i, part)| each(part, format!("next_{}", part.name), Column::NextObs(i)));
        let extra = layout.extra.iter().enumerate();
        let extra = extra.map(|(i, part)| each(part, part.name.clone(), Column::Extra(i)));
        let action = each(&layout.action, layout.action.name.clone(), Column::Action);
        let alone = |name: &str, dtype, column| (name.to_owned(), Vec::new(), dtype, column);
        obs.chain(next)
            .chain([action, alone("rewards", DType::F32, Column::Reward)])
            .chain(
                [("terminated", Column::Terminated), ("truncated", Column::Truncated)]
                    .map(|(name, column)| alone(name, DType::Bool, column)),
            )
            .chain(extra)
            .collect()
    }
}

impl ReplayStorage {
    /// What is stored of each transition, as [`Layout::columns`] tells.
    pub fn columns(&self) -> Vec<(String, Vec<usize>, DType, Column)> {
        self.layout.columns()
    }

    /// The rows of transitions, for [`ReplayStorage::read`], in place of those that `rows` held.
    ///
    /// # Errors
    /// [`Error::Config`] naming a number that is not among [`ReplayStorage::indices`].
    pub(crate) fn locate(&self, indices: &[usize], rows: &mut Vec<usize>) -> Result<()> {
        let held = self.indices();
        rows.clear();
        memory::grow("indices", rows, indices.len())?;
        if let Some(wrong) = indices.iter().find(|index| !held.contains(index)) {
            return Err(not_held(*wrong, &held));
        }
        let (all, stride) = (self.room() * self.num_envs, self.places.stride);
        // What is held is at most one lap behind.
        let lap = held.start / all * all;
        let mut watch = Watch::default();
        for (i, indices) in indices.chunks(TOGETHER.0).enumerate() {
            if i > 0 {
                watch.check()?;
            }
            for index in indices {
                let row = index - lap;
                let row = if row >= all { row - all } else { row };
                rows.push(row);
                // A whole row of small observations, and what comes after it.
                let from = row * stride;
                for line in (from..(from + 2 * stride).min(from + NEAR)).step_by(LINE) {
                    if let Some(place) = self.data.get(line) {
                        prefetch(place);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies one column of transitions, told by their numbers, `[B, ...]`.
    ///
    /// # Errors
    /// [`Error::Config`] naming a number that is not among [`ReplayStorage::indices`] or a column that is not there,
    /// [`Error::Space`] for memory of another dtype, [`Error::Shape`] for memory of another length. Nothing is written
    /// then. [`Error::Interrupted`] if it was told to stop: of many rows the first ones are written then.
    pub fn gather(&self, column: Column, indices: &[usize], out: FieldMut<'_>) -> Result<()> {
        let mut rows = Vec::new();
        self.locate(indices, &mut rows)?;
        self.read(column, &rows, out)
    }

    /// As [`ReplayStorage::gather`], of rows that were located.
    pub(crate) fn read(&self, column: Column, rows: &[usize], out: FieldMut<'_>) -> Result<()> {
        self.read_bytes(column, rows, self.memory_of(column, rows.len(), out)?)
    }

    /// Checks memory for a column of so many rows, and gives its bytes.
    pub(super) fn memory_of<'a>(&self, column: Column, rows: usize, out: FieldMut<'a>) -> Result<&'a mut [u8]> {
        let (dtype, width) = self.shape_of(column)?;
        if out.dtype() != dtype {
            return Err(other_dtype(dtype, out.dtype()));
        }
        check_len("out", out.len(), rows.saturating_mul(width))?;
        Ok(out.into_bytes())
    }

    /// Copies a column that is there into memory that fits.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; the first rows are written then.
    pub(super) fn read_bytes(&self, column: Column, rows: &[usize], out: &mut [u8]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let each = out.len() / rows.len();
        pieces(rows.len(), each, out, |some, out| self.read_piece(column, &rows[some], each, out))
    }

    fn read_piece(&self, column: Column, rows: &[usize], each: usize, out: &mut [u8]) {
        let (places, stride) = (&self.places, self.places.stride);
        let flag = |flag: u8, out: &mut [u8]| {
            for (out, row) in out.iter_mut().zip(rows) {
                *out = u8::from(self.flags(*row) & flag != 0);
            }
        };
        match column {
            Column::Terminated => flag(TERMINATED, out),
            Column::Truncated => flag(TRUNCATED, out),
            Column::Obs(_) if self.layout.frame_stack > 1 => self.read_frames(rows, out),
            Column::NextObs(_) if self.layout.frame_stack > 1 => self.read_next_frames(rows, out),
            Column::NextObs(part) => {
                let from = self.offset_of(Column::Obs(part));
                copy(rows.iter().copied(), each, out, |row| {
                    if self.flags(row) & STORED != 0 {
                        &self.aside.row(self.slot(row, places.stored))[from..]
                    } else {
                        &self.data[self.later(row, 1) * stride + from..]
                    }
                });
            }
            _ => {
                let from = self.offset_of(column);
                copy(rows.iter().copied(), each, out, |row| &self.data[row * stride + from..]);
            }
        }
    }

    /// As [`ReplayStorage::read`], of a column of booleans.
    pub(crate) fn read_bools(&self, column: Column, rows: &[usize], out: &mut [bool]) -> Result<()> {
        let (dtype, width) = self.shape_of(column)?;
        if dtype != DType::Bool {
            return Err(other_dtype(dtype, DType::Bool));
        }
        check_len("out", out.len(), rows.len().saturating_mul(width))?;
        let flag = match column {
            Column::Terminated => TERMINATED,
            Column::Truncated => TRUNCATED,
            _ => {
                let mut bytes = memory::zeroed("batch_size", out.len())?;
                self.read(column, rows, FieldMut::Bool(&mut bytes))?;
                return pieces(rows.len(), width, out, |some, out| {
                    out.iter_mut().zip(&bytes[some.start * width..]).for_each(|(out, byte)| *out = *byte != 0);
                });
            }
        };
        pieces(rows.len(), 1, out, |some, out| {
            out.iter_mut().zip(&rows[some]).for_each(|(out, row)| *out = self.flags(*row) & flag != 0);
        })
    }

    /// The dtype and the number of elements of a column's rows.
    pub(crate) fn shape_of(&self, column: Column) -> Result<(DType, usize)> {
        let layout = &self.layout;
        let part = match column {
            Column::Obs(part) | Column::NextObs(part) => layout.obs.get(part),
            Column::Action => Some(&layout.action),
            Column::Extra(part) => layout.extra.get(part),
            Column::Reward => return Ok((DType::F32, 1)),
            Column::Terminated | Column::Truncated => return Ok((DType::Bool, 1)),
        };
        let part = part.ok_or_else(|| no_column(layout, column))?;
        Ok((part.dtype, part.width()))
    }

    /// Where a column that is not a flag or a next observation lies in a row.
    fn offset_of(&self, column: Column) -> usize {
        let (layout, places) = (&self.layout, &self.places);
        let bytes = |parts: &[super::Part]| parts.iter().map(super::Part::bytes).sum::<usize>();
        match column {
            Column::Obs(part) => bytes(&layout.obs[..part]),
            Column::Action => places.action,
            Column::Extra(part) => places.action + layout.action.bytes() + bytes(&layout.extra[..part]),
            _ => places.reward,
        }
    }

    fn read_frames(&self, rows: &[usize], out: &mut [u8]) {
        let frames = self.layout.frame_stack;
        for (out, row) in out.chunks_exact_mut(self.places.obs).zip(rows) {
            for (i, out) in out.chunks_exact_mut(self.places.frame).enumerate() {
                out.copy_from_slice(self.frame(*row, frames - 1 - i));
            }
        }
    }

    fn read_next_frames(&self, rows: &[usize], out: &mut [u8]) {
        let (frames, size) = (self.layout.frame_stack, self.places.frame);
        for (out, &row) in out.chunks_exact_mut(self.places.obs).zip(rows) {
            if self.flags(row) & STORED != 0 {
                out.copy_from_slice(self.aside.row(self.slot(row, self.places.stored)));
                continue;
            }
            let (older, newest) = out.split_at_mut((frames - 1) * size);
            for (i, out) in older.chunks_exact_mut(size).enumerate() {
                out.copy_from_slice(self.frame(row, frames - 2 - i));
            }
            newest.copy_from_slice(self.newest(self.later(row, 1)));
        }
    }
}

/// Has `read` write rows of `each` elements in pieces. Between them it is asked whether to stop.
///
/// # Errors
/// [`Error::Interrupted`]; the first rows are written then.
pub(super) fn pieces<T>(
    rows: usize,
    each: usize,
    out: &mut [T],
    mut read: impl FnMut(Range<usize>, &mut [T]),
) -> Result<()> {
    let together = (TOGETHER.1 / each.max(1)).clamp(1, TOGETHER.0);
    if rows <= together {
        read(0..rows, out);
        return Ok(());
    }
    let mut watch = Watch::default();
    for (i, out) in out.chunks_mut(together * each.max(1)).enumerate() {
        watch.check()?;
        read(i * together..rows.min((i + 1) * together), out);
    }
    Ok(())
}

/// The error for a column that a layout does not have.
#[cold]
pub(super) fn no_column(layout: &Layout, column: Column) -> Error {
    let expected = format!("one of {} observation and {} further parts", layout.obs.len(), layout.extra.len());
    Error::config("column", expected, format!("{column:?}"), "count from 0")
}

/// The error for memory of another dtype than a column's.
#[cold]
pub(super) fn other_dtype(dtype: DType, out: DType) -> Error {
    Error::space("out", format!("{dtype:?}"), format!("{out:?}"), "pass memory of the column's dtype")
}

/// The error for a transition that cannot be sampled.
#[cold]
pub(crate) fn not_held(index: usize, held: &Range<usize>) -> Error {
    let expected = format!("numbers of stored transitions, {} to {}", held.start, held.end.saturating_sub(1));
    Error::config("indices", expected, index.to_string(), "pass what sampling gave")
}

/// Copies `width` bytes for each row from where `at` says. Small widths are copied without a call.
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
