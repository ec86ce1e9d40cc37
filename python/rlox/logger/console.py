"""A table of metrics on stdout, now and then."""

import math
import sys
from collections.abc import Mapping
from typing import TextIO

from rlox.logger.base import Thinned


class ConsoleLogger(Thinned):
    """Writes the metrics of an iteration as a table.

    Args:
        every: Environment steps between two tables, at least.
        stream: Where it is written to; None: stdout.

    Raises:
        TypeError, ValueError: `every` is no integer of at least 1.
    """

    def __init__(self, every: int = 10_000, stream: TextIO | None = None) -> None:
        super().__init__(every)
        self._stream = stream

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes a table."""
        stream = sys.stdout if self._stream is None else self._stream
        stream.write(table(metrics) + "\n")
        stream.flush()


def table(metrics: Mapping[str, float]) -> str:
    """Metrics as lines of text, without those that are NaN.

    >>> print(table({"time/fps": 1000.0, "train/loss": 0.5, "time/total_timesteps": 25600}), end="")
    | time/fps             |  1000 |
    | time/total_timesteps | 25600 |
    | train/loss           |   0.5 |
    """
    told = {name: _told(x) for name, x in sorted(metrics.items()) if not math.isnan(x)}
    left, right = (max(map(len, column), default=0) for column in (told, told.values()))
    return "".join(f"| {name:<{left}} | {x:>{right}} |\n" for name, x in told.items())


def _told(value: float) -> str:
    """Whole numbers as they are, others by four digits."""
    whole = float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if whole else f"{value:.4g}"
