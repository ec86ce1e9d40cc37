//! Tests of atomic writes and of the detection of damaged files.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::fs;

use tempfile::TempDir;

use super::*;
use crate::testing::assert_rejects;
use crate::{
    error::Mismatch,
    field::{FieldData, FieldMut},
};

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn checkpoint(steps: u64) -> Checkpoint {
    let mut checkpoint = Checkpoint::default();
    checkpoint.manifest.insert("steps".into(), steps.into());
    let numbers = [steps as f32, -0.5, f32::MIN_POSITIVE, 3.0, 4.0, 5.0];
    checkpoint
        .insert_arrays(
            "networks",
            &[("actor.0.weight", &[2, 3], numbers[..].into()), ("step", &[], [1.0_f32][..].into())],
        )
        .unwrap();
    let (mean, flags, counts) = ([1.5_f64, 0.1], [true, false], [i64::MIN]);
    checkpoint
        .insert_arrays(
            "normalizer",
            &[
                ("mean", &[2], mean[..].into()),
                ("flags", &[2], flags[..].into()),
                ("counts", &[1, 1], counts[..].into()),
                ("none", &[0], [0_u8; 0][..].into()),
            ],
        )
        .unwrap();
    checkpoint
}

fn saved() -> (TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    checkpoint(5).write(&path).unwrap();
    (scratch, path)
}

fn steps(path: &Path) -> u64 {
    let read = Checkpoint::read(path).unwrap();
    let mut weight = [0.0; 6];
    read.read_array("networks", "actor.0.weight", &[2, 3], FieldMut::F32(&mut weight)).unwrap();
    assert_eq!(Some(weight[0] as u64), read.manifest["steps"].as_u64(), "a mixture");
    weight[0] as u64
}

#[test]
fn checkpoints_round_trip() {
    let (scratch, path) = saved();
    let read = Checkpoint::read(&path).unwrap();
    let (mut mean, mut flags, mut counts) = ([0.0; 2], [9; 2], [0]);
    read.read_array("normalizer", "mean", &[2], FieldMut::F64(&mut mean)).unwrap();
    read.read_array("normalizer", "flags", &[2], FieldMut::Bool(&mut flags)).unwrap();
    read.read_array("normalizer", "counts", &[1, 1], FieldMut::I64(&mut counts)).unwrap();
    read.read_array("normalizer", "none", &[0], FieldMut::U8(&mut [])).unwrap();
    assert_eq!((mean, flags, counts), ([1.5, 0.1], [1, 0], [i64::MIN]));
    assert_eq!(read.shapes("networks").unwrap().len(), 2);
    assert!(read.shapes("replay").unwrap().is_empty());
    assert_eq!(read.manifest["rlox"], env!("CARGO_PKG_VERSION"));
    checkpoint(6).write(&path).unwrap();
    assert_eq!((steps(&path), names(&scratch)), (6, vec!["saved".to_owned()]));
}

#[test]
fn missing_or_mismatched_arrays_are_rejected_and_not_copied() {
    let (_scratch, path) = saved();
    let read = Checkpoint::read(&path).unwrap();
    let mut out = [7.0; 6];
    for (member, name, shape, got) in [
        ("networks", "actor.0.weight", &[3, 2][..], "of shape [2, 3] and type F32 instead of [3, 2] and F32"),
        ("networks", "actor.0.bias", &[6], "no array \"actor.0.bias\""),
        ("optimizer", "x", &[6], "no such member"),
        ("normalizer", "mean", &[2], "type F64 instead of [2] and F32"),
    ] {
        let result = read.read_array(member, name, shape, FieldMut::F32(&mut out));
        let rejected = assert_rejects(result, Error::Corrupt, &read.file_of(member));
        assert!(rejected.got.contains(got) && rejected.at.section.as_deref() == Some(member), "{rejected}");
    }
    assert!(matches!(read.read_array("networks", "step", &[], FieldMut::F32(&mut out)), Err(Error::Shape(_))));
    assert_eq!(out, [7.0; 6]);
    let rejected =
        assert_rejects(checkpoint(1).insert_arrays("a", &[("x", &[3], [0_u8; 2][..].into())]), Error::Shape, "arrays");
    assert!(rejected.got.contains("\"x\" of shape [3]"), "{rejected}");
}

#[test]
fn flipped_bits_and_truncations_are_detected() {
    let (_scratch, path) = saved();
    for name in ["manifest.json", "networks.safetensors", "normalizer.safetensors"] {
        let (file, data) = (path.join(name), fs::read(path.join(name)).unwrap());
        let rejects = |damaged: &[u8], what: &str| {
            fs::write(&file, damaged).unwrap();
            match Checkpoint::read(&path) {
                Err(Error::Corrupt(wrong)) => {
                    assert!(wrong.argument.ends_with(name) && wrong.at.section.is_some(), "{what}: {wrong}");
                }
                other => panic!("{name}, {what}: {other:?}"),
            }
        };
        for at in 0..data.len() {
            let mut damaged = data.clone();
            damaged[at] ^= 1 << (at % 8);
            rejects(&damaged, &format!("byte {at}"));
            rejects(&data[..at], &format!("{at} bytes"));
        }
        rejects(&[&data[..], b"\n"].concat(), "one more");
        fs::write(&file, &data).unwrap();
    }
    assert_eq!(steps(&path), 5);
}

