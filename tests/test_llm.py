"""Group advantages, token KL, policy ratios and sequence packing."""

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


def test_group_advantages_equal_values_by_hand():
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


INVALID_GROUPS = [
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


@pytest.mark.parametrize(("call", "error", "words"), INVALID_GROUPS)
def test_invalid_arguments_of_group_advantages_are_rejected(call, error, words):
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


INF = float("inf")
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
def test_every_reduction_equals_numpy(seed, rows, tokens, estimator, dtype, masked):
    policy, reference = log_probs(seed, (rows, tokens), dtype)
    mask = np.random.default_rng(seed).random((rows, tokens)) < 0.6 if masked else None
    kept = np.ones((rows, tokens), bool) if mask is None else mask
    each = np.where(kept, ESTIMATORS[estimator](policy.astype(float), reference.astype(float)), 0)
    tolerance = {"rtol": 1e-5, "atol": 3e-6} if dtype == np.float32 else {"rtol": 1e-12}
    wide = {"rtol": 1e-4, "atol": 2e-5} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    got = rlox.token_kl(policy, reference, mask, estimator)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, each, **tolerance)
    expected = {"sum": each.sum(1), "mean": each.sum(1) / np.maximum(kept.sum(1), 1)}
    for reduction, value in expected.items():
        got = rlox.token_kl(policy, reference, mask, estimator, reduction)
        assert got.dtype == dtype
        assert got.shape == (rows,)
        np.testing.assert_allclose(got, value, **wide)
    got = rlox.token_kl(policy, reference, mask, estimator, "token_mean")
    assert type(got) is float
    np.testing.assert_allclose(got, each.sum() / max(kept.sum(), 1), **wide)


@pytest.mark.parametrize("suffix", ["", "_f32"])
@pytest.mark.parametrize("schulman", ["", "_schulman"])
def test_the_sums_of_sequences(schulman, suffix):
    policy, reference = log_probs(1, (4, 100))
    estimator = "k3" if schulman else "k1"
    expected = ESTIMATORS[estimator](policy, reference).sum(1)
    alone = getattr(rlox, f"compute_token_kl{schulman}{suffix}")
    batch = getattr(rlox, f"compute_batch_token_kl{schulman}{suffix}")
    got = batch(policy.ravel(), reference.ravel(), 100)
    assert got.dtype == (np.float32 if suffix else np.float64)
    np.testing.assert_allclose(got, expected, 1e-4 if suffix else 1e-10)
    np.testing.assert_array_equal(batch(policy, reference, 100), got)
    for row in range(4):
        one = alone(policy[row], reference[row])
        assert type(one) is float
        assert one == got[row]
    mask = np.arange(400) % 100 < 50
    half = batch(policy.ravel(), reference.ravel(), 100, mask=mask)
    np.testing.assert_allclose(half, batch(policy[:, :50].ravel(), reference[:, :50].ravel(), 50))


def test_over_a_vocabulary_full_is_the_divergence():
    policy, reference = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.2, 0.6])
    exact = (policy * np.log(policy / reference)).sum()
    got = rlox.compute_token_kl(np.log(policy), np.log(reference), estimator="full")
    assert got == pytest.approx(exact)
    # Weighted with the policy's probabilities, k1 and k3 have that mean; the other way round not.
    for estimator in ("k1", "k3"):
        each = rlox.token_kl(np.log(policy), np.log(reference), estimator=estimator)
        assert (policy * each).sum() == pytest.approx(exact)
        other = rlox.token_kl(np.log(reference), np.log(policy), estimator=estimator)
        assert (policy * other).sum() != pytest.approx(exact, rel=0.05)


def test_equals_torch_without_copying_tensors():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    policy, reference = (torch.from_numpy(x) for x in log_probs(2, (8, 64), np.float32))
    mask = (torch.arange(64) < 40).expand(8, 64)
    x = reference - policy
    expected = ((torch.exp(x) - x - 1) * mask).sum(1) / mask.sum(1)
    for kept in (mask, mask.long(), mask.float()):
        got = rlox.token_kl(policy, reference, kept, reduction="mean")
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, 1e-5, 1e-7)
    ratios = torch.exp(policy - reference)
    np.testing.assert_allclose(rlox.policy_ratios(policy, reference), ratios, 1e-6)
    sequence = torch.exp(((policy - reference) * mask).sum(1) / mask.sum(1))
    got = rlox.policy_ratios(policy, reference, mask, level="sequence")
    np.testing.assert_allclose(got, sequence, 1e-6)


