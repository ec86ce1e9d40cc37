"""`EarlyStoppingCallback`: stops runs that do not improve."""

import math

import pytest

from rlox import ArgumentError
from rlox.callbacks import Callback, EarlyStoppingCallback
from support.rejections import rejects
from support.runs import small


class Scores(Callback):
    """Callback that adds a score to each row, unless the score is None."""

    def __init__(self, *scores):
        self.scores = iter(scores)

    def on_iteration(self, run, metrics):
        if (score := next(self.scores)) is not None:
            metrics["custom/score"] = score


@pytest.mark.parametrize(
    ("scores", "settings", "rows"),
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
def test_a_run_stops_after_patience_steps_without_improvement(scores, settings, rows):
    callback = EarlyStoppingCallback("custom/score", **settings)
    result = small().train(32 * len(scores), callbacks=[Scores(*scores), callback])
    assert result["timesteps"] == 32 * rows


def test_each_call_of_train_restarts_the_patience():
    trainer, callback = small(), EarlyStoppingCallback("custom/score", patience=64)
    trainer.train(64, callbacks=[Scores(5.0, 1.0), callback])
    assert trainer.train(64, callbacks=[Scores(1.0, 1.0), callback])["timesteps"] == 128
    assert callback.best == 5.0


def test_another_trainer_resets_the_callback():
    callback = EarlyStoppingCallback("custom/score", patience=64)
    small().train(64, callbacks=[Scores(5.0, 1.0), callback])
    assert small().train(96, callbacks=[Scores(1.0, 2.0, 3.0), callback])["timesteps"] == 96
    assert callback.best == 3.0
    with rejects(ArgumentError, "metric"):
        small().train(320, callbacks=[callback])


def test_an_early_stop_is_not_an_interruption():
    callback = EarlyStoppingCallback("custom/score", patience=64)
    result = small().train(320, callbacks=[Scores(5.0, 1.0, 1.0), callback])
    reason = "EarlyStoppingCallback: custom/score has not improved on 5 for 64 steps"
    assert (result["interrupted"], result["stopped_by"]) == (False, reason)
