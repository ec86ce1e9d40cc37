"""Group advantages, token KL, policy ratios and sequence packing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox
from rlox import ArgumentError, ArgumentTypeError, OutOfMemoryError
from support.rejections import expect_rejection, rejections

NAN = float("nan")


def slow_group_advantages(rewards, size, ddof=0, eps=0.0):
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
def test_group_advantages_equal_numpy(seed, groups, size, ddof, eps, dtype):
    rewards = np.random.default_rng(seed).normal(size=groups * size).astype(dtype)
    got = rlox.compute_batch_group_advantages(rewards, size, ddof=ddof, eps=eps)
    assert got.dtype == dtype
    tolerance = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(got, slow_group_advantages(rewards, size, ddof, eps), tolerance, tolerance)
    single = rlox.compute_group_advantages(rewards[:size], ddof=ddof, eps=eps)
    np.testing.assert_array_equal(single, got[:size])


def test_group_advantages_equal_trl_in_torch():
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


def test_reward_columns_are_summed_with_weights():
    rewards = np.array([[1.0, 0.0], [0.0, 1.0], [NAN, 0.5], [NAN, NAN]])
    got = rlox.compute_group_advantages(rewards, weights=[1.0, 3.0])
    np.testing.assert_allclose(got, rlox.compute_group_advantages([1.0, 3.0, 1.5, NAN]))
    batch = rlox.compute_batch_group_advantages(rewards, 2, weights=[1.0, 3.0])
    np.testing.assert_allclose(batch, [-1.0, 1.0, 0.0, 0.0])


group = rlox.compute_batch_group_advantages
PAIR, COLUMNS = np.ones(2), np.ones((2, 2))


@rejections(
    (lambda: group(np.ones(3), 2), ArgumentError, "rewards"),
    (lambda: group([1.0], -1), ArgumentError, "group_size"),
    (lambda: group([1.0], 1.5), ArgumentTypeError, "group_size"),
    (lambda: group([1.0], 2**70), OutOfMemoryError, "group_size"),
    (lambda: group([1.0, np.inf], 2), ArgumentError, "rewards"),
    (lambda: group([1e150, 0.0], 2), ArgumentError, "rewards"),
    (lambda: group([1.0, object()], 2), ArgumentTypeError, "rewards"),
    (lambda: group([1.0, None, "2"], 3), ArgumentTypeError, "rewards"),
    (lambda: group([[1.0], [2.0, 3.0]], 2), ArgumentError, "rewards"),
    (lambda: group(np.ones((2, 3)), 2), ArgumentError, "rewards"),
    (lambda: group(PAIR, 2, scale="std"), ArgumentError, "scale"),
    (lambda: group(PAIR, 2, eps=float("nan")), ArgumentError, "eps"),
    (lambda: group(PAIR, 2, ddof=-1), ArgumentError, "ddof"),
    (lambda: group(COLUMNS, 2, weights=[1.0]), ArgumentError, "rewards"),
    (lambda: group(COLUMNS, 2, weights=[[1, 1]]), ArgumentError, "weights"),
    (lambda: group(COLUMNS, 2, weights=[1, np.nan]), ArgumentError, "weights"),
    (lambda: group(COLUMNS, 2, weights=[1, 1e200]), ArgumentError, "weights"),
    (lambda: group(np.ones((2, 0)), 2, weights=[]), ArgumentError, "weights"),
)
def test_group_advantages_reject_invalid_arguments(rejection):
    expect_rejection(rejection)


def test_none_and_nan_are_missing_rewards():
    np.testing.assert_array_equal(rlox.compute_group_advantages([0.0, NAN, 2.0]), [-1.0, 0.0, 1.0])
    objects = np.array([1.0, None, 0.5, None, 2, 4.0], dtype=object)
    np.testing.assert_array_equal(group(objects, 3), group(objects.astype(float), 3))
    row = rlox.compute_group_advantages([1.0, None, 0.5])
    np.testing.assert_array_equal(row, group(objects, 3)[:3])


ESTIMATORS = {
    "k1": lambda p, r: p - r,
    "k2": lambda p, r: (r - p) ** 2 / 2,
    "k3": lambda p, r: np.expm1(r - p) - (r - p),
    "full": lambda p, r: np.exp(p) * (p - r),
}


def log_probs(seed, shape, dtype=np.float64):
    rng = np.random.default_rng(seed)
    policy = -rng.exponential(2.0, shape)
    return policy.astype(dtype), (policy + rng.normal(0, 0.3, shape)).astype(dtype)


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 6),
    tokens=st.integers(1, 400),
    estimator=st.sampled_from(sorted(ESTIMATORS)),
    dtype=st.sampled_from([np.float32, np.float64]),
    masked=st.booleans(),
)
def test_every_reduction_of_token_kl_equals_numpy(seed, rows, tokens, estimator, dtype, masked):
    policy, reference = log_probs(seed, (rows, tokens), dtype)
    mask = np.random.default_rng(seed).random((rows, tokens)) < 0.6 if masked else None
    included = np.ones((rows, tokens), bool) if mask is None else mask
    per_token = np.where(included, ESTIMATORS[estimator](policy.astype(float), reference.astype(float)), 0)
    # NumPy loses digits in the difference that defines k3.
    narrow = {"rtol": 1e-12, "atol": 1e-15}
    tolerance = {"rtol": 1e-5, "atol": 3e-6} if dtype == np.float32 else narrow
    wide = {"rtol": 1e-4, "atol": 2e-5} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    got = rlox.token_kl(policy, reference, mask, estimator)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, per_token, **tolerance)
    expected = {"sum": per_token.sum(1), "mean": per_token.sum(1) / np.maximum(included.sum(1), 1)}
    for reduction, value in expected.items():
        got = rlox.token_kl(policy, reference, mask, estimator, reduction)
        assert got.dtype == dtype
        assert got.shape == (rows,)
        np.testing.assert_allclose(got, value, **wide)
    got = rlox.token_kl(policy, reference, mask, estimator, "token_mean")
    assert type(got) is float
    np.testing.assert_allclose(got, per_token.sum() / max(included.sum(), 1), **wide)


@pytest.mark.parametrize("suffix", ["", "_f32"])
@pytest.mark.parametrize("schulman", ["", "_schulman"])
def test_token_kl_sums_of_sequences_equal_numpy(schulman, suffix):
    policy, reference = log_probs(1, (4, 100))
    estimator = "k3" if schulman else "k1"
    expected = ESTIMATORS[estimator](policy, reference).sum(1)
    single = getattr(rlox, f"compute_token_kl{schulman}{suffix}")
    batch = getattr(rlox, f"compute_batch_token_kl{schulman}{suffix}")
    got = batch(policy.ravel(), reference.ravel(), 100)
    assert got.dtype == (np.float32 if suffix else np.float64)
    np.testing.assert_allclose(got, expected, 1e-4 if suffix else 1e-10)
    np.testing.assert_array_equal(batch(policy, reference, 100), got)
    for row in range(4):
        value = single(policy[row], reference[row])
        assert type(value) is float
        assert value == got[row]
    mask = np.arange(400) % 100 < 50
    masked = batch(policy.ravel(), reference.ravel(), 100, mask=mask)
    np.testing.assert_allclose(masked, batch(policy[:, :50].ravel(), reference[:, :50].ravel(), 50))


def test_token_kl_and_ratios_equal_torch():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    policy, reference = (torch.from_numpy(x) for x in log_probs(2, (8, 64), np.float32))
    mask = (torch.arange(64) < 40).expand(8, 64)
    x = reference - policy
    expected = ((torch.exp(x) - x - 1) * mask).sum(1) / mask.sum(1)
    for mask_tensor in (mask, mask.long(), mask.float()):
        got = rlox.token_kl(policy, reference, mask_tensor, reduction="mean")
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, 1e-5, 1e-7)
    ratios = torch.exp(policy - reference)
    np.testing.assert_allclose(rlox.policy_ratios(policy, reference), ratios, 1e-6)
    sequence = torch.exp(((policy - reference) * mask).sum(1) / mask.sum(1))
    got = rlox.policy_ratios(policy, reference, mask, level="sequence")
    np.testing.assert_allclose(got, sequence, 1e-6)


def test_k3_is_accurate_for_tiny_differences():
    policy = np.full(1000, -1.0)
    x = (policy + np.geomspace(1e-12, 1e-4, 1000)) - policy
    exact = x**2 / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))
    np.testing.assert_allclose(rlox.token_kl(policy, policy + x), exact, 1e-13)


def test_ratio_statistics_equal_numpy():
    new, old = log_probs(3, (6, 500))
    mask = np.random.default_rng(0).random((6, 500)) < 0.5
    ratios = np.exp(new - old)
    masked = ratios[mask]
    stats = rlox.policy_ratio_stats(new, old, mask, clip_low=0.2, clip_high=0.3)
    assert stats["count"] == mask.sum()
    for name, value in {
        "mean": masked.mean(),
        "min": masked.min(),
        "max": masked.max(),
        "clip_fraction_low": (masked < 0.8).mean(),
        "clip_fraction_high": (masked > 1.3).mean(),
        "clip_fraction": ((masked < 0.8) | (masked > 1.3)).mean(),
        "approx_kl": (masked - 1 - np.log(masked)).mean(),
    }.items():
        assert stats[name] == pytest.approx(value, rel=1e-12), name
    advantages = np.array([1.0, -1.0, 0.0, 1.0, -1.0, 1.0])
    clipped = rlox.policy_ratio_stats(new, old, mask, advantages=advantages)
    signs = np.broadcast_to(advantages[:, None], mask.shape)[mask]
    assert clipped["clip_fraction_low"] == pytest.approx(((masked < 0.8) & (signs < 0)).mean())
    assert clipped["clip_fraction_high"] == pytest.approx(((masked > 1.2) & (signs > 0)).mean())
    broadcast = rlox.policy_ratio_stats(new, old, mask, advantages=np.broadcast_to(advantages[:, None], mask.shape))
    assert broadcast == clipped


def test_long_calls_equal_short_calls():
    policy, reference = log_probs(4, (64, 1000), np.float32)
    got = rlox.token_kl(policy, reference, reduction="sum")
    row_results = [rlox.token_kl(p, r, reduction="sum") for p, r in zip(policy, reference, strict=True)]
    np.testing.assert_array_equal(got, np.array(row_results, np.float32))
    pairs = group(np.tile([0.0, 1.0], 50_000), 2)
    np.testing.assert_array_equal(pairs, np.tile([-1.0, 1.0], 50_000))


def test_kl_of_no_tokens_is_zero():
    assert rlox.compute_token_kl([], []) == 0.0
    assert rlox.compute_batch_token_kl([], [], 5).shape == (0,)
    no_tokens, no_rows = np.zeros((3, 0)), np.zeros((0, 3))
    assert rlox.token_kl(no_tokens, no_tokens, reduction="mean").tolist() == [0, 0, 0]
    assert rlox.token_kl(no_rows, no_rows, reduction="sum").shape == (0,)


X, TWO, FLAT = [0.0], np.zeros((2, 3)), np.zeros(6)
CUBE = np.zeros((1, 1, 1))
batch_kl, stats = rlox.compute_batch_token_kl, rlox.policy_ratio_stats


@rejections(
    (lambda: rlox.token_kl(X, X, [0.5]), ArgumentError, "mask"),
    (lambda: rlox.token_kl(["a"], X), ArgumentTypeError, "log_probs"),
    (lambda: rlox.token_kl(X, X, estimator="k4"), ArgumentError, "estimator"),
    (lambda: rlox.token_kl(X, X, reduction="max"), ArgumentError, "reduction"),
    (lambda: rlox.token_kl(CUBE, CUBE, reduction="sum"), ArgumentError, "log_probs"),
    (lambda: rlox.compute_token_kl(TWO, TWO), ArgumentError, "log_probs_policy"),
    (lambda: batch_kl(FLAT, FLAT, 4), ArgumentError, "log_probs_policy"),
    (lambda: batch_kl(TWO, TWO, 2**62), ArgumentError, "log_probs_policy"),
    (lambda: batch_kl(TWO, TWO, -3), ArgumentError, "seq_len"),
    (lambda: batch_kl(TWO, TWO, 2.0), ArgumentTypeError, "seq_len"),
    (lambda: rlox.policy_ratios(TWO, TWO, level="word"), ArgumentError, "level"),
    (lambda: stats(TWO, TWO, clip_low=-1), ArgumentError, "clip_low"),
    (lambda: stats(TWO, TWO, clip_high=NAN), ArgumentError, "clip_high"),
    (lambda: stats(TWO, TWO, advantages=[1.0] * 3), ArgumentError, "advantages"),
)
def test_token_kl_rejects_invalid_arguments(rejection):
    expect_rejection(rejection)


KEYS = {"input_ids", "position_ids", "attention_mask"}
KEYS |= {"sequence_starts", "cu_seqlens", "source_indices"}


def check_packing(rows, sequences, max_length):
    """Check that each sequence is in one row and that the arrays of a row are consistent."""
    indices = []
    for row in rows:
        assert set(row) == KEYS
        bounds, tokens = row["cu_seqlens"], row["input_ids"]
        assert bounds.dtype == np.int32
        assert bounds[0] == 0
        assert bounds[-1] == len(tokens) <= max_length
        assert row["sequence_starts"].tolist() == bounds[:-1].tolist()
        assert row["attention_mask"].tolist() == [1] * len(tokens)
        for source, start, end in zip(row["source_indices"], bounds, bounds[1:], strict=False):
            np.testing.assert_array_equal(tokens[start:end], sequences[source][:max_length])
            np.testing.assert_array_equal(row["position_ids"][start:end], np.arange(end - start))
            indices.append(int(source))
    assert sorted(indices) == [i for i, sequence in enumerate(sequences) if len(sequence)]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    max_length=st.integers(1, 64),
    dtype=st.sampled_from([np.uint32, np.int32, np.int64]),
)
def test_packed_rows_contain_each_sequence_once(lengths, max_length, dtype):
    sequences = [np.arange(100 * i, 100 * i + n, dtype=dtype) for i, n in enumerate(lengths)]
    rows = rlox.pack_sequences(sequences, max_length, overflow="truncate")
    assert type(rows) is list
    check_packing(rows, sequences, max_length)
    assert all(row["input_ids"].dtype == dtype for row in rows)
    indices, starts = rlox.pack_lengths(lengths, max_length, overflow="truncate")
    assert len(starts) == len(rows) + 1
    for row, start, end in zip(rows, starts, starts[1:], strict=False):
        np.testing.assert_array_equal(row["source_indices"], indices[start:end])


def test_pack_sequences_accepts_lists_tensors_and_mixed_dtypes():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    assert rlox.pack_sequences([], 4) == rlox.pack_sequences([[], []], 4) == []
    for sequences in (
        [np.arange(2, dtype=np.uint32), np.arange(3, dtype=np.int64), (5, 6)],
        [np.arange(10)[::2], np.arange(3, dtype=">i8")],
        [torch.arange(3), torch.arange(2)],
    ):
        check_packing(rlox.pack_sequences(iter(sequences), 8), sequences, 8)


def test_packed_rows_are_copies():
    sequences = [np.arange(3), np.arange(2)]
    rows = rlox.pack_sequences(sequences, 3)
    rows[0]["input_ids"][:] = 9
    assert sequences[0].tolist() == [0, 1, 2]
    assert rows[1]["input_ids"].tolist() == [0, 1]


def test_packing_of_many_lengths_fills_99_percent():
    lengths = np.random.default_rng(0).integers(1, 700, 100_000)
    indices, starts = rlox.pack_lengths(lengths, 2048)
    sums = np.add.reduceat(lengths[indices], starts[:-1])
    assert sums.max() <= 2048
    assert sums.mean() > 0.99 * 2048
    np.testing.assert_array_equal(np.sort(indices), np.arange(100_000))


pack, pack_lengths = rlox.pack_sequences, rlox.pack_lengths


@rejections(
    (lambda: pack([[1] * 9], 8), ArgumentError, "sequences"),
    (lambda: pack([[1]], 0), ArgumentError, "max_length"),
    (lambda: pack([[1]], -1), ArgumentError, "max_length"),
    (lambda: pack([[1]], 2.0), ArgumentTypeError, "max_length"),
    (lambda: pack([[1]], 2**70), OutOfMemoryError, "max_length"),
    (lambda: pack([[1.5]], 8), ArgumentTypeError, "sequences"),
    (lambda: pack([[[1]]], 8), ArgumentError, "sequences"),
    (lambda: pack(5, 8), ArgumentTypeError, "sequences"),
    (lambda: pack([[1]], 8, overflow="split"), ArgumentError, "overflow"),
    (lambda: pack_lengths([9], 8), ArgumentError, "lengths"),
    (lambda: pack_lengths([-1], 8), ArgumentError, "lengths"),
    (lambda: pack_lengths([[1]], 8), ArgumentError, "lengths"),
)
def test_packing_rejects_invalid_arguments(rejection):
    expect_rejection(rejection)
