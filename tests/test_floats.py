"""Half precision and flushed denormals in the kernels."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import rlox

T, N = 6, 4
FLAGS = np.arange(T * N).reshape(T, N) % 5 == 4
NUMBERS = torch.linspace(-3, 3, T * N).reshape(T, N)
OTHERS = NUMBERS.flip(0) / 3
KERNELS = {
    "compute_gae": lambda a, b: rlox.compute_gae(a, b, FLAGS, b[0]),
    "compute_gae, one": lambda a, b: rlox.compute_gae(a[0], b[0], FLAGS[0], b[1, 1]),
    "compute_gae, final": lambda a, b: rlox.compute_gae(
        a, b, None, b[0], terminated=FLAGS, truncated=~FLAGS, final_values=a
    ),
    "compute_gae_batched": lambda a, b: rlox.compute_gae_batched(
        a.reshape(-1), b.reshape(-1), FLAGS.ravel(), b[:, 0], N, 0.99, 0.95
    ),
    "compute_returns": lambda a, b: rlox.compute_returns(a, FLAGS, b[0]),
    "compute_lambda_returns": lambda a, b: rlox.compute_lambda_returns(a, b, FLAGS, b[0]),
    "compute_vtrace": lambda a, b: rlox.compute_vtrace(b, a, b, FLAGS, b[0], 0.99),
    "token_kl": lambda a, b: rlox.token_kl(a, b, FLAGS),
    "token_kl, sums": lambda a, b: rlox.token_kl(a, b, reduction="sum"),
    "compute_token_kl_f32": lambda a, b: rlox.compute_token_kl_f32(a[0], b[0]),
    "compute_batch_token_kl_f32": lambda a, b: rlox.compute_batch_token_kl_f32(
        a.reshape(-1), b.reshape(-1), N
    ),
    "policy_ratios": lambda a, b: rlox.policy_ratios(a, b, FLAGS),
    "policy_ratio_stats": lambda a, b: [*rlox.policy_ratio_stats(a, b, advantages=b).values()],
    "group advantages": lambda a, b: rlox.compute_group_advantages(a[0]),
    "weighted": lambda a, b: rlox.compute_group_advantages(a, weights=b[0]),
    "batch of groups": lambda a, b: rlox.compute_batch_group_advantages(a.reshape(-1), N),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_are_those_of_the_same_numbers_in_float32(kernel, dtype):
    given = [x.to(dtype) for x in (NUMBERS, OTHERS)]
    got, expected = (KERNELS[kernel](*x) for x in (given, [x.float() for x in given]))
    for ours, same in zip(np.atleast_1d(got), np.atleast_1d(expected), strict=True):
        assert np.asarray(ours).dtype == np.asarray(same).dtype
        np.testing.assert_array_equal(ours, same)
    assert [x.dtype for x in given] == [dtype, dtype]


@pytest.mark.parametrize("n", [50, 20_000])
def test_arrays_of_every_layout_count_as_their_numbers(n):
    rewards = np.random.default_rng(0).standard_normal(n).astype(np.float16)
    misaligned = np.zeros(2 * n + 1, np.uint8)[1:].view(np.float16)
    misaligned[:] = rewards
    strided, zeros = np.repeat(rewards, 2)[::2], np.zeros(n, np.float32)
    expected = rlox.compute_gae(rewards.astype(np.float32), zeros, zeros, 0.0)[0]
    for numbers in (rewards, strided, misaligned, strided[::-1][::-1], rewards.astype(">f2")):
        got = rlox.compute_gae(numbers, zeros, zeros, 0.0)[0]
        assert got.dtype == np.float32
        assert np.array_equal(got, expected)
    other = rlox.compute_gae(zeros.astype(float), rewards, zeros, 0.0)[0]
    assert other.dtype == np.float64


def test_masks_and_single_numbers_may_be_half_precision_too():
    flags = torch.from_numpy(FLAGS).to(torch.bfloat16)
    numbers = NUMBERS.to(torch.bfloat16)
    np.testing.assert_array_equal(
        rlox.token_kl(numbers, numbers / 2, flags), rlox.token_kl(numbers, numbers / 2, FLAGS)
    )
    half = torch.tensor(0.5, dtype=torch.bfloat16)
    np.testing.assert_array_equal(
        rlox.compute_returns(numbers[0], FLAGS[0], half, half),
        rlox.compute_returns(numbers[0], FLAGS[0], 0.5, 0.5),
    )


def test_what_bfloat16_tensors_are_refused_for_is_told():
    learned = NUMBERS.to(torch.bfloat16).requires_grad_()
    with pytest.raises(
        ValueError, match=r"log_probs: expected an array, .*requires grad.*; pass it as \.detach"
    ):
        rlox.token_kl(learned, OTHERS)
    with pytest.raises(TypeError, match=r"sequences: expected an array of integers, got"):
        rlox.pack_sequences([NUMBERS[0].to(torch.bfloat16)], 8)


def test_a_policy_in_half_precision_is_stepped_with():
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
def test_many_numbers_are_converted_part_by_part_as_few_are(shape, dtype):
    ratios = np.random.default_rng(0).normal(0, 0.01, shape).astype(dtype)
    said = rlox.policy_ratios(ratios, np.zeros(shape, np.float32))
    for some in (np.s_[..., :50], np.s_[..., -50:]):
        few = rlox.policy_ratios(ratios[some], np.zeros(ratios[some].shape, np.float32))
        np.testing.assert_array_equal(said[some], few)


# Numbers so small that they count as 0 where the caller says so.
FLUSHED = """
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
    for flush in (False, True, False, True):  # the threads' own is that of one of these
        assert torch.set_flush_denormal(flush)
        for _ in range(3):
            for array in results():
                digest.update(array.tobytes())
                print(flush, (array == 0).sum(), array.size)
    print(digest.hexdigest(), flush=True)
    os._exit(0)
"""


def test_results_with_flushed_denormals_do_not_depend_on_the_number_of_threads():
    command = [sys.executable, "-c", FLUSHED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    lines = done.stdout.splitlines()
    one, two = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    said = [line.split() for line in one[:-1]]
    # The mode does make a difference: all of it, and none where it is off.
    assert {(flush, gone == size) for flush, gone, size in said[::4]} == {
        ("False", False),
        ("True", True),
    }
    assert one == two
