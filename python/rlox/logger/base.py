"""`Logger`: what hears of a run's metrics, and what keeps its errors from the run."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlox._errors import ArgumentError, ArgumentTypeError, warn_at_most
from rlox._timing import EveryNSteps
from rlox._validation import hint

if TYPE_CHECKING:
    from rlox._training.results import TrainResult
    from rlox.trainers import Trainer

# Environment steps between two rows.
EVERY = 1_000
# What learners say in each row begins so.
_EACH = ("rollout/", "train/", "time/")
# The loggers that have names: where they are. "csv" is the run folder's own.
NAMES = {
    "console": "rlox.logger.files:ConsoleLogger",
    "csv": "",
    "jsonl": "rlox.logger.files:JSONLinesLogger",
    "tensorboard": "rlox.logger.trackers:TensorBoardLogger",
    "wandb": "rlox.logger.trackers:WandbLogger",
    "mlflow": "rlox.logger.trackers:MLflowLogger",
}


@runtime_checkable
class Logger(Protocol):
    """What is told of a run: any class with these methods is one.

    What they raise is warned of once; the run goes on without that logger.
    """

    def start(self, trainer: "Trainer") -> None:
        """Before the first iteration, and before callbacks start; `trainer.run` is there."""

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """A row, after each iteration, with what callbacks added.

        Args:
            metrics: By Stable-Baselines3's names; some are NaN, and some come now and then.
            timesteps: Environment steps learned from so far.
        """

    def finish(self, result: "TrainResult | None") -> None:
        """After the run, and after callbacks ended: what it came to, None after an error."""


class IntervalLogger:
    """A logger that leaves out rows: it writes after each multiple of `every` steps.

    The first row, those with a metric that the one before did not have, and the last are written,
    too. Rows do not depend on whether a run was killed and resumed, but for the last of each call.
    Derive from it and write `write`; whoever overrides the rest, calls it.

    Args:
        every: Environment steps between two rows; 1: all rows.

    Raises:
        TypeError, ValueError: It is no integer of at least 1.
    """

    def __init__(self, every: int = EVERY) -> None:
        self._known_metrics: frozenset[str] | None = None
        self._interval = EveryNSteps(every)
        self._pending_row: tuple[dict[str, float], int] | None = None

    def start(self, trainer: "Trainer") -> None:
        """Counts from here."""
        # A run that goes on had first rows before; what came now and then is not known.
        self._known_metrics, self._pending_row = None if trainer.timesteps else frozenset(), None
        self._interval.start(trainer.timesteps)

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes a row, or leaves it out."""
        known_metrics = self._known_metrics
        if known_metrics is None:
            known_metrics = frozenset(name for name in metrics if name.startswith(_EACH))
        new = not metrics.keys() <= known_metrics
        self._known_metrics = frozenset(metrics)
        if self._interval.ready(timesteps) or new:
            self._pending_row = None
            self.write(metrics, timesteps)
        else:
            self._pending_row = dict(metrics), timesteps

    def finish(self, result: "TrainResult | None") -> None:
        """Writes the last row, if it was left out."""
        if self._pending_row is not None:
            (metrics, timesteps), self._pending_row = self._pending_row, None
            self.write(metrics, timesteps)

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes a row."""
        raise NotImplementedError


def as_loggers(loggers: Any, *, folder: bool) -> list[Logger]:
    """Loggers as they are, and those that are named.

    Args:
        loggers: Names, or objects with the methods of `Logger`.
        folder: Whether the run has a folder, into which some write.

    Raises:
        TypeError: One is none, or they are no list.
        ValueError: An unknown name, or one that comes twice; one that needs a folder, and there is
            none.
        ModuleNotFoundError: The package of one is not installed; the extra is named.

    >>> [type(logger).__name__ for logger in as_loggers(["console", "csv"], folder=True)]
    ['ConsoleLogger']
    """
    if not isinstance(loggers, Iterable) or isinstance(loggers, str | bytes | Mapping):
        raise ArgumentTypeError(
            "loggers", "a list of names and objects", repr(loggers), "put it into brackets"
        )
    items = [*loggers]
    if (name := find_duplicate(items)) is not None:
        raise ArgumentError(
            "loggers",
            "each name once",
            f"{name!r} twice, which would write each row twice",
            "leave one out",
        )
    return [one for logger in items if (one := _as_logger(logger, folder)) is not None]


def find_duplicate(loggers: Iterable[Any]) -> str | None:
    """The first name that comes a second time; None where each comes once.

    >>> find_duplicate(["csv", "jsonl", "csv"])
    'csv'
    """
    names = set()
    for name in loggers:
        if isinstance(name, str) and name in names:
            return name
        names |= {name} if isinstance(name, str) else set()
    return None


def _as_logger(logger: Any, folder: bool) -> Logger | None:
    instance: Logger | None = None if isinstance(logger, str) else logger
    if isinstance(logger, str):
        if logger not in NAMES:
            raise ArgumentError("loggers", "names of loggers", repr(logger), hint(logger, NAMES))
        if logger != "csv":
            module, _, name = NAMES[logger].partition(":")
            kind: Callable[[], Logger] = getattr(import_module(module), name)
            instance = kind()
    elif isinstance(logger, type) or not isinstance(logger, Logger):
        is_class = isinstance(logger, type)
        got = f"the class {logger.__name__}" if is_class else f"a {_type(logger)}"
        raise ArgumentTypeError(
            "loggers",
            f"names ({', '.join(NAMES)}) or objects with start, log and finish",
            str(got),
            "pass an object of it" if is_class else "see rlox.logger.Logger",
        )
    needs = instance is None or getattr(instance, "path", "") is None
    if needs and not folder:
        whose = logger if instance is None else _type(instance)
        raise ArgumentError(
            "loggers",
            f"a run folder for {whose} to write into",
            "runs_dir=None",
            "pass a runs_dir, or a logger with a path of its own",
        )
    return instance


def _type(thing: object) -> str:
    return type(thing).__name__


class Loggers:
    """Tells several loggers; one that raises is warned of, once, and left out from then on.

    Args:
        loggers: Each with the methods of `Logger`.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._running = list(loggers)

    def start(self, trainer: "Trainer") -> None:
        """Starts all."""
        self._call_all("start", trainer)

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Gives a row to all."""
        if self._running:
            self._call_all("log", metrics, timesteps)

    def finish(self, result: "TrainResult | None") -> None:
        """Ends all."""
        self._call_all("finish", result)

    def _call_all(self, method: str, *args: Any) -> None:
        self._running = [one for one in self._running if _call(one, method, args)]


def _call(logger: Logger, method: str, args: tuple[Any, ...]) -> bool:
    """Calls a method of a logger; whether it did not fail, which is warned of."""
    try:
        getattr(logger, method)(*args)
    except Exception as error:
        warn_at_most(
            f"{_type(logger)}.{method} failed ({_type(error)}: {error}); training goes on without "
            "this logger"
        )
        return False
    return True
