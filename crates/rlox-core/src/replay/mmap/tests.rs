//! Tests with damaged, truncated, forged and rejected files, and with power cuts.
#![allow(clippy::unwrap_used, reason = "tests")]

mod back;
mod disk;

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::replay::tests::pressed;
use crate::replay::{Column, FieldSpec, ReplayBuffer, SampleIndices, SampledBatch};
use crate::testing::assert_rejects;
use crate::{
    Pcg64,
    error::Mismatch,
    field::{DType, FieldMut},
};

/// Simulates failures of the disk.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Number of calls that succeed before all others fail; `None` for no failures.
    remaining: Cell<Option<u32>>,
}

impl Faults {
    pub(super) fn before(&self) -> io::Result<()> {
        match self.remaining.get() {
            None => Ok(()),
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(remaining) => {
                self.remaining.set(Some(remaining - 1));
                Ok(())
            }
        }
    }
}

fn layout() -> TransitionSchema {
    let mut layout =
        TransitionSchema::new(FieldSpec::new("obs", &[2], DType::U8), FieldSpec::new("actions", &[], DType::I64));
    layout.extra.push(FieldSpec::new("cost", &[], DType::F64));
    layout
}

fn push(buffer: &mut MmapReplayBuffer, rows: Range<usize>) -> Result<()> {
    let all = |f: fn(usize) -> [u8; 2]| rows.clone().flat_map(f).collect::<Vec<_>>();
    let (obs, next) = (all(|i| [i as u8, 1]), all(|i| [i as u8, 2]));
    let actions: Vec<_> = rows.clone().map(|i| i as i64).collect();
    let rewards: Vec<_> = rows.clone().map(|i| i as f32 / 2.0).collect();
    let cost: Vec<_> = rows.clone().map(|i| i as f64 / 3.0).collect();
    let (ended, cut): (Vec<_>, Vec<_>) = rows.map(|i| (i % 3 == 0, i % 5 == 0)).unzip();
    buffer.push_batch(&TransitionBatch {
        obs: &[FieldData::U8(&obs)],
        actions: FieldData::I64(&actions),
        rewards: &rewards,
        terminated: &ended,
        truncated: &cut,
        next_obs: Some(&[FieldData::U8(&next)]),
        extra: &[FieldData::F64(&cost)],
    })
}

/// Returns the records of all rows, and checks those that are read from the file.
fn rows(buffer: &MmapReplayBuffer) -> Result<Vec<Vec<u8>>> {
    let len = buffer.cold.record.len;
    let read = |row: usize| {
        let mut out = vec![0; len];
        if row < buffer.hot_from {
            return buffer.cold.read(row, &mut out).map(|()| out);
        }
        out.copy_from_slice(&buffer.hot[row % buffer.hot_capacity * len..][..len]);
        Ok(out)
    };
    buffer.indices().map(read).collect()
}

/// Checks that the rows are the pushed ones, in order, and returns their indices.
fn check(buffer: &MmapReplayBuffer) -> Range<usize> {
    for (row, record) in buffer.indices().zip(rows(buffer).unwrap()) {
        assert_eq!(buffer.cold.record.mismatch(&record, row), None);
        assert_eq!(&record[8..12], [row as u8, 1, row as u8, 2]);
        assert_eq!(&record[12..20], (row as i64).to_ne_bytes());
    }
    buffer.indices()
}

/// Creates a buffer in a separate folder.
fn new_buffer(hot: usize, total: usize, slack: usize) -> (TempDir, PathBuf, MmapReplayBuffer) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("replay");
    let buffer = MmapReplayBuffer::create_with(&path, hot, total, layout(), Some(slack)).unwrap();
    (scratch, path, buffer)
}

/// Returns the content of the file of a buffer with `count` rows.
fn file(hot: usize, total: usize, slack: usize, count: usize) -> (TempDir, PathBuf, Vec<u8>) {
    let (scratch, path, mut buffer) = new_buffer(hot, total, slack);
    push(&mut buffer, 0..count).unwrap();
    drop(buffer);
    let bytes = fs::read(&path).unwrap();
    (scratch, path, bytes)
}

/// Opens a file with the given content, verifies it and returns its rows.
fn opened(path: &PathBuf, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    // Overwrites the file in place, because some file systems sync files that are replaced.
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.write_all(bytes).and_then(|()| file.set_len(bytes.len() as u64)).unwrap();
    let buffer = MmapReplayBuffer::open(path, None)?;
    buffer.verify()?;
    let rows = rows(&buffer)?;
    check(&buffer);
    Ok(rows)
}

