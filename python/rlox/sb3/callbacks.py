"""Callbacks and loggers of `Model.learn`."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from rlox._training.run import Callback, Run
from rlox._validation import check_path, check_str
from rlox.callbacks.base import FunctionCallback, as_callback
from rlox.configs import OffPolicyConfig
from rlox.learners import TIMESTEPS
from rlox.logger.base import Logger
from rlox.logger.files import format_table
from rlox.logger.trackers import TensorBoardLogger

# Default log_interval: iterations, or episodes for algorithms with a replay buffer.
_INTERVALS = {"ppo": 1, "a2c": 100, "dqn": 4, "sac": 4, "td3": 4}


class StoppingFunction(FunctionCallback):
    """Callback for a function of (run, metrics) that stops the run by returning False."""

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Call the function, and stop the run if the result is False."""
        if self._function(run, metrics) is False:
            run.stop("callback=")


class StepCount(Callback):
    """Callback that subtracts the steps of earlier `learn` calls; must be the first callback.

    Args:
        first: Number of steps to subtract.
    """

    def __init__(self, first: int) -> None:
        self._first = first

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Replace the number of steps in the metrics."""
        metrics[TIMESTEPS] = run.budget_used - self._first


class Table(Callback):
    """Callback that writes the metrics to stdout as a table.

    Args:
        interval: Iterations between two tables, or episodes if there is a replay buffer.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._iterations = 0
        self._tables = 0

    def on_train_start(self, run: Run) -> None:
        """Skip the tables that the episodes of earlier calls would cause."""
        self._tables = self._count_tables(run)

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Write a table if the interval has passed."""
        self._iterations += 1
        if (count := self._count_tables(run)) > self._tables:
            self._tables = count
            sys.stdout.write(format_table(metrics))

    def _count_tables(self, run: Run) -> int:
        has_replay = isinstance(run.config, OffPolicyConfig)
        count = run.learner.episodes.count if has_replay else self._iterations
        return count // self._interval


def make_callbacks(
    callback: object, algorithm: str, verbose: int, log_interval: int | None, first: int
) -> list[Callback]:
    """Return the trainer's callbacks for the arguments of `learn`; `first` is as for `StepCount`.

    Raises:
        ArgumentTypeError: A callback is neither a function nor an `rlox.callbacks.Callback`.
    """
    items = callback if isinstance(callback, list | tuple) else [callback]
    callbacks = [StepCount(first), *(_as_callback(item) for item in items if item is not None)]
    interval = _INTERVALS[algorithm] if log_interval is None else log_interval
    return [*callbacks, Table(interval)] if verbose else callbacks


def _as_callback(callback: object) -> Callback:
    if callable(callback) and not isinstance(callback, type | Callback):
        return StoppingFunction(callback)
    return as_callback(callback)


class _Log(TensorBoardLogger):
    """TensorBoard logger that takes the step from the metrics, where `StepCount` has changed it."""

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Write the metrics as scalars."""
        super().write(metrics, int(metrics[TIMESTEPS]))


def log_folder(path: str | os.PathLike[str] | None) -> str | None:
    """Check `tensorboard_log`, and return the folder as a str, or None for no log."""
    folder = check_path("tensorboard_log", path)
    return None if folder is None else os.fspath(folder)


def make_loggers(folder: str | None, name: str, *, new: bool) -> list[Logger]:
    """Return the logger of `folder/NAME_n` in a list, which is empty without a folder.

    n is the highest existing number, or the next number if the log is `new`.
    """
    check_str("tb_log_name", name)
    if folder is None:
        return []
    files = Path(folder).iterdir() if Path(folder).is_dir() else ()
    numbers = (re.fullmatch(rf"{re.escape(name)}_(\d+)", file.name) for file in files)
    last = max((int(found[1]) for found in numbers if found), default=0)
    return [_Log(Path(folder) / f"{name}_{last + 1 if new else max(last, 1)}")]
