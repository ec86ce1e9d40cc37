"""Callbacks of `learn`: functions, rlox's own, and the table that `verbose=1` asks for."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlox.callbacks import Callback, as_callback
from rlox.logger.console import table
from rlox.settings import shown

if TYPE_CHECKING:
    from rlox.trainer import Trainer

# Steps between two tables of algorithms whose iterations are a few steps.
_EVERY = 1_000


class StoppingFunction(Callback):
    """A function of (trainer, metrics) that ends the run by giving False."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Calls it."""
        if self._function(trainer, metrics) is False:
            trainer.stop()


class Table(Callback):
    """Writes the metrics to stdout, now and then.

    Args:
        interval: Iterations between two tables; None: 1, or as many as make 1,000 steps.
    """

    def __init__(self, interval: int | None) -> None:
        self._interval, self._count = interval, 0

    def on_train_start(self, trainer: "Trainer") -> None:
        """Counts from here."""
        self._count, self._said = 0, trainer.timesteps

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Writes a table where it is time for one."""
        self._count += 1
        replay, made = hasattr(trainer.config, "buffer_size"), trainer.timesteps - self._said
        if self._interval is None and replay and made < _EVERY:
            return
        if self._interval is not None and self._count % self._interval:
            return
        self._said = trainer.timesteps
        sys.stdout.write(table(metrics))


def as_rlox_callbacks(callback: Any, verbose: int, log_interval: int | None) -> list[Callback]:
    """What `learn` is given, as trainers take it.

    Args:
        callback: None, a function, an `rlox.callbacks.Callback`, or a list of these.
        verbose: Above 0 metrics are written.
        log_interval: As for `Table`.

    Raises:
        TypeError: One of Stable-Baselines3's own callbacks, or something else.
    """
    if callback is None:
        given = []
    else:
        given = list(callback) if isinstance(callback, list | tuple) else [callback]
    called = [_one(each) for each in given]
    return [*called, Table(log_interval)] if verbose else called


def _one(callback: Any) -> Callback:
    kinds = callback.__mro__ if isinstance(callback, type) else type(callback).__mro__
    if any(kind.__module__.startswith("stable_baselines3.") for kind in kinds):
        raise TypeError(
            "callback: expected a function of (trainer, metrics) or an rlox.callbacks.Callback, "
            f"got Stable-Baselines3's {shown(callback)}; derive one from rlox.callbacks.Callback"
        )
    if callable(callback) and not isinstance(callback, type | Callback):
        return StoppingFunction(callback)
    return as_callback(callback)