/// Checks that an error names a section of the file, or that all rows exist. Returns true for an error.
fn is_rejected(found: Result<Vec<Vec<u8>>>, rows: &[Vec<u8>], what: &str) -> bool {
    match found {
        Err(Error::Corrupt(wrong)) => {
            assert!(wrong.argument.ends_with("replay") && wrong.at.section.is_some(), "{what}: {wrong}");
            true
        }
        Ok(found) => {
            assert_eq!(found, rows, "{what}");
            false
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

#[test]
fn every_flipped_bit_of_stored_rows_is_detected() {
    // The ring has wrapped: two of the five records hold rows that are no longer stored.
    let (_scratch, path, bytes) = file(1, 3, 2, 9);
    let rows = opened(&path, &bytes).unwrap();
    let len = rows[0].len();
    assert_eq!((rows.len(), bytes.len() % 512), (3, 5 * len));
    let mut harmless = 0;
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let rejected = is_rejected(opened(&path, &damaged), &rows, &format!("bit {bit}"));
        harmless += usize::from(!rejected);
    }
    assert_eq!(harmless, 2 * len * 8);
}

#[test]
fn flipped_bits_are_detected_anywhere_in_a_file() {
    let (_scratch, path, bytes) = file(100, 2000, 50, 3000);
    let rows = opened(&path, &bytes).unwrap();
    let mut rng = crate::Pcg64::seed_from(1);
    let mut found = 0;
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        let at = rng.integers(0, bytes.len() as i64) as usize;
        damaged[at] ^= 1 << rng.integers(0, 8);
        found += usize::from(is_rejected(opened(&path, &damaged), &rows, &format!("byte {at}")));
    }
    assert!(found > 2800, "{found}");
}

#[test]
fn every_truncation_is_detected() {
    for (total, slack, count) in [(3, 2, 9), (9, 2, 4), (3, 2, 0)] {
        let (_scratch, path, bytes) = file(2, total, slack, count);
        for len in 0..bytes.len() {
            let found = opened(&path, &bytes[..len]);
            assert!(is_rejected(found, &[], &format!("{len} bytes")), "{len} of {} bytes", bytes.len());
        }
        if count >= total + slack {
            assert!(is_rejected(opened(&path, &[&bytes[..], &[0]].concat()), &[], "one more"));
        }
    }
}

#[test]
fn sampling_damaged_rows_names_file_and_record() {
    let (_scratch, path, mut damaged) = file(2, 20, 2, 15);
    let len = rows(&MmapReplayBuffer::open(&path, None).unwrap()).unwrap()[0].len();
    let at = damaged.len() - 15 * len + 4 * len + 10;
    damaged[at] ^= 8;
    fs::write(&path, &damaged).unwrap();
    let buffer = MmapReplayBuffer::open(&path, None).unwrap();
    let mut batch = SampledBatch::default();
    let errors: Vec<_> = (0..50).filter_map(|seed| buffer.sample_into(&mut batch, 3, seed).err()).collect();
    assert!(!errors.is_empty() && errors.len() < 50);
    for error in errors.into_iter().chain(buffer.verify().err()) {
        assert_eq!(corrupt(Err::<(), _>(error), &path).at.section.as_deref(), Some("record 4"));
    }
    // Truncation by another program is an error, too.
    fs::File::options().write(true).open(&path).unwrap().set_len(at as u64).unwrap();
    let rejected = corrupt(buffer.verify(), &path);
    assert!(rejected.at.section.unwrap().starts_with("record "));
    assert_eq!(rejected.got, "the end of the file");
    assert!((0..50).any(|seed| buffer.sample_into(&mut batch, 10, seed).is_err()));
    assert!(batch.is_empty() || batch.len() == 10);
}

#[test]
fn a_damaged_commit_loses_no_rows_and_is_repaired_by_the_next_commit() {
    let (_scratch, path, bytes) = file(2, 20, 4, 7);
    let data = bytes.len() - 7 * 31;
    for place in [data - 512, data - 1024] {
        let mut damaged = bytes.clone();
        damaged[place + 3] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let mut buffer = MmapReplayBuffer::open(&path, None).unwrap();
        assert_eq!(check(&buffer), 0..7);
        assert_eq!(corrupt(buffer.verify(), &path).at.section.as_deref(), Some("commit"));
        buffer.flush().unwrap();
        buffer.verify().unwrap();
        drop(buffer);
        assert_eq!(opened(&path, &fs::read(&path).unwrap()).unwrap().len(), 7);
    }
}

#[test]
fn power_cuts_that_lose_recent_writes_lose_no_flushed_rows() {
    const BLOCK: usize = 16;
    let mut rng = crate::Pcg64::seed_from(2);
    for round in 0..300 {
        let total = rng.integers(1, 12) as usize;
        let (hot, slack) = (rng.integers(1, total as i64 + 1) as usize, rng.integers(1, 7) as usize);
        let (_scratch, path, mut buffer) = new_buffer(hot, total, slack);
        let flushed = rng.integers(0, 30) as usize;
        push(&mut buffer, 0..flushed).unwrap();
        buffer.flush().unwrap();
        let before = fs::read(&path).unwrap();
        // At most as many rows are pushed as lie between two commits.
        let more = rng.integers(0, slack.min(hot) as i64 + 1) as usize;
        push(&mut buffer, flushed..flushed + more).unwrap();
        let rows = buffer.hot_from..buffer.pushed;
        buffer.cold.write(&buffer.hot, rows, &mut || Ok(())).unwrap();
        let mut cut = fs::read(&path).unwrap();
        for (i, block) in cut.chunks_mut(BLOCK).enumerate() {
            if rng.integers(0, 2) == 0 {
                let old = before.get(i * BLOCK..).unwrap_or(&[]);
                let old = &old[..old.len().min(block.len())];
                block.fill(0);
                block[..old.len()].copy_from_slice(old);
            }
        }
        drop(buffer);
        fs::write(&path, &cut).unwrap();
        let mut buffer = MmapReplayBuffer::open(&path, None).unwrap();
        let held = check(&buffer);
        assert!((flushed..=flushed + more).contains(&held.end), "round {round}: {held:?}");
        assert_eq!(held.len(), held.end.min(total));
        // After one more row and a kill, no older row is mistaken for a newer one.
        push(&mut buffer, held.end..held.end + 1).unwrap();
        let rows = buffer.hot_from..buffer.pushed;
        buffer.cold.write(&buffer.hot, rows, &mut || Ok(())).unwrap();
        let killed = fs::read(&path).unwrap();
        drop(buffer);
        fs::write(&path, &killed).unwrap();
        assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()).end, held.end + 1, "round {round}");
    }
}

