"""Arguments of callbacks, and states of callbacks in checkpoints."""

import json
import math

import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, CorruptFileError
from rlox._training.callback_states import get_callback_states, load_callback_states, read_callback_states
from rlox.callbacks import Callback, CheckpointCallback, EarlyStoppingCallback, EvalCallback
from rlox.callbacks import VideoRecordingCallback as Video
from rlox.trainers import PPOTrainer
from support.checkpoints import rewrite
from support.rejections import rejects
from support.runs import small


@pytest.mark.parametrize(
    ("callback", "argument", "value", "error"),
    [
        (CheckpointCallback, "best", 3, ArgumentTypeError),
        (CheckpointCallback, "path", 3, ArgumentTypeError),
        (CheckpointCallback, "replay", None, ArgumentTypeError),
        (EarlyStoppingCallback, "metric", 3, ArgumentTypeError),
        (EarlyStoppingCallback, "min_delta", -1.0, ArgumentError),
        (EarlyStoppingCallback, "patience", 0, ArgumentError),
        (EvalCallback, "deterministic", 1, ArgumentTypeError),
        (EvalCallback, "n_episodes", 0, ArgumentError),
        (EvalCallback, "reward_threshold", math.nan, ArgumentError),
        (EvalCallback, "save_best", "no", ArgumentTypeError),
        (Video, "deterministic", 3, ArgumentTypeError),
        (Video, "env", 3, ArgumentTypeError),
        (Video, "max_frames", 0, ArgumentError),
        (Video, "path", 3, ArgumentTypeError),
    ],
)
def test_invalid_arguments_are_rejected(callback, argument, value, error):
    every = {} if callback is EarlyStoppingCallback else {"every": 9}
    with pytest.raises(error) as raised:
        callback(**every, **{argument: value})
    assert raised.value.argument == argument


def make_callbacks():
    def add_score(run, metrics):
        metrics["custom/score"] = float(-max(run.budget_used, 96))

    return [add_score, EarlyStoppingCallback("custom/score", patience=256)]


def test_a_resumed_run_stops_at_the_same_step(tmp_path):
    uninterrupted = small()
    uninterrupted.train(640, callbacks=make_callbacks())
    half = small()
    half.train(192, callbacks=make_callbacks())
    half.run.budget_end = 640
    half.save(tmp_path / "half")
    resumed = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    resumed.train(callbacks=make_callbacks())
    assert uninterrupted.timesteps == resumed.timesteps == 288


def test_callbacks_are_reset_for_another_run(tmp_path):
    callback = EvalCallback(32, n_episodes=1)
    for seed in (1, 2):
        trainer = small(seed=seed, runs_dir=tmp_path)
        callback.best_mean_reward = 1e9  # a better score of the previous run
        trainer.train(32, callbacks=[callback])
        assert (trainer.run.path / "checkpoints/best").is_dir()
        assert callback.best_mean_reward < 1e9


class Stateful(Callback):
    def __init__(self, **values):
        self.values = values

    def state(self):
        return self.values

    def load_state(self, state):
        self.values = {name: state[name] for name in self.values}


def test_states_are_assigned_by_class_in_order():
    states = get_callback_states([Stateful(a=np.float32(1.5)), Callback(), Stateful(a=-math.inf, b=None)])
    assert json.loads(json.dumps(states, allow_nan=False)) == states
    first, second, third = Stateful(a=0.0), Stateful(a=0.0, b=0.0), Stateful(a=7.0)
    load_callback_states([first, CheckpointCallback(1), second, third], states)
    assert [x.values for x in (first, second, third)] == [{"a": 1.5}, {"a": -math.inf, "b": None}, {"a": 7.0}]


@pytest.mark.parametrize("state", [[1.0], {"a": [1.0]}, {"a": "x"}, {1: 2.0}])
def test_states_that_json_cannot_represent_are_rejected(state):
    callback = Stateful()
    callback.values = state
    with rejects(ArgumentTypeError, "callbacks", got=repr(state)):
        get_callback_states([callback])


def test_errors_of_load_state_are_reported_for_callbacks():
    with rejects(ArgumentError, "callbacks"):
        load_callback_states([Stateful(b=1.0)], get_callback_states([Stateful(a=1.0)]))


@pytest.mark.parametrize("saved", [3, [3], [{"name": 1, "state": {}}], [{"name": "A", "state": 1}]])
def test_invalid_callback_states_in_a_manifest_are_rejected(tmp_path, saved):
    assert read_callback_states({"callbacks": saved}) is None
    small().save(tmp_path / "saved")
    rewrite(tmp_path / "saved", lambda manifest, _: manifest.update(callbacks=saved))
    with pytest.raises(CorruptFileError) as raised:
        PPOTrainer.load(tmp_path / "saved", runs_dir=None)
    assert raised.value.section == "callbacks"
