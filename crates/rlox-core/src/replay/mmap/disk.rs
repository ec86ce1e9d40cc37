//! One file that is read and written by position, by one process at a time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::{Error, Result, SeedSequence};

const FIX: &str = "the file is damaged or not a replay buffer's, use another copy";

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
        let refused = |source| Error::Io { path: path.display().to_string(), source };
        if path.symlink_metadata().is_ok() {
            return Err(refused(taken()));
        }
        path.file_name().ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
        let [word, ..] = Self::id();
        let partial = path.with_file_name(format!(".rlox-{}-{word:08x}.partial", std::process::id()));
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&partial);
        let placed = Self::locked(made.map_err(refused)?, path).and_then(|disk| {
            disk.write(0, start)?;
            disk.sync()?;
            place(&partial, path).map_err(refused)?;
            let synced = flush_folder(path).map_err(refused);
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
        let refused = |source| Error::Io { path: path.display().to_string(), source };
        // Opening a pipe would wait for whoever writes to it.
        if !fs::metadata(path).map_err(refused)?.is_file() {
            return Err(corrupt(path, "header", "a folder or a device"));
        }
        Self::locked(OpenOptions::new().read(true).write(true).open(path).map_err(refused)?, path)
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
        let mut words = [0; 2];
        SeedSequence::from_os().generate_state_u32(&mut words);
        words
    }

    /// Checks that this process opened the file: in a forked one the lock is the parent's.
    ///
    /// # Errors
    /// [`Error::Closed`] if it did not.
    pub(super) fn own(&self) -> Result<()> {
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
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<bool> {
        self.before()?;
        match read_exact_at(&self.file, at, out) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(self.refused(error)),
        }
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.before()?;
        write_all_at(&self.file, at, bytes).map_err(|source| self.refused(source))
    }

    /// Has what was written reach the disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.before()?;
        // Tests of this crate cut the power themselves.
        if cfg!(test) { Ok(()) } else { self.file.sync_data().map_err(|source| self.refused(source)) }
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> Result<u64> {
        self.file.metadata().map(|about| about.len()).map_err(|source| self.refused(source))
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

    fn refused(&self, source: io::Error) -> Error {
        Error::Io { path: self.named(), source }
    }

    /// Tests fail here.
    #[cfg(test)]
    fn before(&self) -> Result<()> {
        self.faults.before().map_err(|source| self.refused(source))
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
    Error::corrupt(path.display().to_string(), "what rlox wrote", got, FIX).in_section(section)
}

fn taken() -> io::Error {
    let said = "expected nothing there, got something; open it if it is a replay buffer, or choose another path";
    io::Error::new(io::ErrorKind::AlreadyExists, said)
}

/// Gives a file its name, if nothing has it.
fn place(partial: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(partial, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(taken()),
        // Some file systems have no links.
        Err(_) if path.symlink_metadata().is_err() => fs::rename(partial, path),
        Err(_) => Err(taken()),
    }
}

/// Has the names in a file's folder reach the disk. Windows cannot open folders, and flushes names with its journal.
fn flush_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}

#[cfg(unix)]
fn read_exact_at(file: &File, at: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(unix)]
fn write_all_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
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
