"""What does not fit into memory is refused before the system ends the process for it."""

import numpy as np

from rlox._errors import OutOfMemoryError
from rlox._rlox import available_memory
from rlox.settings import shown, whole


def fitting(argument: str, count: object, bytes_each: int, fix: str) -> int:
    """A count of at least 1 of things that need so many bytes each, as a plain int.

    Raises:
        TypeError, ValueError: It is no such count.
        MemoryError: They do not fit.

    >>> fitting("n", 3, bytes_each=100, fix="say how many")
    3
    """
    plain = whole(argument, count, 1, fix=fix)
    expect_memory(argument, plain, plain * bytes_each)
    return plain


def expect_memory(argument: str, got: object, needed: int) -> None:
    """Refuses what needs more bytes than are free.

    Raises:
        MemoryError: It does; what was asked for and what it needs are named.

    >>> expect_memory("num_envs", 2**50, needed=2**61)
    Traceback (most recent call last):
    MemoryError: num_envs: expected what fits into ... bytes of free memory, got 1125899906842624, \
which needs 2,305,843,009,213,693,952; ask for less
    """
    free = available_memory()
    if needed > (2**62 if free is None else free):
        limit = "memory" if free is None else f"{free:,} bytes of free memory"
        raise OutOfMemoryError(
            argument,
            f"what fits into {limit}",
            f"{_said(got)}, which needs {(_said(needed) if needed > 2**256 else f'{needed:,}')}",
            "ask for less",
        )


def expect_granted(argument: str, got: object, needed: int) -> None:
    """Refuses what the system, at a limit of the process's own, grants no memory for.

    For libraries that end the process where they are refused.

    Raises:
        MemoryError: As `expect_memory`.
    """
    expect_memory(argument, got, needed)
    try:
        np.empty(needed, np.uint8)
    except MemoryError:
        raise OutOfMemoryError(
            argument,
            "what the system grants memory for",
            f"{_said(got)}, which needs {needed:,} bytes",
            "ask for less",
        ) from None


def _said(got: object) -> str:
    return got if isinstance(got, str) else shown(got)
