"""`ReplayBuffer` and `PrioritizedReplayBuffer`: batches, sequences, states and errors."""

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox
from support.replay import (
    assert_equal_batches,
    assert_threads_see_whole_transitions,
    check,
    transition,
)

KINDS = {"plain": rlox.ReplayBuffer, "prioritized": rlox.PrioritizedReplayBuffer}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


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


def test_the_oldest_transitions_are_overwritten():
    buffer = rlox.ReplayBuffer(5, 2, 1, seed=0)
    for i in range(12):
        buffer.push(*transition(i))
    assert len(buffer) == 5
    assert set(np.concatenate([check(buffer.sample(5)) for _ in range(40)])) == {7, 8, 9, 10, 11}


def test_transitions_are_sampled_uniformly():
    buffer = rlox.ReplayBuffer(20, 2, 1)
    for i in range(33):
        buffer.push(*transition(i))
    drawn = np.concatenate([check(buffer.sample(20, seed=seed)) for seed in range(1000)])
    counts = np.bincount(drawn.astype(int) - 13, minlength=20)
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_squared < 50  # 19 degrees of freedom: p = 0.0001


@EVERY_KIND
def test_seeds_and_own_streams_repeat(kind):
    def buffer(seed):
        made = kind(50, 2, 1, seed=seed)
        for i in range(50):
            made.push(*transition(i))
        return made

    def draw(source, *args):
        return source.sample(20, *args)["obs"][:, 0].tolist()

    first, second = buffer(3), buffer(3)
    assert isinstance(first, rlox.ReplayBuffer)
    assert draw(first, 7) == draw(first, 7) == draw(second, 7) != draw(first, 8)
    own = [draw(first) for _ in range(3)]
    assert own == [draw(second) for _ in range(3)]
    assert own[0] != own[1] != own[2]
    assert own[0] != draw(buffer(4))
    generators = [np.random.default_rng(1) for _ in range(2)]
    assert draw(first, generators[0]) == draw(first, generators[1])
    assert draw(first, generators[0]) != draw(first, 1)


def test_next_observations_may_be_left_out_within_an_episode():
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
    zeros, never = np.zeros((3, 1)), np.zeros(3, bool)
    with pytest.raises(ValueError, match="next_obs: expected the observation after each row"):
        buffer.push_batch(np.zeros((3, 2)), None, zeros, zeros[:, 0], never, never)
    assert len(buffer) == 4


def test_a_left_out_next_observation_needs_the_next_step():
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


def test_extras_named_next_are_of_the_last_step():
    extra = {"cost": ((), "float32"), "next_cost": ((), "float32")}
    buffer = rlox.ReplayBuffer(10, 1, 1, n_step=3, gamma=1.0, extra=extra)
    for i in range(4):
        beside = {"cost": i, "next_cost": i}
        buffer.push([i], [0], 1, False, i == 3, next_obs=[i + 1], extra=beside)
    batch = buffer.sample(4, seed=0)
    assert np.array_equal(batch["cost"], batch["obs"][:, 0])
    assert np.array_equal(batch["next_cost"], np.minimum(batch["obs"][:, 0] + 2, 3))


def test_repr_shows_sizes_and_dtypes(tmp_path):
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


def test_rows_of_several_environments_are_separate_streams():
    buffer = rlox.ReplayBuffer(6, 1, (), num_envs=2, act_dtype="int64", n_step=2, gamma=0.5)
    with pytest.raises(ValueError, match="push: expected a buffer of one environment"):
        buffer.push([0.0], 0, 0.0, False, False, [1.0])
    never = [False, False]
    buffer.push_batch([[0], [10]], [[1], [11]], [0, 1], [1, 2], never, never)
    # The first is cut: 99 is its last observation, and 50 the first of what follows.
    buffer.push_batch([[1], [11]], [[99], [12]], [2, 3], [4, 8], never, [True, False])
    buffer.push_batch([[50], [12]], [[51], [13]], [4, 5], [16, 32], never, [False, True])
    batch = {name: array.tolist() for name, array in buffer.sample(6, seed=0).items()}
    names = ("obs", "next_obs", "rewards", "discounts")
    rows = set(zip(*(np.ravel(batch[name]) for name in names), strict=True))
    assert rows <= {
        (0, 99, 1 + 0.5 * 4, 0.25),
        (1, 99, 4, 0.5),
        (50, 51, 16, 0.5),
        (10, 12, 2 + 0.5 * 8, 0.25),
        (11, 13, 8 + 0.5 * 32, 0.25),
        (12, 13, 32, 0.5),
    }


