"""Rejected calls of rollout buffers, replay buffers and statistics."""

import numpy as np
import pytest
import torch

from rlox import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    Normalizer,
    OutOfMemoryError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
    RunningMeanStd,
)
from support.rejections import Rejection, expect_rejection, rejections
from support.replay import check, transition

NAN = float("nan")
TWO = np.ones(2)
RESERVED = ("rewards", "next_obs", "weights", "actions", "mask", "lengths", "episode_starts")
MASKED = np.ma.masked_array(np.zeros(2, np.float32), [True, False])
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


def begin(**kwargs):
    RolloutBuffer(2, 1, (4,)).begin(np.zeros((1, 4)), **kwargs)


def record(t):
    RolloutBuffer(2, 2, (4,)).record(t, TWO, TWO, TWO, np.ones((2, 4)), TWO, TWO, TWO)


def replay(**keywords):
    return ReplayBuffer(10, 4, 1, **keywords)


@rejections(
    (lambda: RolloutBuffer(0, 1, (4,)), ArgumentError, "n_steps"),
    (lambda: RolloutBuffer(True, 1, (4,)), ArgumentTypeError, "n_steps"),
    (lambda: RolloutBuffer(1, -1, (4,)), ArgumentError, "num_envs"),
    (lambda: RolloutBuffer(2**40, 2**40, (4,)), OutOfMemoryError, "n_steps"),
    (lambda: RolloutBuffer(2**62, 1, (4,)), OutOfMemoryError, "n_steps"),
    (lambda: RolloutBuffer(1, 1, (2**62,)), OutOfMemoryError, "obs_shape"),
    (lambda: RolloutBuffer(1, 1, (2**40, 2**40)), OutOfMemoryError, "obs_shape"),
    (lambda: RolloutBuffer(1, 1, (-4,)), ArgumentError, "obs_shape"),
    (lambda: RolloutBuffer(1, 1, (True,)), ArgumentTypeError, "obs_shape"),
    (lambda: RolloutBuffer(1, 1, (4,), action_dtype="int8"), ArgumentError, "action_dtype"),
    (lambda: RolloutBuffer(1, 1, (4,), obs_dtype="f2"), ArgumentError, "obs_dtype"),
    (lambda: RunningMeanStd((2**60,)), OutOfMemoryError, "shape"),
    (lambda: RunningMeanStd((0,)), ArgumentError, "shape"),
    (lambda: Normalizer(-1, (4,)), ArgumentError, "num_envs"),
    (lambda: Normalizer(1, (4,), gamma=2.0), ArgumentError, "gamma"),
    (lambda: Normalizer(1, (4,), epsilon=-1.0), ArgumentError, "epsilon"),
    (lambda: Normalizer(1, (4,), clip_obs=NAN), ArgumentError, "clip_obs"),
    (lambda: Normalizer(1, (4,), obs=1), ArgumentTypeError, "obs"),
    (lambda: Normalizer(1, (4,), reward="no"), ArgumentTypeError, "reward"),
    (lambda: RolloutBuffer(1, 1, (4,)).field("reward"), ArgumentError, "name"),
    (lambda: begin(is_new=1), ArgumentTypeError, "is_new"),
    (lambda: record(2**70), ArgumentError, "t"),
)
def test_rollout_buffer_and_statistics_reject_invalid_arguments(rejection):
    expect_rejection(rejection)


