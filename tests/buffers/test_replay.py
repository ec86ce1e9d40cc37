"""`ReplayBuffer` and `PrioritizedReplayBuffer`: batches, sequences, states and errors."""

import shutil
from functools import partial

import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError, NonFiniteError
from support.rejections import Rejection, expect_rejection, rejections, rejects
from support.replay import assert_batches_equal, check, transition

BUFFERS = {"plain": rlox.ReplayBuffer, "prioritized": rlox.PrioritizedReplayBuffer}
EVERY_CLASS = pytest.mark.parametrize("cls", BUFFERS.values(), ids=BUFFERS)


def fill(buffer, count, **flags):
    for i in range(count):
        buffer.push(*transition(i, **flags))
    return buffer


def test_batches_have_names_shapes_and_dtypes():
    buffer = rlox.ReplayBuffer(10, (2, 3), (), obs_dtype="float64", act_dtype="int64")
    buffer.push(np.ones((2, 3)), 4, 1.5, False, True, np.zeros((2, 3)))
    batch = buffer.sample(1)
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "obs": ((1, 2, 3), "float64"),
        "next_obs": ((1, 2, 3), "float64"),
        "actions": ((1,), "int64"),
        "rewards": ((1,), "float32"),
        "terminated": ((1,), "bool"),
        "truncated": ((1,), "bool"),
    }
    scalars = [batch[name][0] for name in ("actions", "rewards", "terminated", "truncated")]
    assert scalars == [4, 1.5, False, True]
    assert (len(buffer), buffer.capacity) == (1, 10)


def test_the_newest_transitions_are_sampled_uniformly():
    buffer = fill(rlox.ReplayBuffer(20, 2, 1), 33)
    assert len(buffer) == 20
    numbers = np.concatenate([check(buffer.sample(20, seed=seed)) for seed in range(1000)])
    counts = np.bincount(numbers.astype(int) - 13, minlength=20)
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_squared < 50  # 19 degrees of freedom: p = 0.0001


@EVERY_CLASS
def test_seeds_of_calls_and_buffers_determine_samples(cls):
    def draw(source, *args):
        return source.sample(20, *args)["obs"][:, 0].tolist()

    first, second, other = (fill(cls(50, 2, 1, seed=seed), 50) for seed in (3, 3, 4))
    assert isinstance(first, rlox.ReplayBuffer)
    assert draw(first, 7) == draw(first, 7) == draw(second, 7) != draw(first, 8)
    samples = [draw(first) for _ in range(3)]
    assert samples == [draw(second) for _ in range(3)]
    assert samples[0] != samples[1] != samples[2]
    assert samples[0] != draw(other)
    generators = [np.random.default_rng(1) for _ in range(2)]
    assert draw(first, generators[0]) == draw(first, generators[1])
    assert draw(first, generators[0]) != draw(first, 1)


def test_next_observation_is_required_at_the_end_of_an_episode():
    buffer = rlox.ReplayBuffer(10, 2, 1)
    for i in range(4):
        buffer.push(*transition(i)[:-1])
    assert len(buffer) == 4
    assert set(check(buffer.sample(3))) <= {0, 1, 2}
    zeros, never = np.zeros((3, 1)), np.zeros(3, bool)
    for call in (
        lambda: buffer.push(*transition(4, terminated=True)[:-1]),
        lambda: buffer.push(*transition(4, truncated=True)[:-1]),
        lambda: buffer.push_batch(np.zeros((3, 2)), None, zeros, zeros[:, 0], never, never),
    ):
        expect_rejection(Rejection(call, ArgumentError, "next_obs"))
    assert len(buffer) == 4


def test_extras_with_the_prefix_next_are_from_the_last_step():
    extra = {"cost": ((), "float32"), "next_cost": ((), "float32")}
    buffer = rlox.ReplayBuffer(10, 1, 1, n_step=3, gamma=1.0, extra=extra)
    for i in range(4):
        costs = {"cost": i, "next_cost": i}
        buffer.push([i], [0], 1, False, i == 3, next_obs=[i + 1], extra=costs)
    batch = buffer.sample(4, seed=0)
    assert np.array_equal(batch["cost"], batch["obs"][:, 0])
    assert np.array_equal(batch["next_cost"], np.minimum(batch["obs"][:, 0] + 2, 3))


