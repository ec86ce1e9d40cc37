"""Arguments of callbacks, and their states, which checkpoints hold."""

import json
import math

import pytest

from rlox import ArgumentError, ArgumentTypeError, CorruptFileError
from rlox._training.hooks import get_callback_states, load_callback_states, read_callback_states
from rlox.callbacks import Callback, CheckpointCallback, EarlyStoppingCallback, EvalCallback
from rlox.callbacks import VideoRecordingCallback as Video
from rlox.trainers import PPOTrainer
from support.checkpoints import rewrite
from support.refusals import refuses
from support.runs import small


@pytest.mark.parametrize(
    ("callback", "argument", "value", "error"),
    [
        (CheckpointCallback, "best", 3, ArgumentTypeError),
        (CheckpointCallback, "path", 3, ArgumentTypeError),
        (CheckpointCallback, "replay", None, ArgumentError),
        (EarlyStoppingCallback, "metric", 3, ArgumentTypeError),
        (EarlyStoppingCallback, "min_delta", -1.0, ArgumentError),
        (EarlyStoppingCallback, "patience", 0, ArgumentError),
        (EvalCallback, "deterministic", 1, ArgumentError),
        (EvalCallback, "n_episodes", 0, ArgumentError),
        (EvalCallback, "reward_threshold", math.nan, ArgumentError),
        (EvalCallback, "save_best", "no", ArgumentError),
        (Video, "deterministic", 3, ArgumentError),
        (Video, "env", 3, ArgumentTypeError),
        (Video, "max_frames", 0, ArgumentError),
        (Video, "path", 3, ArgumentTypeError),
    ],
)
def test_invalid_arguments_are_rejected_by_name(callback, argument, value, error):
    every = {} if callback is EarlyStoppingCallback else {"every": 9}
    with pytest.raises(error) as raised:
        callback(**every, **{argument: value})
    assert raised.value.argument == argument


def stopping():
    def add_score(trainer, metrics):
        metrics["own/score"] = float(-max(trainer.timesteps, 96))

    return [add_score, EarlyStoppingCallback("own/score", patience=256)]


def test_resumed_run_stops_where_the_other_does(tmp_path):
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
    told = get_callback_states([Own(a=1.5), Callback(), Own(a=-math.inf, b=None)])
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    back = [Own(a=0.0), CheckpointCallback(1), Own(a=0.0, b=0.0), Own(a=7.0)]
    load_callback_states(back, told)
    assert [x.kept for x in back if isinstance(x, Own)] == [
        {"a": 1.5},
        {"a": -math.inf, "b": None},
        {"a": 7.0},
    ]


@pytest.mark.parametrize("state", [[1.0], {"a": [1.0]}, {"a": "x"}, {1: 2.0}])
def test_what_json_does_not_hold_is_refused(state):
    callback = Own()
    callback.kept = state
    with refuses(ArgumentTypeError, "callbacks", got=repr(state)):
        get_callback_states([callback])


def test_a_callback_that_cannot_go_on_with_it_is_named():
    with refuses(ArgumentError, "callbacks"):
        load_callback_states([Own(b=1.0)], get_callback_states([Own(a=1.0)]))


@pytest.mark.parametrize("saved", [3, [3], [{"name": 1, "state": {}}], [{"name": "A", "state": 1}]])
def test_what_is_no_state_is_a_damaged_checkpoint(tmp_path, saved):
    assert read_callback_states({"callbacks": saved}) is None
    small().save(tmp_path / "saved")
    rewrite(tmp_path / "saved", lambda manifest, _: manifest.update(callbacks=saved))
    with pytest.raises(CorruptFileError) as raised:
        PPOTrainer.load(tmp_path / "saved", runs_dir=None)
    assert raised.value.section == "callbacks"
