"""Loggers of metrics: run folder, console, files and tracking services.

`trainer.train(loggers=("console", "tensorboard"))` takes names and objects. A logger whose package
is not installed raises ModuleNotFoundError when it is created.
"""

from rlox.logger.base import IntervalLogger, Logger, RunInfo
from rlox.logger.files import ConsoleLogger, CSVLogger, JSONLinesLogger
from rlox.logger.trackers import MLflowLogger, TensorBoardLogger, WandbLogger

__all__ = [
    "CSVLogger",
    "ConsoleLogger",
    "IntervalLogger",
    "JSONLinesLogger",
    "Logger",
    "MLflowLogger",
    "RunInfo",
    "TensorBoardLogger",
    "WandbLogger",
]
