//! Checkpoints: folders that are replaced atomically.
//!
//! A checkpoint has a manifest, the file `manifest.json`, and members. The member `NAME` is the
//! safetensors file `NAME.safetensors`. The manifest holds the entries of the caller, the size and
//! SHA-256 of each member, and the SHA-256 of its own text. The Python package reads and writes the
//! same format. Reading executes no code from the files. Member names cannot refer to other
//! folders.

mod atomic_dir;
mod manifest;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::{Error, Result, alloc};

const FORMAT: u64 = 2;
const MANIFEST: &str = "manifest.json";
/// Maximum size of a manifest. Larger files are rejected without reading.
const MAX_MANIFEST_BYTES: u64 = 1 << 24;
const HINT: &str = "the file is damaged or not part of a checkpoint; use another copy";

/// Content of a checkpoint: a manifest, and members in the safetensors format.
///
/// ```
/// use rlox_core::{checkpoint::Checkpoint, field::FieldMut};
///
/// let folder = std::env::temp_dir().join(format!("rlox-checkpoint-{}", std::process::id()));
/// let mut checkpoint = Checkpoint::default();
/// checkpoint.manifest.insert("algorithm".into(), "mine".into());
/// checkpoint.insert_arrays("weights", &[("w", &[2], [1.5_f64, -0.5][..].into())])?;
/// checkpoint.write(&folder)?;
///
/// let read = Checkpoint::read(&folder)?;
/// let mut w = [0.0; 2];
/// read.read_array("weights", "w", &[2], FieldMut::F64(&mut w))?;
/// assert_eq!((&read.manifest["algorithm"], w), (&"mine".into(), [1.5, -0.5]));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Entries of the manifest. [`Checkpoint::write`] adds `format`, `rlox`, `members` and `sha256`.
    pub manifest: Map<String, Value>,
    members: BTreeMap<String, Vec<u8>>,
    folder: PathBuf,
}

impl Checkpoint {
    /// Adds or replaces the member `member` with the content `bytes` of a safetensors file.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is longer than 64 characters, has characters other than a-z, 0-9 and _, or does
    /// not start with a letter.
    pub fn insert_safetensors(&mut self, member: &str, bytes: Vec<u8>) -> Result<()> {
        if !is_name(member) {
            let got = format!("{member:?}");
            return Err(Error::config("members", "names of a-z, 0-9 and _", got, "rename the member"));
        }
        self.members.insert(member.to_owned(), bytes);
        Ok(())
    }

    /// Returns the content of a member's safetensors file, or `None` if there is no such member.
    pub fn safetensors(&self, member: &str) -> Option<&[u8]> {
        self.members.get(member).map(Vec::as_slice)
    }

