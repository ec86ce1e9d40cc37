"""File locks survive replacement, and reads of small files have a size limit."""

import os
import threading
from pathlib import Path

import pytest

from rlox import ArgumentError
from rlox._files import locked, read_small, write_file
from support.rejections import Rejection, expect_rejection


@pytest.mark.skipif(os.name == "nt", reason="needs locks of POSIX")
def test_lock_follows_a_file_that_is_replaced_during_the_wait(tmp_path):
    file = tmp_path / "file"
    file.write_text("before")
    waiting, acquired, end = threading.Event(), threading.Event(), threading.Event()

    def wait():
        waiting.set()
        with locked(file):
            acquired.set()
            end.wait(30)

    thread = threading.Thread(target=wait)
    with locked(file):
        thread.start()
        waiting.wait(30)
        acquired.wait(0.2)  # time in which the thread opens the file
        write_file(file, b"after")
    assert acquired.wait(30)
    with pytest.raises(BlockingIOError), locked(file, wait=False):
        pass
    end.set()
    thread.join()
    with locked(file, wait=False):
        pass


def test_small_files_and_pipes_are_read_up_to_a_limit(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert read_small(file, 3) == b"abc"
    expect_rejection(Rejection(read_small, ArgumentError, "path"), file, 2)
    with pytest.raises(IsADirectoryError):
        read_small(tmp_path, 3)
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none", 3)
    if os.name != "nt":
        expect_rejection(Rejection(read_small, ArgumentError, "path"), Path("/dev/zero"), 3)
        reader, writer = os.pipe()
        os.write(writer, b"abc")
        os.close(writer)
        assert read_small(Path(f"/dev/fd/{reader}"), 3) == b"abc"
        os.close(reader)
