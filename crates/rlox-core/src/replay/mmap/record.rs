//! A transition as bytes: its number, its parts one after another, and a checksum.

use crate::replay::gather::{copy, no_column, other_dtype, pieces};
use crate::replay::steps::of_row;
use crate::replay::{Column, Layout, Steps};
use crate::{DType, FieldMut, Result, check_len};

/// Bytes before the parts: the transition's number.
const NUMBER: usize = 8;
/// Bytes after them: the checksum.
const CHECK: usize = 4;

/// Where the parts of a transition lie.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Bytes of one.
    pub(super) len: usize,
    /// What checksums begin with: no other file's.
    salt: u32,
    /// Column, dtype, where it begins and how many elements it has.
    columns: Vec<(Column, DType, usize, usize)>,
}

impl Record {
    /// Records of a layout whose rows have a size that can be counted.
    pub(super) fn new(layout: &Layout, salt: u32) -> Self {
        let mut at = NUMBER;
        let place = |(_, shape, dtype, column): (String, Vec<usize>, DType, Column)| {
            let (from, width) = (at, shape.iter().product());
            at += width * dtype.size();
            (column, dtype, from, width)
        };
        let columns = layout.columns().into_iter().map(place).collect();
        Self { len: at + CHECK, salt, columns }
    }

    /// Writes one row of checked steps.
    pub(super) fn put(&self, out: &mut [u8], number: usize, steps: &Steps<'_>, row: usize) {
        let rows = steps.rows();
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&(number as u64).to_le_bytes());
        for part in steps.obs.iter().chain(steps.next_obs.unwrap_or(&[])).chain([&steps.actions]) {
            put(of_row(*part, row, rows));
        }
        put(&steps.rewards[row].to_ne_bytes());
        put(&[u8::from(steps.terminated[row]), u8::from(steps.truncated[row])]);
        for part in steps.extra {
            put(of_row(*part, row, rows));
        }
        let check = self.sum(&out[..self.len - CHECK]);
        out[self.len - CHECK..self.len].copy_from_slice(&check.to_le_bytes());
    }

    fn sum(&self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.salt);
        hasher.update(bytes);
        hasher.finalize()
    }

    /// What number a record says it has.
    pub(super) fn number(bytes: &[u8]) -> u64 {
        let (number, _) = bytes.split_first_chunk().unwrap_or((&[0xff; NUMBER], &[]));
        u64::from_le_bytes(*number)
    }

    /// Makes a record none.
    pub(super) const BLANK: [u8; NUMBER] = [0xff; NUMBER];

    /// What is wrong with the record of this number, if something is.
    pub(super) fn wrong(&self, bytes: &[u8], number: usize) -> Option<String> {
        let (content, check) = bytes.split_at(self.len - CHECK);
        if check != self.sum(content).to_le_bytes() {
            return Some("another checksum than its own".into());
        }
        let there = Self::number(bytes);
        (there != number as u64).then(|| format!("number {there}"))
    }

    /// Copies a column of records, `[B, ...]`.
    pub(super) fn read(&self, layout: &Layout, records: &[u8], column: Column, out: FieldMut<'_>) -> Result<()> {
        let (dtype, at, width) = self.place(layout, column)?;
        if out.dtype() != dtype {
            return Err(other_dtype(dtype, out.dtype()));
        }
        let rows = records.len() / self.len;
        check_len("out", out.len(), rows * width)?;
        let width = width * dtype.size();
        pieces(rows, width, out.into_bytes(), |rows, out| {
            copy(rows, width, out, |row| &records[row * self.len + at..]);
        })
    }

    /// The same of a column of booleans.
    pub(super) fn read_bools(&self, layout: &Layout, records: &[u8], column: Column, out: &mut [bool]) -> Result<()> {
        let (dtype, at, width) = self.place(layout, column)?;
        if dtype != DType::Bool {
            return Err(other_dtype(dtype, DType::Bool));
        }
        let rows = records.len() / self.len;
        check_len("out", out.len(), rows * width)?;
        pieces(rows, width, out, |rows, out| {
            for (out, row) in out.chunks_exact_mut(width).zip(rows) {
                let flags = &records[row * self.len + at..];
                out.iter_mut().zip(flags).for_each(|(out, byte)| *out = *byte != 0);
            }
        })
    }

    fn place(&self, layout: &Layout, column: Column) -> Result<(DType, usize, usize)> {
        let found = self.columns.iter().find(|place| place.0 == column);
        found.map(|(_, dtype, at, width)| (*dtype, *at, *width)).ok_or_else(|| no_column(layout, column))
    }
}