def test_repr_shows_sizes_and_dtypes(tmp_path):
    buffer = rlox.ReplayBuffer(10, (4, 8, 8), (), obs_dtype="uint8", act_dtype="int64")
    assert repr(buffer) == ("ReplayBuffer(capacity=10, len=0, obs=uint8[4, 8, 8], actions=int64[])")
    several = rlox.PrioritizedReplayBuffer(12, {"a": 2, "b": ((), "int64")}, 1, 0.7, num_envs=3)
    parts = "obs={a: float32[2], b: int64[]}, actions=float32[1], num_envs=3, alpha=0.7, beta=0.4"
    assert repr(several) == f"PrioritizedReplayBuffer(capacity=12, len=0, {parts})"
    file = fill(rlox.MmapReplayBuffer(5, 50, 2, 1, tmp_path / "replay"), 1)
    assert repr(file) == ("MmapReplayBuffer(capacity=50, len=1, obs=float32[2], actions=float32[1], hot_capacity=5)")
    file.close()
    assert repr(file) == "MmapReplayBuffer(closed)"


def test_n_step_returns_of_each_environment_equal_hand_computed_values():
    buffer = rlox.ReplayBuffer(6, 1, (), num_envs=2, act_dtype="int64", n_step=2, gamma=0.5)
    expect_rejection(Rejection(buffer.push, ArgumentError, "push"), [0.0], 0, 0.0, False, False, [1.0])
    never = [False, False]
    buffer.push_batch([[0], [10]], [[1], [11]], [0, 1], [1, 2], never, never)
    # The first episode is truncated at 99, and the next episode starts at 50.
    buffer.push_batch([[1], [11]], [[99], [12]], [2, 3], [4, 8], never, [True, False])
    buffer.push_batch([[50], [12]], [[51], [13]], [4, 5], [16, 32], never, [False, True])
    rows = set()
    for seed in range(20):
        batch = buffer.sample(6, seed)
        columns = (batch[name] for name in ("obs", "next_obs", "rewards", "discounts"))
        rows |= set(zip(*(column.ravel().tolist() for column in columns), strict=True))
    assert rows == {
        (0, 99, 1 + 0.5 * 4, 0.25),
        (1, 99, 4, 0.5),
        (50, 51, 16, 0.5),
        (10, 12, 2 + 0.5 * 8, 0.25),
        (11, 13, 8 + 0.5 * 32, 0.25),
        (12, 13, 32, 0.5),
    }


def test_stacked_frames_are_stored_once():
    sizes = {"obs_dtype": "uint8", "act_dtype": "int64", "frame_stack": 4}
    buffer = rlox.ReplayBuffer(1000, (4, 84, 84), (), **sizes)
    assert buffer.nbytes < 1.01 * 1000 * 84 * 84
    frames = np.random.default_rng(0).integers(0, 256, (1201, 1, 84, 84), np.uint8)
    pushed = {}
    for i in range(1200):
        obs = np.repeat(frames[i], 4, 0) if i % 60 == 0 else pushed[i - 1][1]
        pushed[i] = obs, np.concatenate([obs[1:], frames[i + 1]])
        buffer.push(obs, i, 0.0, i % 60 == 59, False, pushed[i][1])
    batch = buffer.sample(500)
    for *stacks, i in zip(batch["obs"], batch["next_obs"], batch["actions"], strict=True):
        assert np.array_equal(stacks, pushed[i])
    # Each of the twenty episodes stores seven more frames, three at the start and four at the end.
    assert buffer.nbytes < 1.25 * 1000 * 84 * 84


def test_dict_observations_are_dicts():
    sizes = {"rewards": 2, "goal": ((3,), "int64")}
    buffer = rlox.ReplayBuffer(10, sizes, 1, extra={"cost": ((), "float64")})
    obs, cost = {"goal": [1, 2, 3], "rewards": [0.1, 0.2]}, {"cost": 2.5}
    buffer.push(obs, 0.0, 1.0, True, False, {**obs, "goal": [4, 5, 6]}, extra=cost)
    batch = buffer.sample(1)
    assert batch["obs"]["goal"].tolist() == [[1, 2, 3]]
    assert batch["obs"]["goal"].dtype == np.int64
    assert batch["next_obs"]["goal"].tolist() == [[4, 5, 6]]
    assert np.array_equal(batch["obs"]["rewards"], np.float32([[0.1, 0.2]]))
    assert (batch["cost"].tolist(), batch["rewards"].tolist()) == ([2.5], [1.0])
    assert buffer.sample(1, out=batch) is batch
    for wrong, costs, error, argument in (
        ({"rewards": [0.1, 0.2]}, cost, ArgumentError, "obs"),
        ({**obs, "goal": [1, 2]}, cost, ArgumentError, 'obs["goal"]'),
        (obs, None, ArgumentTypeError, "extra"),
    ):
        push = Rejection(partial(buffer.push, extra=costs), error, argument)
        expect_rejection(push, wrong, 0.0, 1.0, True, False, obs)
    assert len(buffer) == 1


