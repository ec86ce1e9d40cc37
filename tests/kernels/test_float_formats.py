"""Half-precision arrays and flushed denormals in the kernels."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import rlox
from rlox import ArgumentError, ArgumentTypeError
from support.rejections import expect_rejection, rejections

FLAGS = np.arange(24).reshape(6, 4) % 5 == 4
NUMBERS = torch.linspace(-3, 3, 24).reshape(6, 4)


def test_long_half_precision_arrays_of_every_layout_equal_float32():
    n = 20_000
    rewards = np.random.default_rng(0).standard_normal(n).astype(np.float16)
    misaligned = np.zeros(2 * n + 1, np.uint8)[1:].view(np.float16)
    misaligned[:] = rewards
    strided, zeros = np.repeat(rewards, 2)[::2], np.zeros(n, np.float32)
    expected = rlox.compute_gae(rewards.astype(np.float32), zeros, zeros, 0.0)[0]
    for numbers in (rewards, strided, misaligned, strided[::-1][::-1], rewards.astype(">f2")):
        got = rlox.compute_gae(numbers, zeros, zeros, 0.0)[0]
        assert got.dtype == np.float32
        assert np.array_equal(got, expected)
    assert rlox.compute_gae(zeros.astype(float), rewards, zeros, 0.0)[0].dtype == np.float64


def test_masks_and_single_numbers_may_be_half_precision():
    numbers = NUMBERS.to(torch.bfloat16)
    flags, gamma = torch.from_numpy(FLAGS).to(torch.bfloat16), torch.tensor(0.5).to(torch.bfloat16)
    got, expected = (rlox.token_kl(numbers, numbers / 2, mask) for mask in (flags, FLAGS))
    np.testing.assert_array_equal(got, expected)
    got, expected = (rlox.compute_returns(numbers[0], FLAGS[0], x, x) for x in (gamma, 0.5))
    np.testing.assert_array_equal(got, expected)


@rejections(
    (lambda x: rlox.token_kl(x.requires_grad_(), x), ArgumentError, "log_probs"),
    (lambda x: rlox.pack_sequences([x[0]], 8), ArgumentTypeError, "sequences"),
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tensors_with_gradients_and_floats_for_integers_are_rejected(dtype, rejection):
    expect_rejection(rejection, NUMBERS.to(dtype, copy=True))


def test_policies_can_act_in_half_precision():
    class Half(torch.nn.Module):
        def get_action_and_logprob(self, obs, mask=None, action=None):
            zeros = torch.zeros(len(obs), dtype=torch.bfloat16)
            return zeros.long(), zeros - 0.5, zeros

        def get_value(self, obs):
            return torch.full((len(obs),), 0.25, dtype=torch.bfloat16)

    batch = rlox.collect_rollout(rlox.VecEnv(n=2, seed=0), Half(), 3)
    assert (batch.log_probs == -0.5).all()
    assert (batch.values == 0.25).all()


@pytest.mark.parametrize("shape", [(3, 900_000), (2_000_000,), (1, 2_000_000)])
@pytest.mark.parametrize("dtype", ["float16", ">f4"])
def test_long_arrays_that_are_converted_equal_short_ones(shape, dtype):
    log_probs = np.random.default_rng(0).normal(0, 0.01, shape).astype(dtype)
    ratios = rlox.policy_ratios(log_probs, np.zeros(shape, np.float32))
    for part in (np.s_[..., :50], np.s_[..., -50:]):
        zeros = np.zeros(log_probs[part].shape, np.float32)
        np.testing.assert_array_equal(ratios[part], rlox.policy_ratios(log_probs[part], zeros))


# Each number is denormal and counts as 0 if the caller flushes denormals.
FLUSH_PROGRAM = """
import hashlib, os
import numpy as np, rlox, torch

small = np.full(1 << 18, 1e-40, np.float32)
zeros, flags = np.zeros_like(small), np.zeros(small.shape, bool)

def results():
    yield rlox.token_kl(small, zeros, estimator="k1")
    yield rlox.policy_ratios(small, zeros)
    grid = small.reshape(256, -1)
    last = grid[0] * 2
    yield from rlox.compute_gae(grid, grid, flags.reshape(grid.shape), last, 0.5, 0.5)

for threads in "12":
    if os.fork():
        assert os.wait()[1] == 0
        continue
    os.environ["RLOX_NUM_THREADS"] = threads
    digest = hashlib.sha256()
    for flush in (False, True, False, True):  # the pool's threads start in one of the modes
        assert torch.set_flush_denormal(flush)
        for _ in range(3):
            for array in results():
                digest.update(array.tobytes())
                print(flush, (array == 0).sum(), array.size)
    print(digest.hexdigest(), flush=True)
    os._exit(0)
"""


def test_flushed_denormals_do_not_depend_on_thread_count():
    command = [sys.executable, "-c", FLUSH_PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    lines = done.stdout.splitlines()
    one_thread, two_threads = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    modes = {(mode, zeros == size) for mode, zeros, size in map(str.split, one_thread[:-1:4])}
    assert modes == {("False", False), ("True", True)}  # all numbers are flushed or none
    assert one_thread == two_threads
