"""Warnings name a line of the program that called rlox."""

import warnings
from pathlib import Path

import pytest

import rlox
from rlox._errors import warn, warn_at_most
from rlox.callbacks import CheckpointCallback
from support.runs import NotingLogger, small


class FailingLogger(NotingLogger):
    def start(self, trainer):
        raise OSError("no disk")


def test_warnings_name_the_line_that_called_train(tmp_path):
    callback = CheckpointCallback(32, best="nope", path=tmp_path)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        small().train(64, callbacks=[callback], loggers=[FailingLogger()])
    messages = [str(warning.message) for warning in warned]
    assert [warning.filename for warning in warned] == [__file__] * 2, messages
    assert "no disk" in messages[0]
    assert messages[1].startswith("best: ")


def test_warn_at_most_logs_if_warnings_are_errors(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_at_most("a logger failed")
    assert "a logger failed" in caplog.text
    with pytest.warns(UserWarning, match="a logger failed"):
        warn_at_most("a logger failed")


def test_warnings_skip_only_frames_of_rlox():
    filename = f"{Path(rlox.__file__).parent}_of_others/it.py"
    with pytest.warns(UserWarning, match="of others") as warned:
        exec(compile("warn('of others')", filename, "exec"), {"warn": warn})
    assert warned[0].filename == filename
