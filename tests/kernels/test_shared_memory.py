"""Arrays that share memory, or that other code changes during a call."""

import contextlib
import itertools
import threading
import time

import numpy as np
import pytest
import torch

import rlox
from rlox import ArgumentError, ArgumentTypeError
from support.refusals import refuses

N = 40


@contextlib.contextmanager
def rejects(argument, got):
    """Check that the block raises an ArgumentError for `argument`, with `got` in the error."""
    with refuses(ArgumentError, argument) as raised:
        yield
    assert got in raised.value.got


def two_buffers(dtype, n):
    memory = bytearray(n * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype), np.frombuffer(memory, dtype)


def through_torch(dtype, n):
    array = np.zeros(n, dtype)
    return array, torch.from_numpy(array).numpy()


def through_memoryview(dtype, n):
    array = np.zeros(n, dtype)
    return array, np.asarray(memoryview(array))


def view(dtype, n):
    array = np.zeros(n, dtype)
    return array, array[:]


TWICE = [two_buffers, through_torch, through_memoryview, view]
twice = pytest.mark.parametrize("twice", TWICE, ids=lambda make: make.__name__)


def gae(rewards, values, dones, out):
    return rlox.compute_gae(rewards, values, dones, 0.0, gamma=1.0, lam=1.0, out=out)


@twice
@pytest.mark.parametrize("n", [6, 20_000])
def test_out_that_shares_memory_with_an_argument_is_rejected(twice, n):
    one, other = twice(np.float64, n)
    free, flags = np.zeros(n), np.zeros(n, bool)
    with rejects("out[0]", "memory that rewards shares"):
        gae(one, free, flags, (other, np.empty(n)))
    with rejects("out[1]", "memory that values shares"):
        gae(free, one, flags, (np.empty(n), other))
    with rejects("out[1]", "memory that out[0] shares"):
        gae(free, free, flags, (one, other))
    assert not one.any()
    assert gae(one, other, flags, (free, np.empty(n)))[0] is free  # what is only read may overlap


def test_partial_overlap_is_rejected_and_adjacent_memory_is_accepted():
    memory = bytearray(8 * 3 * N)
    values, flags = np.zeros(N), np.zeros(N, bool)
    rewards = np.frombuffer(memory, np.float64, N, 8 * N)
    rewards[:] = 1.0
    right = gae(rewards, values, flags, None)[0]
    for shift in (-8, 8):
        shifted = np.frombuffer(memory, np.float64, N, 8 * (N + shift))
        with rejects("out[0]", "memory that rewards shares"):
            gae(rewards, values, flags, (shifted, np.empty(N)))
    for start in (0, 2 * N):
        beside = np.frombuffer(memory, np.float64, N, 8 * start)
        assert np.array_equal(gae(rewards, values, flags, (beside, np.empty(N)))[0], right)


def test_results_can_be_written_over_flags():
    memory = bytearray(8 * N)
    flags, out = np.frombuffer(memory, bool, N), np.frombuffer(memory, np.float64)
    rewards, values = np.arange(N, dtype=float), np.zeros(N)
    flags[::7] = True
    right = gae(rewards, values, flags.copy(), None)[0]
    np.testing.assert_array_equal(gae(rewards, values, flags, (out, np.empty(N)))[0], right)


@twice
@pytest.mark.parametrize("n", [2, 256])
def test_step_rejects_results_that_share_memory(twice, n):
    env = rlox.VecEnv(n, seed=0)
    obs = env.reset_all()
    before, flags = env.get_state(), (np.empty(n, bool), np.empty(n, bool))
    one, other = twice(np.float32, 4 * n)
    with rejects("final_obs", "memory that obs shares"):
        env.step_into([0] * n, one.reshape(n, 4), np.empty(n), *flags, other.reshape(n, 4))
    rewards = other[: 2 * n].view(np.float64)
    with rejects("rewards", "memory that obs shares"):
        env.step_into([0] * n, one.reshape(n, 4), rewards, *flags)
    actions = other[: 2 * n].view(np.int64)
    with rejects("obs", "memory that actions shares"):
        env.step_into(actions, one.reshape(n, 4), np.empty(n), *flags)
    one, other = twice(bool, n)
    with rejects("truncated", "memory that terminated shares"):
        env.step_into([0] * n, obs, np.empty(n), one, other)
    after = env.get_state()
    assert all(np.array_equal(after[key], before[key]) for key in before)


@contextlib.contextmanager
def repeating(work, pause=1e-4):
    """Repeat `work` in another thread."""
    stop, has_started = threading.Event(), threading.Event()

    def run():
        while not stop.is_set():
            has_started.set()
            work()
            time.sleep(pause)

    thread = threading.Thread(target=run)
    thread.start()
    has_started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@twice
def test_memory_of_a_running_call_is_rejected(twice):
    steps, n = 40_000, 8
    env = rlox._rlox.NativeVectorEnv("Acrobot-v1", n, 0)
    env.reset()
    one, other = twice(np.float64, steps * n)
    errors = []

    def read():
        try:
            rlox.compute_returns(other[:N], np.zeros(N, bool), 0.0)
        except ArgumentError as error:
            errors.append(error)

    obs, flags = np.empty((2, steps, n, 6), np.float32), np.empty((2, steps, n), bool)
    with repeating(read, pause=0):
        env.steps_into(np.ones((steps, n), int), obs[0], one.reshape(steps, n), *flags, obs[1])
    assert any("memory that another call uses as rewards" in error.got for error in errors)
    assert np.array_equal(rlox.compute_returns(other, np.ones(steps * n, bool), 0.0), one)


