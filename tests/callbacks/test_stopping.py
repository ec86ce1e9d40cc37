"""Runs that do not get better end early."""

import math

import pytest

from rlox.callbacks import Callback, EarlyStoppingCallback
from support.runs import small


class Scores(Callback):
    """Adds a score to each row; None: none."""

    def __init__(self, *scores):
        self.scores = iter(scores)

    def on_iteration(self, trainer, metrics):
        if (score := next(self.scores)) is not None:
            metrics["own/score"] = score


def steps_until_stopped(scores, **how):
    callback = EarlyStoppingCallback("own/score", **how)
    result = small().train(32 * len(scores), callbacks=[Scores(*scores), callback])
    return result["timesteps"] // 32


@pytest.mark.parametrize(
    ("scores", "how", "rows"),
    [
        ([1.0, 2.0, 2.0, 2.0, 9.0], {"patience": 64}, 4),
        ([1.0, 2.0, 2.0, 3.0, 3.0], {"patience": 64}, 5),
        ([1.0, 1.5, 1.9, 2.1, 9.0], {"patience": 96, "min_delta": 1.0}, 5),
        ([1.0, 1.5, 1.9, 9.0, 9.0], {"patience": 64, "min_delta": 1.0}, 3),
        ([3.0, 2.0, 2.5, 2.5, 2.5], {"patience": 64, "mode": "min"}, 4),
        ([1.0, None, None, 2.0, None], {"patience": 96}, 5),
        ([1.0, None, math.nan, 2.0], {"patience": 64}, 3),
        ([math.nan] * 4, {"patience": 96}, 3),
        ([1.0, 1.0, 1.0], {"patience": 33}, 3),
    ],
)
def test_a_run_ends_when_a_metric_has_not_improved_for_so_many_steps(scores, how, rows):
    assert steps_until_stopped(scores, **how) == rows


def test_a_metric_that_there_is_not_is_named():
    with pytest.raises(
        ValueError, match=r"got 'rollout/ep_rew_men'; did you mean 'rollout/ep_rew_m"
    ):
        small().train(320, callbacks=[EarlyStoppingCallback("rollout/ep_rew_men", patience=64)])


def test_patience_begins_anew_with_each_call_of_train():
    trainer, callback = small(), EarlyStoppingCallback("own/score", patience=64)
    trainer.train(64, callbacks=[Scores(5.0, 1.0), callback])
    assert trainer.train(64, callbacks=[Scores(1.0, 1.0), callback])["timesteps"] == 128
    assert callback.best == 5.0


def test_another_trainer_begins_with_nothing_remembered():
    callback = EarlyStoppingCallback("own/score", patience=64)
    small().train(64, callbacks=[Scores(5.0, 1.0), callback])
    assert small().train(96, callbacks=[Scores(1.0, 2.0, 3.0), callback])["timesteps"] == 96
    assert callback.best == 3.0
    with pytest.raises(ValueError, match="metric: expected one that a row has"):
        small().train(320, callbacks=[callback])


def test_a_run_that_ends_early_was_not_interrupted():
    callback = EarlyStoppingCallback("own/score", patience=64)
    result = small().train(320, callbacks=[Scores(5.0, 1.0, 1.0), callback])
    said = "EarlyStoppingCallback: own/score has not improved on 5 for 64 steps"
    assert (result["interrupted"], result["stopped_by"]) == (False, said)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"metric": 3}, TypeError, "metric: expected a str, got 3"),
        ({"patience": 0}, ValueError, "patience: expected an integer of at least 1"),
        ({"min_delta": -1.0}, ValueError, "min_delta: expected a finite number of at least 0"),
        ({"mode": "higher"}, ValueError, "mode: expected 'max' or 'min', got 'higher'"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        EarlyStoppingCallback(**arguments)
