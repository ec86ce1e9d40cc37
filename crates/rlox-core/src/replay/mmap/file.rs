//! The file: a header, two commits that take turns, and a ring of records, read and written by position by one process at a
//! time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::format::{Commit, Header, Record};
use super::timeline::Timeline;
use crate::interrupt::PollFn;
use crate::{Error, Result, SeedSequence, alloc};

/// Bytes that are read or written at once, unless a record has more.
const CHUNK: usize = 1 << 20;

/// Records that are made none between two looks for an interruption.
const BLANKS: usize = 1 << 10;

const HINT: &str = "the file is damaged or not a replay buffer's, use another copy";

/// The records of a file, of which the newest may not be there yet.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) disk: Disk,
    pub(super) record: Record,
    salt: u32,
    /// The header as it is in the file.
    header: Vec<u8>,
    total: usize,
    pub(super) slack: usize,
    /// Rows in the file.
    pub(super) written: usize,
    /// Rows that the last commit tells of.
    flushed: usize,
    /// Rows that have reached the disk, where they are found without a commit that tells of them.
    pub(super) safe: usize,
    /// Rows after those, which were dropped and are still in the file.
    dropped: Range<usize>,
    /// They were found so when it was opened: they matter only once others come before them.
    found: bool,
    /// Which rows there are.
    pub(super) timeline: Timeline,
    /// Commits so far; the last one counts.
    commits: u64,
    /// Both commits are whole.
    commits_intact: bool,
    /// The disk failed: the system may have dropped what was written since the last commit.
    doubtful: bool,
}

impl Cold {
    /// Makes the file at `path`, where nothing is.
    ///
    /// # Errors
    /// [`Error::Config`] for more rows than a file can have, and those of [`Disk::create`].
    pub(super) fn create(path: &Path, header: &Header) -> Result<Self> {
        let (bytes, salt) = header.to_bytes();
        let record = Record::new(&header.schema, salt);
        if file_len(header, bytes.len(), record.len).is_none() {
            let (expected, got) = ("a file of less than 2**63 bytes", header.total_capacity.to_string());
            return Err(Error::config("total_capacity", expected, got, "ask for less"));
        }
        let timeline = Timeline::default();
        let commits = [0, 1].map(|number| Commit { number, flushed: 0, timeline }.to_bytes(salt));
        let disk = Disk::create(path, &[&bytes, commits.as_flattened()].concat())?;
        Ok(Self::new(disk, header, bytes, record, salt))
    }

    fn new(disk: Disk, header: &Header, bytes: Vec<u8>, record: Record, salt: u32) -> Self {
        let (total, slack) = (header.total_capacity, header.slack);
        Self {
            disk,
            record,
            salt,
            header: bytes,
            total,
            slack,
            written: 0,
            flushed: 0,
            safe: 0,
            dropped: 0..0,
            found: false,
            timeline: Timeline::default(),
            commits: 1,
            commits_intact: true,
            doubtful: false,
        }
    }

    /// Opens the file at `path`: all rows that the last commit tells of are there, and those that came whole after it.
    ///
    /// # Errors
    /// Those of [`Disk::open`], [`Error::Corrupt`] naming what is damaged, [`Error::Config`] for what another rlox wrote.
    pub(super) fn open(path: &Path, poll: PollFn<'_>) -> Result<(Self, Header)> {
        let disk = Disk::open(path)?;
        let (bytes, header, salt) = Header::read(&disk)?;
        let record = Record::new(&header.schema, salt);
        let longest = file_len(&header, bytes.len(), record.len);
        let longest = longest.ok_or_else(|| disk.corrupt("header", "capacities that make no sense"))?;
        let mut cold = Self::new(disk, &header, bytes, record, salt);
        let len = cold.disk.len()?;
        if len > longest {
            return Err(cold.disk.corrupt("records", format!("{len} bytes instead of {longest} at most")));
        }
        cold.last_commit()?;
        let there = usize::try_from(len.saturating_sub(cold.data()) / cold.record.len as u64).unwrap_or(usize::MAX);
        if there < cold.flushed.min(cold.ring()) {
            return Err(cold.disk.corrupt(&format!("record {there}"), "the file's end"));
        }
        cold.recover(there, poll)?;
        Ok((cold, header))
    }

