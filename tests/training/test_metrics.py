"""`metrics.csv` has each row once after interrupts, and its header after it was removed."""

import csv
import sys

import pytest

from rlox.logger import files
from rlox.logger.files import MetricsFile


def _metrics_file(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    file.log({"a": 1})
    file.flush()
    return file


def test_metrics_file_writes_its_header_again_after_it_was_removed(tmp_path):
    file = _metrics_file(tmp_path)
    file.path.unlink()
    file.log({"a": 2})
    file.flush()
    assert file.path.read_text() == "a\n2\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of open files
def test_interrupted_flush_writes_each_row_once(tmp_path):
    """Interrupt before each line of `flush` in turn."""
    code = MetricsFile.flush.__code__
    interrupted = 0
    for number in range(100):
        file = _metrics_file(tmp_path)
        file._rows = [{"a": 2}]
        lines = iter(range(number + 1))

        def trace(frame, event, arg, lines=lines):
            if frame.f_code is code and event == "line" and next(lines, None) is None:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace if frame.f_code is code else None

        sys.settrace(trace)
        try:
            file.flush()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        file.flush()
        assert file.path.read_text() == "a\n1\n2\n", number
        file.path.unlink()
        if next(lines, None) is not None:
            break
    assert interrupted > 5


def test_interrupted_addition_of_columns_adds_them_once(tmp_path, monkeypatch):
    file = _metrics_file(tmp_path)
    write_file = files.write_file

    def interrupted(path, data):
        write_file(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_file", interrupted)
    file._rows = [{"a": 2, "b": 3}]
    with pytest.raises(KeyboardInterrupt):
        file.flush()
    monkeypatch.undo()
    file.flush()
    rows = list(csv.reader(file.path.read_text().splitlines()))
    assert rows == [["a", "b"], ["1", ""], ["2", "3"]]
