//! What stands at a file's beginning: what it holds, and how much of it was flushed.

use serde_json::{Map, Value, json};

use super::disk::Disk;
use super::timeline::Timeline;
use crate::replay::described::count;
use crate::replay::layout::Places;
use crate::replay::{Layout, Part};
use crate::{Error, Result, memory};

const MAGIC: [u8; 8] = *b"rlox.mrb";
const VERSION: u32 = 2;
/// The header has a multiple of so many bytes, as many as a disk writes at once.
const BLOCK: usize = 512;
/// Before the text: magic, version, the text's length.
const FIXED: usize = 16;
/// More than any header has: what is longer is not read.
const MOST: usize = 1 << 24;
/// Rows are numbered below this.
const LAST: u64 = 1 << 62;

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Header {
    pub(super) layout: Layout,
    pub(super) hot_capacity: usize,
    pub(super) total_capacity: usize,
    /// Records there is room for beyond those: rows that were not flushed never overwrite what is held.
    pub(super) spare: usize,
    /// No other file's.
    pub(super) id: u64,
}

impl Header {
    /// The header of a file, its bytes and their checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what rlox did not write, [`Error::Config`] for what another rlox did, and those of the disk.
    pub(super) fn read(disk: &Disk) -> Result<(Vec<u8>, Self, u32)> {
        let wrong = |got: &str| disk.corrupt("header", got);
        let mut start = [0; Self::BLOCK];
        if !disk.read(0, &mut start)? {
            return Err(wrong("the file's end"));
        }
        let len = Self::len(&start).map_err(wrong)?;
        if len as u64 > disk.len()? {
            return Err(wrong("the file's end"));
        }
        let mut bytes = memory::zeroed("path", len)?;
        if !disk.read(0, &mut bytes)? {
            return Err(wrong("the file's end"));
        }
        let (header, salt) = Self::from_bytes(&bytes, &disk.named()).map_err(|got| wrong(&got))??;
        Ok((bytes, header, salt))
    }

    /// The bytes that it has in a file, and their checksum.
    pub(super) fn to_bytes(&self) -> (Vec<u8>, u32) {
        let parts = |parts: &[Part]| parts.iter().map(Part::text).collect::<Vec<_>>();
        let text = json!({
            "byte_order": byte_order(),
            "hot_capacity": self.hot_capacity,
            "total_capacity": self.total_capacity,
            "spare": self.spare,
            "id": self.id,
            "obs": parts(&self.layout.obs),
            "actions": self.layout.action.text(),
            "extra": parts(&self.layout.extra),
        });
        let text = text.to_string();
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &(text.len() as u32).to_le_bytes()].concat();
        bytes.extend(text.as_bytes());
        bytes.resize(block(text.len()), 0);
        let check = seal(&mut bytes, 0);
        (bytes, check)
    }

    /// How many bytes a header has that begins so.
    fn len(start: &[u8; BLOCK]) -> std::result::Result<usize, &'static str> {
        if start[..8] != MAGIC {
            return Err("a file of another program");
        }
        let text = u32::from_le_bytes([start[12], start[13], start[14], start[15]]) as usize;
        if text > MOST { Err("a header that is too long") } else { Ok(block(text)) }
    }

    /// Bytes of the first block.
    const BLOCK: usize = BLOCK;

    /// Reads it; else says what is wrong with section `header` of the file `path`.
    ///
    /// # Errors
    /// `Err(got)` for what rlox did not write, and [`Error::Config`] inside of `Ok` for what another rlox did.
    fn from_bytes(bytes: &[u8], path: &str) -> std::result::Result<Result<(Self, u32)>, String> {
        let check = opened(bytes, 0).ok_or("another checksum than its own")?;
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let other = |expected: String, got: String, fix| Ok(Err(Error::config(path.to_owned(), expected, got, fix)));
        if version != VERSION {
            let got = format!("format {version}");
            return other(format!("format {VERSION}"), got, "open it with the rlox that wrote it");
        }
        let len = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let text = bytes.get(FIXED..FIXED.saturating_add(len)).ok_or("a header that is too short")?;
        let text: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let entries = text.as_object().ok_or("no object")?;
        let order = entries.get("byte_order").and_then(Value::as_str).ok_or("no byte order")?;
        if order != byte_order() {
            return other(format!("{}-endian numbers", byte_order()), order.to_owned(), "open it where it was written");
        }
        Self::of(entries).map(|header| Ok((header, check)))
    }

    fn of(entries: &Map<String, Value>) -> std::result::Result<Self, String> {
        let number = |key: &str| entries.get(key).and_then(Value::as_u64).ok_or(format!("no number {key:?}"));
        let count = |key: &str| count(entries, key);
        let layout = Layout { frame_stack: 1, ..Layout::of_text(entries)? };
        let (total_capacity, spare) = (count("total_capacity")?, count("spare")?);
        let header = Self { layout, hot_capacity: count("hot_capacity")?, total_capacity, spare, id: number("id")? };
        Places::of(&header.layout).map_err(|error| error.to_string())?;
        if header.hot_capacity == 0 || header.hot_capacity > total_capacity || spare == 0 {
            return Err("capacities that make no sense".into());
        }
        Ok(header)
    }
}

/// How much was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    /// The number of this commit: of two the later one counts.
    pub(super) number: u64,
    /// How many rows were flushed.
    pub(super) flushed: u64,
    /// Which rows they are.
    pub(super) timeline: Timeline,
}

impl Commit {
    /// Bytes of one, in a block of its own, which disks write whole.
    pub(super) const LEN: usize = BLOCK;

    pub(super) fn to_bytes(self, salt: u32) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.flushed.to_le_bytes());
        self.timeline.put(&mut bytes[16..][..Timeline::LEN]);
        seal(&mut bytes, salt);
        bytes
    }

    /// Reads one, if it is whole.
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN], salt: u32) -> Option<Self> {
        opened(bytes, salt)?;
        let (number, rest) = bytes.split_first_chunk()?;
        let (flushed, rest) = rest.split_first_chunk()?;
        let (number, flushed) = (u64::from_le_bytes(*number), u64::from_le_bytes(*flushed));
        let commit = Self { number, flushed, timeline: Timeline::from_bytes(rest.get(..Timeline::LEN)?)? };
        (commit.flushed < LAST && commit.number < LAST).then_some(commit)
    }
}

/// Bytes of a header with a text of this length, and its checksum.
fn block(text: usize) -> usize {
    (FIXED + text + 4).next_multiple_of(BLOCK)
}

/// Ends bytes with the checksum of what is before.
fn seal(bytes: &mut [u8], salt: u32) -> u32 {
    let (content, end) = bytes.split_at_mut(bytes.len() - 4);
    let check = sum(content, salt);
    end.copy_from_slice(&check.to_le_bytes());
    check
}

/// The checksum that bytes end with, if it is theirs.
fn opened(bytes: &[u8], salt: u32) -> Option<u32> {
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
