"""Where metrics go: the run folder, the console, files, and services.

`trainer.train(loggers=("console", "tensorboard"))` takes them by name or as objects; those that
need a package of their own say so when they are made.
"""

from rlox.logger.base import NAMES, IntervalLogger, Logger, Loggers, as_loggers
from rlox.logger.files import ConsoleLogger, CSVLogger, JSONLinesLogger
from rlox.logger.trackers import MLflowLogger, TensorBoardLogger, WandbLogger

__all__ = [
    "NAMES",
    "CSVLogger",
    "ConsoleLogger",
    "IntervalLogger",
    "JSONLinesLogger",
    "Logger",
    "Loggers",
    "MLflowLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "as_loggers",
]