def test_stacked_frames_are_stored_once():
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


@EVERY_KIND
def test_out_is_filled_and_returned(kind):
    buffer = kind(10, 2, 1, n_step=2)
    for i in range(10):
        buffer.push(*transition(i))
    out = buffer.sample(4)
    arrays, expected = dict(out), buffer.sample(4, seed=5)
    assert buffer.sample(4, seed=5, out=out) is out
    assert_equal_batches(out, expected)
    assert all(out[name] is array for name, array in arrays.items())
    assert "discounts" in out
    for name, wrong, words in [
        ("obs", np.zeros((3, 2), np.float32), "out: expected shape"),
        ("obs", np.zeros((4, 2)), "out: expected a writeable"),
        ("rewards", None, "out: expected a writeable"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            buffer.sample(4, out={**out, name: wrong})
    for name in out:
        with pytest.raises(ValueError, match=f'out: expected the key "{name}"'):
            buffer.sample(4, out={key: out[key] for key in out if key != name})
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
    assert_threads_see_whole_transitions(buffer, range(300, 5000), 256, dim=40)


@given(st.data())
def test_n_step_returns_equal_a_slow_sum(data):
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


def prioritized(count, capacity=10, **keywords):
    buffer = rlox.PrioritizedReplayBuffer(capacity, 2, 1, **keywords)
    for i in range(count):
        buffer.push(*transition(i, truncated=True))
    return buffer


def test_frequencies_and_weights_follow_the_priorities():
    buffer = prioritized(5, alpha=0.5, beta=0.3, seed=0)
    priorities = np.array([1.0, 4.0, 9.0, 0.25, 100.0])
    buffer.update_priorities(np.arange(5), priorities)
    drawn, weights = np.zeros(5), np.zeros(5)
    for _ in range(2000):
        batch = buffer.sample(5)
        assert np.array_equal(check(batch), batch["indices"])
        drawn += np.bincount(batch["indices"], minlength=5)
        weights[batch["indices"]] = batch["weights"]
    chances = np.sqrt(priorities) / np.sqrt(priorities).sum()
    assert ((drawn - 10_000 * chances) ** 2 / (10_000 * chances)).sum() < 24  # p = 0.0001
    expected = (5 * chances) ** -0.3
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-4)


def test_new_transitions_have_the_largest_priority():
    buffer = prioritized(3, alpha=1.0, beta=0.0)
    buffer.update_priorities([0, 1, 2], [1.0, 50.0, 1.0])
    buffer.update_priorities([1], [1.0])
    buffer.push(*transition(3, truncated=True))
    drawn = np.concatenate([buffer.sample(4, seed=seed)["indices"] for seed in range(500)])
    share = (drawn == 3).mean()
    assert 0.9 < share < 0.97  # 50 / 53


def test_priorities_of_overwritten_transitions_are_ignored():
    buffer = prioritized(10, alpha=1.0)
    batch = buffer.sample(5, seed=0)
    for i in range(10, 20):
        buffer.push(*transition(i, truncated=True))
    before = [buffer.sample(5, seed=seed)["indices"].tolist() for seed in range(10)]
    buffer.update_priorities(batch["indices"], np.full(5, 1e6))
    after = [buffer.sample(5, seed=seed)["indices"].tolist() for seed in range(10)]
    assert before == after
    assert min(map(min, after)) >= 10


def test_alpha_and_beta_are_saved_and_loaded(tmp_path):
    buffer = prioritized(4, alpha=0.7, beta=1 / 3)
    assert (buffer.alpha, buffer.beta) == (0.7, 1 / 3)
    buffer.sample(2, beta=0.4)
    assert buffer.beta == 0.4
    with pytest.raises(ValueError, match="batch_size"):
        buffer.sample(9, beta=0.5)
    assert buffer.beta == 0.4
    buffer.save(tmp_path / "replay")
    again = rlox.PrioritizedReplayBuffer.load(tmp_path / "replay")
    assert (again.alpha, again.beta) == (0.7, 0.4)
    state = buffer.state()
    buffer.sample(2, beta=0.9)
    buffer.load_state(state)
    assert buffer.beta == 0.4
    assert prioritized(1).alpha == 0.6


def test_beta_of_a_call_is_kept():
    buffer = prioritized(4, alpha=1.0, beta=0.0)
    buffer.update_priorities([0, 1, 2, 3], [1.0, 1.0, 1.0, 3.0])
    assert buffer.sample(4, seed=0)["weights"].tolist() == [1.0] * 4
    batch = buffer.sample(4, seed=0, beta=1.0)
    assert (buffer.alpha, buffer.beta) == (1.0, 1.0)
    expected = np.where(batch["indices"] == 3, 1 / 3, 1.0)
    np.testing.assert_allclose(batch["weights"], expected, rtol=1e-5)
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="beta: expected a number in"):
            buffer.sample(4, beta=wrong)
    assert buffer.beta == 1.0


