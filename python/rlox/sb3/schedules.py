"""Stable-Baselines3's schedules, functions of the remaining progress, as settings of ours."""

import math
from typing import Any

from rlox._errors import ArgumentError
from rlox.settings import shown

# Of the progress that remains: 1 in the beginning, 0 in the end.
_PLACES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0)


def schedule(name: str, value: Any) -> tuple[Any, str]:
    """A number or a function of the remaining progress, as a number and "constant" or "linear".

    Args:
        name: The keyword, for messages.
        value: Numbers are left as they are; a function is asked at several places.

    Raises:
        ValueError: A function that is neither constant nor falls linearly to 0, or a text.
        TypeError: A function that gives no number.

    >>> schedule("learning_rate", lambda left: left * 0.01)
    (0.01, 'linear')
    >>> schedule("learning_rate", 0.01)
    (0.01, 'constant')
    """
    if isinstance(value, str):
        raise ArgumentError(
            name,
            "a number or a function of the remaining progress",
            repr(value),
            "texts are read by rlox.sb3.zoo alone, pass lambda left: left * 0.001 for 'lin_0.001'",
        )
    if not callable(value):
        return value, "constant"
    try:
        said = [float(value(left)) for left in _PLACES]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected a function of the remaining progress that gives a number, it failed "
            f"with {type(error).__name__}: {error}; correct it, or pass a number"
        ) from error
    first = said[0]
    if all(math.isclose(x, first, rel_tol=1e-6) for x in said):
        return first, "constant"
    falling = [first * left for left in _PLACES]
    if all(map(_alike, said, falling)):
        return first, "linear"
    places = ", ".join(f"{left:g}: {x:g}" for left, x in zip(_PLACES, said, strict=True))
    raise ArgumentError(
        name,
        "a constant, or what falls linearly to 0",
        f"{shown(value)} with {{{places}}}",
        f"pass the number to begin with, or lambda left: left * {first:g}",
    )


def _alike(ours: float, theirs: float) -> bool:
    return math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-15)
