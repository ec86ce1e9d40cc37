"""Exceptions of rlox: attributes, texts, bases, and the same classes from Rust and Python."""

import copy
import pickle
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import rlox
from rlox import ArgumentError, CorruptFileError, NonFiniteError, _errors
from rlox import compute_batch_group_advantages as group
from rlox._errors import add_file, add_section, warn, warn_at_most
from rlox.callbacks import CheckpointCallback
from support.masked_envs import Doors
from support.rejections import rejects
from support.runs import NotingLogger, small

BASES = {
    rlox.ArgumentError: (ValueError,),
    rlox.ArgumentTypeError: (TypeError,),
    rlox.NonFiniteError: (ValueError, FloatingPointError),
    rlox.ClosedError: (ValueError,),
    rlox.CorruptFileError: (ValueError,),
    rlox.OutOfMemoryError: (MemoryError,),
}
LOCATIONS = ("env", "row", "column", "index", "step", "timesteps", "section", "worker")
FIELDS = ("argument", "expected", "got", "hint", *LOCATIONS)


def fields(error):
    return tuple(getattr(error, name) for name in FIELDS)


@pytest.mark.parametrize("cls", BASES, ids=lambda cls: cls.__name__)
def test_error_has_attributes_bases_and_a_public_name(cls):
    error = cls("gamma", "a number", "'x'", "pass one")
    assert fields(error) == ("gamma", "a number", "'x'", "pass one", *[None] * 8)
    assert all(isinstance(error, base) for base in (*BASES[cls], _errors.StructuredError))
    assert getattr(rlox, cls.__name__) is cls
    assert cls.__module__ == "rlox"


@pytest.mark.parametrize("cls", BASES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("copy_fn", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copy", "pickle"])
def test_error_is_pickled_and_copied_with_its_attributes(cls, copy_fn):
    location = {name: i for i, name in enumerate(LOCATIONS)}
    error = cls("obs", "finite numbers", "nan", "look", **location)
    error.step = 30  # code adds locations after the error is raised
    copied = copy_fn(error)
    assert type(copied) is cls
    assert (fields(copied), str(copied)) == (fields(error), str(error))


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ({}, "obs: expected finite numbers, got nan; look"),
        ({"env": 0}, "obs: expected finite numbers, got nan in environment 0; look"),
        ({"row": 4}, "obs: expected finite numbers, got nan in row 4; look"),
        ({"row": 4, "column": 2}, "obs: expected finite numbers, got nan in row 4 in column 2; look"),
        ({"index": 9}, "obs: expected finite numbers, got nan at index 9; look"),
        (
            {"env": 7, "worker": "http://a:1"},
            "obs: expected finite numbers, got nan in environment 7 on worker http://a:1; look",
        ),
        ({"env": 1, "step": 7}, "obs: expected finite numbers, got nan in environment 1 at step 7; look"),
        ({"timesteps": 9}, "obs: expected finite numbers, got nan at timestep 9; look"),
        ({"section": "run"}, "obs, section run: expected finite numbers, got nan; look"),
    ],
)
def test_location_is_part_of_the_text_and_not_of_got(location, text):
    error = rlox.NonFiniteError("obs", "finite numbers", "nan", "look", **location)
    assert str(error) == text
    assert error.got == "nan"


def test_error_of_a_constructor_keeps_its_attributes_through_gymnasium():
    with rejects(rlox.ArgumentTypeError, "g", expected="a number or a boolean", got="'x'"):
        gym.make("rlox/Pendulum-v1", g="x")


def test_error_raised_in_an_except_block_has_only_its_own_text():
    try:
        rlox.VecEnv(n=0)
    except rlox.ArgumentError:
        error = rlox.ArgumentError("line 3 is wrong")
    assert str(error) == "line 3 is wrong"


def test_error_without_expected_value_is_a_plain_sentence():
    error = rlox.ClosedError("env", None, "is closed", "create a new one")
    assert str(error) == "env is closed; create a new one"
    assert str(rlox.ClosedError("env", None, "is closed", None)) == "env is closed"


def closed_env():
    env = rlox.VecEnv(n=1, env_id="CartPole-v1")
    env.close()
    env.step_all([0])


