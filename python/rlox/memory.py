"""What does not fit into memory is refused before the system ends the process for it."""

from rlox._rlox import available_memory
from rlox.settings import whole


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
        raise MemoryError(
            f"{argument}: expected what fits into {limit}, got {got}, which needs {needed:,}; ask "
            "for less"
        )
