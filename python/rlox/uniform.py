"""Uniformly random actions, as rollouts store them."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlox._errors import ArgumentError
from rlox.spaces import counts_of

_MOST = float(np.finfo(np.float32).max)


def random_actions(
    space: gym.Space[Any], rng: np.random.Generator, lead: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Uniform actions as a rollout stores them, shape (*lead, *space.shape), int64 or float32.

    Those of an integer Box are its integers, bounds included, as near as float32 comes to them;
    those of a Box of real numbers are as far from 0 as float32 holds them.

    Raises:
        ValueError: A Box without finite bounds, be it of integers, has no uniform distribution.

    >>> random_actions(spaces.Discrete(1, start=9), np.random.default_rng(0), (2, 3)).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    shape = (*lead, *(space.shape or ()))
    counts = counts_of(space)
    if counts is not None:
        return rng.integers(counts, size=shape)
    low, high = _finite_bounds(space)
    if low.dtype.kind in "iub":
        wide: Any = np.uint64 if low.dtype.kind == "u" else np.int64
        bounds = low.astype(wide), high.astype(wide)
        return rng.integers(*bounds, shape, wide, endpoint=True).astype(np.float32)
    return np.clip(rng.uniform(low, high, shape), low, high).astype(np.float32)


def uniform_log_prob(space: gym.Space[Any]) -> float:
    """The log-probability (of real ones: log-density) of each of the uniform `random_actions`.

    Components of a Box that can have only one value are certain.

    >>> round(uniform_log_prob(spaces.MultiDiscrete([2, 5])), 4)
    -2.3026
    >>> uniform_log_prob(spaces.Box(0, np.array([1, 0], np.float32)))
    -0.0
    """
    counts = counts_of(space)
    if counts is not None:
        return -float(np.log(counts).sum())
    low, high = _finite_bounds(space)
    width = high.astype(np.float64) - low.astype(np.float64) + (low.dtype.kind in "iub")
    return -float(np.log(width[width > 0]).sum())


def _finite_bounds(space: gym.Space[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    assert isinstance(space, spaces.Box)
    if not space.is_bounded():
        raise ArgumentError(
            "policy",
            "an action space with finite bounds for random actions",
            str(space),
            "pass a policy",
        )
    if space.low.dtype.kind == "f":
        low, high = (
            np.clip(side.astype(np.float64), -_MOST, _MOST) for side in (space.low, space.high)
        )
        return low, high
    return space.low, space.high