@EVERY_CLASS
def test_out_is_filled_and_returned(cls):
    buffer = fill(cls(10, 2, 1, n_step=2), 10)
    out = buffer.sample(4)
    arrays, expected = dict(out), buffer.sample(4, seed=5)
    assert buffer.sample(4, seed=5, out=out) is out
    assert_batches_equal(out, expected)
    assert all(out[name] is array for name, array in arrays.items())
    assert "discounts" in out
    wrong = [
        ({**out, "obs": np.zeros((3, 2), np.float32)}, ArgumentError),
        ({**out, "obs": np.zeros((4, 2))}, ArgumentTypeError),
        ({**out, "rewards": None}, ArgumentTypeError),
        ([1], ArgumentTypeError),
        *(({key: out[key] for key in out if key != name}, ArgumentError) for name in out),
    ]
    for batch, error in wrong:
        expect_rejection(Rejection(partial(buffer.sample, out=batch), error, "out"), 4)


@pytest.mark.parametrize("cls", [*BUFFERS.values(), rlox.MmapReplayBuffer])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32"])
def test_transposed_images_are_stored(tmp_path, cls, dtype):
    images = 200 * np.random.default_rng(0).integers(0, 2, (40, 4, 5, 3), np.uint8)
    obs = images.astype(dtype).transpose(0, 3, 1, 2)
    assert not obs.flags.c_contiguous
    hot, path = ([10], [tmp_path / "cold"]) if cls is rlox.MmapReplayBuffer else ([], [])
    buffer = cls(*hot, 40, (3, 4, 5), (), *path, obs_dtype=dtype, act_dtype="int64")
    buffer.push(obs[0], 0, 0.0, False, False, obs[0])
    indices, flags = np.arange(1, 40), np.zeros(39, bool)
    buffer.push_batch(obs[1:], obs[1:], indices, indices, flags, flags)
    batch = buffer.sample(40, seed=0)
    assert len(set(batch["actions"])) > 10
    for name in ("obs", "next_obs"):
        assert batch[name].dtype == dtype
        assert np.array_equal(batch[name], obs[batch["actions"]])


def make_prioritized(count, **keywords):
    return fill(rlox.PrioritizedReplayBuffer(10, 2, 1, **keywords), count, truncated=True)


def test_priorities_determine_frequencies_and_weights():
    buffer = make_prioritized(5, alpha=0.5, beta=0.3, seed=0)
    priorities = np.array([1.0, 4.0, 9.0, 0.25, 100.0])
    buffer.update_priorities(np.arange(5), priorities)
    counts, weights = np.zeros(5), np.zeros(5)
    for _ in range(2000):
        batch = buffer.sample(5)
        assert np.array_equal(check(batch), batch["indices"])
        counts += np.bincount(batch["indices"], minlength=5)
        weights[batch["indices"]] = batch["weights"]
    probabilities = np.sqrt(priorities) / np.sqrt(priorities).sum()
    assert ((counts - 10_000 * probabilities) ** 2 / (10_000 * probabilities)).sum() < 24  # p = 0.0001
    expected = (5 * probabilities) ** -0.3
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-4)


