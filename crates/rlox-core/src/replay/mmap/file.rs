//! The file of a buffer: a header, two alternating commits and a ring of records.
//!
//! A record holds one row. The ring has `total_capacity + slack` records, and row `r` is in record
//! `r % (total_capacity + slack)`. A commit contains the number of rows that were on the disk when
//! it was written, and the history of rollbacks. Commits are written alternately to two places, so
//! that one of them is always valid. At most `slack` rows are written between two commits, so that
//! no stored row of the last commit is overwritten.
//!
//! One process at a time reads and writes the file, at byte offsets.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::format::{Commit, Header, Record};
use super::timeline::Timeline;
use crate::interrupt::PollFn;
use crate::{Error, Result, SeedSequence, alloc};

/// Maximum number of bytes per read or write, unless a record is larger.
const CHUNK: usize = 1 << 20;

/// Number of records whose index is overwritten between two interrupt checks.
const BLANKS: usize = 1 << 10;

const HINT: &str = "the file is damaged or not a replay buffer; use another copy";

/// The rows of a buffer that are in its file. The file may lack the newest rows of the buffer.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) disk: Disk,
    pub(super) record: Record,
    salt: u32,
    /// Bytes of the header in the file.
    header: Vec<u8>,
    total: usize,
    pub(super) slack: usize,
    /// Number of rows written to the file.
    pub(super) written: usize,
    /// Number of rows in the last commit.
    flushed: usize,
    /// Number of rows that are synced to the disk, so that `open` finds them after a power cut.
    pub(super) safe: usize,
    /// Rows from `written` on that were dropped, but still have records in the file.
    dropped: Range<usize>,
    /// True if `open` found the rows in `dropped`. They are harmless until new rows precede them.
    found: bool,
    /// History of rollbacks.
    pub(super) timeline: Timeline,
    /// Number of the last commit.
    commits: u64,
    /// True if both commits are valid.
    commits_intact: bool,
    /// True after a failed sync: the system may have lost what was written since the last commit.
    doubtful: bool,
}