/// Changes a manifest and writes the changed manifest with a valid seal.
fn forge(path: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut manifest = Checkpoint::read(path).unwrap().manifest;
    change(&mut manifest);
    fs::write(path.join(MANIFEST), manifest::seal(manifest)).unwrap();
}

/// Checks that reading `path` reports the file as corrupt.
fn corrupt(path: &Path, file: &str) -> Mismatch {
    assert_rejects(Checkpoint::read(path), Error::Corrupt, &path.join(file).display().to_string())
}

#[test]
fn member_names_cannot_refer_to_other_folders() {
    for name in ["../networks", "/etc/passwd", "a/b", "..", "", "A", "é", "9", &"a".repeat(65)] {
        assert_rejects(checkpoint(1).insert_safetensors(name, Vec::new()), Error::Config, "members");
        let (_scratch, path) = saved();
        forge(&path, |manifest| manifest["members"][name] = json!({"bytes": 0, "sha256": ""}));
        assert_eq!(corrupt(&path, MANIFEST).at.section.as_deref(), Some("members"));
    }
}

#[cfg(unix)]
#[test]
fn links_to_other_files_are_not_followed() {
    let (scratch, path) = saved();
    let (file, moved) = (path.join("networks.safetensors"), scratch.path().join("elsewhere"));
    fs::rename(&file, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &file).unwrap();
    let rejected = corrupt(&path, "networks.safetensors");
    assert_eq!(rejected.at.section.as_deref(), Some("networks"));
    assert_eq!(rejected.got, "a link, a folder or a device");
    // A link to the checkpoint itself is followed when the checkpoint is replaced.
    fs::remove_file(&file).unwrap();
    fs::rename(&moved, &file).unwrap();
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink("saved", &link).unwrap();
    checkpoint(8).write(&link).unwrap();
    assert_eq!((steps(&path), steps(&link)), (8, 8));
    assert!(link.is_symlink());
}

#[test]
fn invalid_manifests_are_rejected() {
    let forged = |change: fn(&mut Map<String, Value>)| {
        let (scratch, path) = saved();
        forge(&path, change);
        (scratch, path)
    };
    let (_scratch, path) = forged(|m| drop(m.remove("members")));
    assert_eq!(corrupt(&path, MANIFEST).got, "no key \"members\"");
    let (_scratch, path) = forged(|m| drop(m.insert("members".into(), json!([]))));
    assert_eq!(corrupt(&path, MANIFEST).got, "[] as \"members\"");
    for change in [(|m| m["members"]["networks"] = json!(3)) as fn(&mut Map<String, Value>), |m| {
        m["members"]["networks"]["bytes"] = json!(-1);
    }] {
        let (_scratch, path) = forged(change);
        assert_eq!(corrupt(&path, MANIFEST).at.section.as_deref(), Some("members"));
    }
    let (_scratch, path) = forged(|m| m["format"] = json!(99));
    let file = path.join(MANIFEST).display().to_string();
    let newer = assert_rejects(Checkpoint::read(&path), Error::Config, &file);
    assert_eq!(newer.got, format!("99, written by rlox {:?}", env!("CARGO_PKG_VERSION")));
    let (_scratch, path) = saved();
    fs::remove_file(path.join("networks.safetensors")).unwrap();
    let missing = corrupt(&path, "networks.safetensors");
    assert_eq!((&missing.got[..], missing.at.section.as_deref()), ("no such file", Some("networks")));
    // A member of enormous size is not read.
    forge_size(&path);
    assert!(corrupt(&path, "networks.safetensors").got.ends_with("bytes instead of 9223372036854775807"));
}

fn forge_size(path: &Path) {
    let text = fs::read(path.join(MANIFEST)).unwrap();
    let mut manifest = manifest::unseal(&text).unwrap();
    manifest["members"]["networks"]["bytes"] = json!(i64::MAX);
    fs::write(path.join(MANIFEST), manifest::seal(manifest)).unwrap();
    fs::write(path.join("networks.safetensors"), [0; 8]).unwrap();
}

