"""Rows of a run in `metrics.csv`, on the console, in JSON lines and in TensorBoard events."""

import io
import json
import math
import os
from pathlib import Path

import pytest

from rlox import ArgumentError, ArgumentTypeError
from rlox._training.metrics_files import remove_lines_after
from rlox._training.run_folder import RunFolder, check_runs_dir
from rlox.logger import ConsoleLogger, JSONLinesLogger, TensorBoardLogger
from support.runs import NotingLogger, load_half, small, train_half


def test_rows_are_appended_to_an_existing_file(tmp_path):
    RunFolder(tmp_path).metrics.log({"a": 1, "b": float("nan")})
    RunFolder(tmp_path).metrics.log({"b": 3, "a": 2})
    assert (tmp_path / "metrics.csv").read_text() == "a,b\n1,nan\n2,3\n"


def test_new_metric_adds_a_column_with_empty_cells_for_other_rows(tmp_path):
    run, path = RunFolder(tmp_path), tmp_path / "metrics.csv"
    run.metrics.log({"a": 1})
    run.metrics.log({"a": 2, "b, c": 3})
    run.metrics.log({"a": 4})
    run.metrics.flush()
    assert path.read_text() == 'a,"b, c"\n1,\n2,3\n4,\n'
    reopened = RunFolder(tmp_path)
    reopened.metrics.log({"d": 5, "a": 6})
    reopened.metrics.flush()
    assert path.read_text() == 'a,"b, c",d\n1,,\n2,3,\n4,,\n6,,5\n'
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_metrics_file_is_rewritten_once_per_new_column(tmp_path, monkeypatch):
    replaced, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (replaced.append(1), replace(*paths)))
    run = RunFolder(tmp_path)
    for row in range(1000):
        run.metrics.log({"a": row} | ({"eval": row} if row % 100 == 50 else {}))
        run.metrics.flush()
    assert len(replaced) == 2  # the header and the new column


def test_rows_are_buffered_for_at_most_a_second(tmp_path, monkeypatch):
    clock = [10.0]
    monkeypatch.setattr("rlox.logger.files.time.monotonic", lambda: clock[0])
    run, path = RunFolder(tmp_path), tmp_path / "metrics.csv"
    for row in range(3):
        run.metrics.log({"a": row})
    assert path.read_text() == "a\n0\n"
    clock[0] += 1.0
    run.metrics.log({"a": 3})
    assert path.read_text() == "a\n0\n1\n2\n3\n"
    run.metrics.log({"a": 4})
    run.metrics.flush()
    run.metrics.flush()
    assert path.read_text() == "a\n0\n1\n2\n3\n4\n"


def test_rows_are_buffered_until_the_file_is_writable(tmp_path):
    run = RunFolder(tmp_path)
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        run.metrics.log({"a": 1})
    assert raised.value.filename == str(tmp_path / "metrics.csv")
    (tmp_path / "metrics.csv").rmdir()
    run.metrics.log({"a": 2})
    assert (tmp_path / "metrics.csv").read_text() == "a\n1\n2\n"


def test_incomplete_last_row_is_removed(tmp_path):
    (tmp_path / "metrics.csv").write_text("time/time_elapsed,a\n2.5,1\n3.5,")
    run = RunFolder(tmp_path)
    assert run.metrics.elapsed == 2.5
    run.metrics.log({"time/time_elapsed": 4.0, "a": 2})
    assert (tmp_path / "metrics.csv").read_text() == "time/time_elapsed,a\n2.5,1\n4.0,2\n"


