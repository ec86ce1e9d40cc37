"""Import of optional packages, with an error that names the extra to install."""

import importlib
from typing import Any


def load_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Full name of the module.
        extra: Extra of rlox that installs the package.
        what: Function, argument or feature that needs the package, for the error.

    Raises:
        ModuleNotFoundError: The package is not installed; the error has the pip command.

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