    /// Writes the checkpoint to the folder `path`.
    ///
    /// An existing checkpoint or an empty folder is replaced atomically. If the process is killed, [`Checkpoint::read`]
    /// finds the old or the new checkpoint, never a mixture.
    ///
    /// # Errors
    /// [`Error::Io`] if `path` exists and is neither a checkpoint nor an empty folder. Existing
    /// files are unchanged after this error. [`Error::Io`] also if the system reports an error.
    /// After such an error, `path` holds its old content, or the new checkpoint if the error
    /// followed the replacement.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write_with_hook(path.as_ref(), &mut || Ok(()))
    }

    fn write_with_hook(&self, path: &Path, before: atomic_dir::Before<'_>) -> Result<()> {
        let io_error = |source| Error::Io { path: path.display().to_string(), source };
        let folder = atomic_dir::resolve(path).map_err(io_error)?;
        if folder.symlink_metadata().is_ok() && !atomic_dir::is_empty(&folder) {
            let message = "expected a checkpoint, an empty folder or nothing, got something else; choose another path";
            if !atomic_dir::is_checkpoint(&folder).map_err(io_error)? {
                return Err(io_error(io::Error::new(io::ErrorKind::AlreadyExists, message)));
            }
        }
        let describe = |bytes: &Vec<u8>| json!({"bytes": bytes.len(), "sha256": hex_sha256(bytes)});
        let members: Map<_, _> = self.members.iter().map(|(name, bytes)| (name.clone(), describe(bytes))).collect();
        let mut content = self.manifest.clone();
        content.insert("format".into(), FORMAT.into());
        content.insert("rlox".into(), env!("CARGO_PKG_VERSION").into());
        content.insert("members".into(), members.into());
        let manifest = manifest::seal(content);
        let named = self.members.iter().map(|(name, bytes)| (format!("{name}.safetensors"), bytes.as_slice()));
        let files: Vec<_> = named.chain([(MANIFEST.to_owned(), manifest.as_bytes())]).collect();
        atomic_dir::replace(&folder, &files, before).map_err(io_error)
    }

    /// Reads and verifies the checkpoint in the folder `path`, or in its subfolder `checkpoint`.
    ///
    /// # Errors
    /// - [`Error::Io`] if there is no checkpoint or the system reports an error;
    /// - [`Error::Corrupt`] if a file is damaged or missing; the error names the file and its
    ///   section;
    /// - [`Error::Config`] for another version of the format;
    /// - [`Error::Memory`] if the checkpoint does not fit into memory.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let folder = locate(path.as_ref())?;
        let mut checkpoint = Self { folder, ..Self::default() };
        let bytes = checkpoint.file(MANIFEST, "manifest", None)?;
        checkpoint.manifest = manifest::unseal(&bytes).map_err(|got| checkpoint.corrupt("manifest", got))?;
        if checkpoint.manifest.get("format") != Some(&FORMAT.into()) {
            let entry = |key| checkpoint.manifest.get(key).map_or("none".to_owned(), Value::to_string);
            let got = format!("{}, written by rlox {}", entry("format"), entry("rlox"));
            let argument = checkpoint.folder.join(MANIFEST).display().to_string();
            return Err(Error::config(argument, format!("format {FORMAT}"), got, "read it with that version"));
        }
        let members = checkpoint.object("members")?.clone();
        for (name, info) in &members {
            let (bytes, digest) = (info.get("bytes").and_then(Value::as_u64), info.get("sha256"));
            let (true, Some(len), Some(Value::String(digest))) = (is_name(name), bytes, digest) else {
                return Err(checkpoint.corrupt("members", format!("{info} as {name:?}")));
            };
            let bytes = checkpoint.file(&format!("{name}.safetensors"), name, Some(len))?;
            if hex_sha256(&bytes) != *digest {
                return Err(checkpoint.corrupt(name, "a wrong SHA-256"));
            }
            checkpoint.members.insert(name.clone(), bytes);
        }
        Ok(checkpoint)
    }

    /// Returns an entry of the manifest that is an object.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the entry is missing or not an object.
    pub fn object(&self, key: &str) -> Result<&Map<String, Value>> {
        match self.manifest.get(key) {
            Some(Value::Object(entries)) => Ok(entries),
            Some(other) => Err(self.corrupt("manifest", format!("{other} as {key:?}"))),
            None => Err(self.corrupt("manifest", format!("no key {key:?}"))),
        }
    }

    /// Returns an [`Error::Corrupt`] that names a section and its file, for the invalid content
    /// `got`.
    ///
    /// A section is a member or an entry of the manifest.
    pub fn corrupt(&self, section: &str, got: impl Into<String>) -> Error {
        Error::corrupt(self.file_of(section), "data written by rlox", got, HINT).in_section(section)
    }

    /// Returns the path of the file that holds a section, for error texts.
    pub fn file_of(&self, section: &str) -> String {
        let listed = self.manifest.get("members").is_some_and(|members| members.get(section).is_some());
        let file = if listed { format!("{section}.safetensors") } else { MANIFEST.into() };
        self.folder.join(file).display().to_string()
    }

    /// Returns `error` with the file of a section as the argument.
    ///
    /// The previous argument is appended to the section name in the error.
    #[must_use]
    pub fn in_file(&self, mut error: Error, section: &str) -> Error {
        if let Some(mismatch) = error.mismatch_mut() {
            let inner = std::mem::replace(&mut mismatch.argument, self.file_of(section).into());
            let part = mismatch.at.section.take().map_or(String::new(), |part| format!(", {part}"));
            mismatch.at.section = Some(format!("{section}, {inner}{part}"));
        }
        error
    }

    /// Returns `error`, about the content of a section, as an error about a damaged file.
    ///
    /// Errors about values, such as [`Error::Shape`], become [`Error::Corrupt`]. The argument
    /// changes as in [`Checkpoint::in_file`].
    #[must_use]
    pub fn damaged(&self, section: &str, error: Error) -> Error {
        match self.in_file(error, section) {
            Error::Shape(mut mismatch)
            | Error::Action(mut mismatch)
            | Error::Space(mut mismatch)
            | Error::Config(mut mismatch)
            | Error::NotFinite(mut mismatch) => {
                mismatch.hint = HINT.into();
                Error::Corrupt(mismatch)
            }
            other => other,
        }
    }

    /// Returns the content of a file, which must be `len` bytes long if `len` is given.
    ///
    /// Without `len`, the file may have at most [`MAX_MANIFEST_BYTES`].
    fn file(&self, name: &str, section: &str, len: Option<u64>) -> Result<Vec<u8>> {
        let path = self.folder.join(name);
        let corrupt = |got: String| {
            Error::corrupt(path.display().to_string(), "data written by rlox", got, HINT).in_section(section)
        };
        let io_error = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => corrupt("no such file".into()),
            _ => Error::Io { path: path.display().to_string(), source },
        };
        let metadata = path.symlink_metadata().map_err(io_error)?;
        if !metadata.is_file() {
            return Err(corrupt("a link, a folder or a device".into()));
        }
        if metadata.len() != len.unwrap_or(metadata.len()) || (len.is_none() && metadata.len() > MAX_MANIFEST_BYTES) {
            let expected = len.unwrap_or(MAX_MANIFEST_BYTES);
            return Err(corrupt(format!("{} bytes instead of {expected}", metadata.len())));
        }
        let mut bytes = alloc::with_capacity("path", usize::try_from(metadata.len()).unwrap_or(usize::MAX))?;
        File::open(&path).and_then(|file| file.take(metadata.len()).read_to_end(&mut bytes)).map_err(io_error)?;
        Ok(bytes)
    }
}