def test_beta_of_a_call_replaces_the_setting_and_is_saved(tmp_path):
    buffer = make_prioritized(4, alpha=1.0, beta=0.0)
    buffer.update_priorities([0, 1, 2, 3], [1.0, 1.0, 1.0, 3.0])
    assert buffer.sample(4, seed=0)["weights"].tolist() == [1.0] * 4
    batch = buffer.sample(4, seed=0, beta=0.5)
    assert (buffer.alpha, buffer.beta) == (1.0, 0.5)
    expected = np.where(batch["indices"] == 3, 3**-0.5, 1.0)
    np.testing.assert_allclose(batch["weights"], expected, rtol=1e-5)
    with rejects(ArgumentError, "batch_size"):
        buffer.sample(9, beta=0.6)
    for wrong in (-0.1, 1.5, float("nan")):
        expect_rejection(Rejection(partial(buffer.sample, beta=wrong), ArgumentError, "beta"), 4)
    assert buffer.beta == 0.5
    buffer.save(tmp_path / "replay")
    loaded = rlox.PrioritizedReplayBuffer.load(tmp_path / "replay")
    assert (loaded.alpha, loaded.beta) == (1.0, 0.5)
    state = buffer.state()
    buffer.sample(2, beta=0.9)
    buffer.load_state(state)
    assert buffer.beta == 0.5
    assert make_prioritized(1).alpha == 0.6


@rejections(
    (lambda x: x.update_priorities([0, 1], [1.0]), ArgumentError, "priorities"),
    (lambda x: x.update_priorities([0, 8], [1, 1]), ArgumentError, "indices"),
    (lambda x: x.update_priorities([-1], [1.0]), ArgumentError, "indices"),
    (lambda x: x.update_priorities([[0]], [1.0]), ArgumentError, "indices"),
    (lambda x: x.update_priorities([0], [-1.0]), ArgumentError, "priorities"),
    (lambda x: x.update_priorities([0, 1], [1, np.nan]), NonFiniteError, "priorities"),
    (lambda x: x.update_priorities([0, 1], [1, 1e300]), ArgumentError, "priorities"),
)
def test_invalid_priorities_are_rejected_and_change_nothing(rejection):
    buffer = make_prioritized(8, seed=0)
    buffer.update_priorities([3], [9.0])
    before = buffer.sample(8, seed=1)["indices"].tolist()
    expect_rejection(rejection, buffer)
    assert buffer.sample(8, seed=1)["indices"].tolist() == before


def push_steps(buffers, stacks, steps, rng):
    """Push the same steps with stacked frames to all buffers, some without next_obs."""
    n, zeros = len(stacks), np.zeros(len(stacks))
    for _ in range(steps):
        frames = rng.integers(0, 4, (n, 1, 2), np.uint8)
        obs, next_stacks = stacks.copy(), np.concatenate([stacks[:, 1:], frames], 1)
        terminated, truncated = rng.random((2, n)) < 0.15
        ended = terminated | truncated | (rng.random(n) < 0.1)
        stacks[:] = np.where(ended[:, None, None], np.repeat(frames, stacks.shape[1], 1), next_stacks)
        next_obs = None if not ended.any() and rng.random() < 0.3 else next_stacks
        rewards = rng.random(n)
        for buffer in buffers:
            buffer.push_batch(obs, next_obs, zeros, rewards, terminated, truncated)
            if hasattr(buffer, "update_priorities") and len(buffer) > n:
                indices = buffer.sample(1, 0)["indices"]
                buffer.update_priorities(indices, indices % 5 + 0.5)


@EVERY_CLASS
@pytest.mark.parametrize("before", [0, 9, 40])
@pytest.mark.parametrize(("num_envs", "frames", "n_step"), [(1, 3, 1), (2, 1, 3), (3, 2, 2)])
def test_loaded_buffers_continue_exactly(tmp_path, cls, num_envs, frames, n_step, before):
    options = {"obs_dtype": "uint8", "num_envs": num_envs, "frame_stack": frames}
    options |= {"n_step": n_step, "gamma": 0.9}
    original, copy = (cls(25, (frames, 2), (), seed=seed, **options) for seed in (0, 1))
    stacks, rng = np.zeros((num_envs, frames, 2), np.uint8), np.random.default_rng(before)
    push_steps([original], stacks, before, rng)
    push_steps([copy], np.ones_like(stacks), 5, rng)
    copy.load_state(original.state())
    original.save(tmp_path / "buffer")
    loaded = cls.load(tmp_path / "buffer")
    shutil.rmtree(tmp_path / "buffer")
    buffers = [original, copy, loaded]
    assert len({(type(b), len(b), b.capacity, b.num_envs) for b in buffers}) == 1
    for _ in range(12):
        push_steps(buffers, stacks, 1, rng)
        count = len(original) - num_envs
        for arguments in [(count,), (count, 7)] if count > 0 else []:
            first, *others = [b.sample(*arguments) for b in buffers]
            for other in others:
                assert_batches_equal(first, other)
    first, *others = [b.state() for b in buffers]
    for other in others:
        assert_batches_equal(first, other)