/// Opens a file whose header has the given text and correct checksums.
fn forged(path: &PathBuf, version: u32, text: &str) -> Result<MmapReplayBuffer> {
    let mut bytes = [&b"rlox.mrb"[..], &version.to_le_bytes(), &(text.len() as u32).to_le_bytes()].concat();
    bytes.extend(text.as_bytes());
    bytes.resize((bytes.len() + 4).next_multiple_of(512), 0);
    let (end, mut hasher) = (bytes.len() - 4, crc32fast::Hasher::new());
    hasher.update(&bytes[..end]);
    bytes[end..].copy_from_slice(&hasher.finalize().to_le_bytes());
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(path, bytes).unwrap();
    MmapReplayBuffer::open(path, None)
}

/// Checks that the result is an [`Error::Corrupt`] of the file.
fn corrupt<T>(result: Result<T>, path: &Path) -> Mismatch {
    assert_rejects(result, Error::Corrupt, &path.display().to_string())
}

#[test]
fn invalid_headers_are_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("replay");
    let (header, _) = Header { schema: layout(), hot_capacity: 2, total_capacity: 3, slack: 1, id: 5 }.to_bytes();
    let text = String::from_utf8(header[16..].split(|byte| *byte == 0).next().unwrap().to_vec()).unwrap();
    let zeros = corrupt(forged(&path, 2, &text), &path);
    assert_eq!((zeros.at.section.as_deref(), &zeros.got[..]), (Some("commit"), "two damaged commits"));
    let file = path.display().to_string();
    for version in [1, 3] {
        let other = assert_rejects(forged(&path, version, &text), Error::Config, &file);
        assert_eq!(other.got, format!("format {version}"));
    }
    let most = u64::MAX.to_string();
    for (from, to) in [
        ("\"hot_capacity\":2", "\"hot_capacity\":0"),
        ("\"hot_capacity\":2", "\"hot_capacity\":4"),
        ("\"total_capacity\":3", &format!("\"total_capacity\":{most}")),
        ("\"slack\":1", &format!("\"slack\":{most}")),
        ("\"slack\":1", "\"slack\":0"),
        ("\"slack\":1", "\"slack\":-1"),
        ("\"slack\":1", "\"slack\":9223372036854775807"),
        ("\"shape\":[2]", "\"shape\":[0]"),
        ("\"shape\":[2]", &format!("\"shape\":[{most},{most}]")),
        ("\"shape\":[2]", "\"shape\":2"),
        ("\"name\":\"obs\"", "\"name\":\"rewards\""),
        ("\"f64\"", "\"f16\""),
        ("\"extra\"", "\"other\""),
        ("\"actions\":", "\"action\":"),
        ("{", "[[[["),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        assert_eq!(corrupt(forged(&path, 2, &changed), &path).at.section.as_deref(), Some("header"), "{to}");
    }
    let order = forged(&path, 2, &text.replace("little", "middle"));
    assert!(assert_rejects(order, Error::Config, &file).got.contains("middle"));
}