# In seconds: some of them end within a call.
DELAYS = [0.001, 0.002, 0.003, 0.004, 0.005, 0.007, 0.009, 0.012, 0.016, 0.02]
FLAGS = {
    "mask": ((32, 1 << 20), lambda x, y, flags: rlox.token_kl(x, y, flags, "k1", "mean")),
    "terminated": ((1 << 12, 2048), lambda x, y, flags: rlox.compute_gae(x, y, flags, y[0])[0]),
}


@pytest.mark.parametrize("name", FLAGS)
def test_nonzero_bytes_of_flags_are_true(name):
    shape, call = FLAGS[name]
    ones, zeros, flags = (
        np.ones(shape, np.float32),
        np.zeros(shape, np.float32),
        np.ones(shape, bool),
    )

    def write(delay):
        time.sleep(delay)
        flags.view(np.uint8).fill(254)

    for delay in DELAYS:
        flags[:] = True
        thread = threading.Thread(target=write, args=(delay,))
        thread.start()
        result = call(ones, zeros, flags)
        thread.join()
        np.testing.assert_array_equal(result, 1.0)


def test_random_streams_stay_separate_when_the_reset_mask_changes():
    n = 200_000
    env = rlox.VecEnv(n=n, seed=0, env_id="CartPole-v1")
    env.reset_all()
    mask = np.arange(n) < n // 2

    def flip():
        np.logical_not(mask, out=mask)

    increments = env.get_state()["streams"][:, 2:4].copy()
    for _ in range(4):
        with repeating(flip):
            env.reset(options={"reset_mask": mask})
        np.testing.assert_array_equal(env.get_state()["streams"][:, 2:4], increments)


def test_set_state_is_atomic_when_the_state_changes():
    n = 200_000
    env = rlox.VecEnv(n=n, seed=0, env_id="CartPole-v1")
    env.reset_all()
    loaded = env.get_state()
    rejected = 0
    for trial in range(8):
        env.reset_all(seed=99)
        before = env.get_state()
        state = {name: array.copy() for name, array in loaded.items()}
        right = state["states"][n // 2].copy()
        values = itertools.cycle([np.nan, right] if trial % 2 else [right, np.nan])

        def spoil(row=state["states"][n // 2], values=values):
            row[:] = next(values)

        try:
            with repeating(spoil):
                env.set_state(state)
            expected = loaded
        except ValueError:
            expected, rejected = before, rejected + 1
        after = env.get_state()
        for name, array in expected.items():
            np.testing.assert_array_equal(after[name], array, name)
    assert rejected > 0


class Meddler:
    """Does something else when it is asked for its numbers."""

    def __init__(self, numbers, act):
        self.numbers, self.act = numbers, act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return self.numbers


TWO_ARRAYS = {
    "token_kl": lambda a, b: rlox.token_kl(a, b),
    "token_kl mask": lambda a, b: rlox.token_kl(a, a.copy(), b),
    "compute_token_kl": lambda a, b: rlox.compute_token_kl(a, b),
    "schulman mask": lambda a, b: rlox.compute_token_kl_schulman(a, a.copy(), mask=b),
    "batch_token_kl": lambda a, b: rlox.compute_batch_token_kl(a, b, 500),
    "policy_ratios": lambda a, b: rlox.policy_ratios(a, b),
    "ratio_stats advantages": lambda a, b: rlox.policy_ratio_stats(a, a.copy(), advantages=b),
    "batch_group weights": lambda a, b: rlox.compute_batch_group_advantages(a, 500, weights=b),
    "gae values": lambda a, b: rlox.compute_gae(a, b, a == 1, 0.0),
    "gae dones": lambda a, b: rlox.compute_gae(a, a.copy(), b, 0.0),
}


@pytest.mark.parametrize("name", TWO_ARRAYS)
@pytest.mark.parametrize("dtype", ["i1", "V8"])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_argument_that_changes_another_argument_is_rejected(name, dtype, n):
    first = np.zeros(n)

    def meddle():
        first.dtype = dtype

    with pytest.raises((ArgumentError, ArgumentTypeError)):
        TWO_ARRAYS[name](first, Meddler(np.ones(n), meddle))


@pytest.mark.parametrize("change", ["dtype", "shape", "resize"])
def test_sequence_that_changes_another_sequence_is_safe(change):
    sequences = [np.arange(1000) for _ in range(5)]

    def meddle():
        if change == "dtype":
            sequences[0].dtype = np.int8
        elif change == "shape":
            sequences[0].shape = (10, 100)
        else:
            sequences[0].resize(3, refcheck=False)

    sequences.insert(2, Meddler(np.arange(4), meddle))
    if change == "shape":
        with rejects("sequences", "[10, 100]"):
            rlox.pack_sequences(sequences, 8000)
        return
    rows = rlox.pack_sequences(sequences, 8000)
    sources = np.concatenate([row["source_indices"] for row in rows]).tolist()
    lengths = np.concatenate([np.diff(row["cu_seqlens"]) for row in rows]).tolist()
    sizes = dict(zip(sources, lengths, strict=True))
    assert sizes == {0: 8000 if change == "dtype" else 3, 1: 1000, 2: 4, 3: 1000, 4: 1000, 5: 1000}


def test_threads_that_reshape_sequences_are_safe():
    sequences, rng = [np.arange(64) for _ in range(20_000)], np.random.default_rng(0)

    def meddle():
        sequence = sequences[rng.integers(len(sequences))]
        sequence.shape = (8, 8)
        sequence.shape = (64,)

    with repeating(meddle, pause=0):
        for _ in range(5):
            with contextlib.suppress(ArgumentError):
                rows = rlox.pack_sequences(sequences, 256)
                assert sum(len(row["input_ids"]) for row in rows) == 64 * 20_000
