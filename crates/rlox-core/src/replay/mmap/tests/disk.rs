//! Tests with failing disks.

use super::*;

#[test]
fn disk_failures_at_any_call_lose_no_stored_row() {
    for first in 0..60 {
        let (_scratch, path, mut buffer) = new_buffer(3, 10, 4);
        buffer.cold.disk.faults.remaining.set(Some(first));
        let (mut num_stored, mut failed) = (0, 0);
        for _ in 0..40 {
            match push(&mut buffer, num_stored..num_stored + 1) {
                Ok(()) => num_stored += 1,
                Err(Error::Io { .. }) => failed += 1,
                Err(other) => panic!("{other}"),
            }
            if num_stored % 7 == 0 {
                failed += usize::from(buffer.flush().is_err());
            }
            assert_eq!(buffer.indices().end, num_stored);
        }
        assert!(failed > 0 || first > 20, "{first}");
        buffer.cold.disk.faults.remaining.set(None);
        assert_eq!(check(&buffer), num_stored.saturating_sub(10)..num_stored);
        push(&mut buffer, num_stored..num_stored + 2).unwrap();
        assert_eq!(check(&buffer).end, num_stored + 2);
        drop(buffer);
        assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()).end, num_stored + 2);
    }
}

#[test]
fn pushes_larger_than_memory_are_split_and_smaller_ones_are_atomic() {
    let (_scratch, _path, mut buffer) = new_buffer(5, 20, 4);
    push(&mut buffer, 0..5).unwrap();
    buffer.cold.disk.faults.remaining.set(Some(0));
    assert!(matches!(push(&mut buffer, 5..10), Err(Error::Io { .. })));
    assert_eq!(buffer.indices(), 0..5);
    // The writes of the first piece succeed.
    buffer.cold.disk.faults.remaining.set(Some(5));
    let text = push(&mut buffer, 5..17).unwrap_err().to_string();
    assert!(text.ends_with("; 5 of 12 rows were stored"), "{text}");
    buffer.cold.disk.faults.remaining.set(None);
    assert_eq!(check(&buffer), 0..10);
}

#[test]
fn rows_lost_by_a_failing_disk_are_written_again() {
    for (hot, writes, lost) in [(10, 2, false), (2, 1, true)] {
        let (_scratch, path, mut buffer) = new_buffer(hot, 50, 40);
        push(&mut buffer, 0..8).unwrap();
        buffer.flush().unwrap();
        let before = fs::read(&path).unwrap();
        (8..16).for_each(|row| push(&mut buffer, row..row + 1).unwrap());
        // All writes succeed, but the sync reports that they were lost.
        buffer.cold.disk.faults.remaining.set(Some(writes));
        assert!(matches!(buffer.flush(), Err(Error::Io { .. })) && buffer.cold.written == 16);
        fs::write(&path, &before).unwrap();
        buffer.cold.disk.faults.remaining.set(None);
        if lost {
            // Some lost rows were only in the file.
            assert_eq!(corrupt(buffer.flush(), &path).at.section.as_deref(), Some("record 8"));
            continue;
        }
        buffer.flush().unwrap();
        drop(buffer);
        assert_eq!(check(&MmapReplayBuffer::open(&path, None).unwrap()), 0..16);
    }
}