def test_check_runs_dir_does_not_create_the_folder(tmp_path):
    assert check_runs_dir(None) is None
    for root in (tmp_path, str(tmp_path), tmp_path / "a" / "b", "not/yet/there"):
        assert check_runs_dir(root) == Path(root)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("root", "error"),
    [
        (b"runs", ArgumentTypeError),
        (["runs"], ArgumentTypeError),
        ("runs\0", ArgumentError),
        (__file__, ArgumentError),
        (f"{__file__}/a/b", ArgumentError),
    ],
    ids=["bytes", "list", "null", "file", "below a file"],
)
def test_check_runs_dir_rejects_other_values_than_folder_paths(root, error):
    with pytest.raises(error) as raised:
        check_runs_dir(root)
    assert raised.value.argument == "runs_dir"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_check_runs_dir_rejects_unwritable_folders(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ArgumentError) as raised:
        check_runs_dir(tmp_path / "locked" / "runs")
    assert raised.value.argument == "runs_dir"


def table_cells(table):
    for line in table.splitlines():
        _, name, value, _ = map(str.strip, line.split("|"))
        yield name, value


def test_console_prints_tables_to_a_stream(capsys):
    stream = io.StringIO()
    small().train(96, loggers=[ConsoleLogger(every=64), ConsoleLogger(stream=stream)])
    out = capsys.readouterr().out
    tables = [dict(table_cells(table)) for table in out.strip().split("\n\n")]
    assert [table["time/total_timesteps"] for table in tables] == ["32", "64", "96"]
    assert {"time/fps", "train/loss", "train/approx_kl"} <= tables[0].keys()
    assert "nan" not in out
    assert dict(table_cells(stream.getvalue().split("\n\n")[0])) == tables[0]


def test_json_lines_are_strict_json_and_contain_every_row(tmp_path):
    recorder, trainer = NotingLogger(), small(runs_dir=tmp_path)
    trainer.train(96, loggers=[JSONLinesLogger(every=1), recorder])
    lines = (trainer.run.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    plain = [{n: None if math.isnan(x) else x for n, x in row.items()} for _, row in recorder.rows]
    assert rows == plain
    trainer.train(32, loggers=["jsonl"])
    assert len((trainer.run.path / "metrics.jsonl").read_text().splitlines()) == 4


def read_scalars(run):
    """Return the steps and values of TensorBoard's scalars by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


@pytest.mark.services
def test_tensorboard_reads_all_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra rlox[tensorboard] is not installed")
    recorder, trainer = NotingLogger(), small(runs_dir=tmp_path)
    trainer.train(96, loggers=[TensorBoardLogger(every=1), recorder])
    expected = {}
    for steps, row in recorder.rows:
        for name, value in row.items():
            if not math.isnan(value):
                expected.setdefault(name, []).append((steps, pytest.approx(value, rel=1e-6)))
    assert read_scalars(trainer.run.path) == expected


def resume_killed_run(folder, logger):
    """Return the folder of a run with 128 logged steps that resumes from a checkpoint at 64."""
    run = train_half(folder, folder, logger)
    load_half(folder, run).train(96, loggers=[logger(every=1)])
    return run


def test_resumed_run_replaces_json_lines(tmp_path):
    run = resume_killed_run(tmp_path, JSONLinesLogger)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert [line["time/total_timesteps"] for line in lines] == [32, 64, 96, 128, 160]


def test_remove_lines_after_drops_invalid_and_incomplete_lines(tmp_path):
    file = tmp_path / "metrics.jsonl"
    remove_lines_after(file, 3)  # the file does not exist
    assert not file.exists()
    lines = ['{"time/total_timesteps": 2, "a": null}', "[1]", '{"a": 1}', "{", "\xff"]
    more = ['{"time/total_timesteps": 4}', '{"time/total_timesteps": 6}', '{"time/total_times']
    file.write_text("\n".join([*lines, *more]))
    remove_lines_after(file, 4)
    assert file.read_text() == f"{lines[0]}\n{more[0]}\n"


@pytest.mark.services
def test_resumed_run_replaces_scalars_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra rlox[tensorboard] is not installed")
    run = resume_killed_run(tmp_path, TensorBoardLogger)
    assert [step for step, _ in read_scalars(run)["train/loss"]] == [32, 64, 96, 128, 160]
