"""Checkpoints while a run goes on."""

import json
import math
import os
import shutil
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentError, warn
from rlox._files import locked, write_file
from rlox._timing import EveryNSteps
from rlox._training.hooks import Callback
from rlox._validation import check_bool, check_int, check_path, check_str, hint
from rlox.callbacks.base import folder_for, warn_on_write_error
from rlox.checkpoint import (
    _DAMAGED,
    _STEP,
    FOLDER,
    LATEST,
    SCORES,
    list_step_checkpoints,
    read_timesteps,
    step_name,
)

if TYPE_CHECKING:
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
        self._every = EveryNSteps(every)
        fix = "pass how many to keep, or None for all"
        self.keep_last = (
            None if keep_last is None else check_int("keep_last", keep_last, 1, fix=fix)
        )
        self.best = None if best is None else check_str("best", best)
        self._replay = check_bool("replay", replay)
        self._path = check_path("path", path)
        self._folder: Path | None = None
        self._trainer: Callable[[], Any] = lambda: None
        self._score: float | None = None  # the metric's last value
        self._warned = False

    def on_train_start(self, trainer: "Trainer") -> None:
        """Finds out where to write, and clears away what a killed process left half written."""
        self._folder = folder_for(trainer, self._path, FOLDER, "checkpoints")
        if (there := list_step_checkpoints(self._folder)) and read_timesteps(
            there[-1]
        ) > trainer.timesteps:
            raise ArgumentError(
                "path",
                f"a folder without checkpoints of more steps than {trainer.timesteps:,}, which "
                "would count as newer",
                str(there[-1]),
                "pass another folder as path",
            )
        remove_leftovers(self._folder)
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
        if folder is None or not self._every.ready(trainer.timesteps):
            return
        name = step_name(trainer.timesteps)
        if self.best is not None:
            self._score = metrics.get(self.best, self._score)
            if not self.best.startswith("eval/"):  # which may come later
                self._warn_without(metrics)
        with warn_on_write_error(trainer, "checkpoint", self._every.steps):
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


def note_latest(folder: Path, name: str) -> None:
    """Has `latest` name a checkpoint.

    Raises:
        OSError: It cannot be written.
    """
    write_file(folder / LATEST, f"{name}\n".encode())


def read_scores(folder: Path) -> dict[str, float]:
    """How good checkpoints are, by name; nothing where that is not known."""
    with suppress(*_DAMAGED):
        saved = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        return {str(name): float(score) for name, score in saved.items()}
    return {}


def note_score(folder: Path, name: str, score: float) -> None:
    """Notes how good a checkpoint is, and forgets those that are gone.

    Raises:
        OSError: It cannot be written.
    """
    scores = read_scores(folder)
    if math.isfinite(score):
        scores[name] = score
    _write_scores(folder, scores)


def _write_scores(folder: Path, scores: dict[str, float]) -> None:
    there = {name: score for name, score in scores.items() if (folder / name).exists()}
    write_file(folder / SCORES, f"{json.dumps(there, indent=2)}\n".encode())


def prune(folder: Path, written: str, keep_last: int | None, keep_best: bool) -> None:
    """Removes the oldest checkpoints of steps.

    Args:
        folder: Theirs.
        written: The name of the one written last, which stays.
        keep_last: How many of the newest stay; None: all.
        keep_best: Whether the one with the highest score stays beside them.
    """
    there = list_step_checkpoints(folder)
    if keep_last is None:
        return
    known = {name: x for name, x in read_scores(folder).items() if _STEP.fullmatch(name)}
    best = max(known, key=lambda name: known[name], default=None) if keep_best else None
    for path in there[: max(len(there) - keep_last, 0)]:
        if path.name not in (best, written):
            # Under another name first: what is half removed is no checkpoint.
            going = path.with_name(f".{path.name}.going")
            shutil.rmtree(going, ignore_errors=True)
            with suppress(OSError):
                os.replace(path, going)
                shutil.rmtree(going, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left half written or half removed; nothing whole is lost."""
    if not folder.is_dir():
        return
    with locked(folder):
        for path in folder.glob(".*.previous"):
            with suppress(OSError):  # that one was replaced by
                path.rename(folder / path.name[1:].removesuffix(".previous"))
        for ending in ("partial", "going", "previous"):
            for path in folder.glob(f".*.{ending}"):
                shutil.rmtree(path, ignore_errors=True)
