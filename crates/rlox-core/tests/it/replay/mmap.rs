//! Tests that buffers in files return the pushed rows, even if the process that pushed them was
//! killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::replay::{
    ExperienceRecord, FieldSpec, MmapReplayBuffer, SampledBatch, TransitionBatch, TransitionSchema,
};
use rlox_core::{
    Error, Pcg64, Result,
    field::{DType, FieldData},
};
use tempfile::TempDir;

/// Number of elements of an observation.
const DIM: usize = 6;

fn layout() -> TransitionSchema {
    TransitionSchema::new(FieldSpec::new("obs", &[DIM], DType::F32), FieldSpec::new("actions", &[], DType::I64))
}

fn place() -> (TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("replay");
    (scratch, path)
}

/// Pushes `count` rows from index `from` on. All columns of a row are computed from its index.
fn push(buffer: &mut MmapReplayBuffer, from: usize, count: usize) -> Result<()> {
    let rows = from..from + count;
    let obs: Vec<_> = rows.clone().flat_map(|i| [i as f32; DIM]).collect();
    let next: Vec<_> = rows.clone().flat_map(|i| [i as f32 + 0.5; DIM]).collect();
    let actions: Vec<_> = rows.clone().map(|i| i as i64).collect();
    let rewards: Vec<_> = rows.clone().map(|i| -(i as f32)).collect();
    let (ended, cut): (Vec<_>, Vec<_>) = rows.map(|i| (i % 3 == 0, i % 5 == 0)).unzip();
    buffer.push_batch(&TransitionBatch {
        obs: &[FieldData::F32(&obs)],
        actions: FieldData::I64(&actions),
        rewards: &rewards,
        terminated: &ended,
        truncated: &cut,
        next_obs: Some(&[FieldData::F32(&next)]),
        extra: &[],
    })
}

/// Samples a batch of as many transitions as are stored, checks its columns and returns its
/// indices.
fn sampled(buffer: &MmapReplayBuffer, seed: u64) -> Vec<usize> {
    let mut batch = SampledBatch::default();
    buffer.sample_into(&mut batch, buffer.len(), seed).unwrap();
    for (i, row) in batch.indices().iter().enumerate() {
        assert_eq!(batch.f32s("obs")[i * DIM..][..DIM], [*row as f32; DIM]);
        assert_eq!(batch.f32s("next_obs")[i * DIM..][..DIM], [*row as f32 + 0.5; DIM]);
        assert_eq!((batch.i64s("actions")[i], batch.f32s("rewards")[i]), (*row as i64, -(*row as f32)));
        let flags = (batch.flags("terminated")[i], batch.flags("truncated")[i], batch.weights()[i]);
        assert_eq!(flags, (u8::from(row % 3 == 0), u8::from(row % 5 == 0), 1.0));
    }
    batch.indices().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Pushes rows, flushes the buffer and opens it again, with different capacities in memory.
    #[test]
    fn the_newest_rows_are_stored(
        total in 1..60_usize,
        hot in 1..60_usize,
        steps in prop::collection::vec((0..5_u8, 0..40_usize), 1..30),
    ) {
        let (_scratch, path) = place();
        let mut buffer = MmapReplayBuffer::create(&path, hot.min(total), total, layout()).unwrap();
        let mut pushed = 0;
        for (step, count) in steps {
            match step {
                0 => buffer.flush().unwrap(),
                1 => {
                    drop(buffer);
                    buffer = MmapReplayBuffer::open(&path, (count > 0).then_some(count.min(total))).unwrap();
                }
                _ => {
                    push(&mut buffer, pushed, count).unwrap();
                    pushed += count;
                }
            }
            let held = pushed.saturating_sub(total)..pushed;
            prop_assert_eq!(buffer.indices(), held.clone());
            prop_assert_eq!(buffer.len(), held.len());
            if !held.is_empty() {
                prop_assert!(sampled(&buffer, pushed as u64).iter().all(|row| held.contains(row)));
            }
            buffer.verify().unwrap();
        }
    }
}

