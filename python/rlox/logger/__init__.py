"""Where metrics go: the run folder, the console, files, and services.

`trainer.train(loggers=("console", "tensorboard"))` takes them by name or as objects; those that
need a package of their own say so when they are made.
"""

from rlox.logger.base import NAMES, Logger, Loggers, Thinned, as_loggers
from rlox.logger.console import ConsoleLogger
from rlox.logger.csv_file import CSVLogger
from rlox.logger.json_lines import JSONLinesLogger
from rlox.logger.mlflow import MLflowLogger
from rlox.logger.run_folder import RunFolder, expect_root, versions
from rlox.logger.tensorboard import TensorBoardLogger
from rlox.logger.wandb import WandbLogger

__all__ = [
    "NAMES",
    "CSVLogger",
    "ConsoleLogger",
    "JSONLinesLogger",
    "Logger",
    "Loggers",
    "MLflowLogger",
    "RunFolder",
    "TensorBoardLogger",
    "Thinned",
    "WandbLogger",
    "as_loggers",
    "expect_root",
    "versions",
]
