"""Warnings that point at the line of a program that called rlox, not at rlox's own."""

import contextlib
import logging
import os
import sys
import warnings
from pathlib import Path

_log = logging.getLogger("rlox")
_BETWEEN = (f"{Path(__file__).parent}{os.sep}", contextlib.__file__)


def warn(message: str) -> None:
    """Gives a `UserWarning` that names the nearest caller outside of rlox.

    Args:
        message: What was expected, what came, and what to do.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_BETWEEN) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def warn_at_most(message: str) -> None:
    """Warns of what shall not stop a run: where warnings are errors, it is logged instead."""
    try:
        warn(message)
    except Warning:
        _log.warning("%s", message)