def test_tiny_differences_are_not_lost():
    policy = np.full(1000, -1.0)
    x = np.geomspace(1e-12, 1e-4, 1000)
    seen = (policy + x) - policy
    exact = seen**2 / 2 * (1 + seen / 3 * (1 + seen / 4 * (1 + seen / 5)))
    np.testing.assert_allclose(rlox.token_kl(policy, policy + x), exact, 1e-13)


def test_masked_tokens_do_not_affect_the_result():
    got = rlox.token_kl([-1.0, NAN, INF, -INF], [-1.0, 0.0, INF, 0.0], [1, 0, 0, 0])
    np.testing.assert_array_equal(got, np.zeros(4))
    assert rlox.token_kl([NAN], [0.0], [0], reduction="mean") == 0.0
    assert np.isnan(rlox.token_kl([NAN, 1.0], [0.0, 1.0], reduction="sum"))
    assert rlox.token_kl([-INF], [0.0])[0] == INF
    np.testing.assert_array_equal(rlox.policy_ratios([NAN, 0.0], [0.0, 0.0], [0, 1]), [1.0, 1.0])


def test_ratio_statistics_equal_numpy():
    new, old = log_probs(3, (6, 500))
    mask = np.random.default_rng(0).random((6, 500)) < 0.5
    ratios = np.exp(new - old)
    kept = ratios[mask]
    stats = rlox.policy_ratio_stats(new, old, mask, clip_low=0.2, clip_high=0.3)
    assert stats["count"] == mask.sum()
    for name, value in {
        "mean": kept.mean(),
        "min": kept.min(),
        "max": kept.max(),
        "clip_fraction_low": (kept < 0.8).mean(),
        "clip_fraction_high": (kept > 1.3).mean(),
        "clip_fraction": ((kept < 0.8) | (kept > 1.3)).mean(),
        "approx_kl": (kept - 1 - np.log(kept)).mean(),
    }.items():
        assert stats[name] == pytest.approx(value, rel=1e-12), name
    advantages = np.array([1.0, -1.0, 0.0, 1.0, -1.0, 1.0])
    taken = rlox.policy_ratio_stats(new, old, mask, advantages=advantages)
    signs = np.broadcast_to(advantages[:, None], mask.shape)[mask]
    assert taken["clip_fraction_low"] == pytest.approx(((kept < 0.8) & (signs < 0)).mean())
    assert taken["clip_fraction_high"] == pytest.approx(((kept > 1.2) & (signs > 0)).mean())
    same = rlox.policy_ratio_stats(
        new, old, mask, advantages=np.broadcast_to(advantages[:, None], mask.shape)
    )
    assert same == taken


def test_long_calls_equal_short_ones():
    policy, reference = log_probs(4, (64, 1000), np.float32)
    got = rlox.token_kl(policy, reference, reduction="sum")
    alone = [rlox.token_kl(p, r, reduction="sum") for p, r in zip(policy, reference, strict=True)]
    np.testing.assert_array_equal(got, np.array(alone, np.float32))


def test_nothing():
    assert rlox.compute_token_kl([], []) == 0.0
    assert rlox.compute_batch_token_kl([], [], 5).shape == (0,)
    assert rlox.token_kl(np.zeros((3, 0)), np.zeros((3, 0)), reduction="mean").tolist() == [0, 0, 0]
    assert rlox.token_kl(np.zeros((0, 3)), np.zeros((0, 3)), reduction="sum").shape == (0,)


