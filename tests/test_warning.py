"""Warnings name a line of the program that called rlox."""

import warnings
from pathlib import Path

import pytest

import rlox
from rlox._errors import warn, warn_at_most
from rlox.callbacks import CheckpointCallback
from support.runs import NotingLogger, small


class Failing(NotingLogger):
    def start(self, trainer):
        raise OSError("no disk")


def test_warnings_name_the_line_that_called_train(tmp_path):
    saving = CheckpointCallback(32, best="nope", path=tmp_path)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        small().train(64, callbacks=[saving], loggers=[Failing()])
    said = [str(one.message) for one in warned]
    assert [one.filename for one in warned] == [__file__] * 2, said
    assert "no disk" in said[0]
    assert said[1].startswith("best: ")


def test_warn_at_most_logs_where_warnings_are_errors(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_at_most("a logger failed")
    assert "a logger failed" in caplog.text
    with pytest.warns(UserWarning, match="a logger failed"):
        warn_at_most("a logger failed")


def test_packages_with_a_similar_name_are_callers():
    beside = f"{Path(rlox.__file__).parent}_of_others/it.py"
    with pytest.warns(UserWarning, match="of others") as warned:
        exec(compile("warn('of others')", beside, "exec"), {"warn": warn})
    assert warned[0].filename == beside