@pytest.mark.parametrize(
    ("indices", "priorities", "said"),
    [
        ([0, 1], [1.0], r"priorities: expected shape \[2\], got shape \[1\]"),
        ([0, 8], [1.0, 1.0], "indices: expected numbers of stored transitions, 0 to 7, got 8"),
        ([-1], [1.0], "indices: expected numbers of transitions, got -1"),
        ([[0]], [1.0], "indices: expected shape"),
        ([0], [-1.0], "priorities: expected finite numbers, at least 0, got -1 in row 0"),
        (
            [0, 1],
            [1.0, np.nan],
            "priorities: expected finite numbers, .* got NaN in row 1",
        ),
        ([0], [np.inf], "priorities: expected finite numbers, at least 0, got inf"),
        ([0, 1], [1.0, 1e300], "priorities: expected numbers of at most 3.4028235e38, got 1e300"),
    ],
)
def test_invalid_priorities_are_rejected_and_change_nothing(indices, priorities, said):
    buffer = prioritized(8, seed=0)
    buffer.update_priorities([3], [9.0])
    before = buffer.sample(8, seed=1)["indices"].tolist()
    with pytest.raises(ValueError, match=said):
        buffer.update_priorities(indices, priorities)
    assert buffer.sample(8, seed=1)["indices"].tolist() == before


@pytest.mark.parametrize("keywords", [{"alpha": 1.5}, {"alpha": -1}, {"beta": float("nan")}])
def test_invalid_exponents_are_rejected(keywords):
    name = next(iter(keywords))
    with pytest.raises(ValueError, match=rf"{name}: expected a number in \[0, 1\]"):
        rlox.PrioritizedReplayBuffer(10, 2, 1, **keywords)


def test_frequencies_are_right_after_a_million_pushes_and_updates():
    buffer = rlox.PrioritizedReplayBuffer(1000, 1, 1, alpha=1.0, beta=1.0, seed=0)
    rng = np.random.default_rng(0)
    obs, never = np.zeros((1000, 1), np.float32), np.zeros(1000, bool)
    for i in range(1000):
        buffer.push_batch(obs, obs, obs, never, never, never)
        chosen = 1000 * i + rng.integers(0, 1000, 256)
        buffer.update_priorities(chosen, rng.uniform(0, 1e3, 256))
    priorities = np.arange(1.0, 1001.0)
    buffer.update_priorities(999_000 + np.arange(1000), priorities)
    drawn = np.zeros(1000)
    for _ in range(400):
        drawn += np.bincount(buffer.sample(1000)["indices"] - 999_000, minlength=1000)
    expected = 400_000 * priorities / priorities.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 1200  # stratified: less than 999 are likely


class Stacks:
    """An environment of stacked frames; some episodes begin without a flag."""

    def __init__(self, seed, frames):
        self.rng, self.frames = np.random.default_rng(seed), frames
        self.obs = self.new()

    def new(self):
        frame = self.rng.integers(0, 4, (1, 2), np.uint8)
        return np.repeat(frame, self.frames, 0)

    def step(self):
        frame = self.rng.integers(0, 4, (1, 2), np.uint8)
        obs, following = self.obs, np.concatenate([self.obs[1:], frame])
        if self.rng.random() < 0.1:
            following = self.new()
        terminated, truncated = self.rng.random(2) < 0.15
        anew = terminated or truncated or self.rng.random() < 0.1
        self.obs = self.new() if anew else following
        return obs, self.rng.integers(9), self.rng.random(), terminated, truncated, following


