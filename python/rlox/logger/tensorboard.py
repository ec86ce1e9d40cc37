"""Metrics as TensorBoard's events. Needs `rlox[tensorboard]`, not torch."""

import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlox.extras import load_extra
from rlox.logger.base import EVERY, Thinned
from rlox.logger.json_lines import in_folder
from rlox.settings import path_or_none

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer


class TensorBoardLogger(Thinned):
    """Writes scalars over environment steps, for `tensorboard --logdir runs`.

    Args:
        path: The folder of the events; None: `tensorboard` in the run folder.
        every: Environment steps between two rows, at least; 1: all rows.

    Raises:
        TypeError, ValueError: An argument of another kind, or `every` below 1.
        ModuleNotFoundError: tensorboard is not installed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, every: int = EVERY) -> None:
        super().__init__(every)
        self.path = path_or_none("path", path)
        module = "tensorboard.summary.writer.event_file_writer"
        self._writers = load_extra(module, "tensorboard", "TensorBoardLogger")
        self._events = load_extra(
            "tensorboard.compat.proto.event_pb2", "tensorboard", "TensorBoardLogger"
        )

    def start(self, trainer: "Trainer") -> None:
        """Opens a file of events; those of steps that a resumed run makes again are forgotten."""
        super().start(trainer)
        folder = self.path or in_folder(trainer, "tensorboard")
        self._writer = self._writers.EventFileWriter(str(folder))
        if self.path is None and trainer.timesteps:  # another folder may have other runs
            first = trainer.timesteps + 1
            event = self._events.Event(step=first, wall_time=time.time())
            event.session_log.status = 1  # START, at which TensorBoard drops this step and later
            self._writer.add_event(event)

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes scalars; NaN, which no curve shows, is left out."""
        event = self._events.Event(step=timesteps, wall_time=time.time())
        for name, value in metrics.items():
            if not math.isnan(value):
                event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def finish(self, result: "TrainResult | None") -> None:
        """Writes what waits, and closes the file."""
        super().finish(result)
        self._writer.close()
