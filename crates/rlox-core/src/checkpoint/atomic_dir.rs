//! Folders that are replaced whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::MANIFEST;

/// Asked before each change on the disk. Tests fail there.
pub(super) type Before<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// The name of a folder with a word, hidden beside it.
pub(super) fn sibling_path(path: &Path, word: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{word}"));
    path.with_file_name(name)
}

/// Where a path leads to, be there something or not: links are followed, so that what they point to is replaced.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done,
    }
    let parent = path.parent().unwrap_or(Path::new("")).to_owned();
    if let Ok(target) = path.read_link() {
        return Ok(parent.join(target));
    }
    let parent = if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent };
    let name = path.file_name().ok_or(io::ErrorKind::NotFound)?;
    Ok(parent.canonicalize().unwrap_or(parent).join(name))
}

/// Whether a folder holds a checkpoint, whole or damaged, and nothing else.
pub(super) fn is_checkpoint(path: &Path) -> io::Result<bool> {
    let manifest = path.join(MANIFEST);
    if !only_ours(path)? || !manifest.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(manifest)?.take(super::MAX_MANIFEST_BYTES).read_to_end(&mut start)?;
    Ok(start.windows(7).any(|bytes| bytes == b"\"rlox\":"))
}

/// Whether a folder is there and empty.
pub(super) fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether something is a folder with nothing but files of a checkpoint's names.
fn only_ours(path: &Path) -> io::Result<bool> {
    if !path.symlink_metadata()?.is_dir() {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        let ours = name.as_os_str() == MANIFEST || name.extension().is_some_and(|end| end == "safetensors");
        if !ours || !entry.file_type()?.is_file() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what an earlier save has left, if it has.
fn remove(path: &Path, before: Before<'_>) -> io::Result<()> {
    match only_ours(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(false) => {
            let message = "expected nothing or what an earlier save left, got something else";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{}: {message}", path.display())));
        }
        Ok(true) => {}
    }
    before()?;
    fs::remove_dir_all(path)
}

/// Puts a folder with these files in the place of the one at `path`. Whenever it ends, the old or the new one is there
/// whole: at `path`, or while it changes places, as `previous` beside it.
pub(super) fn replace(path: &Path, files: &[(String, &[u8])], before: Before<'_>) -> io::Result<()> {
    let (partial, previous) = (sibling_path(path, "partial"), sibling_path(path, "previous"));
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    before()?;
    fs::create_dir_all(parent)?;
    remove(&partial, before)?;
    let done = fill(&partial, files, before).and_then(|()| swap(path, &partial, &previous, before));
    if done.is_err() {
        // The room it takes may be what is missing.
        let _ = remove(&partial, before);
        return done;
    }
    before()?;
    flush_folder(parent)?;
    remove(&previous, before)
}

fn fill(folder: &Path, files: &[(String, &[u8])], before: Before<'_>) -> io::Result<()> {
    before()?;
    fs::create_dir(folder)?;
    for (name, bytes) in files {
        before()?;
        let mut file = File::create_new(folder.join(name))?;
        file.write_all(bytes)?;
        before()?;
        file.sync_all()?;
    }
    before()?;
    flush_folder(folder)
}

/// A folder cannot be renamed onto another one: between the two renames only `previous` is there.
fn swap(path: &Path, partial: &Path, previous: &Path, before: Before<'_>) -> io::Result<()> {
    let replacing = path.exists();
    if replacing {
        remove(previous, before)?;
        before()?;
        fs::rename(path, previous)?;
    }
    let done = before().and_then(|()| fs::rename(partial, path));
    if done.is_err() && replacing && before().is_ok() {
        let _ = fs::rename(previous, path);
    }
    done
}

/// Has the names in a folder reach the disk. Windows cannot open folders, and flushes renames with its journal.
fn flush_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}