#[test]
fn samples_are_uniform_and_repeatable_in_memory_and_file() {
    let (_scratch, path) = place();
    let mut buffer = MmapReplayBuffer::create(&path, 5, 20, layout()).unwrap();
    push(&mut buffer, 0, 33).unwrap();
    let mut counts = [0_u32; 20];
    for seed in 0..1000 {
        for row in sampled(&buffer, seed) {
            counts[row - 13] += 1;
        }
    }
    let chi_squared: f64 = counts.iter().map(|count| (f64::from(*count) - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi_squared < 50.0, "{chi_squared}"); // 19 degrees of freedom: p = 0.0001
    let drawn = sampled(&buffer, 3);
    drop(buffer);
    for hot in [1, 20] {
        assert_eq!(sampled(&MmapReplayBuffer::open(&path, hot).unwrap(), 3), drawn);
    }
}

#[test]
fn invalid_arguments_are_rejected_and_lose_no_rows() {
    let (_scratch, path) = place();
    let stacks = TransitionSchema { frame_stack: 2, ..layout() };
    for (hot, total, layout, argument, got) in [
        (0, 10, layout(), "hot_capacity", "0"),
        (1, 0, layout(), "total_capacity", "0"),
        (11, 10, layout(), "hot_capacity", "11"),
        (1, 10, stacks, "frame_stack", "2"),
    ] {
        let result = MmapReplayBuffer::create(&path, hot, total, layout);
        assert_eq!(assert_rejects(result, Error::Config, argument).got, got);
    }
    assert_rejects(MmapReplayBuffer::create(&path, 1, usize::MAX, layout()), Error::Config, "total_capacity");
    assert_rejects(MmapReplayBuffer::create(&path, 1 << 50, 1 << 50, layout()), Error::Memory, "hot_capacity");
    assert!(!path.exists());

    let mut buffer = MmapReplayBuffer::create(&path, 2, 10, layout()).unwrap();
    let mut batch = SampledBatch::default();
    assert!(matches!(buffer.sample_into(&mut batch, 1, 0), Err(Error::Config(_))));
    push(&mut buffer, 0, 5).unwrap();
    let short = buffer.push_slices(&[0.0; 5], &[0.0; DIM], &[0.0], 0.0, false, false);
    assert_rejects(short, Error::Shape, "obs");
    let record = ExperienceRecord { obs: vec![0.0; DIM], next_obs: vec![0.0; DIM], ..Default::default() };
    assert_eq!(assert_rejects(buffer.push(&record), Error::Space, "actions").got, "F32");
    let steps = TransitionBatch {
        obs: &[FieldData::F32(&[0.0; DIM])],
        actions: FieldData::I64(&[1]),
        rewards: &[0.0],
        terminated: &[false],
        truncated: &[false],
        next_obs: None,
        extra: &[],
    };
    assert_rejects(buffer.push_batch(&steps), Error::Config, "next_obs");
    let broken = [FieldData::F32(&[f32::NAN; DIM])];
    assert_rejects(
        buffer.push_batch(&TransitionBatch { next_obs: Some(&broken), ..steps }),
        Error::NotFinite,
        "next_obs",
    );
    let steps = TransitionBatch { obs: &broken, next_obs: Some(&[FieldData::F32(&[0.0; DIM])]), ..steps };
    assert_rejects(buffer.push_batch(&steps), Error::NotFinite, "obs");
    let rejected = assert_rejects(buffer.sample_into(&mut batch, 6, 0), Error::Config, "batch_size");
    assert_eq!(rejected.expected, "1 to 5, the number of stored transitions");
    assert_eq!(sampled(&buffer, 0).len(), 5);
}

/// Returns the target of `path`, if it is a link, and the content of the file.
fn contents(path: &Path) -> (Option<PathBuf>, Option<Vec<u8>>) {
    (fs::read_link(path).ok(), fs::read(path).ok())
}

#[test]
fn existing_files_are_not_overwritten() {
    let (scratch, path) = place();
    let at = |name: &str| scratch.path().join(name);
    drop(MmapReplayBuffer::create(&path, 2, 10, layout()).unwrap());
    fs::write(at("foreign"), "mine").unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("damaged"), &fs::read(&path).unwrap()[..600]).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let mut names = vec!["replay", "foreign", "empty", "damaged", "folder"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("foreign", at("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        names.extend(["link", "dangling"]);
    }
    for name in &names {
        let before = contents(&at(name));
        match MmapReplayBuffer::create(at(name), 2, 10, layout()).unwrap_err() {
            Error::Io { path, source } => {
                assert!(path.ends_with(name) && source.kind() == std::io::ErrorKind::AlreadyExists, "{source}");
            }
            other => panic!("{name}: {other}"),
        }
        assert_eq!(contents(&at(name)), before, "{name}");
        let opened = MmapReplayBuffer::open(at(name), None);
        match opened {
            Ok(_) => assert_eq!(*name, "replay"),
            Err(Error::Io { source, .. }) => {
                assert_eq!((*name, source.kind()), ("dangling", std::io::ErrorKind::NotFound));
            }
            corrupt => {
                let file = at(name).display().to_string();
                assert!(assert_rejects(corrupt, Error::Corrupt, &file).at.section.is_some());
            }
        }
        assert_eq!(contents(&at(name)), before, "{name}");
    }
    for wrong in ["", "nowhere/replay", "foreign/replay", "a\0b", ".."] {
        let wrong = if wrong.is_empty() { PathBuf::new() } else { at(wrong) };
        assert!(matches!(MmapReplayBuffer::create(&wrong, 2, 10, layout()), Err(Error::Io { .. })), "{wrong:?}");
    }
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), names.len(), "a file was not removed");
}

