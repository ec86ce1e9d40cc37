"""Check requests for memory before the system ends the process for them."""

from rlox._errors import OutOfMemoryError
from rlox._rlox import available_memory
from rlox.settings import shown


def check_memory(argument: str, value: object, needed: int) -> None:
    """Check that a number of bytes is free.

    Args:
        argument: The argument that asks for the memory.
        value: Its value.
        needed: The number of bytes.

    Raises:
        MemoryError: Fewer bytes are free.

    >>> check_memory("n", 1, needed=2**61)
    Traceback (most recent call last):
    rlox.OutOfMemoryError: n: expected a value that fits into ... free bytes, got 1, \
which needs 2305843009213693952 bytes; use a smaller value
    """
    free = available_memory()
    free = 2**62 if free is None else free
    if needed > free:
        raise OutOfMemoryError(
            argument,
            f"a value that fits into {free} free bytes",
            f"{shown(value)}, which needs {shown(needed)} bytes",
            "use a smaller value",
        )