impl Cold {
    /// Creates the file at `path`.
    ///
    /// # Errors
    /// [`Error::Config`] if the file would be too large. Also the errors of [`Disk::create`].
    pub(super) fn create(path: &Path, header: &Header) -> Result<Self> {
        let (bytes, salt) = header.to_bytes();
        let record = Record::new(&header.schema, salt);
        if file_len(header, bytes.len(), record.len).is_none() {
            let (expected, got) = ("a file of less than 2**63 bytes", header.total_capacity.to_string());
            return Err(Error::config("total_capacity", expected, got, "pass a smaller total_capacity"));
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

    /// Opens the file at `path`, with the rows of the last commit and the valid rows written after it.
    ///
    /// # Errors
    /// The errors of [`Disk::open`]. [`Error::Corrupt`] if a section is damaged; the error names
    /// the section. [`Error::Config`] if the file has another version of the format or another byte
    /// order.
    pub(super) fn open(path: &Path, poll: PollFn<'_>) -> Result<(Self, Header)> {
        let disk = Disk::open(path)?;
        let (bytes, header, salt) = Header::read(&disk)?;
        let record = Record::new(&header.schema, salt);
        let longest = file_len(&header, bytes.len(), record.len);
        let longest = longest.ok_or_else(|| disk.corrupt("header", "invalid capacities"))?;
        let mut cold = Self::new(disk, &header, bytes, record, salt);
        let len = cold.disk.len()?;
        if len > longest {
            return Err(cold.disk.corrupt("records", format!("{len} bytes instead of at most {longest}")));
        }
        cold.last_commit()?;
        let there = usize::try_from(len.saturating_sub(cold.data()) / cold.record.len as u64).unwrap_or(usize::MAX);
        if there < cold.flushed.min(cold.ring()) {
            return Err(cold.disk.corrupt(&format!("record {there}"), "the end of the file"));
        }
        cold.recover(there, poll)?;
        Ok((cold, header))
    }

    fn last_commit(&mut self) -> Result<()> {
        let commits = [self.commit_at(0)?, self.commit_at(1)?];
        let Some(last) = commits.into_iter().flatten().max_by_key(|commit| commit.number) else {
            return Err(self.disk.corrupt("commit", "two damaged commits"));
        };
        self.flushed = usize::try_from(last.flushed).map_err(|_| self.disk.corrupt("commit", "too many rows"))?;
        self.written = self.flushed;
        (self.commits, self.timeline) = (last.number, last.timeline);
        self.commits_intact = commits.iter().all(Option::is_some);
        Ok(())
    }

    /// Returns the commit at a place, 0 or 1, if it is valid and its number belongs to this place.
    fn commit_at(&self, place: u64) -> Result<Option<Commit>> {
        let mut bytes = [0; Commit::LEN];
        if !self.disk.read(self.header.len() as u64 + place * Commit::LEN as u64, &mut bytes)? {
            return Err(self.disk.corrupt("commit", "the end of the file"));
        }
        Ok(Commit::from_bytes(&bytes, self.salt).filter(|commit| commit.number % 2 == place))
    }

    /// Finds the valid, consecutive rows that were written after the last commit.
    ///
    /// `there` is the number of complete records in the file. After a power cut, records of later
    /// rows may exist behind an invalid record. Such records are blanked before new rows are
    /// written, so that a later `open` does not take them for valid rows.
    fn recover(&mut self, there: usize, poll: PollFn<'_>) -> Result<()> {
        let (from, ring) = (self.flushed, self.ring());
        // In the first lap, the file may have fewer records than the ring. Later, the ring is
        // complete.
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
        // New rows may follow the rows found here, which therefore must be on the disk. Without new
        // rows, `open` writes nothing else.
        if next == from { Ok(()) } else { self.disk.sync() }
    }

    /// Returns the number of records of the ring.
    fn ring(&self) -> usize {
        self.total + self.slack
    }

    /// Returns true if the record of `row` is not overwritten after `written` rows were written.
    pub(super) fn has(&self, row: usize, written: usize) -> bool {
        row.saturating_add(self.ring()) >= written
    }

    /// Returns true if the record at the place of `row` in the file has the index `row`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system reports an error.
    pub(super) fn is_there(&self, row: usize) -> Result<bool> {
        let mut start = Record::BLANK;
        Ok(self.disk.read(self.at(row), &mut start)? && Record::number(&start) == row as u64)
    }

    /// Returns the byte offset of the first record.
    fn data(&self) -> u64 {
        (self.header.len() + 2 * Commit::LEN) as u64
    }

    /// Returns the byte offset of the record of a row.
    fn at(&self, row: usize) -> u64 {
        self.data() + (row % self.ring()) as u64 * self.record.len as u64
    }

    /// Returns the number of rows at the start of a range that can be read or written by one call.
    fn contiguous_rows(&self, rows: &Range<usize>) -> usize {
        rows.len().min(self.ring() - rows.start % self.ring()).min((CHUNK / self.record.len).max(1))
    }

    /// Reads rows in chunks, and calls `visit` with the index and the bytes of each row.
    fn for_each_row(
        &self,
        mut rows: Range<usize>,
        poll: PollFn<'_>,
        mut visit: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = alloc::zeroed::<u8>("path", self.contiguous_rows(&rows) * self.record.len)?;
        while !rows.is_empty() {
            let count = self.contiguous_rows(&rows);
            // After the wrap of the ring, a chunk may be longer than the first.
            let count = count.min(bytes.len() / self.record.len);
            let bytes = &mut bytes[..count * self.record.len];
            if !self.disk.read(self.at(rows.start), bytes)? {
                return Err(self.disk.corrupt(&format!("record {}", rows.start), "the end of the file"));
            }
            for bytes in bytes.chunks_exact(self.record.len) {
                visit(rows.start, bytes)?;
                rows.start += 1;
            }
            poll()?;
        }
        Ok(())
    }

    /// Reads and verifies rows, and calls `visit` with the index and the bytes of each row.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a record is damaged. The error names the first damaged record.
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

    /// Reads a row into `out` and verifies it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the record is damaged. The error names the record.
    pub(super) fn read(&self, row: usize, out: &mut [u8]) -> Result<()> {
        if !self.disk.read(self.at(row), out)? {
            return Err(self.disk.corrupt(&format!("record {row}"), "the end of the file"));
        }
        self.check(out, row)
    }

    fn check(&self, bytes: &[u8], row: usize) -> Result<()> {
        let damaged = |got| self.disk.corrupt(&format!("record {row}"), got);
        self.record.mismatch(bytes, row).map_or(Ok(()), |got| Err(damaged(got)))
    }

    /// Writes the rows that the file lacks. The ring `hot` holds the rows `rows` in memory.
    ///
    /// A commit precedes any write that would overwrite a row of the last commit.
    ///
    /// # Errors
    /// [`Error::Io`] if the system reports an error. [`Error::Closed`] in a forked process.
    /// Completed writes remain.
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

    /// Rewrites rows that the system may have lost, after a failed sync.
    ///
    /// Rows before `hot_from` are read from the file and written again. For later rows, which are
    /// in memory, `written` is reset, so that the caller writes them again.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a record was lost; the error names the record. Also the errors of
    /// [`Cold::write`].
    fn rewrite(&mut self, hot_from: usize, poll: PollFn<'_>) -> Result<()> {
        let rewrite_end = hot_from.clamp(self.flushed, self.written);
        self.for_each_row(self.flushed..rewrite_end, poll, |row, bytes| {
            self.check(bytes, row)?;
            self.disk.write(self.at(row), bytes)
        })?;
        (self.written, self.doubtful) = (rewrite_end, false);
        Ok(())
    }

    /// Syncs all written rows to the disk, and then writes a commit.
    ///
    /// # Errors
    /// [`Error::Io`] if the system reports an error. [`Error::Closed`] in a forked process.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.disk.check_process()?;
        if self.commits_intact && self.flushed == self.written {
            return Ok(());
        }
        self.sync()?;
        let timeline = self.timeline;
        self.commit_to(self.written, &timeline)
    }

    /// Writes and syncs a commit with `rows` as the number of flushed rows.
    fn commit_to(&mut self, rows: usize, timeline: &Timeline) -> Result<()> {
        let commit = Commit { number: self.commits + 1, flushed: rows as u64, timeline: *timeline };
        let place = self.header.len() as u64 + commit.number % 2 * Commit::LEN as u64;
        self.disk.write(place, &commit.to_bytes(self.salt))?;
        self.sync()?;
        (self.flushed, self.safe, self.commits, self.commits_intact) = (rows, rows, commit.number, true);
        self.timeline = *timeline;
        Ok(())
    }

    /// Drops the rows from `rows` on. All rows must be flushed.
    ///
    /// The rows are dropped in steps of at most `slack` rows. `open` examines as many rows after
    /// the last commit, so that the file is valid after each step. `numbers` are unique among files
    /// and timelines.
    ///
    /// # Errors
    /// The errors of [`Cold::write`]. The last rows may have been dropped after an error.
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

    /// Overwrites the index in the records of dropped rows, before new rows are written.
    ///
    /// Otherwise, a later `open` could take such a record for a valid row.
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

    /// Verifies the header and the commits of the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a section is damaged. The error names the section.
    pub(super) fn verify(&self) -> Result<()> {
        let mut bytes = alloc::zeroed("path", self.header.len())?;
        if !self.disk.read(0, &mut bytes)? || bytes != self.header {
            return Err(self.disk.corrupt("header", "a header that changed since the file was opened"));
        }
        for place in [0, 1] {
            if self.commit_at(place)?.is_none() {
                return Err(self.disk.corrupt("commit", format!("damage in commit {place} of 0 and 1")));
            }
        }
        Ok(())
    }
}

/// Returns the size in bytes of a file with all records, or `None` if the size overflows.
fn file_len(header: &Header, start: usize, record: usize) -> Option<u64> {
    let rows = header.total_capacity.checked_add(header.slack)?;
    let bytes = rows.checked_mul(record)?.checked_add(start + 2 * Commit::LEN)?;
    i64::try_from(bytes).ok().map(|bytes| bytes as u64)
}

impl Header {
    /// Reads the header of a file. Returns its bytes, its content and the checksum of the bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the header is invalid. [`Error::Config`] if the file has another
    /// version of the format or another byte order. [`Error::Io`] if the system reports an error.
    pub(super) fn read(disk: &Disk) -> Result<(Vec<u8>, Self, u32)> {
        let corrupt = |got: &str| disk.corrupt("header", got);
        let mut start = [0; Self::BLOCK];
        if !disk.read(0, &mut start)? {
            return Err(corrupt("the end of the file"));
        }
        let len = Self::len(&start).map_err(corrupt)?;
        if len as u64 > disk.len()? {
            return Err(corrupt("the end of the file"));
        }
        let mut bytes = alloc::zeroed("path", len)?;
        if !disk.read(0, &mut bytes)? {
            return Err(corrupt("the end of the file"));
        }
        let (header, salt) = Self::from_bytes(&bytes, &disk.named()).map_err(|got| corrupt(&got))??;
        Ok((bytes, header, salt))
    }
}

/// A file that this process has locked.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    path: PathBuf,
    process: u32,
    #[cfg(test)]
    pub(super) faults: super::tests::Faults,
}

