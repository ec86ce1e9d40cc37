"""`ReplayBuffer` refuses what makes no sense, by name, and nothing is lost."""

import numpy as np
import pytest

import rlox
from replay_rows import check, transition


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((0, 2, 1), ValueError, "capacity: expected at least 1, got 0"),
        ((1 << 50, 2, 1), MemoryError, r"capacity: .* bytes \("),
        ((1 << 70, 2, 1), MemoryError, "capacity: expected less than 2"),
        ((-1, 2, 1), ValueError, "capacity: expected zero or a positive integer"),
        ((10.5, 2, 1), TypeError, "capacity: expected an integer"),
        ((10, 0, 1), ValueError, "obs: expected a row with elements"),
        ((10, (2, 0), 1), ValueError, "obs: expected a row with elements"),
        ((10, {}, 1), ValueError, "obs: expected one part or more"),
        ((10, {"a": "b"}, 1), (ValueError, TypeError), "obs_dim"),
        ((10, (1 << 40, 1 << 40), 1), MemoryError, "expected rows that fit into memory"),
    ],
)
def test_buffers_that_make_no_sense_are_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        rlox.ReplayBuffer(*arguments)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"num_envs": 0}, "num_envs: expected at least 1"),
        ({"obs_dtype": "float16"}, "obs_dtype: expected float32, float64"),
        ({"act_dtype": "x"}, "act_dtype: expected float32, float64"),
        ({"frame_stack": 3}, "frame_stack: expected 1, or a number of frames that divides"),
        ({"frame_stack": 0}, "frame_stack: expected 1, or a number of frames that divides"),
        ({"n_step": 0}, "n_step: expected at least 1"),
        ({"n_step": 2, "gamma": 1.5}, r"gamma: expected a number in \[0, 1\]"),
        ({"extra": {"rewards": ((), "float32")}}, "name: expected a name that is free"),
        ({"extra": {"next_obs": ((), "float32")}}, "name: expected a name that is free"),
        ({"extra": {"weights": ((), "float32")}}, "name: expected a name that is free"),
        ({"seed": -1}, "seed: expected an integer of at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(keywords, said):
    with pytest.raises(ValueError, match=said):
        rlox.ReplayBuffer(10, 4, 1, **keywords)


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"obs": [0.0]}, r"obs: expected shape \[2\], got \[1\]"),
        ({"obs": [[0.0, 1.0]]}, r"obs: expected shape \[2\], got \[1, 2\]"),
        ({"obs": [0.0, np.nan]}, "obs: expected finite numbers, got NaN in row 0"),
        ({"next_obs": [np.inf, 0.0]}, "next_obs: expected finite numbers, got inf in row 0"),
        ({"next_obs": [0.0]}, r"next_obs: expected shape \[2\]"),
        ({"action": [0.0, 1.0]}, r"action: expected shape \[1\]"),
        ({"action": [np.nan]}, "action: expected finite numbers, got NaN"),
        ({"reward": np.nan}, "reward: expected finite numbers, got NaN"),
        ({"reward": 1e39}, "reward: expected finite numbers, got inf"),
    ],
)
def test_transitions_that_make_no_sense_are_refused_and_nothing_is_lost(replaced, said):
    buffer = rlox.ReplayBuffer(3, 2, 1, seed=0)
    for i in range(5):
        buffer.push(*transition(i))
    before = buffer.sample(3, seed=1)
    right = dict(
        zip(
            ("obs", "action", "reward", "terminated", "truncated", "next_obs"),
            transition(5),
            strict=True,
        )
    )
    with pytest.raises(ValueError, match=said):
        buffer.push(**right | replaced)
    for name, array in buffer.sample(3, seed=1).items():
        assert np.array_equal(array, before[name])
    buffer.push(**right)
    assert set(check(buffer.sample(3))) <= {3, 4, 5}


def test_sampling_that_makes_no_sense_is_refused():
    buffer = rlox.ReplayBuffer(3, 2, 1)
    with pytest.raises(ValueError, match="batch_size: expected a buffer with transitions, got 1"):
        buffer.sample(1)
    buffer.push(*transition(0))
    for count, error, said in [
        (0, ValueError, "batch_size: expected 1 to 1"),
        (2, ValueError, "batch_size: expected 1 to 1"),
        (1 << 62, ValueError, "batch_size: expected 1 to 1"),
        (-1, ValueError, "batch_size: expected zero or a positive integer"),
        (1.0, TypeError, "batch_size: expected an integer"),
    ]:
        with pytest.raises(error, match=said):
            buffer.sample(count)
    for seed in (-1, 1.5, "a", [1]):
        with pytest.raises((ValueError, TypeError), match="seed: expected"):
            buffer.sample(1, seed)
