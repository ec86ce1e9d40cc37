"""The run folder: where it may be, and its rows."""

import os
from pathlib import Path

import pytest

from rlox.logger import RunFolder, expect_root


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


def test_metrics_file_is_rewritten_once_per_new_column(tmp_path, monkeypatch):
    replaced, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (replaced.append(1), replace(*paths)))
    run = RunFolder(tmp_path)
    for row in range(1000):
        run.log({"a": row} | ({"eval": row} if row % 100 == 50 else {}))
        run.flush()
    assert len(replaced) == 2  # the header, and the column


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


def test_a_row_that_was_cut_off_is_removed(tmp_path):
    (tmp_path / "metrics.csv").write_text("time/time_elapsed,a\n2.5,1\n3.5,")
    run = RunFolder(tmp_path)
    assert run.metrics.elapsed == 2.5
    run.log({"time/time_elapsed": 4.0, "a": 2})
    assert (tmp_path / "metrics.csv").read_text() == "time/time_elapsed,a\n2.5,1\n4.0,2\n"


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