    fn last_commit(&mut self) -> Result<()> {
        let commits = [self.commit_at(0)?, self.commit_at(1)?];
        let Some(last) = commits.into_iter().flatten().max_by_key(|commit| commit.number) else {
            return Err(self.disk.corrupt("commit", "two damaged ones"));
        };
        self.flushed = usize::try_from(last.flushed).map_err(|_| self.disk.corrupt("commit", "too many rows"))?;
        self.written = self.flushed;
        (self.commits, self.timeline) = (last.number, last.timeline);
        self.commits_intact = commits.iter().all(Option::is_some);
        Ok(())
    }

    /// A commit, if it is whole; never one that stands in the other's place.
    fn commit_at(&self, place: u64) -> Result<Option<Commit>> {
        let mut bytes = [0; Commit::LEN];
        if !self.disk.read(self.header.len() as u64 + place * Commit::LEN as u64, &mut bytes)? {
            return Err(self.disk.corrupt("commit", "the file's end"));
        }
        Ok(Commit::from_bytes(&bytes, self.salt).filter(|commit| commit.number % 2 == place))
    }

    /// Finds the rows that were written after the last commit: those that are whole and follow each other. What lies
    /// beyond, after a power cut, is blanked before other rows come, so that nothing ever takes it for a later row.
    fn recover(&mut self, there: usize, poll: PollFn<'_>) -> Result<()> {
        let (from, ring) = (self.flushed, self.ring());
        // The file may end in the first round, and is full in all others.
        let (seam, end) = (from - from % ring + ring, from + self.slack);
        let filled = if from < ring { there.max(from) } else { seam };
        let (mut next, mut beyond) = (from, from);
        for rows in [from..end.min(seam).min(filled), seam..end.min(seam + there)] {
            self.for_each_row(rows, poll, |row, bytes| {
                if row == next && self.record.mismatch(bytes, row).is_none() {
                    next += 1;
                } else if Record::number(bytes) == row as u64 {
                    beyond = row + 1;
                }
                Ok(())
            })?;
        }
        (self.written, self.safe) = (next, next);
        (self.dropped, self.found) = (next..beyond.max(next), true);
        // Before new rows lie between them and the last commit. Whoever only reads writes no other.
        if next == from { Ok(()) } else { self.disk.sync() }
    }

    /// Records there is room for.
    fn ring(&self) -> usize {
        self.total + self.slack
    }

    /// Whether a row is still there after so many were written.
    pub(super) fn has(&self, row: usize, written: usize) -> bool {
        row.saturating_add(self.ring()) >= written
    }