def test_states_have_an_array_for_each_part_and_extra(tmp_path):
    extra = {"cost": ((), "float64"), "flags": (2, "bool")}
    buffer = rlox.ReplayBuffer(10, {"a": 2, "b": ((3,), "int64")}, 1, extra=extra)
    for i in range(13):
        obs, next_obs = {"a": [i, i], "b": [i, i, 0]}, {"a": [i + 1, i], "b": [0, 0, i]}
        extra = {"cost": i / 3, "flags": [i % 2 == 0, True]}
        buffer.push(obs, [i], i, False, i % 4 == 3, next_obs, extra=extra)
    arrays = buffer.state()
    assert arrays["step.obs.b"].dtype == np.int64
    assert arrays["step.cost"].tolist() == [i / 3 for i in range(3, 13)]
    assert arrays["step.flags"].dtype == bool
    buffer.save(tmp_path / "buffer")
    loaded = rlox.ReplayBuffer.load(tmp_path / "buffer")
    assert_batches_equal(loaded.sample(10, 3), buffer.sample(10, 3))


def make_filled(count=5):
    buffer = rlox.ReplayBuffer(4, 2, 1, seed=0)
    for i in range(count):
        buffer.push(*transition(i, truncated=i % 3 == 2))
    return buffer


@pytest.mark.parametrize("name", sorted(make_filled().state()))
def test_invalid_states_are_rejected_without_change(name):
    buffer, state = make_filled(2), make_filled().state()
    before = buffer.state()
    array = state[name]
    invalid = [np.zeros((99, 3)), np.array(["x"]), np.float16([1]), np.int32(3), None, "abc", [[1]]]
    for wrong in [*invalid, np.concatenate([array, array])]:
        with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
            buffer.load_state({**state, name: wrong})
        assert raised.value.argument.startswith("arrays")
    missing = {key: value for key, value in state.items() if key != name}
    expect_rejection(Rejection(buffer.load_state, ArgumentError, f'arrays["{name}"]'), missing)
    if array.dtype.kind == "f" and array.size and name != "gamma":
        wrong = {**state, name: np.full_like(array, np.nan)}
        expect_rejection(Rejection(buffer.load_state, NonFiniteError, f'arrays["{name}"]'), wrong)
    assert_batches_equal(buffer.state(), before)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (rlox.ReplayBuffer(4, 3, 1), "step.obs"),
        (rlox.ReplayBuffer(4, 2, 1, act_dtype="int64"), "step.actions"),
        (rlox.ReplayBuffer(4, 2, 1, num_envs=2), "num_envs"),
        (rlox.PrioritizedReplayBuffer(4, 2, 1), "priorities"),
        (rlox.ReplayBuffer(4, 2, 1, extra={"x": ((), "bool")}), "step.x"),
    ],
    ids=["shape", "dtype", "num_envs", "prioritized", "extra"],
)
def test_states_of_other_buffers_are_rejected(other, name):
    load = Rejection(other.load_state, ArgumentError, f'arrays["{name}"]')
    expect_rejection(load, make_filled().state())
    assert len(other) == 0


def test_invalid_paths_and_other_classes_are_rejected(tmp_path):
    make_filled().save(tmp_path / "plain")
    load = rlox.PrioritizedReplayBuffer.load
    expect_rejection(Rejection(load, ArgumentError, "path"), tmp_path / "plain")
    with pytest.raises(FileNotFoundError):
        rlox.ReplayBuffer.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(FileExistsError):
            make_filled().save(path)
    make_filled(3).save(tmp_path / "plain")
    assert len(rlox.ReplayBuffer.load(tmp_path / "plain")) == 3
    for wrong in (None, 3, b"x\0"):
        with pytest.raises((TypeError, ValueError, OSError)):
            make_filled().save(wrong)


@pytest.mark.parametrize("name", ["manifest.json", "replay.safetensors"])
def test_errors_of_damaged_files_name_the_file(tmp_path, name):
    make_filled().save(tmp_path / "buffer")
    file = tmp_path / "buffer" / name
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (flipped, content[:middle], b""):
        file.write_bytes(damaged)
        with rejects(rlox.CorruptFileError, str(file), section=name.partition(".")[0]):
            rlox.ReplayBuffer.load(tmp_path / "buffer")
    file.write_bytes(content)
    assert len(rlox.ReplayBuffer.load(tmp_path / "buffer")) == 4