/// Returns the folder that holds the checkpoint of `path`.
///
/// The folder is `path` or its subfolder `checkpoint`. If a replacement was interrupted, the folder
/// is the hidden sibling that holds the previous checkpoint.
fn locate(path: &Path) -> Result<PathBuf> {
    let io_error = |source| Error::Io { path: path.display().to_string(), source };
    let mut folder = atomic_dir::resolve(path).map_err(io_error)?;
    let inner = folder.join("checkpoint");
    let former = |folder: &Path| atomic_dir::sibling_path(folder, "previous");
    if !folder.join(MANIFEST).exists() && (inner.exists() || former(&inner).exists()) {
        folder = inner;
    }
    if !folder.exists() && former(&folder).exists() {
        folder = former(&folder);
    }
    if !folder.is_dir() || atomic_dir::is_empty(&folder) {
        let got = if folder.is_file() { "a file" } else { "nothing" };
        let text = format!("expected a checkpoint folder, got {got}; pass another path");
        return Err(io_error(io::Error::new(io::ErrorKind::NotFound, text)));
    }
    Ok(folder)
}

/// Returns true if `name` is a valid name of a member.
fn is_name(name: &str) -> bool {
    let word = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'_';
    name.len() <= 64 && name.as_bytes().first().is_some_and(u8::is_ascii_lowercase) && name.bytes().all(|c| word(&c))
}

/// Returns the SHA-256 of bytes as hexadecimal digits.
pub(crate) fn hex_sha256(bytes: &[u8]) -> String {
    hmac_sha256::Hash::hash(bytes).iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
}

fn digit(half: u8) -> char {
    char::from(if half < 10 { b'0' + half } else { b'a' + half - 10 })
}