    /// Whether a row is in its place in the file, and no other.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub(super) fn is_there(&self, row: usize) -> Result<bool> {
        let mut start = Record::BLANK;
        Ok(self.disk.read(self.at(row), &mut start)? && Record::number(&start) == row as u64)
    }

    /// Where the records begin.
    fn data(&self) -> u64 {
        (self.header.len() + 2 * Commit::LEN) as u64
    }

    /// Where a row's record begins.
    fn at(&self, row: usize) -> u64 {
        self.data() + (row % self.ring()) as u64 * self.record.len as u64
    }

    /// How many of some rows lie together and make a chunk.
    fn contiguous_rows(&self, rows: &Range<usize>) -> usize {
        rows.len().min(self.ring() - rows.start % self.ring()).min((CHUNK / self.record.len).max(1))
    }

    /// Reads rows in large pieces.
    fn for_each_row(
        &self,
        mut rows: Range<usize>,
        poll: PollFn<'_>,
        mut visit: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = alloc::zeroed::<u8>("path", self.contiguous_rows(&rows) * self.record.len)?;
        while !rows.is_empty() {
            let count = self.contiguous_rows(&rows);
            // At the ring's seam a piece may be longer than the first.
            let count = count.min(bytes.len() / self.record.len);
            let bytes = &mut bytes[..count * self.record.len];
            if !self.disk.read(self.at(rows.start), bytes)? {
                return Err(self.disk.corrupt(&format!("record {}", rows.start), "the file's end"));
            }
            for bytes in bytes.chunks_exact(self.record.len) {
                visit(rows.start, bytes)?;
                rows.start += 1;
            }
            poll()?;
        }
        Ok(())
    }

    /// Reads rows and checks them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the first record that is damaged.
    pub(super) fn for_each_checked_row(
        &self,
        rows: Range<usize>,
        poll: PollFn<'_>,
        mut visit: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.for_each_row(rows, poll, |row, bytes| {
            self.check(bytes, row)?;
            visit(row, bytes);
            Ok(())
        })
    }

    /// Reads a row and checks it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the record if it is damaged.
    pub(super) fn read(&self, row: usize, out: &mut [u8]) -> Result<()> {
        if !self.disk.read(self.at(row), out)? {
            return Err(self.disk.corrupt(&format!("record {row}"), "the file's end"));
        }
        self.check(out, row)
    }

    fn check(&self, bytes: &[u8], row: usize) -> Result<()> {
        let damaged = |got| self.disk.corrupt(&format!("record {row}"), got);
        self.record.mismatch(bytes, row).map_or(Ok(()), |got| Err(damaged(got)))
    }

    /// Writes those of these rows that are not there yet, of a ring in memory that holds them all. A commit comes before
    /// any row would overwrite one that the last commit holds.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, [`Error::Closed`] in a forked process; what was written stays.
    pub(super) fn write(&mut self, hot: &[u8], rows: Range<usize>, poll: PollFn<'_>) -> Result<()> {
        self.disk.check_process()?;
        if self.written < rows.end || !self.found {
            self.blank(poll)?;
        }
        let hot_rows = hot.len() / self.record.len;
        if self.doubtful {
            self.rewrite(rows.start, poll)?;
        }
        while self.written < rows.end {
            let first = self.written % hot_rows;
            let count = self.contiguous_rows(&(self.written..rows.end)).min(hot_rows - first).min(self.slack);
            if self.written + count > self.flushed + self.slack {
                self.commit()?;
            }
            let bytes = &hot[first * self.record.len..][..count * self.record.len];
            self.disk.write(self.at(self.written), bytes)?;
            self.written += count;
            poll()?;
        }
        Ok(())
    }

    /// Has rows written once more that the system may have dropped: those that no longer are in memory, which has all
    /// from `hot_from` on, from what it still reads of them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming a record that is lost, and those of [`Cold::write`].
    fn rewrite(&mut self, hot_from: usize, poll: PollFn<'_>) -> Result<()> {
        let rewrite_end = hot_from.clamp(self.flushed, self.written);
        self.for_each_row(self.flushed..rewrite_end, poll, |row, bytes| {
            self.check(bytes, row)?;
            self.disk.write(self.at(row), bytes)
        })?;
        (self.written, self.doubtful) = (rewrite_end, false);
        Ok(())
    }

    /// Has all rows that were written reach the disk, and then says so in the file.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, [`Error::Closed`] in a forked process.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.disk.check_process()?;
        if self.commits_intact && self.flushed == self.written {
            return Ok(());
        }
        self.sync()?;
        let timeline = self.timeline;
        self.commit_to(self.written, &timeline)
    }

    /// Says in the file that it has so many rows.
    fn commit_to(&mut self, rows: usize, timeline: &Timeline) -> Result<()> {
        let commit = Commit { number: self.commits + 1, flushed: rows as u64, timeline: *timeline };
        let place = self.header.len() as u64 + commit.number % 2 * Commit::LEN as u64;
        self.disk.write(place, &commit.to_bytes(self.salt))?;
        self.sync()?;
        (self.flushed, self.safe, self.commits, self.commits_intact) = (rows, rows, commit.number, true);
        self.timeline = *timeline;
        Ok(())
    }

    /// Drops the rows from this number on, of a file whose rows are all flushed: at most so many at once as are looked at
    /// when it is opened again, so that it is whole at any time. `numbers` are no other file's nor timeline's.
    ///
    /// # Errors
    /// Those of [`Cold::write`]; some of the rows are dropped then, the last ones.
    pub(super) fn truncate(&mut self, rows: usize, numbers: [u64; 2], poll: PollFn<'_>) -> Result<()> {
        let before = self.timeline;
        while self.written > rows {
            let fewer = rows.max(self.written.saturating_sub(self.slack));
            self.commit_to(fewer, &before.with_branch(fewer, numbers[0], numbers[1]))?;
            (self.dropped, self.found) = (fewer..self.written.max(self.dropped.end), false);
            self.written = fewer;
            self.blank(poll)?;
        }
        Ok(())
    }

    /// Makes rows that were dropped none, before others come: nothing ever takes them for later ones.
    fn blank(&mut self, poll: PollFn<'_>) -> Result<()> {
        if self.dropped.is_empty() {
            return Ok(());
        }
        for row in self.dropped.clone() {
            self.disk.write(self.at(row), &Record::BLANK)?;
            if row.is_multiple_of(BLANKS) {
                poll()?;
            }
        }
        self.sync()?;
        self.dropped = 0..0;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.disk.sync().inspect_err(|_| self.doubtful = true)
    }

    /// Checks header and commits as they are in the file now.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the section that is damaged.
    pub(super) fn verify(&self) -> Result<()> {
        let mut bytes = alloc::zeroed("path", self.header.len())?;
        if !self.disk.read(0, &mut bytes)? || bytes != self.header {
            return Err(self.disk.corrupt("header", "another one than when it was opened"));
        }
        for place in [0, 1] {
            if self.commit_at(place)?.is_none() {
                return Err(self.disk.corrupt("commit", format!("damage in number {place} of 0 and 1")));
            }
        }
        Ok(())
    }
}

