"""`ReplayBuffer` refuses what makes no sense, by name, and nothing is lost."""

import numpy as np
import pytest
import torch

import rlox
from replay_rows import check, transition


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((0, 2, 1), ValueError, "capacity: expected at least 1, got 0"),
        ((1 << 50, 2, 1), MemoryError, r"capacity: .* bytes \("),
        ((1 << 70, 2, 1), MemoryError, "capacity: expected less than 2"),
        ((-1, 2, 1), ValueError, "capacity: expected at least 1, got -1"),
        ((10, -4, 1), ValueError, "obs_dim: expected at least 1, got -4"),
        ((10, (2, -4), 1), ValueError, "obs_dim: expected at least 1, got -4"),
        ((10.5, 2, 1), TypeError, "capacity: expected an integer"),
        ((10, 0, 1), ValueError, "obs: expected a row with elements"),
        ((10, (2, 0), 1), ValueError, "obs: expected a row with elements"),
        ((10, {}, 1), ValueError, "obs: expected one part or more"),
        ((10, {"a": "b"}, 1), (ValueError, TypeError), "obs_dim"),
        ((10, 1 << 60, 1), MemoryError, f"obs_dim: .* a row needs {1 << 62} bytes"),
        ((10, (1 << 40, 1 << 40), 1), MemoryError, f"obs_dim: .* a row needs {1 << 82} bytes"),
        ((10, 4, 1 << 61), MemoryError, f"act_dim: .* a row needs {1 << 63} bytes"),
        ((10**12, 4, 1), MemoryError, "capacity: .* got capacity = 1000000000000, rows of"),
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
        ({"act_dtype": "\0"}, "act_dtype: expected float32, float64"),
        ({"act_dtype": ""}, "act_dtype: expected float32, float64"),
        ({"frame_stack": 3}, "frame_stack: expected 1, or a number of frames that divides"),
        ({"frame_stack": 0}, "frame_stack: expected 1, or a number of frames that divides"),
        ({"n_step": 0}, "n_step: expected at least 1"),
        ({"n_step": 2, "gamma": 1.5}, r"gamma: expected a number in \[0, 1\]"),
        ({"extra": {"rewards": ((), "float32")}}, 'extra: .* none of rewards, .*, got "rewards"'),
        ({"extra": {"next_obs": ((), "float32")}}, 'extra: .* none of .* next_obs, .*"next_obs"'),
        ({"extra": {"weights": ((), "float32")}}, 'extra: .* none of .* weights, .*"weights"'),
        ({"extra": {"actions": ((), "float32")}}, 'extra: .* none of .* actions, got "actions"'),
        ({"extra": {"mask": ((), "bool")}}, 'extra: .* none of mask, .*, got "mask"'),
        ({"extra": {"lengths": ((), "bool")}}, 'extra: .* none of .* lengths, got "lengths"'),
        ({"extra": {"episode_starts": ((), "bool")}}, 'extra: .*, got "episode_starts"'),
        ({"obs_dtype": np.float16}, "obs_dtype: expected float32, float64"),
        ({"obs_dtype": np.dtype(">f4")}, "obs_dtype: expected float32, float64"),
        ({"extra": {"cost": ((), np.dtype("i4"))}}, "extra: expected float32, .*, got int32"),
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


def test_refusals_of_many_environments_name_what_was_given():
    with pytest.raises(MemoryError, match=r"num_envs: .* capacity = 10, num_envs = 1000000000000,"):
        rlox.ReplayBuffer(10, 4, 1, num_envs=10**12)
    with pytest.raises(MemoryError, match=r"capacity: .* capacity = 1000000000001, num_envs = 3,"):
        rlox.ReplayBuffer(10**12 + 1, 4, 1, num_envs=3)


def test_capacities_are_whole_rows_of_all_environments():
    assert rlox.ReplayBuffer(10, 2, 1, num_envs=3).capacity == 9
    assert rlox.ReplayBuffer(3, 2, 1, num_envs=8).capacity == 8


