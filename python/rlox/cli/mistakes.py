"""Mistakes on the command line, and what somebody may have meant."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rlox.keywords import hint as hint


class UsageError(Exception):
    """The command line is wrong: what was expected, what came, and what to do."""


@contextmanager
def blaming(given: Iterable[str]) -> Iterator[None]:
    """Errors about what was given on the command line, or in a file, are mistakes of usage.

    Args:
        given: Words, or names: a message that begins with one of them, and ":", is about it.

    Raises:
        UsageError: In the place of a ValueError or TypeError about one of them.

    >>> with blaming(["--seed=-1"]):
    ...     raise ValueError("seed: expected 0 or more, got -1; pass 0")
    Traceback (most recent call last):
    rlox.cli.mistakes.UsageError: seed: expected 0 or more, got -1; pass 0
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        names = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in given}
        names = {name for name in names if name.isidentifier()}  # a message may begin with a path
        if str(error).partition(":")[0] in names:
            raise UsageError(str(error)) from error
        raise


def missing(package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that names the extra in which a package of the command line is."""
    return ModuleNotFoundError(
        f"{package}: expected this package of the command line, got none; pip install 'rlox[cli]'",
        name=error.name,
    )