def run(buffers, envs, steps, rng):
    """Push the same steps to all buffers; some leave out their next observations."""
    for _ in range(steps):
        rows = [env.step() for env in envs]
        obs, actions, rewards, terminated, truncated, following = map(
            np.array, zip(*rows, strict=True)
        )
        kept = all(np.array_equal(env.obs, row[-1]) for env, row in zip(envs, rows, strict=True))
        promised = kept and not (terminated | truncated).any() and rng.random() < 0.3
        for buffer in buffers:
            buffer.push_batch(
                obs, None if promised else following, actions, rewards, terminated, truncated
            )
        if isinstance(buffers[0], rlox.PrioritizedReplayBuffer) and len(buffers[0]) > len(envs):
            for buffer in buffers:
                drawn = buffer.sample(1)["indices"]
                buffer.update_priorities(drawn, drawn % 5 + 0.5)


@given(
    kind=st.sampled_from([rlox.ReplayBuffer, rlox.PrioritizedReplayBuffer]),
    capacity=st.integers(1, 25),
    num_envs=st.integers(1, 3),
    frames=st.integers(1, 3),
    n_step=st.integers(1, 3),
    before=st.integers(0, 40),
    seed=st.integers(0, 1 << 32),
)
def test_loaded_buffers_continue_as_the_original(
    tmp_path_factory, kind, capacity, num_envs, frames, n_step, before, seed
):
    sizes = {"obs_dtype": "uint8", "act_dtype": "int64", "num_envs": num_envs}
    options = {**sizes, "frame_stack": frames, "n_step": n_step, "gamma": 0.9}
    original = kind(capacity, (frames, 2), (), seed=seed, **options)
    envs, rng = [Stacks(seed + i, frames) for i in range(num_envs)], np.random.default_rng(seed)
    run([original], envs, before, rng)
    copy = kind(capacity, (frames, 2), (), seed=1, **options)
    run([copy], [Stacks(9, frames) for _ in envs], 5, rng)
    copy.load_state(original.state())
    folder = tmp_path_factory.mktemp("buffers") / "buffer"
    original.save(folder)
    loaded = kind.load(folder)
    shutil.rmtree(folder)
    everyone = [original, copy, loaded]
    assert len({(type(b), len(b), b.capacity, b.num_envs) for b in everyone}) == 1
    for _ in range(12):
        run(everyone, envs, 1, rng)
        count = len(original) - num_envs
        if count > 0:
            for arguments in [(count,), (count, 7)]:
                first, *others = [b.sample(*arguments) for b in everyone]
                for other in others:
                    assert_equal_batches(first, other)
    first, *others = [b.state() for b in everyone]
    for other in others:
        assert_equal_batches(first, other)


def test_states_have_an_array_for_each_part_and_extra(tmp_path):
    buffer = rlox.ReplayBuffer(
        10, {"a": 2, "b": ((3,), "int64")}, 1, extra={"cost": ((), "float64"), "seen": (2, "bool")}
    )
    for i in range(13):
        obs = {"a": [i, i], "b": [i, i, 0]}
        extra = {"cost": i / 3, "seen": [i % 2 == 0, True]}
        buffer.push(obs, [i], i, False, i % 4 == 3, {"a": [i + 1, i], "b": [0, 0, i]}, extra=extra)
    arrays = buffer.state()
    assert arrays["step.obs.b"].dtype == np.int64
    assert arrays["step.cost"].tolist() == [i / 3 for i in range(3, 13)]
    assert arrays["step.seen"].dtype == bool
    buffer.save(tmp_path / "buffer")
    loaded = rlox.ReplayBuffer.load(tmp_path / "buffer")
    assert_equal_batches(loaded.sample(10, 3), buffer.sample(10, 3))


def filled(count=5, **keywords):
    buffer = rlox.ReplayBuffer(4, 2, 1, seed=0, **keywords)
    for i in range(count):
        buffer.push(*transition(i, truncated=i % 3 == 2))
    return buffer


