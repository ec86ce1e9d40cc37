"""Token KL and policy ratios: NumPy's and torch's formulas, masks, dtypes, hostile input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox

NAN, INF = float("nan"), float("inf")
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


def test_what_is_masked_may_be_anything():
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
BAD = [
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


@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
