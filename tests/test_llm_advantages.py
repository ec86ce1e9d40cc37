"""Group advantages: the formulas of NumPy and torch, missing rewards, weights, hostile input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox

NAN = float("nan")


def grouped(rewards, size, ddof=0, eps=0.0):
    rows = rewards.reshape(-1, size).astype(np.float64)
    centred = rows - rows.mean(1, keepdims=True)
    return (centred / (rows.std(1, keepdims=True, ddof=ddof) + eps)).reshape(rewards.shape)


@given(
    seed=st.integers(0, 2**32),
    groups=st.integers(1, 40),
    size=st.integers(2, 40),
    ddof=st.integers(0, 1),
    eps=st.sampled_from([0.0, 1e-4]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_equals_numpy(seed, groups, size, ddof, eps, dtype):
    rewards = np.random.default_rng(seed).normal(size=groups * size).astype(dtype)
    got = rlox.compute_batch_group_advantages(rewards, size, ddof=ddof, eps=eps)
    assert got.dtype == dtype
    tolerance = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(got, grouped(rewards, size, ddof, eps), tolerance, tolerance)
    alone = rlox.compute_group_advantages(rewards[:size], ddof=ddof, eps=eps)
    np.testing.assert_array_equal(alone, got[:size])


def test_equals_what_trl_writes_in_torch():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    rewards = torch.rand(32 * 8, generator=torch.Generator().manual_seed(0))
    rows = rewards.view(-1, 8)
    mean, std = rows.mean(1).repeat_interleave(8), rows.std(1).repeat_interleave(8)
    kwargs = {"ddof": 1, "eps": 1e-4}
    got = rlox.compute_batch_group_advantages(rewards, 8, **kwargs)
    np.testing.assert_allclose(got, (rewards - mean) / (std + 1e-4), 1e-5, 1e-6)
    got = rlox.compute_batch_group_advantages(rewards, 8, scale="batch", **kwargs)
    np.testing.assert_allclose(got, (rewards - mean) / (rewards.std() + 1e-4), 1e-5, 1e-6)
    got = rlox.compute_batch_group_advantages(rewards, 8, scale="none", leave_one_out=True)
    baseline = (rows.sum(1, keepdim=True) - rows) / 7
    np.testing.assert_allclose(got, (rows - baseline).view(-1), 1e-5, 1e-6)


def test_by_hand():
    np.testing.assert_array_equal(
        rlox.compute_batch_group_advantages([1.0, 3.0, 7.0, 7.0], 2), [-1.0, 1.0, 0.0, 0.0]
    )
    # Deviations of the batch: mean 4.5, squares 12.25 + 2.25 + 6.25 + 6.25, so sqrt(27 / 4).
    got = rlox.compute_batch_group_advantages([1.0, 3.0, 7.0, 7.0], 2, scale="batch")
    np.testing.assert_allclose(got, [-1 / 6.75**0.5, 1 / 6.75**0.5, 0, 0])


def test_missing_rewards_count_for_nothing():
    got = rlox.compute_group_advantages([0.0, NAN, 2.0])
    np.testing.assert_array_equal(got, [-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(rlox.compute_group_advantages([NAN, NAN]), [0.0, 0.0])
    np.testing.assert_array_equal(rlox.compute_group_advantages([NAN, 5.0]), [0.0, 0.0])


def test_several_rewards_are_summed_with_weights():
    rewards = np.array([[1.0, 0.0], [0.0, 1.0], [NAN, 0.5], [NAN, NAN]])
    got = rlox.compute_group_advantages(rewards, weights=[1.0, 3.0])
    np.testing.assert_allclose(got, rlox.compute_group_advantages([1.0, 3.0, 1.5, NAN]))
    batch = rlox.compute_batch_group_advantages(rewards, 2, weights=[1.0, 3.0])
    np.testing.assert_allclose(batch, [-1.0, 1.0, 0.0, 0.0])


def test_groups_of_equal_rewards_get_zeros():
    for value in (0.1, 1e-300, -7.3, 1e100):
        for size in (1, 2, 7, 33):
            got = rlox.compute_batch_group_advantages(np.full(3 * size, value), size)
            np.testing.assert_array_equal(got, np.zeros(3 * size))
    # Apart by no more than rounding.
    np.testing.assert_array_equal(rlox.compute_group_advantages([0.1 + 0.2, 0.3]), [0.0, 0.0])


def test_shapes_and_what_asarray_takes():
    expected = rlox.compute_batch_group_advantages([0.0, 1.0, 2.0, 5.0], 2)
    rows = np.array([[0, 1], [2, 5]])
    np.testing.assert_array_equal(
        rlox.compute_batch_group_advantages(rows, 2), expected.reshape(2, 2)
    )
    wide = np.zeros((4, 2))
    wide[:, 0] = [0, 1, 2, 5]
    for rewards in ([0, 1, 2, 5], wide[:, 0], np.array([0, 1, 2, 5], ">f8")):
        got = rlox.compute_batch_group_advantages(rewards, 2)
        np.testing.assert_array_equal(got, expected)
    assert rlox.compute_batch_group_advantages([], 4).shape == (0,)
    assert rlox.compute_group_advantages(np.zeros(0, np.float32)).dtype == np.float32
    large = np.tile([0.0, 1.0], 50_000)
    np.testing.assert_array_equal(
        rlox.compute_batch_group_advantages(large, 2), np.tile([-1.0, 1.0], 50_000)
    )


BAD = [
    (lambda f: f([1.0, 2.0, 3.0], 2), ValueError, "multiple of group_size = 2"),
    (lambda f: f([1.0], 0), ValueError, "group_size: expected at least 1, got 0"),
    (lambda f: f([1.0], -1), ValueError, "group_size"),
    (lambda f: f([1.0], 1.5), TypeError, "group_size"),
    (lambda f: f([1.0], 2**62), ValueError, "group_size"),
    (lambda f: f([1.0], 2**70), MemoryError, "group_size"),
    (lambda f: f([1.0, float("inf")], 2), ValueError, "inf at element 1"),
    (lambda f: f(["a", "b"], 2), TypeError, "rewards"),
    (lambda f: f([1.0, object()], 2), TypeError, "rewards"),
    (lambda f: f([[1.0], [2.0, 3.0]], 2), ValueError, "rewards"),
    (lambda f: f(np.ones((2, 3)), 2), ValueError, "rewards: .*shape"),
    (lambda f: f(np.ones((1, 2, 2)), 2), ValueError, "rewards: .*shape"),
    (lambda f: f([1.0, 2.0], 2, scale="std"), ValueError, "scale: .*'?std"),
    (lambda f: f([1.0, 2.0], 2, eps=-1.0), ValueError, "eps"),
    (lambda f: f([1.0, 2.0], 2, eps=NAN), ValueError, "eps"),
    (lambda f: f([1.0, 2.0], 2, ddof=-1), ValueError, "ddof"),
    (lambda f: f(np.ones((2, 2)), 2, weights=[1.0]), ValueError, r"\(N, 1\), a column for each of"),
    (lambda f: f(np.ones(2), 2, weights=[1.0]), ValueError, "rewards: .*a column for each of"),
    (lambda f: f(np.ones((2, 1)), 2, weights=[[1.0]]), ValueError, r"weights: .*\(F,\), got shape"),
    (lambda f: f(np.array([1e150, 0]), 2), ValueError, "at most 1e140 in size.*got 1e150 at"),
    (lambda f: f(np.ones((2, 1)), 2, weights=[NAN]), ValueError, "weights: .*got NaN at element 0"),
    (lambda f: f(np.ones((2, 2)), 2, weights=[1, NAN]), ValueError, "weights: .*NaN at element 1;"),
    (lambda f: f(np.ones((2, 2)), 2, weights=[-np.inf, 1]), ValueError, "weights: .*-inf at el"),
    (lambda f: f(np.ones((2, 2)), 2, weights=[1, 1e200]), ValueError, "weights: .*1e200 at elem"),
    (lambda f: f(np.ones((2, 0)), 2, weights=[]), ValueError, "weights: .*got none;"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call(rlox.compute_batch_group_advantages)


def test_none_is_a_missing_reward():
    given = [[1.0, None, 0.5], [None, 2, 4.0]]
    as_nan = np.array([[1.0, np.nan, 0.5], [np.nan, 2.0, 4.0]])
    got = rlox.compute_batch_group_advantages(np.array(given, dtype=object).ravel(), 3)
    expected = rlox.compute_batch_group_advantages(as_nan.ravel(), 3)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(rlox.compute_group_advantages([1.0, None, 0.5]), expected[:3])
    with pytest.raises(TypeError, match="rewards: expected numbers, or None"):
        rlox.compute_group_advantages([1.0, None, "2"])
