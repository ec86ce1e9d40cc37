"""Arrays of one memory: within a call, what is written overlaps nothing else, whoever owns it."""

import threading

import numpy as np
import pytest
import torch

import rlox

N = 40


def two_buffers(dtype, n):
    memory = bytearray(n * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype), np.frombuffer(memory, dtype)


def through_torch(dtype, n):
    array = np.zeros(n, dtype)
    return array, torch.from_numpy(array).numpy()


def through_memoryview(dtype, n):
    array = np.zeros(n, dtype)
    return array, np.asarray(memoryview(array))


def a_view(dtype, n):
    array = np.zeros(n, dtype)
    return array, array[:]


TWICE = [two_buffers, through_torch, through_memoryview, a_view]
twice = pytest.mark.parametrize("twice", TWICE, ids=lambda make: make.__name__)


def gae(rewards, values, dones, out):
    return rlox.compute_gae(rewards, values, dones, 0.0, gamma=1.0, lam=1.0, out=out)


@twice
@pytest.mark.parametrize("n", [6, 20_000])
def test_out_is_no_argument_and_no_other_out(twice, n):
    one, other = twice(np.float64, n)
    free, flags = np.zeros(n), np.zeros(n, bool)
    with pytest.raises(ValueError, match=r"out\[0\]: expected .* memory that rewards shares"):
        gae(one, free, flags, (other, np.empty(n)))
    with pytest.raises(ValueError, match=r"out\[1\]: expected .* memory that values shares"):
        gae(free, one, flags, (np.empty(n), other))
    with pytest.raises(ValueError, match=r"out\[1\]: expected .* memory that out\[0\] shares"):
        gae(free, free, flags, (one, other))
    assert not one.any()
    assert gae(one, other, flags, (free, np.empty(n)))[0] is free  # what is only read may overlap


def test_a_part_that_overlaps_is_seen_and_a_neighbour_is_none():
    memory = bytearray(8 * 3 * N)
    values, flags = np.zeros(N), np.zeros(N, bool)
    rewards = np.frombuffer(memory, np.float64, N, 8 * N)
    rewards[:] = 1.0
    right = gae(rewards, values, flags, None)[0]
    for shift in (-8, 8):
        shifted = np.frombuffer(memory, np.float64, N, 8 * (N + shift))
        with pytest.raises(ValueError, match="memory that rewards shares"):
            gae(rewards, values, flags, (shifted, np.empty(N)))
    for start in (0, 2 * N):
        beside = np.frombuffer(memory, np.float64, N, 8 * start)
        assert np.array_equal(gae(rewards, values, flags, (beside, np.empty(N)))[0], right)


def test_results_may_be_written_over_flags_which_are_copied():
    memory = bytearray(8 * N)
    flags, out = np.frombuffer(memory, bool, N), np.frombuffer(memory, np.float64)
    rewards, values = np.arange(N, dtype=float), np.zeros(N)
    flags[::7] = True
    right = gae(rewards, values, flags.copy(), None)[0]
    np.testing.assert_array_equal(gae(rewards, values, flags, (out, np.empty(N)))[0], right)


@twice
@pytest.mark.parametrize("n", [2, 256])
def test_what_a_step_writes_overlaps_nothing(twice, n):
    env = rlox.VecEnv(n, seed=0)
    obs = env.reset_all()
    before, flags = env.get_state(), (np.empty(n, bool), np.empty(n, bool))
    one, other = twice(np.float32, 4 * n)
    with pytest.raises(ValueError, match=r"final_obs: expected .* memory that obs shares"):
        env.step_into([0] * n, one.reshape(n, 4), np.empty(n), *flags, other.reshape(n, 4))
    rewards = other[: 2 * n].view(np.float64)
    with pytest.raises(ValueError, match=r"rewards: expected .* memory that obs shares"):
        env.step_into([0] * n, one.reshape(n, 4), rewards, *flags)
    actions = other[: 2 * n].view(np.int64)
    with pytest.raises(ValueError, match=r"obs: expected .* memory that actions shares"):
        env.step_into(actions, one.reshape(n, 4), np.empty(n), *flags)
    one, other = twice(bool, n)
    with pytest.raises(ValueError, match=r"truncated: expected .* memory that terminated shares"):
        env.step_into([0] * n, obs, np.empty(n), one, other)
    after = env.get_state()
    assert all(np.array_equal(after[key], before[key]) for key in before)


@twice
def test_what_another_call_writes_is_refused_until_it_ends(twice):
    steps, n = 40_000, 8
    env = rlox._rlox.NativeVectorEnv("Acrobot-v1", n, 0)
    env.reset()
    one, other = twice(np.float64, steps * n)
    told, over, begun = [], threading.Event(), threading.Event()

    def read():
        while not over.is_set():
            begun.set()
            try:
                rlox.compute_returns(other[:N], np.zeros(N, bool), 0.0)
            except ValueError as error:
                told.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    obs, flags = np.empty((2, steps, n, 6), np.float32), np.empty((2, steps, n), bool)
    try:
        env.steps_into(np.ones((steps, n), int), obs[0], one.reshape(steps, n), *flags, obs[1])
    finally:
        over.set()
        thread.join()
    assert any("memory that another call uses as rewards" in error for error in told)
    assert np.array_equal(rlox.compute_returns(other, np.ones(steps * n, bool), 0.0), one)
