"""Observations as networks take them."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlox._errors import ArgumentError, ArgumentTypeError, NonFiniteError, one_line
from rlox._rlox import Normalizer
from rlox.layouts import Layout, Leaf


def as_batch(
    obs: Any, layout: Layout, normalizer: Normalizer | None = None
) -> tuple[npt.NDArray[Any], bool]:
    """Observations as rows of a layout, and whether there was a single one.

    Args:
        obs: One observation or a batch, raw; where the layout is of a Dict or Tuple, the parts of a
            batch have one more dimension in front, all of them.
        layout: Of the observation space.
        normalizer: Normalises with the statistics it has; they do not change.

    Returns:
        (n, *layout.shape), and True if `obs` was one observation.

    Raises:
        TypeError: No array of real numbers.
        ValueError: Another shape, numbers that are not finite in float32, or outside of uint8.

    >>> from gymnasium import spaces
    >>> as_batch([1.0, 2.0], Layout(spaces.Box(-9, 9, (2,))))
    (array([[1., 2.]], dtype=float32), True)
    """
    pair = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
    if pair and not isinstance(layout.space, spaces.Tuple):
        raise ArgumentTypeError(
            "obs",
            "observations",
            "a pair of them and their infos, as reset() gives",
            "pass obs of obs, infos = env.reset()",
        )
    parts, singles = [], []
    for leaf, given in layout.given(obs):
        name, raw = leaf.name, _real_numbers(leaf.name, given)
        single = raw.shape == leaf.shape
        rows = raw[None] if single else raw
        if rows.shape[1:] != leaf.shape or rows.ndim == 0:
            raise ArgumentError(
                name,
                f"one observation of shape {leaf.shape} or a batch with one more dimension in "
                "front",
                f"shape {raw.shape}",
                "reshape it",
            )
        if not np.isfinite(rows).all():
            raise NonFiniteError(name, "finite numbers", "NaN or infinity", "look at their source")
        parts.append(_fitting(name, leaf, rows))
        singles.append((single, len(rows)))
    if len(set(singles)) != 1:
        raise ArgumentError(
            "obs",
            "parts of as many observations",
            str([n for _, n in singles]),
            "give all of them a batch dimension, or none",
        )
    rows = layout.joined(parts)
    if normalizer is not None and normalizer.normalizes_obs:
        rows = normalizer.normalize_obs(rows)
    return rows, singles[0][0]


def _fitting(name: str, leaf: Leaf, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Numbers in the dtype that rollouts hold them in."""
    if leaf.dtype == np.float32:
        return rows
    low, high = (0, 255) if leaf.dtype == np.uint8 else (-(2**62), 2**62)
    if (rows != np.round(rows)).any() or (rows < low).any() or (rows > high).any():
        raise ArgumentError(
            name, f"{leaf.dtype} numbers", "others", f"pass observations of {leaf.space}"
        )
    return leaf.stored(rows.astype(leaf.dtype))


def _real_numbers(name: str, obs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """A float32 copy. Numbers too large for float32 become infinite."""
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            name,
            "an array of real numbers",
            f"{type(obs).__name__} that NumPy cannot make one of ({one_line(error)})",
            "give all rows the same length, and copy tensors to the CPU with .detach().cpu()",
        ) from error
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(
            name, "an array of real numbers", f"dtype {array.dtype}", "convert it to float32"
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
