"""Callbacks of `learn`: functions, rlox's own, and the table that `verbose=1` asks for."""

import sys
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentTypeError
from rlox.callbacks import Callback, FunctionCallback, as_callback
from rlox.logger.console import table
from rlox.settings import shown

if TYPE_CHECKING:
    from rlox.trainer import Trainer

# Iterations between two tables where that is not 1; episodes where there is a replay buffer.
_EVERY = {"a2c": 100, "dqn": 4, "sac": 4, "td3": 4}


class StoppingFunction(FunctionCallback):
    """A function of (trainer, metrics) that ends the run by giving False."""

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Calls it."""
        if self._function(trainer, metrics) is False:
            trainer.stop("callback=")


class Counted(Callback):
    """Has rows tell the steps since those that count from 0; goes before other callbacks.

    Args:
        first: The steps before.
    """

    def __init__(self, first: int) -> None:
        self._first = first

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Writes it into the row."""
        metrics["time/total_timesteps"] = trainer.timesteps - self._first


class Table(Callback):
    """Writes the metrics to stdout, now and then.

    Args:
        interval: Iterations between two tables, finished episodes where there is a replay buffer.
    """

    def __init__(self, interval: int) -> None:
        self._interval, self._iterations, self._said = interval, 0, 0

    def on_train_start(self, trainer: "Trainer") -> None:
        """Counts iterations from here, and episodes from where they are."""
        self._iterations, self._said = 0, self._times(trainer)

    def _times(self, trainer: "Trainer") -> int:
        replay = hasattr(trainer.config, "buffer_size")
        return (trainer.learner.episodes.count if replay else self._iterations) // self._interval

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Writes a table where it is time for one."""
        self._iterations += 1
        if (times := self._times(trainer)) > self._said:
            self._said = times
            sys.stdout.write(table(metrics))


def as_rlox_callbacks(
    callback: Any, algorithm: str, verbose: int, log_interval: int | None, first: int
) -> list[Callback]:
    """What `learn` is given, as trainers take it.

    Args:
        callback: None, a function, an `rlox.callbacks.Callback`, or a list of these.
        algorithm: "ppo".
        verbose: Above 0 metrics are written.
        log_interval: As for `Table`; None: Stable-Baselines3's own.
        first: As for `Counted`.

    Raises:
        TypeError: One of Stable-Baselines3's own callbacks, or something else.
    """
    if callback is None:
        given = []
    else:
        given = list(callback) if isinstance(callback, list | tuple) else [callback]
    called = [Counted(first), *(_one(each) for each in given)]
    every = _EVERY.get(algorithm, 1) if log_interval is None else log_interval
    return [*called, Table(every)] if verbose else called


def _one(callback: Any) -> Callback:
    kinds = callback.__mro__ if isinstance(callback, type) else type(callback).__mro__
    if any(kind.__module__.startswith("stable_baselines3.") for kind in kinds):
        raise ArgumentTypeError(
            "callback",
            "a function of (trainer, metrics) or an rlox.callbacks.Callback",
            f"Stable-Baselines3's {shown(callback)}",
            "derive one from rlox.callbacks.Callback",
        )
    if callable(callback) and not isinstance(callback, type | Callback):
        return StoppingFunction(callback)
    return as_callback(callback)
