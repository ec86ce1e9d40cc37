"""`ReplayBuffer.sample_sequences`: steps that follow each other, equal to a slow walk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox


class Pushed:
    """Every step that was pushed, by number, and whether the environment's next one goes on."""

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
        buffer.push_batch(
            obs,
            None if promised else following,
            actions,
            rewards,
            terminated,
            truncated,
            extra=cost,
        )
        for i in range(self.n):
            self.rows.append((self.at[i], rewards[i], terminated[i], truncated[i], last[i]))
        self.at += np.where(last, 9.0, 1.0)
        self.held = range(max(0, len(self.rows) - buffer.capacity), len(self.rows))
        if promised:
            self.held = range(self.held.start, len(self.rows) - self.n)

    def walk(self, start, length, burn_in):
        """The numbers of a sequence's steps, None where there is none."""
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


def made(capacity, num_envs, kind=rlox.ReplayBuffer):
    sizes = {"place": 1, "grid": ((2, 3), "uint8")}
    extra = {"cost": ((), "float32")}
    return kind(capacity, sizes, (), act_dtype="int64", num_envs=num_envs, extra=extra, seed=0)


@settings(max_examples=50, deadline=None)
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
def test_sequences_equal_a_slow_walk(kind, capacity, num_envs, steps, length, burn_in, whole, seed):
    buffer, pushed = made(capacity, num_envs, kind), Pushed(seed, num_envs)
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


def test_time_comes_first_and_padding_is_zeros():
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


def test_starts_are_as_likely_as_each_other():
    buffer = episodes(5, 1, 7, 3, 9, capacity=20)  # of the first episode no step is left
    for whole, wanted in [(False, 20), (True, 4)]:
        drawn = [buffer.sample_sequences(20, 2, whole=whole)["indices"] for _ in range(200)]
        _, counts = np.unique(np.concatenate(drawn), return_counts=True)
        assert len(counts) == wanted
        expected = 4000 / wanted
        assert ((counts - expected) ** 2 / expected).sum() < 51  # 19 of freedom: p = 0.0001


def test_seeds_repeat_and_frame_stacks_are_rebuilt():
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
def test_what_makes_no_sense_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        episodes(4).sample_sequences(**{"batch_size": 2, "length": 3, **arguments})
