"""Statistics of episode returns: means, interquartile means and bootstrap intervals.

Agarwal et al. (2021, arXiv:2108.13264) recommend the interquartile mean and its percentile bootstrap interval for
scores of reinforcement learning. The tests compare both with the authors' package, rliable.
"""

from typing import TypedDict

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._validation import check_float, check_int, short_repr

__all__ = ["Score", "bootstrap_interval", "interquartile_mean", "score"]

RESAMPLES = 10_000
# Largest number of resampled values in memory at once.
_BLOCK = 1_000_000


class Score(TypedDict):
    """Result of `score`."""

    mean: float  # mean of the returns
    std: float  # standard deviation of the returns
    iqm: float  # interquartile mean of the returns
    iqm_interval: tuple[float, float]  # 95% interval of the interquartile mean
    episodes: int  # number of returns


def interquartile_mean(numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Compute the interquartile mean along the last axis.

    The floor(n / 4) smallest and the floor(n / 4) largest of n numbers are left out.

    Args:
        numbers: Numbers (..., n), with n of at least 1.

    Returns:
        Interquartile means (...), float64.

    Raises:
        ArgumentTypeError: `numbers` is not an array of real numbers.
        ArgumentError: `numbers` is empty or contains NaN.

    >>> float(interquartile_mean([0, 1, 2, 3, 100]))
    2.0
    """
    array = np.sort(_check_numbers(numbers), axis=-1)
    n = array.shape[-1]
    means: npt.NDArray[np.float64] = array[..., n // 4 : n - n // 4].mean(axis=-1)
    return means


def bootstrap_interval(
    numbers: npt.ArrayLike, confidence: float = 0.95, resamples: int = RESAMPLES
) -> npt.NDArray[np.float64]:
    """Compute the percentile bootstrap interval of the interquartile mean.

    The resamples are the same in each call, so the same numbers always have the same interval.

    Args:
        numbers: Numbers (..., n), with n of at least 1.
        confidence: Confidence level of the interval, in [0, 1].
        resamples: Number of resamples, at least 1.

    Returns:
        Lower and upper ends (2, ...), float64.

    Raises:
        ArgumentTypeError: An argument has a wrong type.
        ArgumentError: `numbers` is empty or contains NaN, or `confidence` or `resamples` is out of range.

    >>> bootstrap_interval([3.0, 3.0, 3.0]).tolist()
    [3.0, 3.0]
    """
    array, stream = _check_numbers(numbers), np.random.default_rng(0)
    check_float("confidence", confidence, 0, 1)
    check_int("resamples", resamples, 1)
    n, blocks = array.shape[-1], []
    at_once = max(1, _BLOCK // max(array.size, 1))
    for start in range(0, resamples, at_once):
        draws = stream.integers(0, n, (min(at_once, resamples - start), n))
        blocks.append(interquartile_mean(np.moveaxis(array[..., draws], -2, 0)))
    tail = (1 - confidence) / 2
    interval: npt.NDArray[np.float64] = np.quantile(np.concatenate(blocks), [tail, 1 - tail], axis=0)
    return interval


def score(returns: npt.ArrayLike) -> Score:
    """Compute mean, standard deviation and interquartile mean of episode returns.

    Args:
        returns: Return of each episode, (n,), with n of at least 1.

    Raises:
        ArgumentTypeError: `returns` is not an array of real numbers.
        ArgumentError: `returns` is not one-dimensional, is empty or contains NaN.

    >>> score([1.0, 2.0, 3.0, 4.0])["iqm"]
    2.5
    """
    array = _check_numbers(returns)
    if array.ndim != 1:
        raise ArgumentError("returns", "one number per episode", f"shape {array.shape}", "pass a flat list")
    low, high = bootstrap_interval(array)
    return {
        "mean": float(array.mean()),
        "std": float(array.std()),
        "iqm": float(interquartile_mean(array)),
        "iqm_interval": (float(low), float(high)),
        "episodes": len(array),
    }


def _check_numbers(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Convert values to float64, (..., n); check that n is at least 1 and no number is NaN."""
    try:
        plain = np.asarray(values)
        is_real = plain.dtype.kind in "iuf"
    except ValueError:  # rows of different lengths
        is_real = False
    if not is_real:
        raise ArgumentTypeError("numbers", "real numbers", short_repr(values), "pass returns")
    array = plain.astype(np.float64)
    if array.ndim == 0 or array.shape[-1] == 0:
        hint = "pass at least one number"
        raise ArgumentError("numbers", "at least one per row", f"shape {array.shape}", hint)
    if np.isnan(array).any():
        raise ArgumentError("numbers", "numbers without NaN", "NaN", "remove the NaN")
    return array
