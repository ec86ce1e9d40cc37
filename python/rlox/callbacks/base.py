"""`Callback`: what happens around the iterations of a training run."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentError, ArgumentTypeError, warn
from rlox._training.hooks import Callback

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class FunctionCallback(Callback):
    """A plain function `f(trainer, metrics)`, called after each iteration."""

    def __init__(self, function: Callable[["Trainer", dict[str, float]], object]) -> None:
        if not callable(function):
            raise ArgumentTypeError(
                "function", "a function of (trainer, metrics)", _named(function), "pass a function"
            )
        try:
            inspect.signature(function).bind(None, {})
        except TypeError as error:
            raise ArgumentTypeError(
                "callbacks",
                "a function of (trainer, metrics)",
                f"{_named(function)} that cannot be called so ({error})",
                "give it these two arguments",
            ) from error
        except ValueError:  # some of C have no signature
            pass
        self._function = function

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Calls it."""
        self._function(trainer, metrics)


def as_callback(callback: Any) -> Callback:
    """A callback as it is, or a function as one.

    Raises:
        TypeError: It is neither; a class is none, its objects are.
    """
    if isinstance(callback, Callback):
        return callback
    if callable(callback) and not isinstance(callback, type):
        return FunctionCallback(callback)
    raise ArgumentTypeError(
        "callbacks",
        "a list of rlox.callbacks.Callback objects or functions of (trainer, metrics)",
        _named(callback),
        "derive it from Callback, and pass an object of it",
    )


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Each as `as_callback`.

    Raises:
        TypeError: One is no callback, or they are no sequence.
    """
    if not isinstance(callbacks, Iterable):
        raise ArgumentTypeError(
            "callbacks", "a list", _named(callbacks), "put it into square brackets"
        )
    return [as_callback(callback) for callback in callbacks]


def _named(callback: Any) -> str:
    if isinstance(callback, type):
        return f"the class {callback.__name__}"
    return type(callback).__name__


def folder_for(trainer: "Trainer", path: Path | None, name: str, what: str) -> Path:
    """Where files lie: at `path`, or in the run folder, under `name`.

    Raises:
        ValueError: There is neither.
    """
    if path is not None:
        return path
    if trainer.run is None:
        raise ArgumentError(
            "path",
            f"where {what} shall lie, as there is no run folder",
            "None",
            "pass path=, or a runs_dir to the trainer",
        )
    return trainer.run.path / name


@contextmanager
def warn_on_write_error(trainer: "Trainer", what: str, every: int) -> Iterator[None]:
    """Lets a run go on where there is no room for a file; a warning says so."""
    try:
        yield
    except (OSError, MemoryError) as error:
        warn(
            f"no {what} after {trainer.timesteps:,} steps ({error}); the run goes on, and tries "
            f"again in {every:,}"
        )