TWO = np.zeros((2, 3))
INVALID_KL = [
    (lambda: rlox.token_kl([0.0], [0.0, 1.0]), ValueError, "ref_log_probs: .*shape of log_probs"),
    (lambda: rlox.token_kl([0.0], [0.0], [1, 1]), ValueError, "mask: .*shape of log_probs"),
    (lambda: rlox.token_kl([0.0], [0.0], [0.5]), ValueError, "mask: .*0.5"),
    (lambda: rlox.token_kl(["a"], [0.0]), TypeError, "log_probs"),
    (lambda: rlox.token_kl([0.0], [0.0], estimator="k4"), ValueError, "estimator: .*k4"),
    (lambda: rlox.token_kl([0.0], [0.0], reduction="max"), ValueError, "reduction: .*max"),
    (
        lambda: rlox.token_kl(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), reduction="sum"),
        ValueError,
        "T",
    ),
    (lambda: rlox.compute_token_kl(TWO, TWO), ValueError, "log_probs_policy: .*shape"),
    (lambda: rlox.compute_batch_token_kl(TWO.ravel(), TWO.ravel(), 4), ValueError, "4 tokens"),
    (
        lambda: rlox.compute_batch_token_kl(TWO.ravel(), TWO.ravel(), 0),
        ValueError,
        "seq_len: expected at least 1, got 0",
    ),
    (lambda: rlox.compute_batch_token_kl(TWO, TWO, -3), ValueError, "seq_len"),
    (lambda: rlox.compute_batch_token_kl(TWO, TWO, 2**62), ValueError, "tokens"),
    (lambda: rlox.compute_batch_token_kl(TWO, TWO, 2.0), TypeError, "seq_len"),
    (lambda: rlox.policy_ratios(TWO, TWO, level="word"), ValueError, "level"),
    (lambda: rlox.policy_ratio_stats(TWO, TWO, clip_low=-1), ValueError, "clip_low"),
    (lambda: rlox.policy_ratio_stats(TWO, TWO, clip_high=NAN), ValueError, "clip_high"),
    (lambda: rlox.policy_ratio_stats(TWO, TWO, advantages=[1.0] * 3), ValueError, "advantages"),
]


@pytest.mark.parametrize(("call", "error", "words"), INVALID_KL)
def test_invalid_arguments_of_token_kl_are_rejected(call, error, words):
    with pytest.raises(error, match=words):
        call()


KEYS = {
    "input_ids",
    "position_ids",
    "attention_mask",
    "sequence_starts",
    "cu_seqlens",
    "source_indices",
}


def check(rows, sequences, max_length):
    """Every sequence is in one row, whole, and the row's arrays belong together."""
    seen = []
    for row in rows:
        assert set(row) == KEYS
        ends, tokens = row["cu_seqlens"], row["input_ids"]
        assert ends.dtype == np.int32
        assert ends[0] == 0
        assert ends[-1] == len(tokens) <= max_length
        assert row["sequence_starts"].tolist() == ends[:-1].tolist()
        assert row["attention_mask"].tolist() == [1] * len(tokens)
        for source, start, end in zip(row["source_indices"], ends, ends[1:], strict=False):
            np.testing.assert_array_equal(tokens[start:end], sequences[source][:max_length])
            np.testing.assert_array_equal(row["position_ids"][start:end], np.arange(end - start))
            seen.append(int(source))
    assert sorted(seen) == [i for i, sequence in enumerate(sequences) if len(sequence)]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    max_length=st.integers(1, 64),
    dtype=st.sampled_from([np.uint32, np.int32, np.int64]),
)
def test_rows_hold_every_sequence_once(lengths, max_length, dtype):
    sequences = [np.arange(100 * i, 100 * i + n, dtype=dtype) for i, n in enumerate(lengths)]
    rows = rlox.pack_sequences(sequences, max_length, overflow="truncate")
    assert type(rows) is list
    check(rows, sequences, max_length)
    assert all(row["input_ids"].dtype == dtype for row in rows)
    sources, starts = rlox.pack_lengths(lengths, max_length, overflow="truncate")
    assert len(starts) == len(rows) + 1
    for row, start, end in zip(rows, starts, starts[1:], strict=False):
        np.testing.assert_array_equal(row["source_indices"], sources[start:end])


def best_fit_decreasing(lengths, max_length):
    left = []
    for length in sorted(filter(None, lengths), reverse=True):
        fits = [i for i, space in enumerate(left) if space >= length]
        if fits:
            left[min(fits, key=lambda i: left[i])] -= length
        else:
            left.append(max_length - length)
    return sorted(left)