@pytest.mark.parametrize("name", sorted(filled().state()))
def test_invalid_states_are_rejected_by_name_and_change_nothing(name):
    buffer, state = filled(2), filled().state()
    before = buffer.state()
    array = state[name]
    strange = [np.zeros((99, 3)), np.array(["x"]), np.float16([1]), np.int32(3), None, "abc", [[1]]]
    for wrong in [*strange, np.concatenate([array, array])]:
        with pytest.raises((ValueError, TypeError), match="arrays"):
            buffer.load_state({**state, name: wrong})
    without = {key: value for key, value in state.items() if key != name}
    with pytest.raises(ValueError, match=rf'arrays\["{name}"\]: expected an array, got none'):
        buffer.load_state(without)
    if array.dtype.kind == "f" and array.size and name != "gamma":
        with pytest.raises(ValueError, match=rf'arrays\["{name}"\]: expected finite numbers, got'):
            buffer.load_state({**state, name: np.full_like(array, np.nan)})
    assert_equal_batches(buffer.state(), before)
    assert set(check(buffer.sample(2))) <= {0, 1}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (rlox.ReplayBuffer(5, 2, 1), r'arrays\["capacity"\]: expected 5, got 4'),
        (rlox.ReplayBuffer(4, 3, 1), r'arrays\["step.obs"\]: expected shape \[4, 3\], got'),
        (rlox.ReplayBuffer(4, 2, 1, act_dtype="int64"), r'arrays\["step.actions"\]: expected I64'),
        (rlox.ReplayBuffer(4, 2, 1, num_envs=2), r'arrays\["num_envs"\]: expected 2, got 1'),
        (rlox.ReplayBuffer(4, 2, 1, n_step=2), r'arrays\["n_step"\]: expected 2, got 1'),
        (rlox.PrioritizedReplayBuffer(4, 2, 1), r'arrays\["priorities"\]: expected an array'),
        (rlox.ReplayBuffer(4, 2, 1, extra={"x": ((), "bool")}), r'arrays\["step.x"\]: expected'),
    ],
)
def test_states_of_other_buffers_are_rejected(other, said):
    with pytest.raises(ValueError, match=said):
        other.load_state(filled().state())
    assert len(other) == 0


def test_invalid_paths_and_other_classes_are_rejected(tmp_path):
    filled().save(tmp_path / "plain")
    with pytest.raises(ValueError, match="path: expected a PrioritizedReplayBuffer"):
        rlox.PrioritizedReplayBuffer.load(tmp_path / "plain")
    with pytest.raises(FileNotFoundError):
        rlox.ReplayBuffer.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(FileExistsError):
            filled().save(path)
    filled(3).save(tmp_path / "plain")
    assert len(rlox.ReplayBuffer.load(tmp_path / "plain")) == 3
    for wrong in (None, 3, b"x\0"):
        with pytest.raises((TypeError, ValueError, OSError)):
            filled().save(wrong)


