"""Import of optional packages, with an error that names the extra to install."""

import importlib
from types import ModuleType


def load_extra(module: str, extra: str, what: str) -> ModuleType:
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
        missing = (error.name or module).partition(".")[0]  # may be a dependency of the package
        raise ModuleNotFoundError(
            f"{what}: expected the package {missing}, got none; pip install 'rlox[{extra}]'", name=error.name
        ) from error
