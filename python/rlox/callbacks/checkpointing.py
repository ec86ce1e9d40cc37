"""Checkpoints while a run goes on."""

import math
import warnings
from typing import TYPE_CHECKING

from rlox.callbacks.base import Callback, Every
from rlox.keywords import knowing_keywords
from rlox.rotation import FOLDER, note_latest, note_score, prune, step_name
from rlox.settings import flag, path_or_none, text, whole

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
        best: A metric; the checkpoint with its highest value is kept, too. None: none is.
        replay: Whether a replay buffer, which may be large, is in them.
        path: The folder they lie in; None: `checkpoints` in the run folder.

    Raises:
        TypeError, ValueError: An argument of another kind or out of range. At the start of
            training: there is neither a run folder nor a path.

    >>> CheckpointCallback(every=100_000, keep_last=2, best="rollout/ep_rew_mean").keep_last
    2
    """

    @knowing_keywords()
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
        self._replay = flag("replay", replay, fix="pass one of them")
        self._path = path_or_none("path", path)
        self._folder = self._path

    def on_train_start(self, trainer: "Trainer") -> None:
        """Finds out where to write."""
        if self._path is None and trainer.run is None:
            raise ValueError(
                "path: expected where checkpoints shall lie, as there is no run folder, got None; "
                "pass path=, or a runs_dir to the trainer"
            )
        self._folder = self._path
        if self._folder is None and trainer.run is not None:
            self._folder = trainer.run.path / FOLDER
        self._every.start(trainer.timesteps)

    def on_row_logged(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Saves where it is time to, and removes what is not kept."""
        folder = self._folder
        if folder is None or not self._every.due(trainer.timesteps):
            return
        name = step_name(trainer.timesteps)
        try:
            trainer.save(folder / name, replay=self._replay)
            note_latest(folder, name)
            if self.best is not None:
                note_score(folder, name, metrics.get(self.best, math.nan))
            prune(folder, self.keep_last, self.best is not None)
        except (OSError, MemoryError) as error:
            warnings.warn(
                f"no checkpoint after {trainer.timesteps:,} steps ({error}); the run goes on, and "
                f"tries again in {self._every.steps:,}",
                stacklevel=2,
            )
