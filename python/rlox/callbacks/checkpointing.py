"""Checkpoints while a run goes on."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentError
from rlox.callbacks.base import Callback
from rlox.callbacks.saving import folder_for, going_on
from rlox.every import Every
from rlox.keywords import hint
from rlox.rotation import (
    FOLDER,
    note_latest,
    note_score,
    prune,
    step_name,
    steps_in,
    steps_of,
    sweep,
)
from rlox.settings import flag, path_or_none, text, whole
from rlox.warning import warn

if TYPE_CHECKING:
    import os

    from rlox.trainers import Trainer


class CheckpointCallback(Callback):
    """Saves the trainer every so many environment steps: `checkpoints/step-000100000/`.

    `rlox resume RUN` and `Trainer.load(RUN)` go on from the newest one. Where one cannot be written
    for want of room, that is warned of, and the run goes on.

    Args:
        every: Environment steps between two, all environments together.
        keep_last: How many of the newest are kept; None: all.
        best: A metric; the checkpoint at whose time its last value was highest is kept, too. None:
            none is.
        replay: Whether a replay buffer, which may be large, is in them.
        path: The folder they lie in; None: `checkpoints` in the run folder.

    Raises:
        TypeError, ValueError: An argument of another kind or out of range. At the start of
            training: there is neither a run folder nor a path, or checkpoints of more steps lie
            there.

    Warns:
        UserWarning: No row had the metric `best` when the first checkpoint was saved, or, of one
            that evaluations give, when training ended.

    >>> CheckpointCallback(every=100_000, keep_last=2, best="rollout/ep_rew_mean").keep_last
    2
    """

    def __init__(
        self,
        every: int,
        keep_last: int | None = 3,
        best: str | None = None,
        replay: bool = True,
        path: "str | os.PathLike[str] | None" = None,
    ) -> None:
        self._every = Every(every)
        fix = "pass how many to keep, or None for all"
        self.keep_last = None if keep_last is None else whole("keep_last", keep_last, 1, fix=fix)
        self.best = None if best is None else text("best", best)
        self._replay = flag("replay", replay)
        self._path = path_or_none("path", path)
        self._folder: Path | None = None
        self._trainer: Callable[[], Any] = lambda: None
        self._score: float | None = None  # the metric's last value
        self._warned = False

    def on_train_start(self, trainer: "Trainer") -> None:
        """Finds out where to write, and clears away what a killed process left half written."""
        self._folder = folder_for(trainer, self._path, FOLDER, "checkpoints")
        if (there := steps_in(self._folder)) and steps_of(there[-1]) > trainer.timesteps:
            raise ArgumentError(
                "path",
                f"a folder without checkpoints of more steps than {trainer.timesteps:,}, which "
                "would count as newer",
                str(there[-1]),
                "pass another folder as path",
            )
        sweep(self._folder)
        self._every.start(trainer.timesteps)
        if self._trainer() is not trainer:
            self._trainer, self._score = weakref.ref(trainer), None
        self._warned = False

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Remembers the score."""
        if self.best is not None:
            self._score = metrics.get(self.best, self._score)

    def on_row_logged(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Saves where it is time to, and removes what is not kept."""
        folder = self._folder
        if folder is None or not self._every.due(trainer.timesteps):
            return
        name = step_name(trainer.timesteps)
        if self.best is not None:
            self._score = metrics.get(self.best, self._score)
            if not self.best.startswith("eval/"):  # which may come later
                self._warn_without(metrics)
        with going_on(trainer, "checkpoint", self._every.steps):
            trainer.save(folder / name, replay=self._replay)
            note_latest(folder, name)
            if self._score is not None:
                note_score(folder, name, self._score)
            prune(folder, name, self.keep_last, self.best is not None)

    def on_train_end(self, trainer: "Trainer") -> None:
        """Warns of a metric that never came."""
        self._warn_without({})

    def _warn_without(self, metrics: dict[str, float]) -> None:
        if self.best is None or self._score is not None or self._warned:
            return
        self._warned = True
        fix = hint(self.best, metrics) if metrics else "an EvalCallback gives eval/mean_reward"
        warn(
            f"best: expected a metric that rows have, got {self.best!r}, which none had; no "
            f"checkpoint is known to be the best; {fix}"
        )

    def state(self) -> dict[str, float | None]:
        """The last score."""
        return {"score": self._score}

    def load_state(self, state: dict[str, float | None]) -> None:
        """Goes on with it."""
        self._score = state["score"]
