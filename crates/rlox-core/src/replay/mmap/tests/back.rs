//! Tests of rollbacks to a reference.

use super::*;

#[test]
fn rollbacks_restore_the_buffer_and_its_file() {
    for (hot, total, slack, then, now) in [
        (3, 10, 4, 7, 9),
        (3, 10, 4, 7, 14),
        (10, 10, 4, 25, 29),
        (3, 10, 4, 25, 29),
        (1, 3, 1, 2, 4),
        (2, 20, 3, 4, 23),
    ] {
        let (_scratch, path, mut buffer) = new_buffer(hot, total, slack);
        push(&mut buffer, 0..then).unwrap();
        let (state, before) = (buffer.state().unwrap(), rows(&buffer).unwrap());
        push(&mut buffer, then..now).unwrap();
        buffer.load_state(&state).unwrap();
        assert_eq!((check(&buffer).end, rows(&buffer).unwrap() == before), (then, true));
        buffer.verify().unwrap();
        // Dropped rows do not reappear, neither alone nor behind new rows.
        let dropped = fs::read(&path).unwrap();
        push(&mut buffer, then..then + 1).unwrap();
        let held = buffer.hot_from..buffer.pushed;
        buffer.cold.write(&buffer.hot, held, &mut || Ok(())).unwrap();
        let killed = fs::read(&path).unwrap();
        drop(buffer);
        for (bytes, end) in [(dropped, then), (killed, then + 1)] {
            fs::write(&path, bytes).unwrap();
            let buffer = MmapReplayBuffer::open(&path, None).unwrap();
            buffer.verify().unwrap();
            assert_eq!(check(&buffer), end.saturating_sub(total)..end);
        }
    }
}

#[test]
fn rollbacks_to_overwritten_rows_are_rejected() {
    let (_scratch, _, mut buffer) = new_buffer(3, 10, 4);
    push(&mut buffer, 0..20).unwrap();
    let state = buffer.state().unwrap();
    push(&mut buffer, 20..25).unwrap();
    let before = rows(&buffer).unwrap();
    let rejected = assert_rejects(buffer.load_state(&state), Error::Config, "arrays[\"pushed\"]");
    assert!(rejected.got == "20" && rejected.expected.starts_with("at least 21"), "{rejected}");
    assert_eq!((check(&buffer), rows(&buffer).unwrap() == before), (15..25, true));
}

#[test]
fn kills_and_disk_failures_during_a_rollback_leave_complete_rows() {
    let mut failed = 0;
    for first in 0..40 {
        let (_scratch, path, mut buffer) = new_buffer(2, 20, 3);
        push(&mut buffer, 0..5).unwrap();
        let state = buffer.state().unwrap();
        push(&mut buffer, 5..19).unwrap();
        buffer.cold.disk.faults.remaining.set(Some(first));
        let done = buffer.load_state(&state);
        let killed = fs::read(&path).unwrap();
        buffer.cold.disk.faults.remaining.set(None);
        failed += usize::from(done.is_err());
        let end = check(&buffer).end;
        assert!(if done.is_ok() { end == 5 } else { (5..=19).contains(&end) }, "{first}: {end}");
        push(&mut buffer, end..end + 1).unwrap();
        drop(buffer);
        assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()).end, end + 1);
        fs::write(&path, killed).unwrap();
        let buffer = MmapReplayBuffer::open(&path, None).unwrap();
        buffer.verify().unwrap();
        assert!((5..=19).contains(&check(&buffer).end));
    }
    assert!((10..40).contains(&failed), "{failed}");
}

#[test]
fn interrupted_rollbacks_leave_complete_rows() {
    let (_scratch, path, mut buffer) = new_buffer(100, 30_000, 4000);
    push(&mut buffer, 0..10).unwrap();
    let state = buffer.state().unwrap();
    let (mut between, mut stopped) = (0, 0);
    pressed(|| {
        let end = buffer.indices().end;
        push(&mut buffer, end..20_000)?;
        let done = buffer.load_state(&state);
        let there = check(&buffer).end;
        assert!(if done.is_ok() { there == 10 } else { (10..=20_000).contains(&there) });
        stopped += usize::from(done.is_err());
        between += usize::from(there > 10 && there < 20_000);
        done
    });
    assert!(stopped > 1 && between > 1, "{stopped}, {between} of them between");
    drop(buffer);
    assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()), 0..10);
}

#[test]
fn reading_leaves_a_damaged_file_unchanged() {
    let (_scratch, path, bytes) = file(2, 20, 4, 7);
    let data = bytes.len() - 7 * 31;
    for place in [data - 512, data - 1024] {
        let mut damaged = bytes.clone();
        damaged[place + 3] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let buffer = MmapReplayBuffer::open(&path, None).unwrap();
        assert!(buffer.verify().is_err() && buffer.is_flushed());
        drop(buffer);
        assert_eq!(fs::read(&path).unwrap(), damaged);
    }
}

