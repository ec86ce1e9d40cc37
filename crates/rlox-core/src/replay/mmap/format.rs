//! The format of a file: a header with the schema, commits with the number of flushed rows, and records.

use serde_json::{Map, Value, json};

use super::timeline::Timeline;
use crate::replay::batch::{copy, dtype_mismatch, for_each_piece, unknown_column};
use crate::replay::schema::{RowLayout, count, row_bytes};
use crate::replay::{Column, FieldSpec, TransitionBatch, TransitionSchema};
use crate::{
    Error, Result,
    error::check_len,
    field::{DType, FieldMut},
};

const MAGIC: [u8; 8] = *b"rlox.mrb";
const VERSION: u32 = 2;
/// Size in bytes of a block, which disks write atomically. The size of the header is a multiple of
/// it.
const BLOCK: usize = 512;
/// Size in bytes of the part before the JSON text: magic, version and length of the text.
const FIXED: usize = 16;
/// Maximum length of the text in bytes. Longer headers are rejected without reading.
const MAX_TEXT_BYTES: usize = 1 << 24;
/// Upper limit of row numbers and commit numbers.
const MAX_COUNT: u64 = 1 << 62;
/// Size in bytes of the index of the transition, at the start of a record.
const NUMBER: usize = 8;
/// Size in bytes of the checksum, at the end of a record.
const CHECK: usize = 4;

/// Content of the header.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Header {
    pub(super) schema: TransitionSchema,
    pub(super) hot_capacity: usize,
    pub(super) total_capacity: usize,
    /// Number of additional records in the ring. With them, unflushed rows never overwrite stored
    /// rows.
    pub(super) slack: usize,
    /// Unique id of the file.
    pub(super) id: u64,
}

impl Header {
    /// Returns the bytes of the header and their checksum.
    pub(super) fn to_bytes(&self) -> (Vec<u8>, u32) {
        let parts = |parts: &[FieldSpec]| parts.iter().map(FieldSpec::to_json).collect::<Vec<_>>();
        let text = json!({
            "byte_order": byte_order(),
            "hot_capacity": self.hot_capacity,
            "total_capacity": self.total_capacity,
            "slack": self.slack,
            "id": self.id,
            "obs": parts(&self.schema.obs),
            "actions": self.schema.action.to_json(),
            "extra": parts(&self.schema.extra),
        });
        let text = text.to_string();
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &(text.len() as u32).to_le_bytes()].concat();
        bytes.extend(text.as_bytes());
        bytes.resize(block(text.len()), 0);
        let check = seal(&mut bytes, 0);
        (bytes, check)
    }

    /// Returns the size of a header in bytes, given its first block.
    pub(super) fn len(start: &[u8; BLOCK]) -> std::result::Result<usize, &'static str> {
        if start[..8] != MAGIC {
            return Err("a file of another program");
        }
        let text = u32::from_le_bytes([start[12], start[13], start[14], start[15]]) as usize;
        if text > MAX_TEXT_BYTES { Err("a header that is too long") } else { Ok(block(text)) }
    }

    /// Size of the first block in bytes.
    pub(super) const BLOCK: usize = BLOCK;

    /// Parses a header, and returns it with its checksum.
    ///
    /// # Errors
    /// `Err(got)` describes an invalid header. `Ok(Err(_))` is an [`Error::Config`] for another version of the format
    /// or another byte order.
    pub(super) fn from_bytes(bytes: &[u8], path: &str) -> std::result::Result<Result<(Self, u32)>, String> {
        let check = check_seal(bytes, 0).ok_or("a wrong checksum")?;
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let other = |expected: String, got: String, hint| Ok(Err(Error::config(path.to_owned(), expected, got, hint)));
        if version != VERSION {
            let got = format!("format {version}");
            return other(format!("format {VERSION}"), got, "open it with the version of rlox that wrote it");
        }
        let len = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let text = bytes.get(FIXED..FIXED.saturating_add(len)).ok_or("a header that is too short")?;
        let text: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let entries = text.as_object().ok_or("no JSON object")?;
        let order = entries.get("byte_order").and_then(Value::as_str).ok_or("no byte order")?;
        if order != byte_order() {
            let expected = format!("{}-endian numbers", byte_order());
            return other(expected, order.to_owned(), "open it on a machine with that byte order");
        }
        Self::from_entries(entries).map(|header| Ok((header, check)))
    }

    fn from_entries(entries: &Map<String, Value>) -> std::result::Result<Self, String> {
        let number = |key: &str| entries.get(key).and_then(Value::as_u64).ok_or(format!("no number {key:?}"));
        let count = |key: &str| count(entries, key);
        let schema = TransitionSchema { frame_stack: 1, ..TransitionSchema::from_json(entries)? };
        let (total_capacity, slack) = (count("total_capacity")?, count("slack")?);
        let header = Self { schema, hot_capacity: count("hot_capacity")?, total_capacity, slack, id: number("id")? };
        RowLayout::new(&header.schema).map_err(|error| error.to_string())?;
        if header.hot_capacity == 0 || header.hot_capacity > total_capacity || slack == 0 {
            return Err("invalid capacities".into());
        }
        Ok(header)
    }
}

