"""Packages that only some need: imported where they are asked for, named where they are missing."""

import importlib
from typing import Any


def load_extra(module: str, extra: str, what: str) -> Any:
    """Imports a module of an optional package.

    Args:
        module: Its full name.
        extra: Of rlox, which brings it.
        what: What needs it, for the message.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how it comes.

    >>> load_extra("json", "no-extra", "this example").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what}: expected the package {module.partition('.')[0]}, got none; "
            f"pip install 'rlox[{extra}]'",
            name=error.name,
        ) from error
