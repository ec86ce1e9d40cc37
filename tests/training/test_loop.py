"""Order of callbacks and loggers, rows that they receive, and errors of callbacks."""

import json
import re
import traceback
from fractions import Fraction
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, ClosedError
from rlox.callbacks import Callback
from rlox.trainers import PPOTrainer
from support.checkpoints import assert_networks_equal
from support.rejections import rejects
from support.runs import Noting, NotingLogger, small

PAGE = Path(__file__).resolve().parents[2] / "docs/callbacks.md"


def test_callbacks_and_loggers_are_called_in_the_documented_order():
    notes = []
    callbacks = [Noting("first callback", notes), Noting("second callback", notes)]
    loggers = [NotingLogger("first logger", notes), NotingLogger("second logger", notes)]
    small().train(32, callbacks=callbacks, loggers=loggers)
    documented = re.findall(r"^\| \d+ \| `(\w+)` of ([^|]+?) \|", PAGE.read_text(), re.MULTILINE)
    assert len(documented) == 7
    expected = []
    for method, receiver in documented:
        kind = "logger" if "logger" in receiver else "callback"
        names = [f"first {kind}", f"second {kind}"]
        if "the last first" in receiver:
            names.reverse()
        expected += [(name, method) for name in names]
    assert notes == expected


def test_metrics_of_a_callback_reach_later_callbacks_and_loggers(tmp_path):
    got, logger = [], NotingLogger()
    trainer = small(runs_dir=tmp_path)
    callbacks = [Noting("a", [], {"own/score": 7.0}), lambda _, row: got.append(row["own/score"])]
    trainer.train(64, callbacks=callbacks, loggers=[logger])
    assert got == [7.0, 7.0]
    assert [(steps, row["own/score"]) for steps, row in logger.rows] == [(32, 7.0), (64, 7.0)]
    header, *rows = (trainer.run.path / "metrics.csv").read_text().splitlines()
    assert header.endswith(",own/score")
    assert [row.rpartition(",")[2] for row in rows] == ["7.0", "7.0"]


@pytest.mark.parametrize("added", [{"own": "seven"}, {"time/fps": "fast"}], ids=["new", "replaced"])
def test_non_numeric_metrics_end_the_run_after_saving(tmp_path, added):
    trainer = small(runs_dir=tmp_path)
    with rejects(ArgumentTypeError, "metrics") as raised:
        trainer.train(64, callbacks=[Noting("a", [], added)])
    ((name, value),) = added.items()
    assert f"{name!r}: {value!r} from Noting" in raised.value.got
    assert value not in (trainer.run.path / "metrics.csv").read_text()
    assert PPOTrainer.load(trainer.run.path, runs_dir=None).timesteps == 32


def test_function_callback_with_other_parameters_is_rejected_before_training():
    trainer = small()
    with rejects(ArgumentTypeError, "callbacks", expected="a function of (run, metrics)"):
        trainer.train(64, callbacks=[lambda trainer: None])
    assert (trainer.timesteps, trainer.run.budget_end) == (0, 0)


class EndRecorder(Callback):
    def __init__(self, name, ended, error=None):
        self.name, self.ended, self.error = name, ended, error

    def on_train_end(self, run):
        self.ended.append(self.name)
        if self.error is not None:
            raise self.error


def test_error_in_on_train_end_calls_the_other_callbacks_and_saves_the_run(tmp_path):
    ended = []
    callbacks = [EndRecorder("a", ended), EndRecorder("b", ended, RuntimeError("b")), EndRecorder("c", ended)]
    trainer = small(runs_dir=tmp_path)
    with pytest.raises(RuntimeError, match="b"):
        trainer.train(64, callbacks=callbacks)
    assert ended == ["c", "b", "a"]
    assert PPOTrainer.load(trainer.run.path / "checkpoint", runs_dir=None).timesteps == 64


def test_on_train_end_is_called_only_for_started_callbacks():
    class FailsAtStart(EndRecorder):
        def on_train_start(self, run):
            raise RuntimeError("not today")

    ended = []
    with pytest.raises(RuntimeError, match="not today"):
        small().train(64, callbacks=[EndRecorder("a", ended), FailsAtStart("b", ended), EndRecorder("c", ended)])
    assert ended == ["a"]


class FailingCallback(Callback):
    def __init__(self, method):
        setattr(self, method, self.fail)

    def fail(self, run, metrics):
        if run.budget_used >= 64:
            raise RuntimeError("mine")


