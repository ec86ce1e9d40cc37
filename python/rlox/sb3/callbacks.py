"""Callbacks and logs of `learn`: functions, rlox's own, the table of `verbose=1`, TensorBoard."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentTypeError
from rlox._training.hooks import Callback
from rlox._validation import check_path, check_str, short_repr
from rlox.callbacks.base import FunctionCallback, as_callback
from rlox.logger.base import Logger
from rlox.logger.files import format_table
from rlox.logger.trackers import TensorBoardLogger

if TYPE_CHECKING:
    from rlox.trainers import Trainer

# Default log_interval: iterations, or episodes for algorithms with a replay buffer.
_INTERVALS = {"ppo": 1, "a2c": 100, "dqn": 4, "sac": 4, "td3": 4}
_STEPS = "time/total_timesteps"


class StoppingFunction(FunctionCallback):
    """Function of (trainer, metrics) that ends the run by returning False."""

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Call the function."""
        if self._function(trainer, metrics) is False:
            trainer.stop("callback=")


class StepCount(Callback):
    """Count the steps in metrics from those of an earlier `learn`; precedes other callbacks."""

    def __init__(self, first: int) -> None:
        self._first = first

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Replace the number of steps."""
        metrics[_STEPS] = trainer.timesteps - self._first


class Table(Callback):
    """Write the metrics to stdout.

    Args:
        interval: Iterations between two tables, or episodes if there is a replay buffer.
    """

    def __init__(self, interval: int) -> None:
        self._interval, self._iterations, self._tables = interval, 0, 0

    def on_train_start(self, trainer: "Trainer") -> None:
        """Count from here."""
        self._iterations, self._tables = 0, self._count_tables(trainer)

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Write a table if one is due."""
        self._iterations += 1
        if (count := self._count_tables(trainer)) > self._tables:
            self._tables = count
            sys.stdout.write(format_table(metrics))

    def _count_tables(self, trainer: "Trainer") -> int:
        has_replay = hasattr(trainer.config, "buffer_size")
        count = trainer.learner.episodes.count if has_replay else self._iterations
        return count // self._interval


def make_callbacks(
    callback: Any, algorithm: str, verbose: int, log_interval: int | None, first: int
) -> list[Callback]:
    """Return the trainer's callbacks for the arguments of `learn`.

    Args:
        callback: None, a function, an `rlox.callbacks.Callback`, or a list of these.
        algorithm: Name of the algorithm, for the default of `log_interval`.
        verbose: Write tables if above 0.
        log_interval: As for `Table`; None: Stable-Baselines3's default.
        first: Steps of earlier calls that do not count.

    Raises:
        TypeError: A callback of Stable-Baselines3, or something else.
    """
    listed = callback if isinstance(callback, list | tuple) else [callback]
    callbacks = [StepCount(first), *(_as_callback(item) for item in listed if item is not None)]
    interval = _INTERVALS[algorithm] if log_interval is None else log_interval
    return [*callbacks, Table(interval)] if verbose else callbacks


def _as_callback(callback: Any) -> Callback:
    cls = callback if isinstance(callback, type) else type(callback)
    if any(base.__module__.startswith("stable_baselines3.") for base in cls.__mro__):
        raise ArgumentTypeError(
            "callback",
            "a function of (trainer, metrics) or an rlox.callbacks.Callback",
            f"Stable-Baselines3's {short_repr(callback)}",
            "derive it from rlox.callbacks.Callback",
        )
    if callable(callback) and not isinstance(callback, type | Callback):
        return StoppingFunction(callback)
    return as_callback(callback)


class _Log(TensorBoardLogger):
    """TensorBoard log whose steps are those of the metrics."""

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Write scalars."""
        super().write(metrics, int(metrics[_STEPS]))


def log_folder(path: Any) -> str | None:
    """Check `tensorboard_log`; None: no log."""
    folder = check_path("tensorboard_log", path)
    return None if folder is None else os.fspath(folder)


def make_loggers(folder: str | None, name: str, *, new: bool) -> list[Logger]:
    """Return the log of a call of `learn`: `folder/NAME_1`, and so on.

    Args:
        folder: Folder of the logs; None: no log.
        name: Name of the log, before the number.
        new: Whether the number is a new one, or that of the last log.
    """
    check_str("tb_log_name", name)
    if folder is None:
        return []
    files = Path(folder).iterdir() if Path(folder).is_dir() else ()
    numbers = (re.fullmatch(rf"{re.escape(name)}_(\d+)", file.name) for file in files)
    last = max((int(found[1]) for found in numbers if found), default=0)
    return [_Log(Path(folder) / f"{name}_{last + 1 if new else max(last, 1)}")]