impl Disk {
    /// Creates a file with the given content. The file appears at `path` only when it is complete.
    ///
    /// # Errors
    /// [`Error::Io`] if `path` exists or the system reports an error.
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

    /// Opens and locks a file.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no file or the system reports an error. [`Error::Corrupt`] if
    /// `path` is a folder or a device. [`Error::Closed`] if another buffer has opened the file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.display().to_string(), source };
        // Opening a pipe would wait for a writer.
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
                let (expected, got) = ("a file that no buffer has open", "an open file");
                Err(Error::closed(named, expected, got, "close the other buffer first"))
            }
        }
    }

    /// Returns random numbers for a unique id.
    pub(super) fn id() -> [u32; 2] {
        let mut id = [0; 2];
        SeedSequence::from_os().generate_state_u32(&mut id);
        id
    }

    /// Checks that this process opened the file. In a forked process, the lock belongs to the
    /// parent.
    ///
    /// # Errors
    /// [`Error::Closed`] if another process opened the file.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let (expected, got) = ("the process that opened the file", "a forked process");
        Err(Error::closed(self.named(), expected, got, "use the buffer in one process only"))
    }

    fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    /// Fills `out` with the bytes from an offset on. Returns false if the file has fewer bytes.
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

    /// Syncs written bytes to the disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.before()?;
        // The unit tests simulate power cuts, so that they need no real sync.
        if cfg!(test) { Ok(()) } else { self.file.sync_data().map_err(|source| self.io_error(source)) }
    }

    /// Returns the size of the file in bytes.
    pub(super) fn len(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|source| self.io_error(source))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn named(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns the error for an invalid section of the file.
    pub(super) fn corrupt(&self, section: &str, got: impl Into<String>) -> Error {
        corrupt(&self.path, section, got)
    }

    fn io_error(&self, source: io::Error) -> Error {
        Error::Io { path: self.named(), source }
    }

    /// Returns the errors that tests simulate.
    #[cfg(test)]
    fn before(&self) -> Result<()> {
        self.faults.before().map_err(|source| self.io_error(source))
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "same signature as in tests")]
    fn before(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A forked process shares the lock and may live longer.
        if self.is_own() {
            let _ = self.file.unlock();
        }
    }
}

fn corrupt(path: &Path, section: &str, got: impl Into<String>) -> Error {
    Error::corrupt(path.display().to_string(), "data written by rlox", got, HINT).in_section(section)
}

fn already_exists() -> io::Error {
    let message = "expected no file, got an existing one; open it if it is a replay buffer, or choose another path";
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

/// Renames the file `partial` to `path`, unless `path` exists.
fn place(partial: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(partial, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(already_exists()),
        // Some file systems do not support hard links.
        Err(_) if path.symlink_metadata().is_err() => fs::rename(partial, path),
        Err(_) => Err(already_exists()),
    }
}

/// Flushes the entries of the file's folder to the disk.
///
/// Does nothing on Windows, where folders cannot be opened and the journal covers file names.
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
