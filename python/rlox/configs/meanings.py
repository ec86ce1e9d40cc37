"""What each setting means: the comment beside its field, which is written there alone."""

import inspect
import re
from dataclasses import fields
from typing import Any

_COMMENTED = re.compile(r"^    (\w+): [^#\n]+  # (.+)$", re.MULTILINE)


def meanings(config_type: type[Any]) -> dict[str, str]:
    """The comments beside a config's fields, by field.

    Args:
        config_type: One of `rlox.configs`.

    >>> from rlox.configs import PPOConfig
    >>> meanings(PPOConfig)["gamma"]
    'discount'
    """
    told: dict[str, str] = {}
    for kind in reversed(config_type.__mro__[:-1]):
        told |= dict(_COMMENTED.findall(inspect.getsource(kind)))
    return {field.name: told[field.name] for field in fields(config_type)}
