"""Interquartile means and their bootstrap intervals."""

import numpy as np
import pytest

from rlox.scores import bootstrap_interval, interquartile_mean, score


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


def test_rows_have_means_of_their_own():
    assert interquartile_mean([[1, 2, 3, 9], [0, 4, 6, 9]]).tolist() == [2.5, 5.0]


def slow_interval(numbers, resamples):
    """The definition, one draw after the other."""
    stream = np.random.default_rng(0)
    means = []
    for draw in stream.integers(0, len(numbers), (resamples, len(numbers))):
        drawn = sorted(numbers[i] for i in draw)
        cut = len(numbers) // 4
        means.append(np.mean(drawn[cut : len(numbers) - cut]))
    return np.quantile(means, [0.025, 0.975])


def test_the_interval_is_the_percentile_bootstraps():
    numbers = np.random.default_rng(1).normal(size=11).tolist()
    np.testing.assert_allclose(
        bootstrap_interval(numbers, resamples=500), slow_interval(numbers, 500), rtol=1e-12
    )


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says():
    stream = np.random.default_rng(2)
    rows = stream.normal(size=(200, 40))
    low, high = bootstrap_interval(rows, resamples=500)
    assert 0.88 < np.mean((low < 0) & (high > 0)) < 0.99


def test_the_order_of_episodes_does_not_move_the_mean():
    numbers = np.arange(20.0)
    assert score(numbers)["iqm"] == score(numbers[::-1])["iqm"] == 9.5


def test_a_score_has_everything():
    told = score([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (told["mean"], told["episodes"], told["iqm"]) == (22.0, 5, 3.0)
    assert told["std"] == pytest.approx(np.std([1, 2, 3, 4, 100]))
    low, high = told["iqm_interval"]
    assert 1 <= low < 3 < high <= 100


@pytest.mark.parametrize(
    ("returns", "error", "message"),
    [
        (np.zeros(0), ValueError, r"numbers: expected at least one in each row, got shape \(0,\)"),
        ([], ValueError, "numbers: expected at least one"),
        (3.0, ValueError, "numbers: expected at least one"),
        ([[1.0]], ValueError, r"returns: expected one number for each episode, got shape \(1, 1\)"),
        ([1.0, float("nan")], ValueError, "numbers: expected no NaN"),
        (["1"], TypeError, r"numbers: expected real numbers, got \['1'\]"),
        ([1j], TypeError, "numbers: expected real numbers"),
        ([True], TypeError, "numbers: expected real numbers"),
        (None, TypeError, "numbers: expected real numbers, got None"),
        ([[1.0], [1.0, 2.0]], TypeError, "numbers: expected real numbers"),
    ],
)
def test_what_has_no_score_is_refused(returns, error, message):
    with pytest.raises(error, match=message):
        score(returns)


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"confidence": 2}, ValueError),
        ({"confidence": "most"}, TypeError),
        ({"resamples": 0}, ValueError),
        ({"resamples": 1e3}, TypeError),
    ],
)
def test_an_interval_of_nothing_is_refused(keywords, error):
    (name,) = keywords
    with pytest.raises(error, match=f"{name}: expected"):
        bootstrap_interval([1.0, 2.0], **keywords)


def test_means_and_intervals_are_those_of_rliable():
    pytest.importorskip("rliable", reason="needs rliable: pip install rliable 'pandas<3'")
    from rliable import library, metrics

    for seed, n in ((0, 40), (1, 31), (2, 6)):
        returns = np.random.default_rng(seed).gamma(2.0, 50.0, n)
        means, intervals = library.get_interval_estimates(
            {"runs": returns[:, None]},
            lambda scores: np.array([metrics.aggregate_iqm(scores)]),
            reps=5_000,
        )
        low, high = intervals["runs"][:, 0]
        told = score(returns)
        assert told["iqm"] == pytest.approx(means["runs"][0], rel=1e-12)
        assert told["iqm_interval"] == pytest.approx((low, high), abs=0.05 * (high - low))