#[test]
fn interrupted_calls_leave_stored_rows_unchanged() {
    let (_scratch, path, mut buffer) = new_buffer(5000, 70_000, 4000);
    push(&mut buffer, 0..69_000).unwrap();
    buffer.flush().unwrap();
    let before = rows(&buffer).unwrap();
    assert_eq!(pressed(|| buffer.verify()), 3);
    let mut batch = SampledBatch::default();
    let stops = pressed(|| {
        let sampled = buffer.sample_into(&mut batch, 400, 0);
        assert_eq!(batch.len(), if sampled.is_ok() { 400 } else { 0 });
        sampled
    });
    assert!((30..=60).contains(&stops), "{stops}");
    push(&mut buffer, 69_000..69_100).unwrap();
    let mut times = 0;
    let stops = pressed(|| {
        times += 1;
        let there = rows(&buffer).unwrap();
        assert!(there[..69_000] == before && there.len() == 69_100, "stopped {times} times");
        push(&mut buffer, 69_100..74_100)
    });
    assert!(stops > 4, "{stops}");
    assert_eq!(check(&buffer), 4100..74_100);
    drop(buffer);
    assert!(pressed(|| MmapReplayBuffer::open(&path, None).map(drop)) > 0);
}

#[test]
fn failed_samples_cannot_be_read() {
    let (_scratch, _, mut buffer) = new_buffer(10, 5000, 4000);
    push(&mut buffer, 0..5000).unwrap();
    let (mut chosen, mut rng) = (SampleIndices::default(), Pcg64::seed_from(1));
    buffer.sample_indices(&mut chosen, 100, &mut rng).unwrap();
    let mut rewards = [9.0; 100];
    let mut copied = |chosen: &SampleIndices| buffer.read(chosen, Column::Reward, FieldMut::F32(&mut rewards)).is_ok();
    assert!(copied(&chosen));
    let before = rng.clone();
    buffer.cold.disk.faults.remaining.set(Some(50));
    assert!(matches!(buffer.sample_indices(&mut chosen, 100, &mut rng), Err(Error::Io { .. })));
    assert!(!copied(&chosen) && chosen.indices().is_empty() && rng == before);
    buffer.cold.disk.faults.remaining.set(None);
    buffer.draw(&mut chosen, 100, &mut rng).unwrap();
    assert!(!copied(&chosen), "drawn, but not read");
    buffer.find(&mut chosen).unwrap();
    assert!(copied(&chosen) && rng != before);
    let indices = chosen.indices().to_vec();
    rng = before;
    buffer.sample_indices(&mut chosen, 100, &mut rng).unwrap();
    assert_eq!(chosen.indices(), indices);
    let mut other = ReplayBuffer::new(100, 1, 1).unwrap();
    for _ in 0..100 {
        other.push_slices(&[0.0], &[0.0], &[0.0], 0.0, true, false).unwrap();
    }
    other.sample_indices(&mut chosen, 100, &mut rng).unwrap();
    assert!(buffer.read(&chosen, Column::Reward, FieldMut::F32(&mut [0.0; 100])).is_err(), "another buffer's");
}

#[test]
fn interrupted_pushes_store_complete_pieces() {
    let (_scratch, path, mut buffer) = new_buffer(100, 30_000, 4000);
    let mut pushed = 0;
    let stops = pressed(|| {
        let done = push(&mut buffer, pushed..pushed + 3000);
        let there = buffer.indices().end;
        assert!(done.is_err() || there == pushed + 3000);
        assert_eq!((there - pushed) % 100, 0, "an incomplete piece");
        pushed = there;
        check(&buffer);
        done
    });
    assert!(stops > 20, "{stops}");
    drop(buffer);
    let buffer = MmapReplayBuffer::open(&path, None).unwrap();
    assert_eq!(check(&buffer).end, pushed);
}