/// Pushes rows with the content of rows 0 to `count`.
fn others(buffer: &mut MmapReplayBuffer, count: usize) {
    for row in 0..count {
        buffer.push(&other(row)).unwrap();
    }
}

fn other(row: usize) -> ExperienceRecord {
    ExperienceRecord {
        obs: vec![row as f32],
        next_obs: vec![0.0],
        action: vec![0.0],
        reward: 0.0,
        terminated: false,
        truncated: false,
    }
}

#[test]
fn references_to_replaced_rows_are_rejected() {
    for again in [false, true] {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("replay");
        let part = |name| FieldSpec::new(name, &[1], DType::F32);
        let layout = TransitionSchema::new(part("obs"), part("actions"));
        let mut buffer = MmapReplayBuffer::create_with(&path, 4, 100, layout, Some(20)).unwrap();
        let anew = |buffer: MmapReplayBuffer| {
            if !again {
                return buffer;
            }
            drop(buffer);
            MmapReplayBuffer::open(&path, None).unwrap()
        };
        others(&mut buffer, 6);
        let first = buffer.state().unwrap();
        others(&mut buffer, 2);
        let second = buffer.state().unwrap();
        buffer = anew(buffer);
        buffer.load_state(&second).unwrap();
        buffer.load_state(&first).unwrap();
        buffer = anew(buffer);
        others(&mut buffer, 5);
        buffer = anew(buffer);
        let third = buffer.state().unwrap();
        let before = rows(&buffer).unwrap();
        let rejected = assert_rejects(buffer.load_state(&second), Error::Config, "arrays[\"timeline\"]");
        assert!(rejected.expected.contains("the first 8 rows"), "{rejected}");
        assert_eq!((buffer.indices(), rows(&buffer).unwrap() == before), (0..11, true));
        // Earlier rows are unchanged after any number of rollbacks.
        buffer.load_state(&third).unwrap();
        for _ in 0..40 {
            buffer.load_state(&first).unwrap();
            assert_eq!(rows(&buffer).unwrap(), before[..6]);
            assert!(buffer.load_state(&third).is_err());
            others(&mut buffer, 5);
            assert!(buffer.load_state(&third).is_err() && buffer.load_state(&second).is_err());
        }
    }
}

#[test]
fn rollbacks_to_rows_overwritten_by_dropped_rows_are_rejected() {
    let (_scratch, _, mut buffer) = new_buffer(3, 10, 4);
    push(&mut buffer, 0..16).unwrap();
    let early = buffer.state().unwrap();
    push(&mut buffer, 16..18).unwrap();
    let late = buffer.state().unwrap();
    push(&mut buffer, 18..21).unwrap();
    buffer.load_state(&late).unwrap();
    let rejected = assert_rejects(buffer.load_state(&early), Error::Config, "arrays[\"pushed\"]");
    assert!(rejected.got == "16" && rejected.expected.starts_with("a later state"), "{rejected}");
    assert_eq!(check(&buffer), 8..18);
    buffer.verify().unwrap();
}

#[test]
fn damaged_rows_behind_the_last_commit_are_dropped_by_the_next_write() {
    let (_scratch, path, mut buffer) = new_buffer(10, 50, 40);
    let len = buffer.cold.record.len;
    push(&mut buffer, 0..3).unwrap();
    buffer.flush().unwrap();
    (3..27).for_each(|row| push(&mut buffer, row..row + 1).unwrap());
    let held = buffer.hot_from..buffer.pushed;
    buffer.cold.write(&buffer.hot, held, &mut || Ok(())).unwrap();
    let mut damaged = fs::read(&path).unwrap();
    drop(buffer);
    let at = damaged.len() - 17 * len + 12;
    damaged[at] ^= 1;
    fs::write(&path, &damaged).unwrap();
    for _ in 0..2 {
        let buffer = MmapReplayBuffer::open(&path, None).unwrap();
        assert_eq!((check(&buffer), buffer.is_flushed()), (0..10, true));
        drop(buffer);
        assert_eq!(fs::read(&path).unwrap(), damaged);
    }
    // A flush commits the valid rows and leaves the others in the file.
    let mut buffer = MmapReplayBuffer::open(&path, None).unwrap();
    let state = buffer.state().unwrap();
    drop(buffer);
    let flushed = fs::read(&path).unwrap();
    assert_eq!(flushed[flushed.len() - 27 * len..], damaged[damaged.len() - 27 * len..]);
    for back in [false, true] {
        fs::write(&path, &flushed).unwrap();
        let mut buffer = MmapReplayBuffer::open(&path, None).unwrap();
        push(&mut buffer, 10..11).unwrap();
        if back {
            buffer.load_state(&state).unwrap();
            push(&mut buffer, 10..11).unwrap();
        }
        drop(buffer);
        assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()), 0..11);
    }
    // A row in place of the damaged one does not restore the rows behind it.
    let mut buffer = MmapReplayBuffer::open(&path, None).unwrap();
    buffer.load_state(&state).unwrap();
    push(&mut buffer, 10..11).unwrap();
    drop(buffer);
    assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()), 0..11);
}
