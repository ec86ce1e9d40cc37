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
        TypeError: No array of real numbers.
        ValueError: Another shape, or numbers that are not finite in float32.

    >>> as_batch([1.0, 2.0], (2,))
    (array([[1., 2.]], dtype=float32), True)
    """
    raw = _real_numbers(obs)
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


def _real_numbers(obs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """A float32 copy. Numbers too large for float32 become infinite."""
    expected = "obs: expected an array of real numbers"
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TypeError(
            f"{expected}, got {type(obs).__name__} that NumPy cannot make one of ({why}); give all "
            "rows the same length, and copy tensors to the CPU with .detach().cpu()"
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{expected}, got dtype {array.dtype}; convert it to float32")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