/// Runs in a child process: pushes and flushes rows, and prints the number of rows after each
/// flush.
#[test]
#[ignore = "the child of the tests below"]
fn pushes_until_it_is_killed() {
    let Some(path) = std::env::var_os("RLOX_PUSH_TO") else { return };
    let mut buffer = MmapReplayBuffer::open(path, None).unwrap();
    let mut rng = Pcg64::seed_from(buffer.indices().end as u128);
    let mut stdout = std::io::stdout();
    loop {
        let (from, count) = (buffer.indices().end, rng.integers(1, 300) as usize);
        let done = push(&mut buffer, from, count).and_then(|()| if count % 3 == 0 { buffer.flush() } else { Ok(()) });
        match done {
            Ok(()) if count % 3 == 0 => writeln!(stdout, "\nflushed {}", buffer.indices().end).unwrap(),
            Ok(()) => {}
            Err(error) => {
                // The disk is full. All stored rows must still be readable.
                assert!(matches!(error, Error::Io { .. }), "{error}");
                assert!(buffer.indices().end == from && push(&mut buffer, from, count).is_err());
                assert!(sampled(&buffer, 0).len() == buffer.len());
                return writeln!(stdout, "\nfull {from}").unwrap();
            }
        }
    }
}

fn child(program: &mut Command, path: &Path) -> Child {
    let arguments = ["--exact", "replay::mmap::pushes_until_it_is_killed", "--ignored", "--nocapture"];
    program.args(arguments).env("RLOX_PUSH_TO", path).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns the number in the last line of the child that starts with `word`.
fn last_number(running: &mut Child, word: &str) -> Option<usize> {
    let lines = BufReader::new(running.stdout.take().unwrap()).lines().map_while(std::result::Result::ok);
    lines.filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).last()
}

fn check_kills(times: u32) {
    let (scratch, path) = place();
    let total = 2000;
    drop(MmapReplayBuffer::create(&path, 100, total, layout()).unwrap());
    let mut rng = Pcg64::seed_from(times.into());
    let (mut pushed, mut more, mut flushes) = (0, 0, 0);
    for _ in 0..times {
        let mut running = child(&mut Command::new(std::env::current_exe().unwrap()), &path);
        std::thread::sleep(Duration::from_micros(rng.integers(1_000, 120_000) as u64));
        running.kill().unwrap();
        running.wait().unwrap();
        let flushed = last_number(&mut running, "flushed").unwrap_or(pushed);
        let buffer = MmapReplayBuffer::open(&path, None).unwrap();
        let held = buffer.indices();
        assert!(held.end >= flushed.max(pushed) && held.len() == held.end.min(total), "{held:?} after {flushed}");
        buffer.verify().unwrap();
        if !held.is_empty() {
            sampled(&buffer, 0);
        }
        (more, flushes) = (more + u32::from(held.end > flushed), flushes + u32::from(flushed > pushed));
        pushed = held.end;
    }
    assert!(pushed > 0, "no child lived long enough to push");
    eprintln!("{times} kills, {pushed} rows; {flushes} children had flushed, {more} files had more than flushed rows");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "a file was not removed");
}

#[test]
fn twenty_kills_lose_no_flushed_row() {
    check_kills(20);
}

#[test]
#[ignore = "takes seven seconds"]
fn a_hundred_kills_lose_no_flushed_row() {
    check_kills(100);
}

#[test]
fn a_file_can_be_open_only_once() {
    let (_scratch, path) = place();
    let buffer = MmapReplayBuffer::create(&path, 100, 2000, layout()).unwrap();
    for _ in 0..2 {
        assert_rejects(MmapReplayBuffer::open(&path, None), Error::Closed, &path.display().to_string());
    }
    drop(buffer);
    // A child process has the file open until it is killed.
    let mut running = child(&mut Command::new(std::env::current_exe().unwrap()), &path);
    while !MmapReplayBuffer::open(&path, None).is_err_and(|error| matches!(error, Error::Closed(_))) {
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    MmapReplayBuffer::open(&path, None).unwrap().verify().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_loses_no_stored_row() {
    let (_scratch, path) = place();
    drop(MmapReplayBuffer::create(&path, 500, 100_000, layout()).unwrap());
    // The shell limits the size of files to 128 KiB, so that writes fail as on a full disk.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 256; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let mut running = child(&mut shell, &path);
    let lines: Vec<_> =
        BufReader::new(running.stdout.take().unwrap()).lines().map_while(std::result::Result::ok).collect();
    assert!(running.wait().unwrap().success(), "{lines:?}");
    let last = |word: &str| lines.iter().rev().find_map(|line| line.strip_prefix(word)?.trim().parse::<usize>().ok());
    let (flushed, full) = (last("flushed ").unwrap_or(0), last("full ").unwrap());
    let mut buffer = MmapReplayBuffer::open(&path, None).unwrap();
    let end = buffer.indices().end;
    assert!((flushed..=full).contains(&end) && full > 1000, "{flushed} flushed, {end} in the file, {full} stored");
    assert_eq!(sampled(&buffer, 0).len(), end);
    push(&mut buffer, end, 5000).unwrap();
    buffer.flush().unwrap();
    assert_eq!(sampled(&buffer, 1).len(), end + 5000);
}
