//! Assertions on errors of checkpoints that do not match or are invalid.

use std::path::Path;

use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{Error, Result, error::Mismatch};

/// Error variant, start of the section's name, and parts of the texts of the expected and the
/// rejected value.
pub(crate) type Rejection = (Variant, &'static str, &'static str, &'static str);

/// Returns the error for a setting that has another value.
pub(crate) fn setting(expected: &'static str, got: &'static str) -> Rejection {
    (Error::Config, "settings", expected, got)
}

/// Returns the error for a section with invalid content.
pub(crate) fn corrupt(section: &'static str, got: &'static str) -> Rejection {
    (Error::Corrupt, section, "", got)
}

/// Checks the error of loading the checkpoint `path` and returns its fields.
pub(crate) fn assert_checkpoint_rejects<T>(result: Result<T>, path: &Path, rejection: Rejection) -> Mismatch {
    let (variant, section, expected, got) = rejection;
    let member = path.join(format!("{}.safetensors", section.split(',').next().unwrap()));
    let file = if member.exists() { member } else { path.join("manifest.json") };
    let rejected = assert_rejects(result, variant, &file.display().to_string());
    let found = rejected.at.section.as_deref().unwrap();
    assert!(found.starts_with(section) && rejected.expected.contains(expected), "{rejected}");
    assert!(rejected.got.contains(got), "{rejected}");
    rejected
}
