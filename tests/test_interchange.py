"""Arrow tables and Minari's data sets: every transition comes through."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.interchange import from_arrow, from_minari, to_arrow
from support.replay import transition


def rows_of(buffer):
    """Every transition that can be sampled, as a set."""
    found = set()
    for seed in range(60):
        batch = buffer.sample(len(buffer), seed)
        parts = []
        for name, value in sorted(batch.items()):
            arrays = value.items() if isinstance(value, dict) else [("", value)]
            parts += [(name, key, array) for key, array in arrays]
        for i in range(len(batch["rewards"])):
            found.add(tuple((name, key, array[i].tobytes()) for name, key, array in parts))
    return found


def test_tables_hold_every_transition():
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    sizes = {"a": ((2, 3), "uint8"), "b": ((), "int64"), "c": (2, "float64")}
    extra = {"cost": ((), "float64"), "seen": (3, "bool")}
    buffer = rlox.ReplayBuffer(12, sizes, 2, num_envs=2, extra=extra)

    def observed():
        return {
            "a": rng.integers(0, 256, (2, 2, 3), np.uint8),
            "b": rng.integers(-9, 9, 2),
            "c": rng.normal(size=(2, 2)),
        }

    obs = observed()
    for _ in range(11):
        following, (ended, cut) = observed(), rng.random((2, 2)) < 0.2
        beside = {"cost": rng.random(2), "seen": rng.random((2, 3)) < 0.5}
        actions, rewards = rng.normal(size=(2, 2)), rng.normal(size=2)
        buffer.push_batch(obs, following, actions, rewards, ended, cut, extra=beside)
        obs = observed() if (ended | cut).any() else following
    table = to_arrow(buffer)
    assert table.num_rows == len(buffer) == 12
    assert table.schema.field("next_obs.a").type == pa.list_(pa.uint8(), 6)
    assert table.schema.field("obs.b").type == pa.int64()
    assert table.schema.field("seen").type == pa.list_(pa.bool_(), 3)
    assert table["env"].to_pylist() == [0, 1] * 6
    again = from_arrow(table)
    assert (again.capacity, again.num_envs, len(again)) == (12, 2, 12)
    assert rows_of(again) == rows_of(buffer)
    assert to_arrow(again) == table


@pytest.mark.parametrize("kind", [rlox.ReplayBuffer, rlox.PrioritizedReplayBuffer])
def test_running_and_promised_steps_come_through(kind):
    pytest.importorskip("pyarrow")
    buffer = kind(8, 2, 1)
    for i in range(11):
        buffer.push(*transition(i, truncated=i % 5 == 4))
    table = to_arrow(buffer)
    assert table["next_obs"].to_pylist() == [[i + 1.0] * 2 for i in range(3, 11)]
    assert table["continues"].to_pylist() == [i not in (4, 9, 10) for i in range(3, 11)]
    buffer.push(*transition(11)[:-1])  # its next observation is to come
    assert to_arrow(buffer)["rewards"].to_pylist() == [i / 2 for i in range(4, 11)]
    sums = from_arrow(to_arrow(buffer), n_step=2, gamma=0.5).sample(7, 0)
    assert np.isin(sums["discounts"], (0.25, 0.5)).all()
    empty = from_arrow(to_arrow(rlox.ReplayBuffer(8, 2, 1)))
    assert (len(empty), empty.capacity) == (0, 8)


def chain(first, count):
    """Steps that fit each other, the last of them of no ended episode."""
    obs = np.float32([[i, i] for i in range(first, first + count)])
    off = np.zeros(count, bool)
    return obs, obs + 1, np.zeros((count, 1)), np.arange(first, first + count), off, off


@pytest.mark.parametrize("capacity", [50, 7])
def test_rows_that_fit_and_do_not_follow_each_other_stay_apart(capacity):
    pytest.importorskip("pyarrow")
    buffer = rlox.ReplayBuffer(capacity, 2, 1, n_step=3, gamma=0.5)
    buffer.push_batch(*chain(0, 5))  # for themselves, each
    assert not to_arrow(buffer)["continues"].to_numpy().any()
    buffer.push_batch(*chain(5, 3), in_order=True)
    buffer.push_batch(*chain(8, 2))
    table = to_arrow(buffer)
    apart = [False] * 5 + [True] * 2 + [False] * 3
    assert table["continues"].to_pylist() == apart[-capacity:]
    again = from_arrow(table, n_step=3, gamma=0.5)
    assert rows_of(again) == rows_of(buffer)
    assert to_arrow(again) == table
    for one in (buffer, again):  # where a row of its own ended nothing goes on
        one.push_batch(*chain(20, 2), in_order=True)
    assert to_arrow(again) == to_arrow(buffer)


def test_rows_apart_of_several_environments_and_of_other_tables_stay_apart():
    pa = pytest.importorskip("pyarrow")
    buffer = rlox.ReplayBuffer(20, 2, 1, num_envs=2, n_step=2)
    for t in range(4):
        obs = np.float32([[t, t], [t + 50, t]])
        off = np.zeros(2, bool)
        buffer.push_batch(obs, obs + 1, np.zeros((2, 1)), [t, t], off, off)
    table = to_arrow(buffer)
    at = table.column_names.index("continues")
    said = [True, False, True, True, False, True, False, False]
    field = table.schema.field(at)
    parted = table.set_column(at, field, pa.chunked_array([pa.array(said)]))
    for given in (parted, parted.replace_schema_metadata()):
        again = from_arrow(given, num_envs=2, n_step=2)
        assert to_arrow(again)["continues"].to_pylist() == said


def test_rows_that_go_on_from_none_that_is_kept_begin_an_episode():
    pa = pytest.importorskip("pyarrow")
    buffer = rlox.ReplayBuffer(20, 1, 1)
    for i in range(10):
        buffer.push([i], [0], 0.0, False, False, [i + 1])
    table = to_arrow(buffer)
    at = table.column_names.index("continues")
    for first, said in [(True, [True]), (False, [False])]:
        apart = pa.array([i != 4 or first for i in range(10)])
        again = from_arrow(table.set_column(at, table.schema.field(at), apart), capacity=5)
        assert again.state()["step.obs"][0] == 5
        assert again.state()["cut"].tolist() == said


def test_tables_that_make_no_sense_are_refused():
    pa = pytest.importorskip("pyarrow")
    buffer = rlox.ReplayBuffer(8, 2, 1)
    for i in range(3):
        buffer.push(*transition(i))
    table = to_arrow(buffer)
    with pytest.raises(TypeError, match=r"table: expected a pyarrow\.Table, got dict"):
        from_arrow({})
    with pytest.raises(ValueError, match="table: expected a column 'next_obs', got"):
        from_arrow(table.drop(["next_obs"]))
    at = table.column_names.index("rewards")
    with pytest.raises(ValueError, match=r"table\['rewards'\]: expected no nulls, got 1"):
        from_arrow(table.set_column(at, "rewards", pa.array([1.0, None, 2.0], pa.float32())))
    with pytest.raises(ValueError, match=r"table\['rewards'\]: expected float32.*got string"):
        from_arrow(table.set_column(at, "rewards", pa.array(["a", "b", "c"])))
    with pytest.raises(ValueError, match="table: expected rows of the environments 0 to 1"):
        from_arrow(table, num_envs=2)
    with pytest.raises(ValueError, match="num_envs: expected at least 1, got 0"):
        from_arrow(table, num_envs=0)
    named = rlox.ReplayBuffer(8, 2, 1, extra={"env": ((), "int64")})
    with pytest.raises(ValueError, match="buffer: expected no part 'env'"):
        to_arrow(named)


@pytest.mark.parametrize(
    ("envs", "frames", "steps"), [(1, 4, 40), (1, 2, 5), (3, 3, 40), (2, 4, 2)]
)
def test_stacks_of_frames_are_whole_in_tables_and_stored_once_again(envs, frames, steps):
    """Across episodes' ends, the ring's seam, and steps that do not follow the one before."""
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(envs + steps)
    shape, kinds = (2 * frames, 3), {"obs_dtype": "uint8", "frame_stack": frames}
    buffer = rlox.ReplayBuffer(12 * envs, shape, 1, **kinds, num_envs=envs)

    def fresh():
        return np.repeat(rng.integers(0, 256, (2, 3), np.uint8)[None], frames, 0).reshape(shape)

    obs = np.stack([fresh() for _ in range(envs)])
    for t in range(steps):
        new = rng.integers(0, 256, (envs, 2, 3), np.uint8)
        following = np.concatenate([obs[:, 2:], new], 1)
        ended, cut = rng.random((2, envs)) < 0.15
        actions, rewards = rng.normal(size=(envs, 1)), np.arange(envs) + envs * t
        buffer.push_batch(obs, following, actions, rewards, ended, cut)
        again = (ended | cut) | (rng.random(envs) < 0.1)
        obs = np.where(again[:, None, None], np.stack([fresh() for _ in range(envs)]), following)
    table = to_arrow(buffer)
    assert table.num_rows == len(buffer) == min(steps, 12) * envs
    assert table.schema.field("next_obs").type == pa.list_(pa.uint8(), 6 * frames)
    stored = {row[-1]: row for row in rows_of(buffer)}
    copy = from_arrow(table)
    assert {row[-1]: row for row in rows_of(copy)} == stored
    assert len(copy) == len(buffer)
    assert to_arrow(copy) == table
    assert copy.state()["frame_stack"][0] == frames
    whole = from_arrow(table, frame_stack=1)
    assert whole.nbytes > 0
    assert {row[-1]: row for row in rows_of(whole)} == stored


def test_stacks_that_do_not_fit_are_refused(monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("rlox.memory.available_memory", lambda: 1000)
    buffer = rlox.ReplayBuffer(100, (4, 20), 1, obs_dtype="uint8", frame_stack=4)
    stack = np.zeros((11, 4, 20), np.uint8)
    zeros, off = np.zeros(10), np.zeros(10, bool)
    buffer.push_batch(stack[:-1], stack[1:], zeros, zeros, off, off, in_order=True)
    with pytest.raises(MemoryError, match=r"^buffer: .*stacks of 4 frames"):
        to_arrow(buffer)


def test_buffers_that_tables_cannot_be_made_of_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    with (
        rlox.MmapReplayBuffer(3, 6, 2, 1, tmp_path / "replay") as buffer,
        pytest.raises(TypeError, match=r"buffer: expected a rlox.ReplayBuffer, got MmapReplay"),
    ):
        to_arrow(buffer)


def test_missing_packages_are_named_with_their_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"pyarrow: .* pip install 'rlox\[arrow\]'"):
        to_arrow(rlox.ReplayBuffer(8, 2, 1))
    with pytest.raises(ImportError, match=r"minari: .* pip install 'rlox\[minari\]'"):
        from_minari("any")


@pytest.mark.filterwarnings("ignore")
def test_data_sets_come_with_their_last_observations(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episodes = []
    for number in range(3):
        last = np.arange(4) == 3
        episodes.append(
            minari.data_collector.EpisodeBuffer(
                id=number,
                observations=np.float32([[number, t] for t in range(5)]),
                actions=np.arange(4) % 3,
                rewards=(np.arange(4) % 3).astype(float),
                terminations=last & (number % 2 == 1),
                truncations=last & (number % 2 == 0),
                infos={},
            )
        )
    dataset = minari.create_dataset_from_buffers(
        "counting/test-v0",
        episodes,
        action_space=gym.spaces.Discrete(3),
        observation_space=gym.spaces.Box(-1, 100, (2,), np.float32),
    )
    for given in (dataset, "counting/test-v0"):
        buffer = from_minari(given, seed=0)
        assert (len(buffer), buffer.capacity) == (12, 12)
        batch = buffer.sample(12, 1)
        obs, following = batch["obs"], batch["next_obs"]
        assert np.array_equal(following - obs, np.tile([0, 1], (12, 1)))
        last = following[:, 1] == 4
        assert np.array_equal(batch["terminated"], last & (obs[:, 0] % 2 == 1))
        assert np.array_equal(batch["truncated"], last & (obs[:, 0] % 2 == 0))
        assert np.array_equal(batch["actions"], batch["rewards"])
        assert batch["actions"].dtype == np.int64
    with pytest.raises(TypeError, match=r"dataset: expected a minari\.MinariDataset"):
        from_minari(3)
