"""`Logger` interface, base class, and isolation of training from errors of loggers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

from rlox._errors import ArgumentError, ArgumentTypeError, one_line, warn_at_most
from rlox._timing import EveryNSteps
from rlox._validation import hint

# Names of metrics.
METRIC = "rollout/ep_rew_mean"
ELAPSED = "time/time_elapsed"
ITERATIONS = "time/iterations"  # number of the iteration, over all calls of `train`
# Default number of environment steps between two rows.
EVERY = 1_000
# Prefixes of the metrics that are in every row.
_EACH = ("rollout/", "train/", "time/")
# Classes of the loggers by name. "csv" has no class, because every run folder has a CSV file.
NAMES = {
    "console": "rlox.logger.files:ConsoleLogger",
    "csv": "",
    "jsonl": "rlox.logger.files:JSONLinesLogger",
    "tensorboard": "rlox.logger.trackers:TensorBoardLogger",
    "wandb": "rlox.logger.trackers:WandbLogger",
    "mlflow": "rlox.logger.trackers:MLflowLogger",
}


@dataclass(frozen=True)
class RunInfo:
    """Description of a run for loggers.

    Attributes:
        algorithm: Name of the algorithm.
        task: Name of the environment or the data.
        seed: Seed of the run.
        budget_unit: Unit of the budget, such as "timesteps".
        budget_used: Budget used before this call of `train`; 0 for a new run.
        path: Path of the run folder; None if there is none.
        description: JSON values that describe the run; the content of `config.json`.
    """

    algorithm: str
    task: str
    seed: int
    budget_unit: str
    budget_used: int
    path: Path | None
    description: Mapping[str, Any]

    def file(self, name: str) -> Path:
        """Return the path of a file in the run folder.

        Raises:
            ArgumentError: The run has no folder.
        """
        if self.path is None:
            raise ArgumentError("path", "a path, as the run has no folder", "None", "pass a path")
        return self.path / name


@runtime_checkable
class Logger(Protocol):
    """Interface of loggers; any object with these methods is a logger.

    If a method raises, one warning is given, and training continues without the logger.
    """

    def start(self, info: RunInfo) -> None:
        """Start logging, before the first iteration and before callbacks start."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row, after each iteration and after callbacks added their metrics.

        Args:
            metrics: Metrics under Stable-Baselines3's names. Some may be NaN or not be in every row.
            step: Budget used so far, such as the number of environment steps.
        """

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """End logging, after callbacks ended; `result` is None after an error."""


class IntervalLogger:
    """Base class of loggers that write a row after each multiple of `every` steps.

    The first row, the last row, and rows with a metric that the preceding row lacks are written as
    well. A resumed run writes the same rows as an uninterrupted one, except for the last row of
    each call of `train`. Subclasses implement `write`; overrides of other methods must call
    the method of this class.

    Args:
        every: Environment steps between two rows; 1: all rows.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: `every` is not an integer.
    """

    def __init__(self, every: int = EVERY) -> None:
        self._known_metrics: frozenset[str] | None = None
        self._interval = EveryNSteps(every)
        self._pending_row: tuple[dict[str, float], int] | None = None

    def start(self, info: RunInfo) -> None:
        """Start counting steps."""
        # The metrics of the row before a resumed run are unknown.
        self._known_metrics = None if info.budget_used else frozenset()
        self._pending_row = None
        self._interval.start(info.budget_used)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the row if it is due."""
        known_metrics = self._known_metrics
        if known_metrics is None:
            known_metrics = frozenset(name for name in metrics if name.startswith(_EACH))
        has_new_metric = not metrics.keys() <= known_metrics
        self._known_metrics = frozenset(metrics)
        if self._interval.ready(step) or has_new_metric:
            self._pending_row = None
            self.write(metrics, step)
        else:
            self._pending_row = dict(metrics), step

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Write the last row if it has not been written."""
        if self._pending_row is not None:
            metrics, step = self._pending_row
            self._pending_row = None
            self.write(metrics, step)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row."""
        raise NotImplementedError


def as_loggers(loggers: object, *, folder: bool) -> list[Logger]:
    """Return loggers from names and objects.

    Args:
        loggers: Names, or objects with the methods of `Logger`.
        folder: True if the run has a folder.

    Returns:
        Loggers without "csv", which the run folder writes itself.

    Raises:
        ArgumentError: A name is unknown or repeated, or a logger without a path has no run folder to write to.
        ArgumentTypeError: `loggers` is not a list, or an item is neither a name nor a logger.
        ModuleNotFoundError: The package of a logger is not installed; the text names the extra.

    >>> [type(logger).__name__ for logger in as_loggers(["console", "csv"], folder=True)]
    ['ConsoleLogger']
    """
    if not isinstance(loggers, Iterable) or isinstance(loggers, str | bytes | Mapping):
        raise ArgumentTypeError("loggers", "a list of names and objects", repr(loggers), "wrap the logger in brackets")
    items = [*loggers]
    names = [item for item in items if isinstance(item, str)]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError("loggers", "each name once", f"{name!r} twice", "remove one of them")
    instances = (_as_logger(item, folder) for item in items)
    return [logger for logger in instances if logger is not None]


def _as_logger(logger: Any, folder: bool) -> Logger | None:
    """Return a logger from its name or the logger itself; None for "csv"."""
    name = logger if isinstance(logger, str) else type(logger).__name__
    if isinstance(logger, str):
        if name not in NAMES:
            raise ArgumentError("loggers", "names of loggers", repr(name), hint(name, NAMES))
        logger = resolve_name(NAMES[name])() if NAMES[name] else None
    elif isinstance(logger, type) or not isinstance(logger, Logger):
        is_class = isinstance(logger, type)
        raise ArgumentTypeError(
            "loggers",
            f"names ({', '.join(NAMES)}) or objects with start, log and finish",
            f"the class {logger.__name__}" if is_class else f"a {name}",
            "pass an object of the class" if is_class else "implement rlox.logger.Logger",
        )
    if not folder and (logger is None or getattr(logger, "path", "") is None):
        raise ArgumentError(
            "loggers", f"a run folder for {name}", "runs_dir=None", "pass runs_dir=..., or a logger with a path"
        )
    checked: Logger | None = logger
    return checked


class Loggers:
    """Group of loggers. A logger that raises causes one warning and is not called again.

    Args:
        loggers: Loggers, in the order of the calls.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._running = list(loggers)

    def start(self, info: RunInfo) -> None:
        """Start all loggers."""
        self._call_all("start", info)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Pass a row to all loggers."""
        self._call_all("log", metrics, step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """End all loggers."""
        self._call_all("finish", result)

    def _call_all(self, method: str, *args: object) -> None:
        self._running = [logger for logger in self._running if _call(logger, method, args)]


def _call(logger: Logger, method: str, args: tuple[object, ...]) -> bool:
    """Call a method of a logger; return whether it succeeded, and warn if it did not."""
    try:
        getattr(logger, method)(*args)
    except Exception as error:
        name = f"{type(logger).__name__}.{method}"
        warn_at_most(f"{name} failed ({one_line(error)}); training continues without this logger")
        return False
    return True
