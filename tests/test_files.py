"""Files: locks of those that are replaced, and small ones that somebody wrote."""

import os
import threading
from pathlib import Path

import pytest

from rlox.files import locked, read_small, write_file


@pytest.mark.skipif(os.name == "nt", reason="needs locks of POSIX")
def test_a_file_that_is_replaced_while_somebody_waits_for_it_is_locked_all_the_same(tmp_path):
    file = tmp_path / "file"
    file.write_text("before")
    opened, has, end = threading.Event(), threading.Event(), threading.Event()

    def wait():
        opened.set()
        with locked(file):
            has.set()
            end.wait(30)

    waiting = threading.Thread(target=wait)
    with locked(file):
        waiting.start()
        opened.wait(30)
        has.wait(0.2)  # it has opened the file by now
        write_file(file, b"after")
    assert has.wait(30)
    with pytest.raises(BlockingIOError), locked(file, wait=False):
        pass
    end.set()
    waiting.join()
    with locked(file, wait=False):
        pass


def test_a_small_file_has_at_most_so_many_bytes(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert read_small(file, 3) == b"abc"
    with pytest.raises(ValueError, match="expected at most 2 bytes, got more in "):
        read_small(file, 2)
    with pytest.raises(OSError, match="directory"):
        read_small(tmp_path, 3)
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none", 3)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX devices")
def test_what_never_ends_is_refused_and_a_pipe_is_read(tmp_path):
    with pytest.raises(ValueError, match="expected at most 3 bytes, got more in /dev/zero"):
        read_small(Path("/dev/zero"), 3)
    ours, theirs = os.pipe()
    os.write(theirs, b"abc")
    os.close(theirs)
    assert read_small(Path(f"/dev/fd/{ours}"), 3) == b"abc"
    os.close(ours)
