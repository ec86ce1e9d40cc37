"""The console, JSON lines and TensorBoard's events hold what the run was."""

import io
import json
import math

import pytest

from rlox.logger import ConsoleLogger, JSONLinesLogger, TensorBoardLogger
from toy_runs import NotingLogger, small


def test_the_console_shows_tables_now_and_then(capsys):
    small().train(96, loggers=[ConsoleLogger(every=64)])
    out = capsys.readouterr().out
    tables = [dict(cells(table)) for table in out.strip().split("\n\n")]
    assert [table["time/total_timesteps"] for table in tables] == ["32", "96"]
    assert {"time/fps", "train/loss", "train/approx_kl"} <= tables[0].keys()
    assert "nan" not in out


def cells(table):
    for line in table.splitlines():
        _, name, value, _ = map(str.strip, line.split("|"))
        yield name, value


def test_the_console_may_be_another_stream(capsys):
    stream = io.StringIO()
    small().train(32, loggers=[ConsoleLogger(stream=stream)])
    assert "| time/total_timesteps " in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_json_lines_are_strict_and_hold_every_row(tmp_path):
    told, trainer = NotingLogger(), small(runs_dir=tmp_path)
    trainer.train(96, loggers=[JSONLinesLogger(every=1), told])
    lines = (trainer.run.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert rows == [
        {name: None if math.isnan(x) else x for name, x in row.items()} for _, row in told.rows
    ]
    trainer.train(32, loggers=["jsonl"])
    assert len((trainer.run.path / "metrics.jsonl").read_text().splitlines()) == 4


def test_tensorboard_reads_the_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra rlox[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told, trainer = NotingLogger(), small(runs_dir=tmp_path)
    trainer.train(96, loggers=[TensorBoardLogger(every=1), told])
    events = EventAccumulator(str(trainer.run.path / "tensorboard"))
    events.Reload()
    wanted = {}
    for steps, row in told.rows:
        for name, value in row.items():
            if not math.isnan(value):
                wanted.setdefault(name, []).append((steps, pytest.approx(value, rel=1e-6)))
    assert set(events.Tags()["scalars"]) == set(wanted)
    for name, values in wanted.items():
        assert [(event.step, event.value) for event in events.Scalars(name)] == values
