"""Array arguments that share memory or that other code changes during a call."""

import contextlib
import itertools
import threading
import time

import numpy as np
import pytest
import torch

import rlox
from rlox import ArgumentError, ArgumentTypeError
from support.rejections import rejects

N = 40


@contextlib.contextmanager
def raises_error(argument, got):
    """Check that the block raises an ArgumentError for `argument`, with `got` in the error."""
    with rejects(ArgumentError, argument) as raised:
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


MAKERS = [two_buffers, through_torch, through_memoryview, view]
make_pair = pytest.mark.parametrize("make_pair", MAKERS, ids=lambda make: make.__name__)


def gae(rewards, values, dones, out):
    return rlox.compute_gae(rewards, values, dones, 0.0, gamma=1.0, lam=1.0, out=out)


@make_pair
@pytest.mark.parametrize("n", [6, 20_000])
def test_out_that_shares_memory_with_an_argument_is_rejected(make_pair, n):
    first, second = make_pair(np.float64, n)
    separate, flags = np.zeros(n), np.zeros(n, bool)
    with raises_error("out[0]", "memory that rewards shares"):
        gae(first, separate, flags, (second, np.empty(n)))
    with raises_error("out[1]", "memory that values shares"):
        gae(separate, first, flags, (np.empty(n), second))
    with raises_error("out[1]", "memory that out[0] shares"):
        gae(separate, separate, flags, (first, second))
    assert not first.any()
    assert gae(first, second, flags, (separate, np.empty(n)))[0] is separate  # read-only arguments may overlap


def test_partial_overlap_is_rejected_and_adjacent_memory_is_accepted():
    memory = bytearray(8 * 3 * N)
    values, flags = np.zeros(N), np.zeros(N, bool)
    rewards = np.frombuffer(memory, np.float64, N, 8 * N)
    rewards[:] = 1.0
    expected_result = gae(rewards, values, flags, None)[0]
    for shift in (-8, 8):
        shifted = np.frombuffer(memory, np.float64, N, 8 * (N + shift))
        with raises_error("out[0]", "memory that rewards shares"):
            gae(rewards, values, flags, (shifted, np.empty(N)))
    for start in (0, 2 * N):
        adjacent = np.frombuffer(memory, np.float64, N, 8 * start)
        assert np.array_equal(gae(rewards, values, flags, (adjacent, np.empty(N)))[0], expected_result)


def test_results_can_be_written_over_flags():
    memory = bytearray(8 * N)
    flags, out = np.frombuffer(memory, bool, N), np.frombuffer(memory, np.float64)
    rewards, values = np.arange(N, dtype=float), np.zeros(N)
    flags[::7] = True
    expected_result = gae(rewards, values, flags.copy(), None)[0]
    np.testing.assert_array_equal(gae(rewards, values, flags, (out, np.empty(N)))[0], expected_result)


@make_pair
@pytest.mark.parametrize("n", [2, 256])
def test_step_rejects_results_that_share_memory(make_pair, n):
    env = rlox.VecEnv(n, seed=0)
    obs = env.reset_all()
    before, flags = env.get_state(), (np.empty(n, bool), np.empty(n, bool))
    first, second = make_pair(np.float32, 4 * n)
    with raises_error("final_obs", "memory that obs shares"):
        env.step_into([0] * n, first.reshape(n, 4), np.empty(n), *flags, second.reshape(n, 4))
    rewards = second[: 2 * n].view(np.float64)
    with raises_error("rewards", "memory that obs shares"):
        env.step_into([0] * n, first.reshape(n, 4), rewards, *flags)
    actions = second[: 2 * n].view(np.int64)
    with raises_error("obs", "memory that actions shares"):
        env.step_into(actions, first.reshape(n, 4), np.empty(n), *flags)
    first, second = make_pair(bool, n)
    with raises_error("truncated", "memory that terminated shares"):
        env.step_into([0] * n, obs, np.empty(n), first, second)
    after = env.get_state()
    assert all(np.array_equal(after[key], before[key]) for key in before)


@contextlib.contextmanager
def run_repeatedly(work, pause=1e-4):
    """Repeat `work` in another thread during the block."""
    stop, started = threading.Event(), threading.Event()

    def run():
        while not stop.is_set():
            started.set()
            work()
            time.sleep(pause)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@make_pair
