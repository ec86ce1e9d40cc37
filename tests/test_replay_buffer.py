"""`ReplayBuffer`: what is sampled is what was pushed; what makes no sense is refused."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox
from replay_rows import check, transition

NAMES = ["obs", "next_obs", "actions", "rewards", "terminated", "truncated"]


def test_batches_have_names_shapes_and_dtypes():
    buffer = rlox.ReplayBuffer(10, (2, 3), (), obs_dtype="float64", act_dtype="int64")
    buffer.push(np.ones((2, 3)), 4, 1.5, False, True, np.zeros((2, 3)))
    batch = buffer.sample(1)
    assert list(batch) == NAMES
    told = {name: (array.shape, array.dtype.name) for name, array in batch.items()}
    assert told == {
        "obs": ((1, 2, 3), "float64"),
        "next_obs": ((1, 2, 3), "float64"),
        "actions": ((1,), "int64"),
        "rewards": ((1,), "float32"),
        "terminated": ((1,), "bool"),
        "truncated": ((1,), "bool"),
    }
    assert (batch["actions"][0], batch["rewards"][0]) == (4, 1.5)
    assert not batch["terminated"][0]
    assert batch["truncated"][0]
    assert len(buffer) == 1
    assert buffer.capacity == 10


def test_the_oldest_make_room_and_nothing_is_torn():
    buffer = rlox.ReplayBuffer(5, 2, 1, seed=0)
    for i in range(12):
        buffer.push(*transition(i))
    assert len(buffer) == 5
    assert set(np.concatenate([check(buffer.sample(5)) for _ in range(40)])) == {7, 8, 9, 10, 11}


def test_every_transition_is_as_likely_as_another():
    buffer = rlox.ReplayBuffer(20, 2, 1)
    for i in range(33):
        buffer.push(*transition(i))
    drawn = np.concatenate([check(buffer.sample(20, seed=seed)) for seed in range(1000)])
    counts = np.bincount(drawn.astype(int) - 13, minlength=20)
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_squared < 50  # 19 degrees of freedom: p = 0.0001


def test_a_seed_repeats_and_own_streams_go_on():
    def buffer(seed):
        made = rlox.ReplayBuffer(50, 2, 1, seed=seed)
        for i in range(50):
            made.push(*transition(i))
        return made

    first, second = buffer(3), buffer(3)

    def drawn(source, *args):
        return source.sample(20, *args)["obs"][:, 0].tolist()

    assert drawn(first, 7) == drawn(first, 7) == drawn(second, 7) != drawn(first, 8)
    own = [drawn(first) for _ in range(3)]
    assert own == [drawn(second) for _ in range(3)]
    assert own[0] != own[1] != own[2]
    assert own[0] != drawn(buffer(4))
    generators = [np.random.default_rng(1) for _ in range(2)]
    assert drawn(first, generators[0]) == drawn(first, generators[1])
    assert drawn(first, generators[0]) != drawn(first, 1)


def test_next_observations_may_be_left_out_where_the_next_row_has_them():
    buffer = rlox.ReplayBuffer(10, 2, 1)
    for i in range(4):
        buffer.push(*transition(i)[:-1])
    assert len(buffer) == 4
    with pytest.raises(ValueError, match="batch_size: expected 1 to 3"):
        buffer.sample(4)
    assert set(check(buffer.sample(3))) <= {0, 1, 2}
    for kind in ({"terminated": True}, {"truncated": True}):
        with pytest.raises(ValueError, match="next_obs: expected the episode's last observation"):
            buffer.push(*transition(4, **kind)[:-1])
    assert len(buffer) == 4
    rows = (
        np.zeros((3, 2)),
        None,
        np.zeros((3, 1)),
        np.zeros(3),
        np.zeros(3, bool),
        np.zeros(3, bool),
    )
    with pytest.raises(
        ValueError, match="next_obs: expected the observation after each row, got none"
    ):
        buffer.push_batch(*rows)
    assert len(buffer) == 4


def test_a_promise_is_kept_by_the_next_step_alone():
    never, actions = [False] * 2, np.zeros((2, 1))
    buffer = rlox.ReplayBuffer(10, 1, 1, n_step=3, gamma=1.0)
    buffer.push_batch([[0.0], [1.0]], None, actions, [1, 1], never, never, in_order=True)
    apart = ([[50.0], [60.0]], [[51.0], [61.0]], actions, [10, 10], never, never)
    said = "obs: expected the next step first, .* got 2 rows that stand for themselves; push"
    with pytest.raises(ValueError, match=said):
        buffer.push_batch(*apart)
    assert len(buffer) == 2
    buffer.push([2.0], [0.0], 1.0, False, True, next_obs=[3.0])
    buffer.push_batch(*apart)
    seen = set()
    for seed in range(20):
        batch = buffer.sample(5, seed)
        columns = (batch["obs"][:, 0], batch["rewards"], batch["next_obs"][:, 0])
        seen |= set(zip(*(column.tolist() for column in columns), strict=True))
    assert seen == {(0, 3, 3), (1, 2, 3), (2, 1, 3), (50, 10, 51), (60, 10, 61)}


def test_extras_of_what_comes_next_are_those_of_the_last_step():
    extra = {"cost": ((), "float32"), "next_cost": ((), "float32")}
    buffer = rlox.ReplayBuffer(10, 1, 1, n_step=3, gamma=1.0, extra=extra)
    for i in range(4):
        beside = {"cost": i, "next_cost": i}
        buffer.push([i], [0], 1, False, i == 3, next_obs=[i + 1], extra=beside)
    batch = buffer.sample(4, seed=0)
    assert np.array_equal(batch["cost"], batch["obs"][:, 0])
    assert np.array_equal(batch["next_cost"], np.minimum(batch["obs"][:, 0] + 2, 3))


def test_buffers_show_what_they_hold(tmp_path):
    buffer = rlox.ReplayBuffer(10, (4, 8, 8), (), obs_dtype="uint8", act_dtype="int64")
    said = "ReplayBuffer(capacity=10, len=0, obs=uint8[4, 8, 8], actions=int64[])"
    assert repr(buffer) == said
    parts = {"a": 2, "b": ((), "int64")}
    several = rlox.PrioritizedReplayBuffer(12, parts, 1, 0.7, num_envs=3)
    assert repr(several) == (
        "PrioritizedReplayBuffer(capacity=12, len=0, obs={a: float32[2], b: int64[]}, "
        "actions=float32[1], num_envs=3, alpha=0.7, beta=0.4)"
    )
    filed = rlox.MmapReplayBuffer(5, 50, 2, 1, tmp_path / "replay")
    filed.push([0, 0], [0], 0, False, False, next_obs=[0, 0])
    assert repr(filed) == (
        "MmapReplayBuffer(capacity=50, len=1, obs=float32[2], actions=float32[1], hot_capacity=5)"
    )
    filed.close()
    assert repr(filed) == "MmapReplayBuffer(closed)"


def test_batches_of_environments_are_streams():
    buffer = rlox.ReplayBuffer(6, 1, (), num_envs=2, act_dtype="int64", n_step=2, gamma=0.5)
    with pytest.raises(ValueError, match="push: expected a buffer of one environment"):
        buffer.push([0.0], 0, 0.0, False, False, [1.0])
    never = [False, False]
    buffer.push_batch([[0], [10]], [[1], [11]], [0, 1], [1, 2], never, never)
    # The first is cut: 99 is its last observation, and 50 the first of what follows.
    buffer.push_batch([[1], [11]], [[99], [12]], [2, 3], [4, 8], never, [True, False])
    buffer.push_batch([[50], [12]], [[51], [13]], [4, 5], [16, 32], never, [False, True])
    batch = {name: array.tolist() for name, array in buffer.sample(6, seed=0).items()}
    rows = set(
        zip(
            *(np.ravel(batch[name]) for name in ("obs", "next_obs", "rewards", "discounts")),
            strict=True,
        )
    )
    assert rows <= {
        (0, 99, 1 + 0.5 * 4, 0.25),
        (1, 99, 4, 0.5),
        (50, 51, 16, 0.5),
        (10, 12, 2 + 0.5 * 8, 0.25),
        (11, 13, 8 + 0.5 * 32, 0.25),
        (12, 13, 32, 0.5),
    }


def test_stacked_frames_take_the_memory_of_one():
    stack = rlox.ReplayBuffer(
        1000, (4, 84, 84), (), obs_dtype="uint8", act_dtype="int64", frame_stack=4
    )
    plain = rlox.ReplayBuffer(1000, (4, 84, 84), (), obs_dtype="uint8", act_dtype="int64")
    assert stack.nbytes < 1.01 * 1000 * 84 * 84
    assert plain.nbytes < 1.01 * 1000 * 4 * 84 * 84
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (1201, 1, 84, 84), np.uint8)
    pushed = {}
    for i in range(1200):
        obs = np.repeat(frames[i], 4, 0) if i % 60 == 0 else pushed[i - 1][1]
        pushed[i] = obs, np.concatenate([obs[1:], frames[i + 1]])
        stack.push(obs, i, 0.0, i % 60 == 59, False, pushed[i][1])
    for _ in range(20):
        batch = stack.sample(64)
        for obs, next_obs, i in zip(batch["obs"], batch["next_obs"], batch["actions"], strict=True):
            assert np.array_equal(obs, pushed[i][0])
            assert np.array_equal(next_obs, pushed[i][1])
    # Twenty episodes have their first three and their last four frames aside.
    assert stack.nbytes < 1.25 * 1000 * 84 * 84


def test_dict_observations_are_dicts():
    buffer = rlox.ReplayBuffer(
        10, {"rewards": 2, "goal": ((3,), "int64")}, 1, extra={"cost": ((), "float64")}
    )
    obs = {"goal": [1, 2, 3], "rewards": [0.1, 0.2]}
    buffer.push(obs, 0.0, 1.0, True, False, {**obs, "goal": [4, 5, 6]}, extra={"cost": 2.5})
    batch = buffer.sample(1)
    assert batch["obs"]["goal"].tolist() == [[1, 2, 3]]
    assert batch["obs"]["goal"].dtype == np.int64
    assert batch["next_obs"]["goal"].tolist() == [[4, 5, 6]]
    assert np.array_equal(batch["obs"]["rewards"], np.float32([[0.1, 0.2]]))
    assert batch["cost"].tolist() == [2.5]
    assert batch["rewards"].tolist() == [1.0]
    again = buffer.sample(1, out=batch)
    assert again is batch
    with pytest.raises(ValueError, match='obs: expected the key "goal"'):
        buffer.push({"rewards": [0.1, 0.2]}, 0.0, 1.0, True, False, obs, extra={"cost": 2.5})
    with pytest.raises(ValueError, match=r"obs\[\"goal\"\]: expected shape \[3\]"):
        buffer.push({**obs, "goal": [1, 2]}, 0.0, 1.0, True, False, obs, extra={"cost": 2.5})
    with pytest.raises(TypeError, match="extra: expected a dict of cost, got None"):
        buffer.push(obs, 0.0, 1.0, True, False, obs)
    assert len(buffer) == 1


def test_memory_can_be_used_again():
    buffer = rlox.ReplayBuffer(10, 2, 1, n_step=2)
    for i in range(10):
        buffer.push(*transition(i))
    out = buffer.sample(4)
    arrays = {name: out[name] for name in NAMES}
    expected_discounts = out["discounts"]
    expected = {name: array.copy() for name, array in buffer.sample(4, seed=5).items()}
    assert buffer.sample(4, seed=5, out=out) is out
    for name, array in expected.items():
        assert np.array_equal(out[name], array)
    assert all(out[name] is array for name, array in arrays.items())
    assert out["discounts"] is expected_discounts
    for name, wrong, said in [
        ("obs", np.zeros((3, 2), np.float32), "out: expected shape"),
        ("obs", np.zeros((4, 2)), "out: expected a writeable"),
        ("rewards", None, "out: expected a writeable"),
    ]:
        with pytest.raises((ValueError, TypeError), match=said):
            buffer.sample(4, out={**out, name: wrong})
    with pytest.raises(ValueError, match="out: expected the key"):
        buffer.sample(4, out={})
    with pytest.raises(TypeError, match="out: expected a dict"):
        buffer.sample(4, out=[1])


def test_torch_shares_the_memory():
    torch = pytest.importorskip("torch")
    buffer = rlox.ReplayBuffer(10, 2, 1)
    buffer.push(*transition(1))
    batch = buffer.sample(1)
    tensor = torch.from_numpy(batch["obs"])
    batch["obs"][0, 0] = 7
    assert tensor[0, 0] == 7


def test_threads_see_whole_transitions():
    buffer = rlox.ReplayBuffer(1000, 40, 1, seed=0)
    for i in range(300):
        buffer.push(*transition(i, dim=40))
    failed, done = [], threading.Event()

    def read():
        try:
            while not done.is_set():
                check(buffer.sample(256), dim=40)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(300, 5000):
        buffer.push(*transition(i, dim=40))
    done.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(buffer) == 1000


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_several_steps_equal_a_slow_sum(data):
    """Episodes of any lengths and ends, with the ring wrapped around."""
    n, capacity = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20))
    buffer = rlox.ReplayBuffer(capacity, 1, 1, n_step=n, gamma=0.5)
    rows = []
    for _ in range(data.draw(st.integers(1, 6))):
        length, cut = data.draw(st.integers(1, 8)), data.draw(st.booleans())
        for i in range(length):
            end = i + 1 == length
            at = float(len(rows))
            rows.append((at, at + (0.5 if end else 1), end and not cut, end and cut))
            buffer.push([at], [0.0], at, end and not cut, end and cut, [rows[-1][1]])
    batch = buffer.sample(len(buffer), seed=0)
    discounts = batch.get("discounts", np.full(len(buffer), 0.5, np.float32))
    for obs, reward, discount, next_obs in zip(
        batch["obs"][:, 0], batch["rewards"], discounts, batch["next_obs"][:, 0], strict=True
    ):
        at, total, factor = int(obs), rows[int(obs)][0], 0.5
        for _ in range(n - 1):
            if rows[at][2] or rows[at][3] or at + 1 == len(rows):
                break
            at, total, factor = at + 1, total + factor * rows[at + 1][0], factor * 0.5
        assert (reward, discount, next_obs) == (np.float32(total), factor, np.float32(rows[at][1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda path, **how: rlox.ReplayBuffer(40, (3, 4, 5), (), **how),
        lambda path, **how: rlox.PrioritizedReplayBuffer(40, (3, 4, 5), (), **how),
        lambda path, **how: rlox.MmapReplayBuffer(10, 40, (3, 4, 5), (), path / "cold", **how),
    ],
    ids=["ReplayBuffer", "PrioritizedReplayBuffer", "MmapReplayBuffer"],
)
@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32"])
def test_images_with_channels_moved_to_the_front_are_stored(tmp_path, make, dtype):
    images = 200 * np.random.default_rng(0).integers(0, 2, (40, 4, 5, 3), np.uint8)
    obs = images.astype(dtype).transpose(0, 3, 1, 2)
    assert not obs.flags.c_contiguous
    buffer = make(tmp_path, obs_dtype=dtype, act_dtype="int64")
    buffer.push(obs[0], 0, 0.0, False, False, obs[0])
    later, flags = np.arange(1, 40), np.zeros(39, bool)
    buffer.push_batch(obs[1:], obs[1:], later, later, flags, flags)
    batch = buffer.sample(40, seed=0)
    assert len(set(batch["actions"])) > 10
    for name in ("obs", "next_obs"):
        assert batch[name].dtype == dtype
        assert np.array_equal(batch[name], obs[batch["actions"]])
