"""Functions as callbacks, and helpers of callbacks that write files."""

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlox._errors import ArgumentError, ArgumentTypeError, warn
from rlox._training.run import Callback, Run


class FunctionCallback(Callback):
    """Callback that calls a function after each iteration.

    Args:
        function: Called with the run and the metrics of the iteration, which it may extend.

    Raises:
        ArgumentTypeError: `function` cannot be called with two positional arguments.
    """

    def __init__(self, function: Callable[[Run, dict[str, float]], object]) -> None:
        try:
            inspect.signature(function).bind(None, {})
        except TypeError as error:
            raise ArgumentTypeError(
                "callbacks",
                "a function of (run, metrics)",
                f"{_describe(function)} with another signature ({error})",
                "give the function these two parameters",
            ) from error
        except ValueError:  # some functions written in C have no signature
            pass
        self._function = function

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Call the function."""
        self._function(run, metrics)


def as_callback(callback: object) -> Callback:
    """Return a callback unchanged, or a function as a `FunctionCallback`.

    Raises:
        ArgumentTypeError: `callback` is a class, or neither a `Callback` nor a function of `(run, metrics)`.
    """
    if isinstance(callback, Callback):
        return callback
    if callable(callback) and not isinstance(callback, type):
        return FunctionCallback(callback)
    raise ArgumentTypeError(
        "callbacks",
        "a list of rlox.callbacks.Callback objects or functions of (run, metrics)",
        _describe(callback),
        "pass an object of a class derived from Callback",
    )


def as_callbacks(callbacks: object) -> list[Callback]:
    """Return a list of callbacks from callbacks and functions; see `as_callback`.

    Raises:
        ArgumentTypeError: `callbacks` is not iterable, or an item is not a callback.
    """
    if not isinstance(callbacks, Iterable):
        raise ArgumentTypeError("callbacks", "a list", _describe(callbacks), "wrap the callback in square brackets")
    return [as_callback(callback) for callback in callbacks]


def _describe(callback: object) -> str:
    if isinstance(callback, type):
        return f"the class {callback.__name__}"
    return type(callback).__name__


def folder_for(run: Run, path: Path | None, name: str, what: str) -> Path:
    """Return `path`, or the folder `name` in the run folder; errors name the files with `what`.

    Raises:
        ArgumentError: `path` is None, and the run has no folder.
    """
    if path is not None:
        return path
    if run.path is None:
        raise ArgumentError(
            "path",
            f"a folder for {what}, as the run has no folder",
            "None",
            "pass path=..., or runs_dir=... to the trainer",
        )
    return run.path / name


class LastRun:
    """Weak reference to the run of the last call of `train`."""

    def __init__(self) -> None:
        self._run: Callable[[], Run | None] = lambda: None

    def replace(self, run: Run) -> bool:
        """Refer to a run, and return whether it is another one."""
        is_other = self._run() is not run
        self._run = weakref.ref(run)
        return is_other


@contextmanager
def warn_on_write_error(run: Run, what: str, every: int) -> Iterator[None]:
    """Warn of an OSError or a MemoryError of the block, so that training continues."""
    try:
        yield
    except (OSError, MemoryError) as error:
        warn(
            f"the {what} after {run.budget_used:,} steps was not written ({error}); training "
            f"continues, and the callback runs again at the next multiple of {every:,} steps"
        )
