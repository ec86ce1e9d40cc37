"""What returns of episodes come to: means, and how sure one can be of them.

The interquartile mean is the mean without the lowest and the highest quarter, and its interval is
the percentile bootstrap's, as Agarwal et al. (2021) advise for scores of reinforcement learning.
Tests compare both with the authors' package, rliable, which brings too many others for `rlox eval`.
"""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._validation import check_float, check_int, short_repr

RESAMPLES = 10_000
# Numbers that are drawn at once.
_BLOCK = 1_000_000


class Score(TypedDict):
    """What `score` gives."""

    mean: float  # of the returns
    std: float  # their standard deviation
    iqm: float  # their interquartile mean
    iqm_interval: tuple[float, float]  # its 95% interval
    episodes: int  # how many returns


def interquartile_mean(numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The mean without the lowest and the highest quarter, rounded down, along the last axis.

    Args:
        numbers: (..., n) with n of at least 1.

    Returns:
        (...), float64.

    Raises:
        TypeError: They are no real numbers.
        ValueError: There is none, or one is NaN.

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
    """The interval of the interquartile mean, from numbers drawn anew with replacement.

    The draws are always the same ones, so the same numbers have the same interval.

    Args:
        numbers: (..., n) with n of at least 1.
        confidence: The share of draws whose mean lies inside.
        resamples: How many draws.

    Returns:
        (2, ...), float64: the lower and the upper end.

    Raises:
        TypeError, ValueError: As `interquartile_mean`; a share outside of [0, 1], no draw.

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
    interval: npt.NDArray[np.float64] = np.quantile(
        np.concatenate(blocks), [tail, 1 - tail], axis=0
    )
    return interval


def score(returns: Any) -> Score:
    """Mean, deviation and interquartile mean of episodes' returns.

    Args:
        returns: One number for each episode, at least one.

    Raises:
        TypeError, ValueError: As `interquartile_mean`; they are no sequence.

    >>> score([1.0, 2.0, 3.0, 4.0])["iqm"]
    2.5
    """
    array = _check_numbers(returns)
    if array.ndim != 1:
        raise ArgumentError(
            "returns", "one number for each episode", f"shape {array.shape}", "pass a list"
        )
    low, high = bootstrap_interval(array)
    return {
        "mean": float(array.mean()),
        "std": float(array.std()),
        "iqm": float(interquartile_mean(array)),
        "iqm_interval": (float(low), float(high)),
        "episodes": len(array),
    }


def _check_numbers(values: Any) -> npt.NDArray[np.float64]:
    """(..., n) with n of at least 1, of which none is NaN."""
    try:
        plain = np.asarray(values)
        known = plain.dtype.kind in "iuf"
    except ValueError:  # rows of several lengths
        known = False
    if not known:
        raise ArgumentTypeError("numbers", "real numbers", short_repr(values), "pass returns")
    array = plain.astype(np.float64)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ArgumentError(
            "numbers", "at least one in each row", f"shape {array.shape}", "play an episode"
        )
    if np.isnan(array).any():
        raise ArgumentError("numbers", "no NaN", "some", "leave it out")
    return array
