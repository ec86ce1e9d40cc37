"""Arrow tables and Minari data sets preserve all transitions."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError, OutOfMemoryError
from rlox.interchange import from_arrow, from_minari, to_arrow
from support.rejections import Rejection, expect_rejection, rejects
from support.replay import transition


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


def transitions_of(buffer):
    """Return the set of all transitions that can be sampled."""
    rows = set()
    for seed in range(60):
        batch = buffer.sample(len(buffer), seed)
        parts = []
        for name, value in sorted(batch.items()):
            arrays = value.items() if isinstance(value, dict) else [("", value)]
            parts += [(name, key, array) for key, array in arrays]
        for i in range(len(batch["rewards"])):
            rows.add(tuple((name, key, array[i].tobytes()) for name, key, array in parts))
    return rows


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


def test_tables_contain_every_transition(pa):
    rng = np.random.default_rng(0)
    sizes = {"a": ((2, 3), "uint8"), "b": ((), "int64"), "c": (2, "float64")}
    extra = {"cost": ((), "float64"), "flags": (3, "bool")}
    buffer = rlox.ReplayBuffer(12, sizes, 2, num_envs=2, extra=extra)

    def observe():
        return {
            "a": rng.integers(0, 256, (2, 2, 3), np.uint8),
            "b": rng.integers(-9, 9, 2),
            "c": rng.normal(size=(2, 2)),
        }

    obs = observe()
    for _ in range(11):
        following, (terminated, truncated) = observe(), rng.random((2, 2)) < 0.2
        costs = {"cost": rng.random(2), "flags": rng.random((2, 3)) < 0.5}
        actions, rewards = rng.normal(size=(2, 2)), rng.normal(size=2)
        buffer.push_batch(obs, following, actions, rewards, terminated, truncated, extra=costs)
        obs = observe() if (terminated | truncated).any() else following
    table = to_arrow(buffer)
    assert table.num_rows == len(buffer) == 12
    assert table.schema.field("next_obs.a").type == pa.list_(pa.uint8(), 6)
    assert table.schema.field("obs.b").type == pa.int64()
    assert table.schema.field("flags").type == pa.list_(pa.bool_(), 3)
    assert table["env"].to_pylist() == [0, 1] * 6
    loaded = from_arrow(table)
    assert (loaded.capacity, loaded.num_envs, len(loaded)) == (12, 2, 12)
    assert transitions_of(loaded) == transitions_of(buffer)
    assert to_arrow(loaded) == table


@pytest.mark.parametrize("buffer_type", [rlox.ReplayBuffer, rlox.PrioritizedReplayBuffer])
def test_tables_preserve_unfinished_episodes_and_incomplete_steps(pa, buffer_type):
    buffer = buffer_type(8, 2, 1)
    for i in range(11):
        buffer.push(*transition(i, truncated=i % 5 == 4))
    table = to_arrow(buffer)
    assert table["next_obs"].to_pylist() == [[i + 1.0] * 2 for i in range(3, 11)]
    assert table["continues"].to_pylist() == [i not in (4, 9, 10) for i in range(3, 11)]
    buffer.push(*transition(11)[:-1])  # without its next observation
    assert to_arrow(buffer)["rewards"].to_pylist() == [i / 2 for i in range(4, 11)]
    sums = from_arrow(to_arrow(buffer), n_step=2, gamma=0.5).sample(7, 0)
    assert np.isin(sums["discounts"], (0.25, 0.5)).all()
    empty = from_arrow(to_arrow(rlox.ReplayBuffer(8, 2, 1)))
    assert (len(empty), empty.capacity) == (0, 8)


def chain(first, count):
    """Return `count` steps of one unfinished episode."""
    obs = np.float32([[i, i] for i in range(first, first + count)])
    no_flags = np.zeros(count, bool)
    return obs, obs + 1, np.zeros((count, 1)), np.arange(first, first + count), no_flags, no_flags


@pytest.mark.parametrize("capacity", [50, 7])
def test_rows_that_do_not_continue_each_other_stay_separate(pa, capacity):
    buffer = rlox.ReplayBuffer(capacity, 2, 1, n_step=3, gamma=0.5)
    buffer.push_batch(*chain(0, 5))  # each row is separate
    assert not to_arrow(buffer)["continues"].to_numpy().any()
    buffer.push_batch(*chain(5, 3), in_order=True)
    buffer.push_batch(*chain(8, 2))
    table = to_arrow(buffer)
    continues = [False] * 5 + [True] * 2 + [False] * 3
    assert table["continues"].to_pylist() == continues[-capacity:]
    loaded = from_arrow(table, n_step=3, gamma=0.5)
    assert transitions_of(loaded) == transitions_of(buffer)
    assert to_arrow(loaded) == table
    for each in (buffer, loaded):  # rows do not continue a separate row
        each.push_batch(*chain(20, 2), in_order=True)
    assert to_arrow(loaded) == to_arrow(buffer)


def test_separate_rows_of_several_environments_stay_separate(pa):
    buffer = rlox.ReplayBuffer(20, 2, 1, num_envs=2, n_step=2)
    for t in range(4):
        obs = np.float32([[t, t], [t + 50, t]])
        no_flags = np.zeros(2, bool)
        buffer.push_batch(obs, obs + 1, np.zeros((2, 1)), [t, t], no_flags, no_flags)
    table = to_arrow(buffer)
    continues = [True, False, True, True, False, True, False, False]
    changed = with_column(table, "continues", pa.chunked_array([pa.array(continues)]))
    for source in (changed, changed.replace_schema_metadata()):
        loaded = from_arrow(source, num_envs=2, n_step=2)
        assert to_arrow(loaded)["continues"].to_pylist() == continues


def test_rows_after_a_dropped_step_start_an_episode(pa):
    buffer = rlox.ReplayBuffer(20, 1, 1)
    for i in range(10):
        buffer.push([i], [0], 0.0, False, False, [i + 1])
    table = to_arrow(buffer)
    for first in (True, False):
        continues = pa.array([i != 4 or first for i in range(10)])
        loaded = from_arrow(with_column(table, "continues", continues), capacity=5)
        assert loaded.state()["step.obs"][0] == 5
        assert loaded.state()["cut"].tolist() == [first]


def test_invalid_tables_and_buffers_are_rejected(pa, tmp_path):
    buffer = rlox.ReplayBuffer(8, 2, 1)
    for i in range(3):
        buffer.push(*transition(i))
    table = to_arrow(buffer)
    nulls = with_column(table, "rewards", pa.array([1.0, None, 2.0], pa.float32()))
    texts = with_column(table, "rewards", pa.array(["a", "b", "c"]))
    env = rlox.ReplayBuffer(8, 2, 1, extra={"env": ((), "int64")})
    with rlox.MmapReplayBuffer(3, 6, 2, 1, tmp_path / "replay") as file:
        for call, error, argument in (
            (lambda: from_arrow({}), ArgumentTypeError, "table"),
            (lambda: from_arrow(table.drop(["next_obs"])), ArgumentError, "table"),
            (lambda: from_arrow(nulls), ArgumentError, "table['rewards']"),
            (lambda: from_arrow(texts), ArgumentError, "table['rewards']"),
            (lambda: from_arrow(table, num_envs=2), ArgumentError, "table"),
            (lambda: from_arrow(table, num_envs=0), ArgumentError, "num_envs"),
            (lambda: to_arrow(env), ArgumentError, "buffer"),
            (lambda: to_arrow(file), ArgumentTypeError, "buffer"),
        ):
            expect_rejection(Rejection(call, error, argument))


@pytest.mark.parametrize(("envs", "frames", "steps"), [(1, 4, 40), (1, 2, 5), (3, 3, 40), (2, 4, 2)])
def test_tables_have_full_frame_stacks_and_buffers_store_frames_once(pa, envs, frames, steps):
    rng = np.random.default_rng(envs + steps)
    shape, settings = (2 * frames, 3), {"obs_dtype": "uint8", "frame_stack": frames}
    buffer = rlox.ReplayBuffer(12 * envs, shape, 1, **settings, num_envs=envs)

    def first_stack():
        return np.repeat(rng.integers(0, 256, (2, 3), np.uint8)[None], frames, 0).reshape(shape)

    obs = np.stack([first_stack() for _ in range(envs)])
    for t in range(steps):
        new = rng.integers(0, 256, (envs, 2, 3), np.uint8)
        following = np.concatenate([obs[:, 2:], new], 1)
        terminated, truncated = rng.random((2, envs)) < 0.15
        actions, rewards = rng.normal(size=(envs, 1)), np.arange(envs) + envs * t
        buffer.push_batch(obs, following, actions, rewards, terminated, truncated)
        is_reset = (terminated | truncated) | (rng.random(envs) < 0.1)
        obs = np.where(is_reset[:, None, None], np.stack([first_stack() for _ in range(envs)]), following)
    table = to_arrow(buffer)
    assert table.num_rows == len(buffer) == min(steps, 12) * envs
    assert table.schema.field("next_obs").type == pa.list_(pa.uint8(), 6 * frames)
    stored = {row[-1]: row for row in transitions_of(buffer)}
    copy = from_arrow(table)
    assert {row[-1]: row for row in transitions_of(copy)} == stored
    assert len(copy) == len(buffer)
    assert to_arrow(copy) == table
    assert copy.state()["frame_stack"][0] == frames
    unstacked = from_arrow(table, frame_stack=1)
    assert unstacked.nbytes > 0
    assert {row[-1]: row for row in transitions_of(unstacked)} == stored


def test_frame_stacks_larger_than_memory_are_rejected(pa, monkeypatch):
    monkeypatch.setattr("rlox._system.available_memory", lambda: 1000)
    buffer = rlox.ReplayBuffer(100, (4, 20), 1, obs_dtype="uint8", frame_stack=4)
    stack = np.zeros((11, 4, 20), np.uint8)
    zeros, no_flags = np.zeros(10), np.zeros(10, bool)
    buffer.push_batch(stack[:-1], stack[1:], zeros, zeros, no_flags, no_flags, in_order=True)
    got = "'stacks of 4 frames', which needs 1600 bytes"
    with rejects(OutOfMemoryError, "buffer", got=got):
        to_arrow(buffer)


@pytest.mark.filterwarnings("ignore")
def test_minari_datasets_keep_final_observations(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    last = np.arange(4) == 3
    episodes = [
        minari.data_collector.EpisodeBuffer(
            id=episode,
            observations=np.float32([[episode, t] for t in range(5)]),
            actions=np.arange(4) % 3,
            rewards=(np.arange(4) % 3).astype(float),
            terminations=last & (episode % 2 == 1),
            truncations=last & (episode % 2 == 0),
            infos={},
        )
        for episode in range(3)
    ]
    dataset = minari.create_dataset_from_buffers(
        "counting/test-v0",
        episodes,
        action_space=gym.spaces.Discrete(3),
        observation_space=gym.spaces.Box(-1, 100, (2,), np.float32),
    )
    for source in (dataset, "counting/test-v0"):
        buffer = from_minari(source, seed=0)
        assert (len(buffer), buffer.capacity) == (12, 12)
        batch = buffer.sample(12, 1)
        obs, following = batch["obs"], batch["next_obs"]
        assert np.array_equal(following - obs, np.tile([0, 1], (12, 1)))
        last = following[:, 1] == 4
        assert np.array_equal(batch["terminated"], last & (obs[:, 0] % 2 == 1))
        assert np.array_equal(batch["truncated"], last & (obs[:, 0] % 2 == 0))
        assert np.array_equal(batch["actions"], batch["rewards"])
        assert batch["actions"].dtype == np.int64
    expect_rejection(Rejection(from_minari, ArgumentTypeError, "dataset"), 3)
