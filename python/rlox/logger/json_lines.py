"""Metrics as JSON lines."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlox._errors import ArgumentError
from rlox.logger.base import EVERY, Thinned
from rlox.settings import path_or_none

if TYPE_CHECKING:
    from rlox.trainer import Trainer


class JSONLinesLogger(Thinned):
    """Writes a line of strict JSON for each row; NaN, which JSON does not have, is null.

    Args:
        path: Of the file; None: `metrics.jsonl` in the run folder. Lines go after those in it.
        every: Environment steps between two lines, at least; 1: all rows.

    Raises:
        TypeError, ValueError: An argument of another kind, or `every` below 1.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, every: int = EVERY) -> None:
        super().__init__(every)
        self.path = path_or_none("path", path)

    def start(self, trainer: "Trainer") -> None:
        """Looks where to write."""
        super().start(trainer)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path or in_folder(trainer, "metrics.jsonl")

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes a line, at once."""
        row = {name: x if math.isfinite(x) else None for name, x in metrics.items()}
        line = json.dumps(row, allow_nan=False) + "\n"
        # Opened each time: nothing stays open, and a line is there when it is written.
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(line)


def in_folder(trainer: "Trainer", name: str) -> Path:
    """A path in the run folder.

    Raises:
        ValueError: There is none.
    """
    if trainer.run is None:
        raise ArgumentError("path", "one, as there is no run folder", "None", "pass a path")
    return trainer.run.path / name