@pytest.mark.parametrize(
    ("call", "cls", "argument"),
    [
        (lambda: rlox.compute_gae([1.0], [0.0, 0.0], [0], 0.0), rlox.ArgumentError, "values"),
        (lambda: rlox.RolloutBuffer("a", 2, (4,)), rlox.ArgumentTypeError, "n_steps"),
        (lambda: rlox.ReplayBuffer(2**62, 4, 1), rlox.OutOfMemoryError, "capacity"),
        (closed_env, rlox.ClosedError, "VecEnv"),
    ],
)
def test_errors_from_rust_have_the_public_classes(call, cls, argument):
    with rejects(cls, argument) as raised:
        call()
    error = raised.value
    assert str(error) == f"{argument}: expected {error.expected}, got {error.got}; {error.hint}"


class Closed(Doors):
    """Allow no action."""

    def _state(self):
        return super()._state()[0], {"action_mask": np.zeros(6)}


def collect_closed():
    rlox.collect_rollout(rlox.make_vec(SyncVectorEnv([Doors, Closed])), None, 3)


def single_env():
    env = gym.make("rlox/CartPole-v1").unwrapped
    env.reset(seed=1)
    return env


def set_state(value):
    single_env().state = [0.0, value, 0.0, 0.0]


def push_with(name, value):
    rows = {"obs": np.zeros((3, 2)), "next_obs": np.zeros((3, 2)), "actions": np.zeros((3, 1))}
    rows |= {"rewards": np.zeros(3)}
    rows[name][2] = value
    rlox.ReplayBuffer(9, 2, 1).push_batch(**rows, terminated=[False] * 3, truncated=[False] * 3)


def update_with(value):
    buffer = rlox.PrioritizedReplayBuffer(9, 2, 1)
    buffer.push_batch(*np.zeros((2, 3, 2)), np.zeros((3, 1)), *np.zeros((3, 3), bool))
    buffer.update_priorities([0, 1], [1.0, value])


@pytest.mark.parametrize(
    ("call", "argument", "got", "location"),
    [
        (collect_closed, "action_mask", "none", {"env": 1}),
        (lambda: push_with("next_obs", np.inf), "next_obs", "inf", {"row": 2}),
        (lambda: push_with("rewards", np.nan), "rewards", "NaN", {"row": 2}),
        (lambda: update_with(np.nan), "priorities", "NaN", {"row": 1}),
        (lambda: update_with(-1.0), "priorities", "-1", {"row": 1}),
        (lambda: group([1.0, np.inf], 2), "rewards", "inf", {"index": 1}),
        (lambda: group([[1, 1]], 1, weights=[1, np.nan]), "weights", "NaN", {"index": 1}),
        (lambda: rlox.pack_lengths([3, -1], 4), "lengths", "-1", {"index": 1}),
        (lambda: rlox.pack_lengths([3, 2, 9], 4), "lengths", "9", {"index": 2}),
        (lambda: rlox.pack_sequences([[1], [[2]]], 4), "sequences", "shape [1, 1]", {"index": 1}),
        (lambda: rlox.pack_sequences([[1], [2, 3]], 1), "sequences", "2", {"index": 1}),
        (lambda: rlox.RunningMeanStd((2,)).update([[0.0, 1.0], [2.0, np.nan]]), "x", "NaN", {"row": 1, "column": 1}),
        (lambda: rlox.compute_gae([1.0], [0.0], [0.5], 0.0), "dones", "0.5", {"index": 0}),
        (lambda: single_env().step(2), "action", "2", {}),
        (lambda: set_state(np.nan), "state", "NaN", {"index": 1}),
    ],
)
def test_errors_locate_the_rejected_value(call, argument, got, location):
    with pytest.raises((ArgumentError, NonFiniteError)) as raised:
        call()
    error = raised.value
    assert (error.argument, error.got) == (argument, got)
    assert {name: getattr(error, name) for name in LOCATIONS} == dict.fromkeys(LOCATIONS) | location


@pytest.mark.parametrize("cls", [NonFiniteError, CorruptFileError, ArgumentError])
def test_error_of_a_section_keeps_class_and_location(cls):
    error = add_section(cls("w", "x", "y", "z", row=3, section="inner"), "networks")
    assert type(error) is cls
    assert (error.argument, error.row, error.section) == ("w", 3, "networks, inner")


def test_error_of_a_file_keeps_location_and_drops_the_hint_for_an_argument():
    cause = NonFiniteError("returns", "finite numbers", "NaN", "pass others", env=1, row=2, step=3)
    error = add_file(cause, "a/b", CorruptFileError)
    assert (error.argument, error.section, error.got) == ("a/b", "returns", "NaN")
    assert (error.env, error.row, error.step) == (1, 2, 3)
    assert error.hint != "pass others"


class FailingLogger(NotingLogger):
    def start(self, info):
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