#[test]
fn other_files_are_not_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let (mine, folder) = (scratch.path().join("mine"), scratch.path().join("folder"));
    fs::write(&mine, "mine").unwrap();
    let (saved, extra) = (scratch.path().join("saved"), scratch.path().join("saved/notes.txt"));
    fs::create_dir_all(folder.join("x.safetensors")).unwrap();
    checkpoint(5).write(&saved).unwrap();
    fs::write(&extra, "mine").unwrap();
    for path in [&mine, &folder, &saved] {
        match checkpoint(6).write(path).unwrap_err() {
            Error::Io { source, .. } => assert_eq!(source.kind(), io::ErrorKind::AlreadyExists),
            other => panic!("{other}"),
        }
    }
    assert_eq!((fs::read(&mine).unwrap(), steps(&saved)), (b"mine".to_vec(), 5));
    assert!(checkpoint(1).write("").is_err() && checkpoint(1).write(mine.join("below")).is_err());
    // A sibling folder with other content is not removed either.
    fs::remove_file(&extra).unwrap();
    fs::create_dir_all(scratch.path().join(".saved.previous/x")).unwrap();
    assert!(checkpoint(6).write(&saved).is_err());
    assert_eq!(
        (steps(&saved), names(&scratch)),
        (5, [".saved.previous", "folder", "mine", "saved"].map(Into::into).into())
    );
}

#[test]
fn reading_a_path_without_a_checkpoint_is_not_found() {
    let (scratch, file) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let [folder, nowhere, parent] = ["", "nowhere", "a/../b"].map(|name| scratch.path().join(name));
    for path in [folder, nowhere, parent, PathBuf::new(), file.path().to_path_buf()] {
        match Checkpoint::read(&path) {
            Err(Error::Io { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::NotFound, "{path:?}"),
            other => panic!("{path:?}: {other:?}"),
        }
    }
    checkpoint(3).write(scratch.path()).unwrap();
    assert_eq!(steps(scratch.path()), 3);
    let run = scratch.path().with_extension("run");
    checkpoint(4).write(run.join("checkpoint")).unwrap();
    assert_eq!(steps(&run), 4);
    fs::rename(run.join("checkpoint"), run.join(".checkpoint.previous")).unwrap();
    assert_eq!(steps(&run), 4);
    fs::remove_dir_all(run).unwrap();
}

/// Creates a hook that fails at call `first`, and at all later calls if `kill` is true.
fn failing(first: u32, kill: bool) -> (impl FnMut() -> io::Result<()>, std::rc::Rc<Cell<u32>>) {
    let calls = std::rc::Rc::new(Cell::new(0));
    let count = calls.clone();
    let before = move || {
        count.set(count.get() + 1);
        let fails = count.get() == first || (kill && count.get() > first);
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    };
    (before, calls)
}

#[test]
fn kills_and_failures_at_any_call_leave_the_old_or_the_new_checkpoint() {
    for kill in [true, false] {
        let mut failed = 0;
        for first in 1.. {
            let (scratch, path) = saved();
            let (mut before, calls) = failing(first, kill);
            let done = checkpoint(6).write_with_hook(&path, &mut before);
            if calls.get() < first {
                assert!(done.is_ok());
                break;
            }
            failed += 1;
            assert!(matches!(done, Err(Error::Io { .. })), "{first}");
            let there = steps(&path);
            assert!(there == 5 || there == 6, "{first}");
            if !kill && there == 5 {
                // A failed save that is not killed removes its partial folder.
                assert_eq!(names(&scratch), ["saved"], "{first}");
            }
            checkpoint(7).write(&path).unwrap();
            assert_eq!((steps(&path), names(&scratch)), (7, vec!["saved".to_owned()]));
        }
        assert!(failed > 10, "{failed}");
    }
}

#[test]
fn members_equal_the_output_of_the_safetensors_crate() {
    use safetensors::tensor::{Dtype, TensorView, serialize};

    let (a, b) = ([1.5_f32, -0.25, 3.0, 0.0, 1e-9, f32::MAX], [i64::MIN, 7]);
    let mut checkpoint = Checkpoint::default();
    let flags = [2_u8, 0, 1];
    let arrays: [(&str, &[usize], FieldData<'_>); 4] = [
        ("b", &[2], b[..].into()),
        ("flags", &[3], FieldData::Bool(&flags)),
        ("a \"quoted\"", &[3, 2], a[..].into()),
        ("empty", &[0, 4], [0_u8; 0][..].into()),
    ];
    checkpoint.insert_arrays("all", &arrays).unwrap();
    let bytes = [
        b.iter().flat_map(|x| x.to_le_bytes()).collect(),
        vec![1, 0, 1],
        a.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Vec::new(),
    ];
    let types = [Dtype::I64, Dtype::BOOL, Dtype::F32, Dtype::U8];
    let views = arrays
        .iter()
        .zip(types)
        .zip(&bytes)
        .map(|(((name, shape, _), dtype), bytes)| (*name, TensorView::new(dtype, shape.to_vec(), bytes).unwrap()));
    assert!(checkpoint.safetensors("all") == Some(&serialize(views, None).unwrap()[..]));
    for rows in [2, usize::MAX] {
        assert_rejects(
            checkpoint.insert_arrays("all", &[("x", &[rows, 2], [1.0_f32; 3][..].into())]),
            Error::Shape,
            "arrays",
        );
    }
}
