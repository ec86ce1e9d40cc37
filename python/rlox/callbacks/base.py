"""`Callback`: what happens around the iterations of a training run."""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentTypeError

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class Callback:
    """Derive from it and write the methods you need. `trainer.stop(reason)` ends the run.

    >>> class Best(Callback):
    ...     score = float("-inf")
    ...
    ...     def on_iteration(self, trainer, metrics):
    ...         self.score = max(self.score, metrics["rollout/ep_rew_mean"])
    """

    def on_train_start(self, trainer: "Trainer") -> None:
        """Before the first iteration, when loggers have started; `trainer.run` is there."""

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After each iteration, with the row that goes to the loggers next.

        Numbers may be added to it, under names of their own; those that come now and then are a
        column like the others.
        """

    def on_row_logged(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After loggers have the row, which is complete: here what goes with it is saved."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last iteration and what it leaves behind, also when an error ended the run.

        Callbacks that started are ended in the opposite order, each of them, whatever the others
        raise.
        """

    def state(self) -> dict[str, Any]:
        """What it remembers, numbers and None by name; checkpoints of the trainer have it.

        A run that is resumed with a callback of the same class then is the one that was not
        stopped.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on with what `state` gave, after `on_train_start`."""


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
