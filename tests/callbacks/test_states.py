"""What callbacks remember is a part of checkpoints, and belongs to one run."""

import json
import math

import pytest

from rlox import CorruptFileError
from rlox.callbacks import Callback, CheckpointCallback, EarlyStoppingCallback, EvalCallback
from rlox.callbacks.states import give_back, saved_states, states_of
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.trainers import PPOTrainer
from support.runs import small


class Score(Callback):
    """Gets worse from row to row, after the first ones."""

    def on_iteration(self, trainer, metrics):
        metrics["own/score"] = float(-max(trainer.timesteps, 96))


def stopping():
    return [Score(), EarlyStoppingCallback("own/score", patience=256)]


def test_a_run_that_is_resumed_stops_where_the_other_does(tmp_path):
    whole = small()
    whole.train(640, callbacks=stopping())
    half = small()
    half.train(192, callbacks=stopping())
    half.target_timesteps = 640
    half.save(tmp_path / "half")
    resumed = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    resumed.train(callbacks=stopping())
    assert whole.timesteps == resumed.timesteps == 288


def test_callbacks_of_another_run_begin_anew(tmp_path):
    callback = EvalCallback(32, n_episodes=1)
    for seed in (1, 2):
        trainer = small(seed=seed, runs_dir=tmp_path)
        callback.best_mean_reward = 1e9  # as if the run before had been better
        trainer.train(32, callbacks=[callback])
        assert (trainer.run.path / "checkpoints/best").is_dir()
        assert callback.best_mean_reward < 1e9


class Own(Callback):
    def __init__(self, **state):
        self.kept = state

    def state(self):
        return self.kept

    def load_state(self, state):
        self.kept = {name: state[name] for name in self.kept}


def test_states_go_to_those_of_their_class_in_order():
    told = states_of([Own(a=1.5), Callback(), Own(a=-math.inf, b=None)])
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    back = [Own(a=0.0), CheckpointCallback(1), Own(a=0.0, b=0.0), Own(a=7.0)]
    give_back(back, told)
    assert [x.kept for x in back if isinstance(x, Own)] == [
        {"a": 1.5},
        {"a": -math.inf, "b": None},
        {"a": 7.0},
    ]


@pytest.mark.parametrize("state", [[1.0], {"a": [1.0]}, {"a": "x"}, {1: 2.0}])
def test_what_json_does_not_hold_is_refused(state):
    callback = Own()
    callback.kept = state
    with pytest.raises(TypeError, match=r"expected a dict of numbers and None from Own.state\(\)"):
        states_of([callback])


def test_a_callback_that_cannot_go_on_with_it_is_named():
    with pytest.raises(ValueError, match=r"expected what Own.state\(\) gives.*KeyError"):
        give_back([Own(b=1.0)], states_of([Own(a=1.0)]))


@pytest.mark.parametrize("saved", [3, [3], [{"name": 1, "state": {}}], [{"name": "A", "state": 1}]])
def test_what_is_no_state_is_a_damaged_checkpoint(tmp_path, saved):
    assert saved_states({"callbacks": saved}) is None
    small().save(tmp_path / "saved")
    there = read_checkpoint(tmp_path / "saved")
    manifest = {n: x for n, x in there.manifest.items() if n not in ("members", "format", "rlox")}
    write_checkpoint(tmp_path / "saved", manifest | {"callbacks": saved}, there.members)
    with pytest.raises(CorruptFileError, match="section callbacks"):
        PPOTrainer.load(tmp_path / "saved", runs_dir=None)
