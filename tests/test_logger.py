"""The run folder: where it may be, and its rows."""

import itertools
import os
import sys
from pathlib import Path

import pytest

from rlox.logger import RunFolder, expect_root
from rlox.logger.csv_file import MetricsFile
from rlox.metrics import forget_after


def test_rows_go_on_after_those_that_are_there(tmp_path):
    RunFolder(tmp_path).log({"a": 1, "b": float("nan")})
    RunFolder(tmp_path).log({"b": 3, "a": 2})
    assert (tmp_path / "metrics.csv").read_text() == "a,b\n1,nan\n2,3\n"


def test_a_new_metric_is_a_new_column_and_rows_without_it_are_empty_there(tmp_path):
    run, path = RunFolder(tmp_path), tmp_path / "metrics.csv"
    run.log({"a": 1})
    run.log({"a": 2, "b, c": 3})
    run.log({"a": 4})
    run.flush()
    assert path.read_text() == 'a,"b, c"\n1,\n2,3\n4,\n'
    again = RunFolder(tmp_path)
    again.log({"d": 5, "a": 6})
    again.flush()
    assert path.read_text() == 'a,"b, c",d\n1,,\n2,3,\n4,,\n6,,5\n'
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_the_file_is_written_anew_once_for_a_new_column(tmp_path, monkeypatch):
    replaced, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (replaced.append(1), replace(*paths)))
    run = RunFolder(tmp_path)
    for row in range(1000):
        run.log({"a": row} | ({"eval": row} if row % 100 == 50 else {}))
        run.flush()
    assert len(replaced) == 1


def test_rows_with_a_metric_that_comes_now_and_then_are_all_kept(tmp_path):
    run = RunFolder(tmp_path)
    for row in range(1, 12_001):
        run.log({"a": row} | ({"eval": row} if row in (11_111, 11_112) else {}))
    run.flush()
    rows = (tmp_path / "metrics.csv").read_text().splitlines()[1:]
    assert len(rows) == 9_999 + 201 + 2
    assert "11111,11111" in rows
    assert "11112,11112" in rows


def rows_to(folder, first, last):
    run = RunFolder(folder)
    for row in range(first, last + 1):
        sometimes = {"eval": row} if row > 1 and row % 700 == 1 else {}
        run.log({"time/iterations": row, "time/total_timesteps": 32 * row, **sometimes})
    run.flush()


@pytest.mark.parametrize("at", [11_200, 11_204])
def test_the_rows_of_a_long_run_that_was_resumed_are_those_of_one_that_was_not(tmp_path, at):
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    rows_to(tmp_path / "whole", 1, 15_000)
    rows_to(tmp_path / "resumed", 1, at + 300)
    file = tmp_path / "resumed" / "metrics.csv"
    forget_after(file, 32 * at)
    rows_to(tmp_path / "resumed", at + 1, 15_000)  # the first one after 11,200 has an `eval`
    whole = (tmp_path / "whole" / "metrics.csv").read_text()
    assert file.read_text() == whole
    evaluated = sum(1 for row in range(10_000, 15_001) if row % 700 == 1 and row % 10)
    assert len(whole.splitlines()) == 1 + 9_999 + 501 + evaluated


def test_iterations_that_count_anew_are_further_rows(tmp_path):
    run = RunFolder(tmp_path)
    for _ in range(2):
        for row in range(1, 8_001):
            run.log({"time/iterations": row})
    run.flush()
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 9_999 + 601
    again = RunFolder(tmp_path)
    for row in range(1, 101):
        again.log({"time/iterations": row})
    again.flush()
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 9_999 + 611


def test_rows_are_written_within_a_second_or_when_told_and_in_order(tmp_path, monkeypatch):
    now = [10.0]
    monkeypatch.setattr("rlox.logger.csv_file.time.monotonic", lambda: now[0])
    run, path = RunFolder(tmp_path), tmp_path / "metrics.csv"
    for row in range(3):
        run.log({"a": row})
    assert path.read_text() == "a\n0\n"
    now[0] += 1.0
    run.log({"a": 3})
    assert path.read_text() == "a\n0\n1\n2\n3\n"
    run.log({"a": 4})
    run.flush()
    run.flush()
    assert path.read_text() == "a\n0\n1\n2\n3\n4\n"


def test_rows_that_could_not_be_written_wait(tmp_path):
    run = RunFolder(tmp_path)
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(OSError, match="metrics"):
        run.log({"a": 1})
    (tmp_path / "metrics.csv").rmdir()
    run.log({"a": 2})
    assert (tmp_path / "metrics.csv").read_text() == "a\n1\n2\n"


class Interrupted:
    """Within it, Ctrl-C comes at the n-th bytecode of a function; `came` says whether it did."""

    def __init__(self, function, n):
        self.code, self.left, self.came = function.__code__, n, False

    def trace(self, frame, event, _):
        frame.f_trace_opcodes = frame.f_code is self.code
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.came = True
                raise KeyboardInterrupt
        return self.trace if frame.f_code is self.code else None

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(self.before)
        return kind is KeyboardInterrupt


# A file that has just been opened is closed when nobody has it any more.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_are_written_once_wherever_an_interrupt_comes(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlox.logger.csv_file.time.monotonic", lambda: now[0])
    for n in itertools.count(1):
        path = tmp_path / str(n)
        path.mkdir()
        run = RunFolder(path)
        run.log({"a": 0})
        run.log({"a": 1})
        run.log({"a": 2})
        with Interrupted(MetricsFile.flush, n) as interrupted:
            run.flush()
        run.flush()
        now[0] += 1.0
        run.log({"a": 3})
        assert (path / "metrics.csv").read_text() == "a\n0\n1\n2\n3\n", n
        if not interrupted.came:
            break
    assert n > 50


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("function", [MetricsFile.flush, MetricsFile._widen])
def test_rows_are_written_once_wherever_an_interrupt_comes_as_a_column_is_added(tmp_path, function):
    for n in itertools.count(1):
        path = tmp_path / str(n)
        path.mkdir()
        run = RunFolder(path)
        run.log({"a": 0})
        run.log({"a": 1, "b": 2})
        with Interrupted(function, n) as interrupted:
            run.flush()
        run.log({"c": 4, "a": 3})
        with Interrupted(function, n):
            run.flush()
        run.flush()
        assert (path / "metrics.csv").read_text() == "a,b,c\n0,,\n1,2,\n3,,4\n", n
        if not interrupted.came:
            break
    assert n > 30


def test_a_folder_that_can_be_made_is_not_made_yet(tmp_path):
    assert expect_root(None) is None
    for root in (tmp_path, str(tmp_path), tmp_path / "a" / "b", "not/yet/there"):
        assert expect_root(root) == Path(root)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("root", [3, b"runs", True, ["runs"]])
def test_what_is_no_path_is_refused(root):
    with pytest.raises(TypeError, match=r"runs_dir: expected a folder .* got .* pass a str"):
        expect_root(root)


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_a_file_is_no_folder(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"runs_dir: expected .* where .*file is no folder"):
        expect_root(tmp_path / "file" / below)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ValueError, match="cannot be written"):
        expect_root(tmp_path / "locked" / "runs")


def test_a_path_that_no_system_has_is_refused():
    with pytest.raises(ValueError, match="runs_dir: expected"):
        expect_root("runs\0")