/// Commit: the number of flushed rows and the history of rollbacks at the time of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    /// Number of this commit. Of two valid commits, the commit with the higher number counts.
    pub(super) number: u64,
    /// Number of flushed rows.
    pub(super) flushed: u64,
    /// History of rollbacks.
    pub(super) timeline: Timeline,
}

impl Commit {
    /// Size in bytes: a separate block, which disks write atomically.
    pub(super) const LEN: usize = BLOCK;

    pub(super) fn to_bytes(self, salt: u32) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.flushed.to_le_bytes());
        self.timeline.write_to(&mut bytes[16..][..Timeline::LEN]);
        seal(&mut bytes, salt);
        bytes
    }

    /// Parses a commit, or returns `None` if it is invalid.
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN], salt: u32) -> Option<Self> {
        check_seal(bytes, salt)?;
        let (number, rest) = bytes.split_first_chunk()?;
        let (flushed, rest) = rest.split_first_chunk()?;
        let (number, flushed) = (u64::from_le_bytes(*number), u64::from_le_bytes(*flushed));
        let commit = Self { number, flushed, timeline: Timeline::from_bytes(rest.get(..Timeline::LEN)?)? };
        (commit.flushed < MAX_COUNT && commit.number < MAX_COUNT).then_some(commit)
    }
}

/// Layout of a record: index of the transition, columns and checksum.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Size in bytes.
    pub(super) len: usize,
    /// Initial value of checksums, unique per file.
    salt: u32,
    /// Column, dtype, offset and number of elements.
    columns: Vec<(Column, DType, usize, usize)>,
}

impl Record {
    /// Creates the layout of a record for a schema. The size of a row must not overflow.
    pub(super) fn new(schema: &TransitionSchema, salt: u32) -> Self {
        let mut offset = NUMBER;
        let place = |(_, shape, dtype, column): (String, Vec<usize>, DType, Column)| {
            let (from, width) = (offset, shape.iter().product());
            offset += width * dtype.size();
            (column, dtype, from, width)
        };
        let columns = schema.columns().into_iter().map(place).collect();
        Self { len: offset + CHECK, salt, columns }
    }

    /// Writes row `row` of a checked batch to `out`, as the record of the transition `number`.
    pub(super) fn write(&self, out: &mut [u8], number: usize, batch: &TransitionBatch<'_>, row: usize) {
        let rows = batch.rows();
        let mut offset = 0;
        let mut append = |bytes: &[u8]| {
            out[offset..offset + bytes.len()].copy_from_slice(bytes);
            offset += bytes.len();
        };
        append(&(number as u64).to_le_bytes());
        for data in batch.obs.iter().chain(batch.next_obs.unwrap_or(&[])).chain([&batch.actions]) {
            append(row_bytes(*data, row, rows));
        }
        append(&batch.rewards[row].to_ne_bytes());
        append(&[u8::from(batch.terminated[row]), u8::from(batch.truncated[row])]);
        for data in batch.extra {
            append(row_bytes(*data, row, rows));
        }
        let check = sum(&out[..self.len - CHECK], self.salt);
        out[self.len - CHECK..self.len].copy_from_slice(&check.to_le_bytes());
    }

