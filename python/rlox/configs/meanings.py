"""What each setting means: the comment beside or above its field, which is written there alone."""

import inspect
import re
from dataclasses import fields
from typing import Any

_BESIDE = re.compile(r"^    (\w+): [^#\n]+  # (.+)$", re.MULTILINE)
_ABOVE = re.compile(r"^    # (.+)\n    (\w+): [^#\n]+$", re.MULTILINE)


def meanings(config_type: type[Any]) -> dict[str, str]:
    """The comments of a config's fields, by field.

    Args:
        config_type: One of `rlox.configs`.

    >>> from rlox.configs import PPOConfig
    >>> meanings(PPOConfig)["gamma"]
    'discount'
    """
    told: dict[str, str] = {}
    for kind in reversed(config_type.__mro__[:-1]):
        source = inspect.getsource(kind)
        told |= {name: comment.rstrip(".") for comment, name in _ABOVE.findall(source)}
        told |= dict(_BESIDE.findall(source))
    return {field.name: told[field.name] for field in fields(config_type)}