@rejections(
    (lambda: ReplayBuffer(0, 2, 1), ArgumentError, "capacity"),
    (lambda: ReplayBuffer(10.5, 2, 1), ArgumentTypeError, "capacity"),
    (lambda: ReplayBuffer(1 << 50, 2, 1), OutOfMemoryError, "capacity"),
    (lambda: ReplayBuffer(1 << 70, 2, 1), OutOfMemoryError, "capacity"),
    (lambda: ReplayBuffer(10**12 + 1, 4, 1, num_envs=3), OutOfMemoryError, "capacity"),
    (lambda: ReplayBuffer(10, (2, -4), 1), ArgumentError, "obs_dim"),
    (lambda: ReplayBuffer(10, (2, 0), 1), ArgumentError, "obs_dim"),
    (lambda: ReplayBuffer(10, (1,) * 31, 1), ArgumentError, "obs_dim"),
    (lambda: ReplayBuffer(10, {}, 1), ArgumentError, "obs_dim"),
    (lambda: ReplayBuffer(10, {"a": 0}, 1), ArgumentError, "obs_dim"),
    (lambda: ReplayBuffer(10, 2, 0), ArgumentError, "act_dim"),
    (lambda: ReplayBuffer(10, 2, (1,) * 31), ArgumentError, "act_dim"),
    (lambda: ReplayBuffer(10, {"a": "b"}, 1), ArgumentTypeError, "obs_dim"),
    (lambda: ReplayBuffer(10, (1 << 40, 1 << 40), 1), OutOfMemoryError, "obs_dim"),
    (lambda: ReplayBuffer(10, 4, 1 << 61), OutOfMemoryError, "act_dim"),
    (lambda: replay(num_envs=0), ArgumentError, "num_envs"),
    (lambda: replay(num_envs=10**12), OutOfMemoryError, "num_envs"),
    (lambda: replay(obs_dtype=np.float16), ArgumentError, "obs_dtype"),
    (lambda: replay(obs_dtype=np.dtype(">f4")), ArgumentError, "obs_dtype"),
    (lambda: replay(act_dtype="\x00"), ArgumentError, "act_dtype"),
    (lambda: replay(act_dtype=["float32"]), ArgumentTypeError, "act_dtype"),
    (lambda: replay(act_dtype={"names": ["a"]}), ArgumentTypeError, "act_dtype"),
    (lambda: replay(frame_stack=0), ArgumentError, "frame_stack"),
    (lambda: replay(frame_stack=3), ArgumentError, "frame_stack"),
    (lambda: replay(n_step=0), ArgumentError, "n_step"),
    (lambda: replay(n_step=2, gamma=1.5), ArgumentError, "gamma"),
    (lambda: replay(extra={"cost": ((), np.dtype("i4"))}), ArgumentError, "extra"),
    (lambda: replay(extra={"cost": ((0,), "bool")}), ArgumentError, "extra"),
    *((lambda name=name: replay(extra={name: ((), "bool")}), ArgumentError, "extra") for name in RESERVED),
    (lambda: replay(seed=-1), ArgumentError, "seed"),
    (lambda: PrioritizedReplayBuffer(8, 3, 1, alpha=1.5), ArgumentError, "alpha"),
)
def test_replay_buffer_rejects_invalid_arguments(rejection):
    expect_rejection(rejection)


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("shape", RunningMeanStd),
        ("obs_shape", lambda shape: Normalizer(1, shape)),
        ("obs_shape", lambda shape: RolloutBuffer(1, 1, shape)),
        ("action_shape", lambda shape: RolloutBuffer(1, 1, (), shape)),
    ],
    ids=["RunningMeanStd", "Normalizer", "RolloutBuffer obs", "RolloutBuffer action"],
)
def test_shape_of_more_than_30_axes_is_rejected(argument, make):
    for axes in (31, 70, 20_000):
        expect_rejection(Rejection(make, ArgumentError, argument), (1,) * axes)
    make((1,) * 30)


def load(normalizer, **replaced):
    normalizer.load_state(normalizer.state() | replaced)


@rejections(
    (lambda normalizer: load(normalizer, returns=[0.0, NAN]), NonFiniteError, "returns"),
    (lambda normalizer: load(normalizer, returns=[[0.0, 0.0]]), ArgumentError, "returns"),
    (lambda normalizer: load(normalizer, obs_mean=np.zeros((2, 2))), ArgumentError, "obs_mean"),
    (lambda normalizer: load(normalizer, obs_var=np.ones((1, 4))), ArgumentError, "obs_var"),
    (lambda normalizer: load(normalizer, obs_count=np.ones((1, 1))), ArgumentError, "obs_count"),
    (lambda normalizer: load(normalizer, return_mean=0.0), ArgumentError, "return_mean"),
    (lambda normalizer: load(normalizer, return_var=[[1.0]]), ArgumentError, "return_var"),
)
def test_normalizer_rejects_invalid_states_without_change(rejection):
    normalizer = Normalizer(2, (4,))
    normalizer.update_obs(np.arange(8).reshape(2, 4))
    before = normalizer.state()
    expect_rejection(rejection, normalizer)
    for key, array in normalizer.state().items():
        assert np.array_equal(array, before[key])


def push(buffer, **replaced):
    buffer.push(**dict(zip(FIELDS, transition(5), strict=True)) | replaced)


