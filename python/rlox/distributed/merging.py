"""What several processes have seen, as one: means and variances, and finished episodes."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox.learner import Arrays, EpisodeStatistics

F64 = npt.NDArray[np.float64]
KINDS = ("obs", "return")


def merge(first: tuple[F64, F64, float], *others: tuple[F64, F64, float]) -> tuple[F64, F64, float]:
    """Mean, population variance and count of several streams together (Chan et al. 1979).

    >>> merge((np.array([1.0]), np.array([0.0]), 1), (np.array([4.0]), np.array([1.0]), 2))
    (array([3.]), array([2.66666667]), 3)
    """
    mean, var, count = first
    for its_mean, its_var, its_count in others:
        total = count + its_count
        if its_count <= 0:
            continue
        delta = its_mean - mean
        squares = var * count + its_var * its_count + delta**2 * (count * its_count / total)
        mean, var, count = mean + delta * (its_count / total), squares / total, total
    return mean, var, count


def since(base: tuple[F64, F64, float], now: tuple[F64, F64, float]) -> tuple[F64, F64, float]:
    """What a stream has seen since `base`, of which it went on: the inverse of `merge`."""
    mean, var, count = base
    its_mean, its_var, its_count = now
    new = its_count - count
    if new <= 0:
        return mean, var, 0.0
    new_mean = mean + (its_mean - mean) * (its_count / new)
    squares = its_var * its_count - var * count - (new_mean - mean) ** 2 * (count * new / its_count)
    return new_mean, np.maximum(squares / new, 0.0), new


def statistics(state: Mapping[str, npt.NDArray[Any]], kind: str) -> tuple[F64, F64, float]:
    """Mean, variance and count of a kind, of what `rlox.Normalizer.state` gave."""
    return state[f"{kind}_mean"], state[f"{kind}_var"], float(state[f"{kind}_count"][0])


def flat(state: Arrays) -> F64:
    """The statistics of a normaliser as one row of numbers; `rows_merged` takes those of all."""
    return np.concatenate([np.r_[statistics(state, kind)] for kind in KINDS])


def rows_merged(base: Arrays, rows: F64) -> Arrays:
    """The statistics that one process would have, had it seen what all have.

    Args:
        base: What all went on from, as `rlox.Normalizer.state` gives it.
        rows: What each has now, `flat`.
    """
    merged, begin = dict[str, Any](), 0
    for kind in KINDS:
        before = statistics(base, kind)
        dim = len(before[0])
        parts = [row[begin : begin + 2 * dim + 1] for row in rows]
        begin += 2 * dim + 1
        news = [since(before, (x[:dim], x[dim : 2 * dim], float(x[2 * dim]))) for x in parts]
        mean, var, count = merge(before, *news)
        merged |= {f"{kind}_mean": mean, f"{kind}_var": var, f"{kind}_count": np.array([count])}
    return merged


def episodes_merged(each: Sequence[EpisodeStatistics]) -> EpisodeStatistics:
    """How many episodes all processes finished, and the last ones: as many of each, in turns.

    >>> one, two = EpisodeStatistics(), EpisodeStatistics()
    >>> one.add(np.array([1.0, 2.0]), np.array([1, 2]))
    >>> two.add(np.array([3.0]), np.array([3]))
    >>> merged = episodes_merged([one, two])
    >>> merged.count, [*merged.returns]
    (3, [1.0, 2.0, 3.0])
    """
    newest = [[*zip(x.returns, x.lengths, strict=True)][::-1] for x in each]
    turns = zip_longest(*newest)
    taken = [one for turn in turns for one in turn[::-1] if one is not None][:100][::-1]
    merged = EpisodeStatistics(count=sum(x.count for x in each))
    merged.returns.extend(r for r, _ in taken)
    merged.lengths.extend(n for _, n in taken)
    return merged
