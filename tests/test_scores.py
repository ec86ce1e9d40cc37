"""Interquartile means and their bootstrap intervals."""

import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError
from rlox.scores import bootstrap_interval, interquartile_mean, score
from support.rejections import rejects


@pytest.mark.parametrize(
    ("returns", "mean"),
    [
        ([7.0], 7.0),
        ([1, 2], 1.5),
        ([1, 2, 9], 4.0),
        ([9, 1, 3, 2], 2.5),
        ([100, 3, -50, 2, 1], 2.0),
        ([0, 1, 2, 3, 4, 5, 6, 700], 3.5),
    ],
)
def test_interquartile_mean_excludes_a_quarter_at_each_end(returns, mean):
    assert interquartile_mean(returns) == mean
    assert interquartile_mean([returns, [5] * len(returns)]).tolist() == [mean, 5]


def test_bootstrap_interval_equals_the_percentile_bootstrap():
    returns, stream = np.random.default_rng(1).normal(size=11), np.random.default_rng(0)
    draws = stream.integers(0, 11, (500, 11))
    means = [np.mean(sorted(returns[draw])[2:-2]) for draw in draws]
    expected = np.quantile(means, [0.025, 0.975])
    np.testing.assert_allclose(bootstrap_interval(returns, resamples=500), expected, rtol=1e-12)


def test_bootstrap_interval_has_its_nominal_coverage():
    stream = np.random.default_rng(2)
    rows = stream.normal(size=(200, 40))
    low, high = bootstrap_interval(rows, resamples=500)
    assert 0.88 < np.mean((low < 0) & (high > 0)) < 0.99


def test_score_contains_mean_deviation_and_interquartile_mean():
    result = score([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (result["mean"], result["episodes"], result["iqm"]) == (22.0, 5, 3.0)
    assert result["std"] == pytest.approx(np.std([1, 2, 3, 4, 100]))
    low, high = result["iqm_interval"]
    assert 1 <= low < 3 < high <= 100


@pytest.mark.parametrize(
    ("returns", "error", "argument"),
    [
        ([], ArgumentError, "numbers"),
        (3.0, ArgumentError, "numbers"),
        ([[1.0]], ArgumentError, "returns"),
        ([1.0, float("nan")], ArgumentError, "numbers"),
        (["1"], ArgumentTypeError, "numbers"),
        (None, ArgumentTypeError, "numbers"),
        ([[1.0], [1.0, 2.0]], ArgumentTypeError, "numbers"),
    ],
)
def test_score_rejects_invalid_returns(returns, error, argument):
    with rejects(error, argument):
        score(returns)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("confidence", 2, ArgumentError),
        ("confidence", "most", ArgumentTypeError),
        ("resamples", 0, ArgumentError),
        ("resamples", 1e3, ArgumentTypeError),
    ],
)
def test_bootstrap_interval_rejects_invalid_arguments(argument, value, error):
    with rejects(error, argument):
        bootstrap_interval([1.0, 2.0], **{argument: value})


@pytest.mark.services
def test_means_and_intervals_equal_rliable():
    pytest.importorskip("rliable", reason="needs rliable: pip install rliable 'pandas<3'")
    from rliable import library, metrics

    for seed, n in ((0, 40), (1, 31), (2, 6)):
        np.random.seed(seed)  # noqa: NPY002  # rliable draws from NumPy's global generator
        returns = np.random.default_rng(seed).gamma(2.0, 50.0, n)
        means, intervals = library.get_interval_estimates(
            {"runs": returns[:, None]},
            lambda scores: np.array([metrics.aggregate_iqm(scores)]),
            reps=5_000,
        )
        low, high = intervals["runs"][:, 0]
        result = score(returns)
        assert result["iqm"] == pytest.approx(means["runs"][0], rel=1e-12)
        assert result["iqm_interval"] == pytest.approx((low, high), abs=0.05 * (high - low))