@rejections(
    (lambda buffer: push(buffer, obs=[0.0]), ArgumentError, "obs"),
    (lambda buffer: push(buffer, obs=[[0.0, 1.0]]), ArgumentError, "obs"),
    (lambda buffer: push(buffer, obs=[0.0, NAN]), NonFiniteError, "obs"),
    (lambda buffer: push(buffer, obs=MASKED), ArgumentTypeError, "obs"),
    (lambda buffer: push(buffer, next_obs=[np.inf, 0]), NonFiniteError, "next_obs"),
    (lambda buffer: push(buffer, next_obs=[0]), ArgumentError, "next_obs"),
    (lambda buffer: push(buffer, next_obs=MASKED), ArgumentTypeError, "next_obs"),
    (lambda buffer: push(buffer, action=[0, 1]), ArgumentError, "action"),
    (lambda buffer: push(buffer, action=[NAN]), NonFiniteError, "action"),
    (lambda buffer: push(buffer, reward=NAN), NonFiniteError, "reward"),
    (lambda buffer: push(buffer, reward=1e39), NonFiniteError, "reward"),
    *(
        (lambda buffer, kwargs={name: value}: push(buffer, **kwargs), error, name, hint)
        for name in ("terminated", "truncated")
        for value, error, hint in (
            (np.array([True, False]), ArgumentError, "push_batch"),
            ([True], ArgumentError, ""),
            (torch.ones(2, dtype=torch.bool), ArgumentError, "push_batch"),
            (2, ArgumentError, ""),
            (NAN, ArgumentError, ""),
            (None, ArgumentTypeError, ""),
        )
    ),
)
def test_push_rejects_invalid_transitions_without_change(rejection):
    buffer = ReplayBuffer(3, 2, 1, seed=0)
    for i in range(5):
        buffer.push(*transition(i))
    before = buffer.sample(3, seed=1)
    expect_rejection(rejection, buffer)
    for name, array in buffer.sample(3, seed=1).items():
        assert np.array_equal(array, before[name])
    push(buffer)
    assert set(check(buffer.sample(3))) <= {3, 4, 5}


ROWS = {
    "obs": np.zeros((2, 2)),
    "next_obs": np.zeros((2, 2)),
    "actions": np.zeros((2, 1)),
    "rewards": np.zeros(2),
    "terminated": np.zeros(2, bool),
    "truncated": np.zeros(2, bool),
}


def push_batch(buffer, **replaced):
    buffer.push_batch(**ROWS | replaced)


@rejections(
    (lambda buffer: push_batch(buffer, rewards=MASKED), ArgumentTypeError, "rewards"),
    (lambda buffer: push_batch(buffer, terminated=MASKED == 0), ArgumentTypeError, "terminated"),
    (lambda buffer: push_batch(buffer, rewards=np.zeros((2, 1))), ArgumentError, "rewards"),
    (lambda buffer: push_batch(buffer, terminated=np.ones((2, 1))), ArgumentError, "terminated"),
)
def test_push_batch_rejects_invalid_rows(rejection):
    buffer = ReplayBuffer(10, 2, 1)
    expect_rejection(rejection, buffer)
    assert len(buffer) == 0


def test_masked_arrays_without_masked_elements_are_accepted():
    buffer = ReplayBuffer(10, 2, 1)
    obs = np.ma.masked_array([1, 2], dtype=np.float32)
    buffer.push(obs, np.zeros(1, np.float32), 0.0, True, False, obs)
    assert buffer.sample(1)["obs"].tolist() == [[1, 2]]


@rejections(
    (lambda buffer: buffer.sample(0), ArgumentError, "batch_size"),
    (lambda buffer: buffer.sample(4), ArgumentError, "batch_size"),
    (lambda buffer: buffer.sample(1 << 62), ArgumentError, "batch_size"),
    (lambda buffer: buffer.sample(1.0), ArgumentTypeError, "batch_size"),
    (lambda buffer: buffer.sample(1, -1), ArgumentError, "seed"),
    (lambda buffer: buffer.sample(1, 1.5), ArgumentTypeError, "seed"),
    (lambda buffer: buffer.sample(2, out=buffer.sample(3)), ArgumentError, "out"),
    (lambda buffer: buffer.sample_sequences(2, 10**12), OutOfMemoryError, "length"),
    (lambda buffer: buffer.sample_sequences(2, 3, burn_in=10**12), OutOfMemoryError, "burn_in"),
    (lambda _: ReplayBuffer(3, 2, 1).sample(1), ArgumentError, "batch_size"),
    (lambda _: ReplayBuffer(3, 2, 1).sample_sequences(2, 10**12), OutOfMemoryError, "length"),
)
def test_sample_rejects_invalid_arguments(rejection):
    buffer = ReplayBuffer(3, 2, 1)
    for i in range(3):
        buffer.push(*transition(i))
    expect_rejection(rejection, buffer)