def test_every_flipped_bit_and_every_truncation_is_detected(tmp_path):
    folder = tmp_path / "buffer"
    filled().save(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "replay.safetensors"]
    rng = np.random.default_rng(0)
    for file in folder.iterdir():
        whole = file.read_bytes()
        for at in rng.integers(0, 8 * len(whole), 300):
            damaged = bytearray(whole)
            damaged[at // 8] ^= 1 << (at % 8)
            file.write_bytes(damaged)
            with pytest.raises(rlox.CorruptFileError, match=f"{file.name}, section"):
                rlox.ReplayBuffer.load(folder)
        for size in rng.integers(0, len(whole), 30):
            file.write_bytes(whole[:size])
            with pytest.raises(rlox.CorruptFileError, match=f"{file.name}, section"):
                rlox.ReplayBuffer.load(folder)
        file.unlink()
        with pytest.raises((rlox.CorruptFileError, FileNotFoundError)):
            rlox.ReplayBuffer.load(folder)
        file.write_bytes(whole)
    assert len(rlox.ReplayBuffer.load(folder)) == 4


def test_states_are_stored_in_checkpoints(tmp_path):
    from rlox.checkpoint import read_checkpoint, write_checkpoint

    buffer = filled()
    write_checkpoint(tmp_path / "checkpoint", {"steps": 5}, {"replay": buffer.state()})
    again = filled(1)
    again.load_state(read_checkpoint(tmp_path / "checkpoint").members["replay"])
    for _ in range(3):
        assert_equal_batches(again.sample(4), buffer.sample(4))


def test_native_agents_count_their_transitions():
    from rlox.trainers import SACTrainer

    settings = {"backend": "native", "net_arch": (4,), "buffer_size": 40, "batch_size": 8}
    trainer = SACTrainer("Pendulum-v1", seed=0, runs_dir=None, **settings)
    agent = trainer.learner.policy
    assert agent.replay_len() == 0
    trainer.train(30)
    assert agent.replay_len() == 30 == len(agent.replay_state()["step.rewards"])
    trainer.train(30)
    assert agent.replay_len() == 40


class Pushed:
    """All pushed steps by number, and whether the next step of the environment continues."""

    def __init__(self, seed, num_envs):
        self.rng, self.n = np.random.default_rng(seed), num_envs
        self.at = 1000.0 * (1 + np.arange(num_envs))
        self.rows = []

    def push(self, buffer):
        terminated, truncated = self.rng.random((2, self.n)) < 0.12
        ended = terminated | truncated
        last = ended | (self.rng.random(self.n) < 0.08)
        rewards = self.rng.random(self.n).astype(np.float32)

        def seen(x):
            grid = np.uint8(x)[:, None] + np.arange(6, dtype=np.uint8)
            return {"place": np.float32(x)[:, None], "grid": grid.reshape(-1, 2, 3)}

        obs, following = seen(self.at), seen(self.at + 1)
        promised = not last.any() and self.rng.random() < 0.3
        actions, cost = np.arange(self.n), {"cost": rewards * 2}
        following = None if promised else following
        buffer.push_batch(obs, following, actions, rewards, terminated, truncated, extra=cost)
        for i in range(self.n):
            self.rows.append((self.at[i], rewards[i], terminated[i], truncated[i], last[i]))
        self.at += np.where(last, 9.0, 1.0)
        self.held = range(max(0, len(self.rows) - buffer.capacity), len(self.rows))
        if promised:
            self.held = range(self.held.start, len(self.rows) - self.n)

    def walk(self, start, length, burn_in):
        """Return the numbers of the steps of a sequence, None for padding."""
        n, steps, at = self.n, [None] * (burn_in + length), start
        for t in range(burn_in, burn_in + length):
            steps[t] = at
            if self.rows[at][4] or at + n >= self.held.stop:
                break
            at += n
        at = start
        for t in reversed(range(burn_in)):
            at -= n
            if at < self.held.start or self.rows[at][4]:
                break
            steps[t] = at
        return steps

    def first(self, at):
        return at < self.n or self.rows[at - self.n][4]

    def whole(self, at):
        if not self.first(at):
            return False
        while not self.rows[at][4] and at + self.n < self.held.stop:
            at += self.n
        return self.rows[at][2] or self.rows[at][3]


def with_parts(capacity, num_envs, kind=rlox.ReplayBuffer):
    sizes = {"place": 1, "grid": ((2, 3), "uint8")}
    extra = {"cost": ((), "float32")}
    return kind(capacity, sizes, (), act_dtype="int64", num_envs=num_envs, extra=extra, seed=0)


@given(
    kind=st.sampled_from([rlox.ReplayBuffer, rlox.PrioritizedReplayBuffer]),
    capacity=st.integers(1, 40),
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 50),
    length=st.integers(1, 9),
    burn_in=st.integers(0, 4),
    whole=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_sequences_equal_a_slow_reference(
    kind, capacity, num_envs, steps, length, burn_in, whole, seed
):
    buffer, pushed = with_parts(capacity, num_envs, kind), Pushed(seed, num_envs)
    out = None
    burn_in = 0 if whole else burn_in
    for _ in range(steps):
        pushed.push(buffer)
        if not len(pushed.held):
            continue
        if whole and not any(map(pushed.whole, pushed.held)):
            with pytest.raises(ValueError, match="whole: expected an episode that is stored"):
                buffer.sample_sequences(1, length, 0, whole=True)
            continue
        batch = buffer.sample_sequences(1, length, 5, burn_in=burn_in, whole=whole, out=out)
        assert out is None or batch is out
        out = batch
        start = int(batch["indices"][0])
        assert start in pushed.held
        assert not whole or pushed.whole(start)
        rows = pushed.walk(start, length, burn_in)
        there = np.array([row is not None for row in rows])
        assert np.array_equal(batch["mask"][:, 0], there)
        assert batch["lengths"].tolist() == [there[burn_in:].sum()]
        firsts = [row is not None and pushed.first(row) for row in rows]
        assert batch["episode_starts"][:, 0].tolist() == firsts
        for t, row in enumerate(rows):
            at, reward, terminated, truncated = (0.0, 0, False, False)
            if row is not None:
                at, reward, terminated, truncated, _ = pushed.rows[row]
                grid = np.uint8(at) + np.arange(6, dtype=np.uint8).reshape(2, 3)
                assert np.array_equal(batch["obs"]["grid"][t, 0], grid)
                assert batch["next_obs"]["place"][t, 0, 0] == at + 1
                assert batch["actions"][t, 0] == row % num_envs
            else:
                assert not batch["obs"]["grid"][t, 0].any()
                assert not batch["next_obs"]["place"][t, 0].any()
            assert batch["obs"]["place"][t, 0, 0] == at
            assert batch["rewards"][t, 0] == np.float32(reward)
            assert batch["cost"][t, 0] == np.float32(2 * reward)
            assert batch["terminated"][t, 0] == terminated
            assert batch["truncated"][t, 0] == truncated


def episodes(*lengths, capacity=100, **keywords):
    buffer = rlox.ReplayBuffer(capacity, 1, 1, seed=3, **keywords)
    at = 0
    for length in lengths:
        for i in range(length):
            buffer.push([at], [0.0], at, False, i + 1 == length, [at + 1])
            at += 1
        at += 50
    return buffer


def test_sequences_are_time_major_and_padded_with_zeros():
    buffer = episodes(2)
    batch = buffer.sample_sequences(2, 3, whole=True)
    assert {name: array.shape for name, array in batch.items()} == {
        "obs": (3, 2, 1),
        "next_obs": (3, 2, 1),
        "actions": (3, 2, 1),
        "rewards": (3, 2),
        "terminated": (3, 2),
        "truncated": (3, 2),
        "mask": (3, 2),
        "episode_starts": (3, 2),
        "lengths": (2,),
        "indices": (2,),
    }
    assert batch["obs"][:, 1, 0].tolist() == [0, 1, 0]
    assert batch["next_obs"][:, 1, 0].tolist() == [1, 2, 0]
    assert batch["truncated"][:, 1].tolist() == [False, True, False]
    assert batch["mask"][:, 0].tolist() == [True, True, False]
    assert batch["episode_starts"][:, 0].tolist() == [True, False, False]
    assert batch["lengths"].tolist() == [2, 2]


def test_starts_of_sequences_are_uniform():
    buffer = episodes(5, 1, 7, 3, 9, capacity=20)  # of the first episode no step is left
    for whole, wanted in [(False, 20), (True, 4)]:
        drawn = [buffer.sample_sequences(20, 2, whole=whole)["indices"] for _ in range(200)]
        _, counts = np.unique(np.concatenate(drawn), return_counts=True)
        assert len(counts) == wanted
        expected = 4000 / wanted
        assert ((counts - expected) ** 2 / expected).sum() < 51  # 19 of freedom: p = 0.0001


def test_sequences_rebuild_frame_stacks():
    frames = np.random.default_rng(0).integers(0, 256, (41, 1, 2), np.uint8)
    buffer = rlox.ReplayBuffer(30, (3, 2), 1, obs_dtype="uint8", frame_stack=3)
    stack = np.repeat(frames[0], 3, 0)
    stacks = []
    for i in range(40):
        following = np.concatenate([stack[1:], frames[i + 1]])
        buffer.push(stack, [i], 0.0, False, False, following)
        stacks.append(stack)
        stack = following
    first, again = (buffer.sample_sequences(8, 5, 11, burn_in=2) for _ in "ab")
    for name, array in first.items():
        assert np.array_equal(array, again[name])
    for t, b in np.argwhere(first["mask"]):
        assert np.array_equal(first["obs"][t, b], stacks[int(first["actions"][t, b, 0])])


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"length": 0}, ValueError, "length: expected at least 1, got 0"),
        ({"length": -1}, ValueError, "length: expected at least 1, got -1"),
        ({"length": 1 << 62}, MemoryError, "length: expected at most"),
        ({"batch_size": 0}, ValueError, "batch_size: expected 1 to 4"),
        ({"batch_size": 5}, ValueError, "batch_size: expected 1 to 4"),
        ({"burn_in": 1, "whole": True}, ValueError, "burn_in: expected 0 with whole episodes"),
        ({"burn_in": 1.5}, TypeError, "burn_in: expected an integer"),
        ({"whole": 3}, TypeError, "whole: expected"),
        ({"seed": "a"}, TypeError, "seed: expected"),
        ({"out": {}}, ValueError, "out: expected the key"),
    ],
)
def test_invalid_arguments_of_sequences_are_rejected(arguments, error, said):
    with pytest.raises(error, match=said):
        episodes(4).sample_sequences(**{"batch_size": 2, "length": 3, **arguments})