def test_dtypes_are_taken_as_numpy_takes_them():
    kinds = {"obs_dtype": np.uint8, "act_dtype": np.dtype("int64")}
    extra = {"cost": ((), float), "seen": (2, "?"), "near": ((), np.float32)}
    buffer = rlox.ReplayBuffer(10, 4, (), **kinds, extra=extra)
    beside = {"cost": 0.1, "seen": [True, False], "near": 0.5}
    buffer.push(np.arange(4, dtype=np.uint8), 3, 1.0, True, False, np.arange(4), extra=beside)
    found = {name: str(array.dtype) for name, array in buffer.sample(1).items()}
    assert (found["obs"], found["next_obs"], found["actions"]) == ("uint8", "uint8", "int64")
    assert (found["cost"], found["seen"], found["near"]) == ("float64", "bool", "float32")
    parts = rlox.ReplayBuffer(10, {"a": (3, np.uint8), "b": ((2, 2), "f8"), "c": (2, 3)}, 1).state()
    ahead = [parts[f"ahead.obs.{name}"] for name in "abc"]
    assert [part.shape[1:] for part in ahead] == [(3,), (2, 2), (2, 3)]
    assert [part.dtype.name for part in ahead] == ["uint8", "float64", "float32"]
    for wrong in (3, ["float32"], {"names": ["a"], "formats": ["f4"]}):
        with pytest.raises(TypeError, match="act_dtype: expected a dtype, got"):
            rlox.ReplayBuffer(10, 4, 1, act_dtype=wrong)


def test_masked_elements_are_refused():
    buffer = rlox.ReplayBuffer(10, 2, 1)
    masked = np.ma.masked_array(np.zeros(2, np.float32), [True, False])
    right = np.zeros(2, np.float32)
    said = "expected an array without a mask, got one with masked elements"
    with pytest.raises(TypeError, match=f"^obs: {said}"):
        buffer.push(masked, np.zeros(1, np.float32), 0.0, False, False, right)
    with pytest.raises(TypeError, match=f"^next_obs: {said}"):
        buffer.push(right, np.zeros(1, np.float32), 0.0, False, False, masked)
    flags = [False, False]
    with pytest.raises(TypeError, match=f"^rewards: {said}"):
        buffer.push_batch([right] * 2, [right] * 2, [[0], [0]], masked, flags, flags)
    with pytest.raises(TypeError, match=f"^terminated: {said}"):
        buffer.push_batch([right] * 2, [right] * 2, [[0], [0]], right, masked == 0, flags)
    assert len(buffer) == 0
    whole = np.ma.masked_array([1, 2], dtype=np.float32)
    buffer.push(whole, np.zeros(1, np.float32), 0.0, True, False, whole)
    assert buffer.sample(1)["obs"].tolist() == [[1, 2]]


def test_what_is_no_row_each_is_told_so():
    buffer = rlox.ReplayBuffer(10, 2, 1)
    rows = [np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3)]
    rows += [np.zeros(3, bool), np.zeros(3, bool)]
    for at, name in ((3, "rewards"), (4, "terminated"), (5, "truncated")):
        wrong = [*rows[:at], np.zeros((3, 1), rows[at].dtype), *rows[at + 1 :]]
        said = rf"{name}: expected shape \[3\], got shape \[3, 1\]; pass one for each row of obs"
        with pytest.raises(ValueError, match=said):
            buffer.push_batch(*wrong)
    buffer.push_batch(*rows)
    said = (
        r"out: expected shape \[2, 2\], got shape \[3, 2\]; pass what an earlier sample of as many"
    )
    with pytest.raises(ValueError, match=said):
        buffer.sample(2, out=buffer.sample(3))


def test_a_last_row_whose_next_observation_is_to_come_is_told_of():
    buffer = rlox.ReplayBuffer(10, 2, 1)
    buffer.push(*transition(0)[:-1])
    assert len(buffer) == 1
    for sample in (buffer.sample, lambda count: buffer.sample_sequences(count, 2)):
        with pytest.raises(ValueError, match="last row, whose next observation is not known yet"):
            sample(1)
    for i in range(1, 9):
        buffer.push(*transition(i)[:-1])
    assert len(buffer) == 9
    said = (
        "1 to 8, all but the last row, whose next observation is not known yet, got 9; .*next_obs"
    )
    with pytest.raises(ValueError, match=said):
        buffer.sample(9)