/// Bytes of a full file, if they can be counted.
fn file_len(header: &Header, start: usize, record: usize) -> Option<u64> {
    let rows = header.total_capacity.checked_add(header.slack)?;
    let bytes = rows.checked_mul(record)?.checked_add(start + 2 * Commit::LEN)?;
    i64::try_from(bytes).ok().map(|bytes| bytes as u64)
}

impl Header {
    /// The header of a file, its bytes and their checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what rlox did not write, [`Error::Config`] for what another rlox did, and those of the disk.
    pub(super) fn read(disk: &Disk) -> Result<(Vec<u8>, Self, u32)> {
        let corrupt = |got: &str| disk.corrupt("header", got);
        let mut start = [0; Self::BLOCK];
        if !disk.read(0, &mut start)? {
            return Err(corrupt("the file's end"));
        }
        let len = Self::len(&start).map_err(corrupt)?;
        if len as u64 > disk.len()? {
            return Err(corrupt("the file's end"));
        }
        let mut bytes = alloc::zeroed("path", len)?;
        if !disk.read(0, &mut bytes)? {
            return Err(corrupt("the file's end"));
        }
        let (header, salt) = Self::from_bytes(&bytes, &disk.named()).map_err(|got| corrupt(&got))??;
        Ok((bytes, header, salt))
    }
}

/// A locked file of this process.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    path: PathBuf,
    process: u32,
    #[cfg(test)]
    pub(super) faults: super::tests::Faults,
}

