//! Atomic replacement of folders.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::MANIFEST;

/// Hook that is called before each change on the disk. Tests simulate failures by errors of the
/// hook.
pub(super) type Before<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// Returns the path `.NAME.word` of a hidden sibling of the folder `NAME`.
pub(super) fn sibling_path(path: &Path, word: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{word}"));
    path.with_file_name(name)
}

/// Returns a path with all symbolic links followed. The target need not exist.
///
/// Therefore a save to a link replaces the target of the link.
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

/// Returns true if a folder holds a checkpoint, valid or damaged, and nothing else.
pub(super) fn is_checkpoint(path: &Path) -> io::Result<bool> {
    let manifest = path.join(MANIFEST);
    if !only_ours(path)? || !manifest.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(manifest)?.take(super::MAX_MANIFEST_BYTES).read_to_end(&mut start)?;
    Ok(start.windows(7).any(|bytes| bytes == b"\"rlox\":"))
}

/// Returns true if a folder exists and is empty.
pub(super) fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns true if a path is a folder that contains only a manifest and safetensors files.
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

/// Removes the folder `path`, which an earlier save left behind, if it exists.
fn remove(path: &Path, before: Before<'_>) -> io::Result<()> {
    match only_ours(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(false) => {
            let message = "expected no folder or the remains of an earlier save, got something else";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{}: {message}", path.display())));
        }
        Ok(true) => {}
    }
    before()?;
    fs::remove_dir_all(path)
}

/// Replaces the folder at `path` by a folder with these files.
///
/// At every moment, a complete folder exists. It is the old or the new folder at `path`. Between
/// the two renames of [`swap`], it is the old folder as the hidden sibling `previous`.
pub(super) fn replace(path: &Path, files: &[(String, &[u8])], before: Before<'_>) -> io::Result<()> {
    let (partial, previous) = (sibling_path(path, "partial"), sibling_path(path, "previous"));
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    before()?;
    fs::create_dir_all(parent)?;
    remove(&partial, before)?;
    let done = fill(&partial, files, before).and_then(|()| swap(path, &partial, &previous, before));
    if done.is_err() {
        // The partial folder is removed, because the disk may be full.
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

/// Renames `path` to `previous` and `partial` to `path`. Between the renames, `path` does not
/// exist.
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

/// Flushes the entries of a folder to the disk.
///
/// Does nothing on Windows, where folders cannot be opened and the file system's journal covers
/// renames.
fn flush_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}
