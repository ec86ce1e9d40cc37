"""The console, JSON lines and TensorBoard's events hold what the run was."""

import io
import json
import math
import shutil

import pytest

from rlox.logger import ConsoleLogger, JSONLinesLogger, TensorBoardLogger
from rlox.metrics import forget_lines_after
from rlox.restoring import go_on_in
from rlox.trainers import PPOTrainer
from support.runs import NotingLogger, small


def test_the_console_shows_tables_now_and_then(capsys):
    small().train(96, loggers=[ConsoleLogger(every=64)])
    out = capsys.readouterr().out
    tables = [dict(cells(table)) for table in out.strip().split("\n\n")]
    assert [table["time/total_timesteps"] for table in tables] == ["32", "64", "96"]
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


def killed_and_resumed(folder, logger):
    """The run folder of a run that logged 128 steps, and goes on from a checkpoint at 64."""
    trainer = small(runs_dir=folder)

    def save(trainer, metrics):
        if trainer.timesteps == 64:
            trainer.save(folder / "half")

    trainer.train(128, callbacks=[save], loggers=[logger()])
    shutil.rmtree(trainer.run.path / "checkpoint")  # as if the run was killed before its end
    half = PPOTrainer.load(folder / "half", runs_dir=None)
    go_on_in(half, trainer.run.path)
    half.train(96, loggers=[logger()])
    return trainer.run.path


def test_json_lines_of_steps_that_are_made_again_are_left_out(tmp_path):
    run = killed_and_resumed(tmp_path, lambda: JSONLinesLogger(every=1))
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert [line["time/total_timesteps"] for line in lines] == [32, 64, 96, 128, 160]


def test_lines_that_are_none_and_one_that_was_cut_off_are_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    forget_lines_after(file, 3)  # there is none
    assert not file.exists()
    lines = ['{"time/total_timesteps": 2, "a": null}', "[1]", '{"a": 1}', "{", "\xff"]
    more = ['{"time/total_timesteps": 4}', '{"time/total_timesteps": 6}', '{"time/total_times']
    file.write_text("\n".join([*lines, *more]))
    forget_lines_after(file, 4)
    assert file.read_text() == f"{lines[0]}\n{more[0]}\n"


def test_tensorboard_forgets_steps_that_are_made_again(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra rlox[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = killed_and_resumed(tmp_path, lambda: TensorBoardLogger(every=1))
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    said = [event.step for event in events.Scalars("train/loss")]
    assert said == [32, 64, 96, 128, 160]