@given(lengths=st.lists(st.integers(1, 50), max_size=120), extra=st.integers(0, 70))
def test_rows_are_as_full_as_best_fit_decreasing(lengths, extra):
    max_length = max(lengths, default=1) + extra
    rows = rlox.pack_sequences([np.zeros(n, int) for n in lengths], max_length)
    left = sorted(max_length - len(row["input_ids"]) for row in rows)
    assert left == best_fit_decreasing(lengths, max_length)


def test_packing_equals_rows_by_hand():
    rows = rlox.pack_sequences([[1, 2, 3], [4] * 5, [], [6, 7], [8] * 4], 8)
    assert [row["source_indices"].tolist() for row in rows] == [[1, 0], [4, 3]]
    assert rows[0]["input_ids"].tolist() == [4, 4, 4, 4, 4, 1, 2, 3]
    assert rows[0]["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert rows[1]["cu_seqlens"].tolist() == [0, 4, 6]
    assert rows[1]["input_ids"].dtype == np.int64


def test_what_is_taken():
    assert rlox.pack_sequences([], 4) == []
    assert rlox.pack_sequences([[], []], 4) == []
    mixed = [np.arange(2, dtype=np.uint32), np.arange(3, dtype=np.int64), (5, 6)]
    check(rlox.pack_sequences(mixed, 4), mixed, 4)
    strided = [np.arange(10)[::2], np.arange(3, dtype=">i8")]
    check(rlox.pack_sequences(iter(strided), 8), strided, 8)
    torch = pytest.importorskip("torch", reason="torch is an extra")
    tensors = [torch.arange(3), torch.arange(2)]
    check(rlox.pack_sequences(tensors, 8), tensors, 8)


def test_rows_are_writeable_and_nobody_elses():
    sequences = [np.arange(3), np.arange(2)]
    rows = rlox.pack_sequences(sequences, 3)
    rows[0]["input_ids"][:] = 9
    assert sequences[0].tolist() == [0, 1, 2]
    assert rows[1]["input_ids"].tolist() == [0, 1]


def test_a_hundred_thousand_sequences():
    lengths = np.random.default_rng(0).integers(1, 700, 100_000)
    sources, starts = rlox.pack_lengths(lengths, 2048)
    sums = np.add.reduceat(lengths[sources], starts[:-1])
    assert sums.max() <= 2048
    assert sums.mean() > 0.99 * 2048
    np.testing.assert_array_equal(np.sort(sources), np.arange(100_000))


INVALID_PACKING = [
    (
        lambda: rlox.pack_sequences([[1] * 9], 8),
        ValueError,
        "^sequences: .*max_length = 8.*9 in seq",
    ),
    (lambda: rlox.pack_sequences([[1]], 0), ValueError, "max_length"),
    (lambda: rlox.pack_sequences([[1]], -1), ValueError, "max_length"),
    (lambda: rlox.pack_sequences([[1]], 2.0), TypeError, "max_length"),
    (lambda: rlox.pack_sequences([[1]], 2**70), MemoryError, "max_length"),
    (lambda: rlox.pack_sequences([[1.5]], 8), TypeError, "sequences: .*integers"),
    (lambda: rlox.pack_sequences([["a"]], 8), TypeError, "sequences"),
    (lambda: rlox.pack_sequences([[[1]]], 8), ValueError, "one-dimensional"),
    (lambda: rlox.pack_sequences([1, 2], 8), ValueError, "one-dimensional"),
    (lambda: rlox.pack_sequences(5, 8), TypeError, "sequences"),
    (lambda: rlox.pack_sequences([[1]], 8, overflow="split"), ValueError, "overflow"),
    (lambda: rlox.pack_lengths([9], 8), ValueError, "^lengths: .*max_length = 8.*9 in sequence 0"),
    (lambda: rlox.pack_lengths([-1], 8), ValueError, "lengths: .*-1"),
    (lambda: rlox.pack_lengths([[1]], 8), ValueError, "lengths"),
    (lambda: rlox.pack_lengths([1.5], 8), TypeError, "lengths"),
    (lambda: rlox.pack_lengths([2**62, 2**62], 2**62), MemoryError, "max_length"),
]


@pytest.mark.parametrize(("call", "error", "words"), INVALID_PACKING)
def test_invalid_arguments_of_packing_are_rejected(call, error, words):
    with pytest.raises(error, match=words):
        call()
