"""Mistakes on the command line, and what somebody may have meant."""

from rlox.keywords import hint as hint


class UsageError(Exception):
    """The command line is wrong: what was expected, what came, and what to do."""


def missing(package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that names the extra in which a package of the command line is."""
    return ModuleNotFoundError(
        f"{package}: expected this package of the command line, got none; pip install 'rlox[cli]'",
        name=error.name,
    )
