"""Observations as networks take them."""

import numpy as np
import numpy.typing as npt

from rlox._rlox import Normalizer


def as_batch(
    obs: npt.ArrayLike, shape: tuple[int, ...], normalizer: Normalizer | None = None
) -> tuple[npt.NDArray[np.float32], bool]:
    """Observations as rows for a network, and whether there was a single one.

    Args:
        obs: (*shape) or (n, *shape), raw.
        shape: Of one observation.
        normalizer: Normalises with the statistics it has; they do not change.

    Returns:
        float32 (n, *shape), and True if `obs` was one observation.

    Raises:
        ValueError: Another shape, or numbers that are not finite.

    >>> as_batch([1.0, 2.0], (2,))
    (array([[1., 2.]], dtype=float32), True)
    """
    raw = np.array(obs, np.float32)
    single = raw.shape == shape
    rows = raw[None] if single else raw
    if rows.shape[1:] != shape or rows.ndim == 0:
        raise ValueError(
            f"obs: expected one observation of shape {shape} or a batch with one more dimension in "
            f"front, got shape {raw.shape}; reshape it"
        )
    if not np.isfinite(rows).all():
        raise ValueError("obs: expected finite numbers, got NaN or infinity; look at their source")
    return (rows if normalizer is None else normalizer.normalize_obs(rows)), single