@pytest.mark.parametrize("method", ["on_iteration", "on_row_logged"])
def test_error_of_a_callback_is_raised_unchanged_after_the_run_is_saved(tmp_path, method):
    trainer, logger, notes = small(runs_dir=tmp_path), NotingLogger(), []
    with pytest.raises(RuntimeError, match="mine") as raised:
        trainer.train(128, callbacks=[Noting("a", notes), FailingCallback(method)], loggers=[logger])
    assert traceback.extract_tb(raised.tb)[-1].name == "fail"
    assert (raised.value.__context__, raised.value.__cause__) == (None, None)
    run = trainer.run.path
    assert json.loads((run / "summary.json").read_text())["timesteps"] == 64
    assert len((run / "metrics.csv").read_text().splitlines()) == 3
    assert notes[-1] == ("a", "on_train_end")
    assert ([steps for steps, _ in logger.rows], logger.results) == ([32, 64], [None])
    resumed = PPOTrainer.load(run, runs_dir=None)
    uninterrupted = small()
    uninterrupted.train(128)
    resumed.train()
    assert resumed.timesteps == 128
    assert_networks_equal(resumed, uninterrupted)


def test_failed_save_does_not_hide_the_error_of_a_callback(tmp_path):
    trainer = small(runs_dir=tmp_path)

    def fail(run, metrics):
        (run.path / "checkpoint").write_text("in the way")
        raise RuntimeError("mine")

    warning = pytest.warns(UserWarning, match=r"could not be saved after RuntimeError \(FileExistsError: ")
    with warning, pytest.raises(RuntimeError, match="mine") as raised:
        trainer.train(32, callbacks=[fail])
    assert (raised.value.__context__, raised.value.__cause__) == (None, None)


class FailingEnv(gym.Wrapper):
    """Environment whose 100th step raises an error."""

    steps_done = 0

    def step(self, action):
        self.steps_done += 1
        if self.steps_done == 100:
            raise RuntimeError("simulator died")
        return super().step(action)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_error_of_an_environment_is_raised_after_the_run_is_saved(tmp_path, backend):
    trainer = small(lambda: FailingEnv(gym.make("CartPole-v1")), runs_dir=tmp_path, backend=backend)
    with pytest.raises(RuntimeError, match="simulator died") as raised:
        trainer.train(640)
    assert "step" in [frame.name for frame in traceback.extract_tb(raised.tb)]
    run = trainer.run.path
    summary = json.loads((run / "summary.json").read_text())
    assert trainer.timesteps == summary["timesteps"] > 100
    assert summary["stopped_by"] == "RuntimeError: simulator died"
    assert summary["interrupted"] is False
    loaded = PPOTrainer.load(run, env="CartPole-v1", runs_dir=None)
    assert_networks_equal(loaded, trainer)
    with pytest.warns(UserWarning, match="new episodes"):
        assert loaded.train()["timesteps"] >= 640


def test_loggers_receive_plain_numbers(tmp_path):
    added = {"a": np.float32(0.5), "b": np.int64(3), "c": Fraction(1, 4), "d": True}
    trainer, logger = small(runs_dir=tmp_path), NotingLogger()
    trainer.train(32, callbacks=[Noting("a", [], added)], loggers=[logger, "jsonl"])
    ((_, row),) = logger.rows
    expected = [(float, 0.5), (int, 3), (float, 0.25), (int, 1)]
    assert [(type(row[name]), row[name]) for name in added] == expected
    assert json.loads((trainer.run.path / "metrics.jsonl").read_text())["a"] == 0.5


def test_row_of_a_failing_callback_contains_only_numbers():
    def fail(run, metrics):
        metrics.update({"own": "seven", "other": np.float64(7)})
        raise RuntimeError("mine")

    logger = NotingLogger()
    with pytest.raises(RuntimeError, match="mine"):
        small().train(64, callbacks=[fail], loggers=[logger])
    ((_, row),) = logger.rows
    assert "own" not in row
    assert type(row["other"]) is float


def test_a_call_of_train_during_another_call_is_rejected():
    trainer = small()
    errors = []

    def train_again(run, metrics):
        with pytest.raises(ClosedError) as raised:
            trainer.train(64)
        errors.append(raised.value.argument)

    result = trainer.train(64, callbacks=[train_again])
    assert (result["timesteps"], errors) == (64, ["train", "train"])


def test_a_call_that_fails_at_its_start_keeps_the_end_of_an_interrupted_run():
    class FailingAtStart(Callback):
        def on_train_start(self, run):
            raise RuntimeError("mine")

    trainer = small()
    trainer.train(128, callbacks=[lambda run, metrics: run.stop()])
    with pytest.raises(RuntimeError, match="mine"):
        trainer.train(32, callbacks=[FailingAtStart()])
    assert trainer.train()["timesteps"] == 128


def test_an_empty_reason_to_stop_is_rejected():
    trainer = small()
    with rejects(ArgumentError, "reason"):
        trainer.stop("")