impl Disk {
    /// Makes a file that begins with these bytes, where nothing is. It stands at `path` only once it is whole.
    ///
    /// # Errors
    /// [`Error::Io`] if something is there, whatever it is, or the system refuses.
    pub(super) fn create(path: &Path, start: &[u8]) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.display().to_string(), source };
        if path.symlink_metadata().is_ok() {
            return Err(io_error(already_exists()));
        }
        path.file_name().ok_or_else(|| io_error(io::ErrorKind::InvalidInput.into()))?;
        let [word, ..] = Self::id();
        let partial = path.with_file_name(format!(".rlox-{}-{word:08x}.partial", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&partial);
        let placed = Self::locked(file.map_err(io_error)?, path).and_then(|disk| {
            disk.write(0, start)?;
            disk.sync()?;
            place(&partial, path).map_err(io_error)?;
            let synced = flush_folder(path).map_err(io_error);
            synced.inspect_err(|_| drop(fs::remove_file(path)))?;
            Ok(disk)
        });
        let _ = fs::remove_file(&partial);
        placed
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`] if nothing is there or the system refuses, [`Error::Corrupt`] for what is no file,
    /// [`Error::Closed`] if another buffer has it open.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.display().to_string(), source };
        // Opening a pipe would wait for whoever writes to it.
        if !fs::metadata(path).map_err(io_error)?.is_file() {
            return Err(corrupt(path, "header", "a folder or a device"));
        }
        Self::locked(OpenOptions::new().read(true).write(true).open(path).map_err(io_error)?, path)
    }

    fn locked(file: File, path: &Path) -> Result<Self> {
        let named = path.display().to_string();
        match file.try_lock() {
            Ok(()) => Ok(Self {
                file,
                path: path.to_owned(),
                process: std::process::id(),
                #[cfg(test)]
                faults: super::tests::Faults::default(),
            }),
            Err(TryLockError::Error(source)) => Err(Error::Io { path: named, source }),
            Err(TryLockError::WouldBlock) => {
                let (expected, got) = ("a file that no buffer has open", "one that another buffer has open");
                Err(Error::closed(named, expected, got, "close that one first"))
            }
        }
    }

    /// Random words.
    pub(super) fn id() -> [u32; 2] {
        let mut id = [0; 2];
        SeedSequence::from_os().generate_state_u32(&mut id);
        id
    }

    /// Checks that this process opened the file: in a forked one the lock is the parent's.
    ///
    /// # Errors
    /// [`Error::Closed`] if it did not.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let (expected, got) = ("the process that opened the file", "one that was forked from it");
        Err(Error::closed(self.named(), expected, got, "use the buffer in one process only"))
    }

    fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    /// Reads; where the file ends before, what there is, and `false`.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<bool> {
        self.before()?;
        match read_exact_at(&self.file, offset, out) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(self.io_error(error)),
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.before()?;
        write_all_at(&self.file, offset, bytes).map_err(|source| self.io_error(source))
    }

    /// Has what was written reach the disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.before()?;
        // Tests of this crate cut the power themselves.
        if cfg!(test) { Ok(()) } else { self.file.sync_data().map_err(|source| self.io_error(source)) }
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|source| self.io_error(source))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn named(&self) -> String {
        self.path.display().to_string()
    }

    /// The error for a section that is not as rlox writes it.
    pub(super) fn corrupt(&self, section: &str, got: impl Into<String>) -> Error {
        corrupt(&self.path, section, got)
    }

    fn io_error(&self, source: io::Error) -> Error {
        Error::Io { path: self.named(), source }
    }

    /// Tests fail here.
    #[cfg(test)]
    fn before(&self) -> Result<()> {
        self.faults.before().map_err(|source| self.io_error(source))
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "what tests do with it")]
    fn before(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A forked process shares the lock, and may live longer.
        if self.is_own() {
            let _ = self.file.unlock();
        }
    }
}

fn corrupt(path: &Path, section: &str, got: impl Into<String>) -> Error {
    Error::corrupt(path.display().to_string(), "what rlox wrote", got, HINT).in_section(section)
}

fn already_exists() -> io::Error {
    let message = "expected nothing there, got something; open it if it is a replay buffer, or choose another path";
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

/// Gives a file its name, if nothing has it.
fn place(partial: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(partial, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(already_exists()),
        // Some file systems have no links.
        Err(_) if path.symlink_metadata().is_err() => fs::rename(partial, path),
        Err(_) => Err(already_exists()),
    }
}

/// Has the names in a file's folder reach the disk. Windows cannot open folders, and flushes names with its journal.
fn flush_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(unix)]
fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut at: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => (at, out) = (at + count as u64, &mut out[count..]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_all_at(file: &File, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (at, bytes) = (at + count as u64, &bytes[count..]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
