"""What returns of episodes come to: means, and how sure one can be of them.

The interquartile mean is the mean without the lowest and the highest quarter, and its interval is
the percentile bootstrap's, as Agarwal et al. (2021) advise for scores of reinforcement learning.
"""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

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

    >>> float(interquartile_mean([0, 1, 2, 3, 100]))
    2.0
    """
    array = np.sort(np.asarray(numbers, np.float64), axis=-1)
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

    >>> bootstrap_interval([3.0, 3.0, 3.0]).tolist()
    [3.0, 3.0]
    """
    array, stream = np.asarray(numbers, np.float64), np.random.default_rng(0)
    n, blocks = array.shape[-1], []
    at_once = max(1, _BLOCK // max(array.size, 1))
    for start in range(0, resamples, at_once):
        draws = stream.integers(0, n, (min(at_once, resamples - start), n))
        blocks.append(interquartile_mean(np.moveaxis(array[..., draws], -2, 0)))
    tail = (1 - confidence) / 2
    ends: npt.NDArray[np.float64] = np.quantile(np.concatenate(blocks), [tail, 1 - tail], axis=0)
    return ends


def score(returns: Any) -> Score:
    """Mean, deviation and interquartile mean of episodes' returns.

    Args:
        returns: One number for each episode, at least one.

    Raises:
        ValueError: There is none.

    >>> score([1.0, 2.0, 3.0, 4.0])["iqm"]
    2.5
    """
    array = np.asarray(returns, np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(
            f"returns: expected one number for each episode, got shape {array.shape}; play some"
        )
    low, high = bootstrap_interval(array)
    return {
        "mean": float(array.mean()),
        "std": float(array.std()),
        "iqm": float(interquartile_mean(array)),
        "iqm_interval": (float(low), float(high)),
        "episodes": len(array),
    }