def test_sequences_that_do_not_fit_are_told_by_what_was_asked_for():
    buffer = rlox.ReplayBuffer(10, 2, 1)
    with pytest.raises(MemoryError, match=r"length: .*length = 1000000000000, which needs"):
        buffer.sample_sequences(2, 10**12)
    buffer.push(*transition(0))
    buffer.push(*transition(1))
    with pytest.raises(MemoryError, match=r"length: .*length = 1000000000000, which needs"):
        buffer.sample_sequences(2, 10**12)
    with pytest.raises(MemoryError, match=r"burn_in: .*burn_in = 1000000000000, length = 3, which"):
        buffer.sample_sequences(2, 3, burn_in=10**12)


def test_sampling_that_makes_no_sense_is_refused():
    buffer = rlox.ReplayBuffer(3, 2, 1)
    with pytest.raises(
        ValueError, match="batch_size: expected a buffer with transitions, got an empty one"
    ):
        buffer.sample(1)
    buffer.push(*transition(0))
    for count, error, said in [
        (0, ValueError, "batch_size: expected 1 to 1"),
        (2, ValueError, "batch_size: expected 1 to 1"),
        (1 << 62, ValueError, "batch_size: expected 1 to 1"),
        (-1, ValueError, "batch_size: expected at least 1, got -1"),
        (1.0, TypeError, "batch_size: expected an integer"),
    ]:
        with pytest.raises(error, match=said):
            buffer.sample(count)
    for seed in (-1, 1.5, "a", [1]):
        with pytest.raises((ValueError, TypeError), match="seed: expected"):
            buffer.sample(1, seed)


def with_flag(name, flag, i=0):
    """The arguments of `push` for a transition with a flag."""
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    return dict(zip(names, transition(i), strict=True)) | {name: flag}


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_single_flags_are_taken_as_many_are(name):
    buffer = rlox.ReplayBuffer(20, 2, 1)
    given = [True, np.True_, np.array(True), 1, np.int64(1), np.array(1.0), torch.tensor(True)]
    given += [False, np.False_, np.array(False), 0, 0.0, torch.tensor(False)]
    for i, flag in enumerate(given):
        buffer.push(**with_flag(name, flag, i))
    assert buffer.state()[f"step.{name}"].tolist() == [True] * 7 + [False] * 6


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("flag", "error", "said"),
    [
        (np.array([True, False]), ValueError, r"one flag, got shape \[2\]; push several by push_b"),
        ([True], ValueError, r"one flag, got shape \[1\]; push several by push_batch"),
        (torch.ones(2, dtype=torch.bool), ValueError, r"one flag, got shape \[2\]; push several"),
        (2, ValueError, "0 or 1"),
        (np.nan, ValueError, "0 or 1"),
        (None, TypeError, ""),
        ("yes", TypeError, ""),
    ],
)
def test_what_is_no_single_flag_is_refused_and_nothing_is_pushed(name, flag, error, said):
    buffer = rlox.ReplayBuffer(10, 2, 1)
    with pytest.raises(error, match=f"^{name}: expected .*{said}"):
        buffer.push(**with_flag(name, flag))
    assert len(buffer) == 0


@pytest.mark.parametrize("argument", ["obs", "next_obs"])
@pytest.mark.parametrize("unknown", ["gaol", 3])
def test_unknown_keys_of_dict_observations_are_refused_by_name(argument, unknown):
    buffer = rlox.ReplayBuffer(10, {"seen": 2, "goal": 1}, 1)
    right = {"seen": np.zeros(2, np.float32), "goal": np.zeros(1, np.float32)}
    flags = {"terminated": False, "truncated": False}
    beside = {"action": [0.0], "reward": 0.0, **flags}
    rows = {"obs": right, "next_obs": right} | {argument: right | {unknown: np.zeros(1)}}
    said = f"^{argument}: expected the keys seen, goal, got {unknown!r}; leave it out$"
    with pytest.raises(ValueError, match=said):
        buffer.push(**rows, **beside)
    rows = {name: {key: x[None] for key, x in row.items()} for name, row in rows.items()}
    beside = {"actions": [[0.0]], "rewards": [0.0]} | {name: [x] for name, x in flags.items()}
    with pytest.raises(ValueError, match=said):
        buffer.push_batch(**rows, **beside)
    # Where one is renamed, the right name is told.
    rows[argument].pop("goal")
    with pytest.raises((KeyError, ValueError), match=f"{argument}: .*goal"):
        buffer.push_batch(**rows, **beside)
    assert len(buffer) == 0
    right = {key: x[None] for key, x in right.items()}
    buffer.push_batch(right, right, **beside)
    assert len(buffer) == 1
