"""`metrics.csv` contains each row once after interrupts and a new header after removal."""

import csv
import sys

import pytest

from rlox.logger import files
from rlox.logger.files import MetricsFile


def make_metrics_file(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    file.log({"a": 1})
    file.flush()
    return file


def test_removed_metrics_file_gets_a_new_header(tmp_path):
    file = make_metrics_file(tmp_path)
    file.path.unlink()
    file.log({"a": 2})
    file.flush()
    assert file.path.read_text() == "a\n2\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files stay open
def test_interrupted_flush_writes_each_row_once(tmp_path):
    """Interrupt `flush` before each of its lines in turn."""
    code = MetricsFile.flush.__code__
    interrupted = 0
    for line in range(100):
        file = make_metrics_file(tmp_path)
        file._rows = [{"a": 2}]
        steps = iter(range(line + 1))

        def trace(frame, event, arg, steps=steps):
            if frame.f_code is code and event == "line" and next(steps, None) is None:
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
        assert file.path.read_text() == "a\n1\n2\n", line
        file.path.unlink()
        if next(steps, None) is not None:
            break
    assert interrupted > 5


def test_interrupted_addition_of_columns_adds_them_once(tmp_path, monkeypatch):
    file = make_metrics_file(tmp_path)
    write_file = files.write_file

    def write_and_interrupt(path, data):
        write_file(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_file", write_and_interrupt)
    file._rows = [{"a": 2, "b": 3}]
    with pytest.raises(KeyboardInterrupt):
        file.flush()
    monkeypatch.undo()
    file.flush()
    rows = list(csv.reader(file.path.read_text().splitlines()))
    assert rows == [["a", "b"], ["1", ""], ["2", "3"]]
