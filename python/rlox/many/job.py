"""One of many runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlox.results import TrainResult
from rlox.trainer import Trainer

# What a run came to: its result, or what ended it.
Came = TrainResult | BaseException


@dataclass(frozen=True)
class Job:
    """A run, as its trainer would be asked for it."""

    kind: type[Trainer]
    env: Any
    seed: int
    total_timesteps: int
    about: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], Sequence[Any]] | None = None
    loggers: tuple[str, ...] = ()

    def train(self) -> TrainResult:
        """Trains, alone."""
        called = () if self.callbacks is None else self.callbacks()
        with self.kind(self.env, self.seed, **self.about) as trainer:
            return trainer.train(self.total_timesteps, callbacks=called, loggers=self.loggers)