def test_sequences_are_time_major_and_padded_with_zeros():
    sizes, extra = {"a": 1, "b": ((2, 3), "uint8")}, {"cost": ((), "float64")}
    buffer = rlox.ReplayBuffer(100, sizes, (), act_dtype="int64", seed=3, extra=extra)

    def obs(i):
        return {"a": [i], "b": np.full((2, 3), i, np.uint8)}

    for i in range(1, 9):  # episodes of 3 and 5 steps
        buffer.push(obs(i), i, i, i == 3, i == 8, obs(i + 1), extra={"cost": i / 3})
    batch = buffer.sample_sequences(8, 4, burn_in=2)
    assert buffer.sample_sequences(8, 4, burn_in=2, out=batch) is batch
    actions, mask = batch["actions"], batch["mask"]
    for column, start in enumerate(batch["indices"] + 1):
        first, last = (1, 3) if start <= 3 else (4, 8)
        steps = np.arange(start - 2, start + 4)
        expected = np.where((first <= steps) & (steps <= last), steps, 0)
        assert np.array_equal(actions[:, column], expected)
    assert np.array_equal(mask, actions > 0)
    assert np.array_equal(batch["lengths"], mask[2:].sum(0))
    assert np.array_equal(batch["episode_starts"], np.isin(actions, (1, 4)))
    assert np.array_equal(batch["terminated"], actions == 3)
    assert np.array_equal(batch["truncated"], actions == 8)
    assert np.array_equal(batch["rewards"], actions)
    assert np.array_equal(batch["cost"], actions / 3)
    for name, numbers in (("obs", actions), ("next_obs", (actions + 1) * mask)):
        assert np.array_equal(batch[name]["a"], numbers[..., None])
        grid = np.broadcast_to(numbers[..., None, None], (6, 8, 2, 3))
        assert np.array_equal(batch[name]["b"], grid)
        assert batch[name]["b"].dtype == np.uint8
    batch = buffer.sample_sequences(8, 4, whole_episodes=True)
    assert set(batch["indices"]) == {0, 3}
    assert {tuple(column) for column in batch["actions"].T} == {(1, 2, 3, 0), (4, 5, 6, 7)}
    running = fill(rlox.ReplayBuffer(4, 2, 1), 2)
    sample = partial(running.sample_sequences, whole_episodes=True)
    expect_rejection(Rejection(sample, ArgumentError, "whole_episodes"), 1, 4)


def test_sequences_rebuild_frame_stacks():
    frames = np.random.default_rng(0).integers(0, 256, (41, 1, 2), np.uint8)
    buffer = rlox.ReplayBuffer(30, (3, 2), 1, obs_dtype="uint8", frame_stack=3)
    stacks = [np.repeat(frames[0], 3, 0)]
    for i in range(40):
        stacks.append(np.concatenate([stacks[-1][1:], frames[i + 1]]))
        buffer.push(stacks[i], [i], 0.0, False, False, stacks[i + 1])
    first, again = (buffer.sample_sequences(8, 5, 11, burn_in=2) for _ in "ab")
    assert_batches_equal(first, again)
    for t, b in np.argwhere(first["mask"]):
        assert np.array_equal(first["obs"][t, b], stacks[int(first["actions"][t, b, 0])])


@rejections(
    (lambda x: x.sample_sequences(2, -1), ArgumentError, "length"),
    (lambda x: x.sample_sequences(5, 3), ArgumentError, "batch_size"),
    (lambda x: x.sample_sequences(2, 3, burn_in=1, whole_episodes=True), ArgumentError, "burn_in"),
    (lambda x: x.sample_sequences(2, 3, burn_in=1.5), ArgumentTypeError, "burn_in"),
    (lambda x: x.sample_sequences(2, 3, whole_episodes=3), ArgumentTypeError, "whole_episodes"),
    (lambda x: x.sample_sequences(2, 3, seed="a"), ArgumentTypeError, "seed"),
    (lambda x: x.sample_sequences(2, 3, out={}), ArgumentError, "out"),
)
def test_invalid_arguments_of_sequences_are_rejected(rejection):
    expect_rejection(rejection, make_filled(4))