    /// Returns the index that a record contains.
    pub(super) fn number(bytes: &[u8]) -> u64 {
        let (number, _) = bytes.split_first_chunk().unwrap_or((&[0xff; NUMBER], &[]));
        u64::from_le_bytes(*number)
    }

    /// Index in a blanked record, which no transition has.
    pub(super) const BLANK: [u8; NUMBER] = [0xff; NUMBER];

    /// Returns a description of the error in the record of the transition `number`.
    ///
    /// Returns `None` if the record is valid.
    pub(super) fn mismatch(&self, bytes: &[u8], number: usize) -> Option<String> {
        let (content, check) = bytes.split_at(self.len - CHECK);
        if check != sum(content, self.salt).to_le_bytes() {
            return Some("a wrong checksum".into());
        }
        let there = Self::number(bytes);
        (there != number as u64).then(|| format!("number {there}"))
    }

    /// Copies one column of records, `[B, ...]`, to `out`.
    pub(super) fn read(
        &self,
        schema: &TransitionSchema,
        records: &[u8],
        column: Column,
        out: FieldMut<'_>,
    ) -> Result<()> {
        let (dtype, offset, width) = self.place(schema, column)?;
        if out.dtype() != dtype {
            return Err(dtype_mismatch(dtype, out.dtype()));
        }
        let rows = records.len() / self.len;
        check_len("out", out.len(), rows * width)?;
        let width = width * dtype.size();
        for_each_piece(rows, width, out.into_bytes(), |rows, out| {
            copy(rows, width, out, |row| &records[row * self.len + offset..]);
        })
    }

    /// Copies one Boolean column of records, `[B, ...]`, to `out`.
    pub(super) fn read_bools(
        &self,
        schema: &TransitionSchema,
        records: &[u8],
        column: Column,
        out: &mut [bool],
    ) -> Result<()> {
        let (dtype, offset, width) = self.place(schema, column)?;
        if dtype != DType::Bool {
            return Err(dtype_mismatch(dtype, DType::Bool));
        }
        let rows = records.len() / self.len;
        check_len("out", out.len(), rows * width)?;
        for_each_piece(rows, width, out, |rows, out| {
            for (out, row) in out.chunks_exact_mut(width).zip(rows) {
                let flags = &records[row * self.len + offset..];
                out.iter_mut().zip(flags).for_each(|(out, byte)| *out = *byte != 0);
            }
        })
    }

    fn place(&self, schema: &TransitionSchema, column: Column) -> Result<(DType, usize, usize)> {
        let found = self.columns.iter().find(|place| place.0 == column);
        found.map(|(_, dtype, offset, width)| (*dtype, *offset, *width)).ok_or_else(|| unknown_column(schema, column))
    }
}

/// Returns the size in bytes of a header whose text has this length.
fn block(text: usize) -> usize {
    (FIXED + text + 4).next_multiple_of(BLOCK)
}

/// Writes the checksum of all bytes but the last four to the last four bytes, and returns it.
fn seal(bytes: &mut [u8], salt: u32) -> u32 {
    let (content, end) = bytes.split_at_mut(bytes.len() - 4);
    let check = sum(content, salt);
    end.copy_from_slice(&check.to_le_bytes());
    check
}

/// Returns the checksum in the last four bytes if it is correct.
fn check_seal(bytes: &[u8], salt: u32) -> Option<u32> {
    let (content, end) = bytes.split_last_chunk::<4>()?;
    let check = sum(content, salt);
    (u32::from_le_bytes(*end) == check).then_some(check)
}

fn sum(bytes: &[u8], salt: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

fn byte_order() -> &'static str {
    if cfg!(target_endian = "little") { "little" } else { "big" }
}