def test_last_row_without_next_observation_is_not_sampled():
    buffer = ReplayBuffer(10, 2, 1)
    buffer.push(*transition(0)[:-1])
    assert len(buffer) == 1
    for sample in (buffer.sample, lambda count: buffer.sample_sequences(count, 2)):
        expect_rejection(Rejection(sample, ArgumentError, "batch_size", "next_obs"), 1)
    for i in range(1, 9):
        buffer.push(*transition(i)[:-1])
    assert len(buffer) == 9
    expect_rejection(Rejection(buffer.sample, ArgumentError, "batch_size", "next_obs"), 9)


def test_capacity_is_rounded_to_a_multiple_of_num_envs():
    assert ReplayBuffer(10, 2, 1, num_envs=3).capacity == 9
    assert ReplayBuffer(3, 2, 1, num_envs=8).capacity == 8


def test_dtypes_accept_every_notation_of_numpy():
    dtypes = {"obs_dtype": np.uint8, "act_dtype": np.dtype("int64")}
    extra = {"cost": ((), float), "flags": (2, "?"), "distance": ((), np.float32)}
    buffer = ReplayBuffer(10, 4, (), **dtypes, extra=extra)
    values = {"cost": 0.1, "flags": [True, False], "distance": 0.5}
    buffer.push(np.arange(4, dtype=np.uint8), 3, 1.0, True, False, np.arange(4), extra=values)
    found = {name: str(array.dtype) for name, array in buffer.sample(1).items()}
    assert (found["obs"], found["next_obs"], found["actions"]) == ("uint8", "uint8", "int64")
    assert (found["cost"], found["flags"], found["distance"]) == ("float64", "bool", "float32")
    state = ReplayBuffer(10, {"a": (3, np.uint8), "b": ((2, 2), "f8"), "c": (2, 3)}, 1).state()
    parts = [state[f"next_row.obs.{name}"] for name in "abc"]
    assert [part.shape[1:] for part in parts] == [(3,), (2, 2), (2, 3)]
    assert [part.dtype.name for part in parts] == ["uint8", "float64", "float32"]


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_push_accepts_flags_of_any_scalar_type(name):
    buffer = ReplayBuffer(20, 2, 1)
    flags = [True, np.True_, np.array(True), 1, np.int64(1), np.array(1.0), torch.tensor(True)]
    flags += [False, np.False_, np.array(False), 0, 0.0, torch.tensor(False)]
    for value in flags:
        push(buffer, **{name: value})
    assert buffer.state()[f"step.{name}"].tolist() == [True] * 7 + [False] * 6


@pytest.mark.parametrize("argument", ["obs", "next_obs"])
@pytest.mark.parametrize("unknown", ["gaol", 3], ids=["unknown name", "number"])
def test_unknown_keys_of_dict_observations_are_rejected(argument, unknown):
    buffer = ReplayBuffer(10, {"position": 2, "goal": 1}, 1)
    row = {"position": np.zeros(2, np.float32), "goal": np.zeros(1, np.float32)}
    batch = {key: x[None] for key, x in row.items()}
    rest = {"actions": [[0.0]], "rewards": [0.0], "terminated": [False], "truncated": [False]}

    def push():
        rows = {"obs": row, "next_obs": row} | {argument: row | {unknown: np.zeros(1)}}
        buffer.push(**rows, action=[0.0], reward=0.0, terminated=False, truncated=False)

    def push_batch(observation):
        rows = {"obs": batch, "next_obs": batch} | {argument: observation}
        buffer.push_batch(**rows, **rest)

    expect_rejection(Rejection(push, ArgumentError, argument))
    expect_rejection(Rejection(push_batch, ArgumentError, argument), batch | {unknown: np.zeros(1)})
    expect_rejection(Rejection(push_batch, ArgumentError, argument), {"position": batch["position"]})
    assert len(buffer) == 0
    push_batch(batch)
    assert len(buffer) == 1
