"""Interquartile means and their bootstrap intervals."""

import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError
from rlox.scores import bootstrap_interval, interquartile_mean, score
from support.refusals import refuses


@pytest.mark.parametrize(
    ("numbers", "mean"),
    [
        ([7.0], 7.0),
        ([1, 2], 1.5),
        ([1, 2, 9], 4.0),
        ([9, 1, 3, 2], 2.5),
        ([100, 3, -50, 2, 1], 2.0),
        ([0, 1, 2, 3, 4, 5, 6, 700], 3.5),
    ],
)
def test_a_quarter_at_each_end_is_left_out(numbers, mean):
    assert interquartile_mean(numbers) == mean
    assert interquartile_mean([numbers, [5] * len(numbers)]).tolist() == [mean, 5]


def test_interval_is_that_of_the_percentile_bootstrap():
    numbers, stream = np.random.default_rng(1).normal(size=11), np.random.default_rng(0)
    draws = stream.integers(0, 11, (500, 11))
    means = [np.mean(sorted(numbers[draw])[2:-2]) for draw in draws]
    expected = np.quantile(means, [0.025, 0.975])
    np.testing.assert_allclose(bootstrap_interval(numbers, resamples=500), expected, rtol=1e-12)


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says():
    stream = np.random.default_rng(2)
    rows = stream.normal(size=(200, 40))
    low, high = bootstrap_interval(rows, resamples=500)
    assert 0.88 < np.mean((low < 0) & (high > 0)) < 0.99


def test_score_has_mean_deviation_and_interquartile_mean():
    told = score([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (told["mean"], told["episodes"], told["iqm"]) == (22.0, 5, 3.0)
    assert told["std"] == pytest.approx(np.std([1, 2, 3, 4, 100]))
    low, high = told["iqm_interval"]
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
def test_invalid_returns_are_rejected(returns, error, argument):
    with refuses(error, argument):
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
def test_invalid_arguments_of_intervals_are_rejected(argument, value, error):
    with refuses(error, argument):
        bootstrap_interval([1.0, 2.0], **{argument: value})


@pytest.mark.services
@pytest.mark.filterwarnings("ignore:random_state is deprecated:FutureWarning")
def test_means_and_intervals_are_those_of_rliable():
    pytest.importorskip("rliable", reason="needs rliable: pip install rliable 'pandas<3'")
    from rliable import library, metrics

    for seed, n in ((0, 40), (1, 31), (2, 6)):
        returns = np.random.default_rng(seed).gamma(2.0, 50.0, n)
        means, intervals = library.get_interval_estimates(
            {"runs": returns[:, None]},
            lambda scores: np.array([metrics.aggregate_iqm(scores)]),
            reps=5_000,
            random_state=np.random.RandomState(seed),
        )
        low, high = intervals["runs"][:, 0]
        told = score(returns)
        assert told["iqm"] == pytest.approx(means["runs"][0], rel=1e-12)
        assert told["iqm_interval"] == pytest.approx((low, high), abs=0.05 * (high - low))