def test_memory_in_use_by_a_running_call_is_rejected(make_pair):
    steps, n = 40_000, 8
    env = rlox._rlox.NativeVectorEnv("Acrobot-v1", n, 0)
    env.reset()
    first, second = make_pair(np.float64, steps * n)
    errors = []

    def read():
        try:
            rlox.compute_returns(second[:N], np.zeros(N, bool), 0.0)
        except ArgumentError as error:
            errors.append(error)

    obs, flags = np.empty((2, steps, n, 6), np.float32), np.empty((2, steps, n), bool)
    with run_repeatedly(read, pause=0):
        env.steps_into(np.ones((steps, n), int), obs[0], first.reshape(steps, n), *flags, obs[1])
    assert any("memory that another call uses as rewards" in error.got for error in errors)
    assert np.array_equal(rlox.compute_returns(second, np.ones(steps * n, bool), 0.0), first)


# Seconds. Some of these delays end during a call.
DELAYS = [0.001, 0.002, 0.003, 0.004, 0.005, 0.007, 0.009, 0.012, 0.016, 0.02]
FLAGS = {
    "mask": ((32, 1 << 20), lambda x, y, flags: rlox.token_kl(x, y, flags, "k1", "mean")),
    "terminated": ((1 << 12, 2048), lambda x, y, flags: rlox.compute_gae(x, y, flags, y[0])[0]),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_change_during_a_call_are_true_if_nonzero(name):
    shape, call = FLAGS[name]
    ones, zeros, flags = (np.ones(shape, np.float32), np.zeros(shape, np.float32), np.ones(shape, bool))

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
        with run_repeatedly(flip):
            env.reset(options={"reset_mask": mask})
        np.testing.assert_array_equal(env.get_state()["streams"][:, 2:4], increments)


def test_set_state_is_atomic_when_the_state_changes():
    n = 200_000
    env = rlox.VecEnv(n=n, seed=0, env_id="CartPole-v1")
    env.reset_all()
    loaded = env.get_state()
    rejections = 0
    for trial in range(8):
        env.reset_all(seed=99)
        before = env.get_state()
        state = {name: array.copy() for name, array in loaded.items()}
        valid = state["states"][n // 2].copy()
        values = itertools.cycle([np.nan, valid] if trial % 2 else [valid, np.nan])

        def corrupt(row=state["states"][n // 2], values=values):
            row[:] = next(values)

        try:
            with run_repeatedly(corrupt):
                env.set_state(state)
            expected = loaded
        except ValueError:
            expected, rejections = before, rejections + 1
        after = env.get_state()
        for name, array in expected.items():
            np.testing.assert_array_equal(after[name], array, name)
    assert rejections > 0


class CallbackArray:
    """Call a function when NumPy converts the object to an array."""

    def __init__(self, numbers, callback):
        self.numbers, self.callback = numbers, callback

    def __array__(self, dtype=None, copy=None):
        self.callback()
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
    argument = np.zeros(n)

    def change_memory():
        argument.dtype = dtype

    with pytest.raises((ArgumentError, ArgumentTypeError)):
        TWO_ARRAYS[name](argument, CallbackArray(np.ones(n), change_memory))


@pytest.mark.parametrize("change", ["dtype", "shape", "resize"])
def test_sequence_that_changes_another_sequence_is_safe(change):
    sequences = [np.arange(1000) for _ in range(5)]

    def change_memory():
        if change == "dtype":
            sequences[0].dtype = np.int8
        elif change == "shape":
            sequences[0].shape = (10, 100)
        else:
            sequences[0].resize(3, refcheck=False)

    sequences.insert(2, CallbackArray(np.arange(4), change_memory))
    if change == "shape":
        with raises_error("sequences", "[10, 100]"):
            rlox.pack_sequences(sequences, 8000)
        return
    rows = rlox.pack_sequences(sequences, 8000)
    indices = np.concatenate([row["source_indices"] for row in rows]).tolist()
    lengths = np.concatenate([np.diff(row["cu_seqlens"]) for row in rows]).tolist()
    sizes = dict(zip(indices, lengths, strict=True))
    assert sizes == {0: 8000 if change == "dtype" else 3, 1: 1000, 2: 4, 3: 1000, 4: 1000, 5: 1000}


def test_threads_that_reshape_sequences_are_safe():
    sequences, rng = [np.arange(64) for _ in range(20_000)], np.random.default_rng(0)

    def change_memory():
        sequence = sequences[rng.integers(len(sequences))]
        sequence.shape = (8, 8)
        sequence.shape = (64,)

    with run_repeatedly(change_memory, pause=0):
        for _ in range(5):
            with contextlib.suppress(ArgumentError):
                rows = rlox.pack_sequences(sequences, 256)
                assert sum(len(row["input_ids"]) for row in rows) == 64 * 20_000
