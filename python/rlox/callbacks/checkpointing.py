"""Checkpoints during a run, and removal of old ones."""

import json
import math
import os
import shutil
from contextlib import suppress
from pathlib import Path

from rlox._errors import ArgumentError, warn
from rlox._files import locked, write_file
from rlox._timing import EveryNSteps
from rlox._training.run import Callback, Run
from rlox._validation import check_bool, check_int, check_path, check_str, hint
from rlox.callbacks.base import LastRun, folder_for, warn_on_write_error
from rlox.checkpoint import _DAMAGED, _STEP, FOLDER, LATEST, SCORES, list_step_checkpoints, read_timesteps, step_name


class CheckpointCallback(Callback):
    """Callback that saves a checkpoint every `every` environment steps.

    Checkpoints are folders with names such as `checkpoints/step-000100000`. `rlox resume RUN` and
    `Trainer.load(RUN)` continue from the newest one.

    Args:
        every: Environment steps between two checkpoints, summed over all environments.
        keep_last: Number of newest checkpoints to keep; None: all.
        best: Name of a metric. The checkpoint with the highest value of this metric is kept in
            addition to the newest ones; None: no such checkpoint.
        replay: If True, checkpoints include the replay buffer, which may be large.
        path: Folder of the checkpoints; None: `checkpoints` in the run folder.

    Raises:
        ArgumentError: An argument is out of range. At the start of training: the run has no folder
            and `path` is None, or the folder has a checkpoint of more environment steps.
        ArgumentTypeError: An argument has a wrong type.

    Warns:
        UserWarning: A checkpoint could not be written. Or no row had the metric `best` by the end
            of training, or, for metrics other than `eval/...`, by the first checkpoint.

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
        fix = "pass the number of checkpoints to keep, or None for all"
        self.keep_last = None if keep_last is None else check_int("keep_last", keep_last, 1, fix=fix)
        self.best = None if best is None else check_str("best", best)
        self._replay = check_bool("replay", replay)
        self._path = check_path("path", path)
        self._folder: Path | None = None
        self._last_run = LastRun()
        self._score: float | None = None  # last value of the metric `best`
        self._warned = False

    def on_train_start(self, run: Run) -> None:
        """Choose the folder, and remove incomplete checkpoints of a killed process."""
        self._folder = folder_for(run, self._path, FOLDER, "checkpoints")
        if (checkpoints := list_step_checkpoints(self._folder)) and read_timesteps(checkpoints[-1]) > run.budget_used:
            raise ArgumentError(
                "path",
                f"a folder without checkpoints of more than {run.budget_used:,} steps",
                str(checkpoints[-1]),
                "pass another folder as path",
            )
        remove_leftovers(self._folder)
        self._every.start(run.budget_used)
        if self._last_run.replace(run):
            self._score = None
        self._warned = False

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Read the metric `best`."""
        if self.best is not None:
            self._score = metrics.get(self.best, self._score)

    def on_row_logged(self, run: Run, metrics: dict[str, float]) -> None:
        """Save a checkpoint if one is due, and remove old checkpoints."""
        folder = self._folder
        if folder is None or not self._every.ready(run.budget_used):
            return
        name = step_name(run.budget_used)
        if self.best is not None:
            self._score = metrics.get(self.best, self._score)
            if not self.best.startswith("eval/"):  # the first evaluation may follow later
                self._warn_without(metrics)
        with warn_on_write_error(run, "checkpoint", self._every.steps):
            run.save(folder / name, replay=self._replay)
            write_file(folder / LATEST, f"{name}\n".encode())
            if self._score is not None:
                note_score(folder, name, self._score)
            prune(folder, name, self.keep_last, self.best is not None)

    def on_train_end(self, run: Run) -> None:
        """Warn if no row had the metric `best`."""
        self._warn_without({})

    def _warn_without(self, metrics: dict[str, float]) -> None:
        if self.best is None or self._score is not None or self._warned:
            return
        self._warned = True
        fix = hint(self.best, metrics) if metrics else "add an EvalCallback for eval/mean_reward"
        warn(
            f"best: expected a metric of the logged rows, got {self.best!r}; checkpoints are saved "
            f"without a score; {fix}"
        )

    def state(self) -> dict[str, float | None]:
        """Return the last value of the metric."""
        return {"score": self._score}

    def load_state(self, state: dict[str, float | None]) -> None:
        """Restore the last value of the metric."""
        self._score = state["score"]


def read_scores(folder: Path) -> dict[str, float]:
    """Return the scores of checkpoints by name; an empty dict if the file cannot be read."""
    with suppress(*_DAMAGED):
        saved = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        return {str(name): float(score) for name, score in saved.items()}
    return {}


def note_score(folder: Path, name: str, score: float) -> None:
    """Store the score of a checkpoint, and drop the scores of removed checkpoints."""
    scores = read_scores(folder)
    if math.isfinite(score):
        scores[name] = score
    existing = {name: score for name, score in scores.items() if (folder / name).exists()}
    write_file(folder / SCORES, f"{json.dumps(existing, indent=2)}\n".encode())


def prune(folder: Path, written: str, keep_last: int | None, keep_best: bool) -> None:
    """Remove the oldest step checkpoints, except `written`, the newest `keep_last`, and maybe the best one."""
    if keep_last is None:
        return
    checkpoints = list_step_checkpoints(folder)
    scores = {name: x for name, x in read_scores(folder).items() if _STEP.fullmatch(name)}
    best = max(scores, key=lambda name: scores[name], default=None) if keep_best else None
    for path in checkpoints[: max(len(checkpoints) - keep_last, 0)]:
        if path.name not in (best, written):
            # Renamed first, so that a partly removed folder does not look like a checkpoint.
            removed = path.with_name(f".{path.name}.going")
            shutil.rmtree(removed, ignore_errors=True)
            with suppress(OSError):
                os.replace(path, removed)
                shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove partly written or partly removed checkpoints of a killed process."""
    if not folder.is_dir():
        return
    with locked(folder):
        for path in folder.glob(".*.previous"):
            with suppress(OSError):  # fails if the replacement is complete
                path.rename(folder / path.name[1:].removesuffix(".previous"))
        for suffix in ("partial", "going", "previous"):
            for path in folder.glob(f".*.{suffix}"):
                shutil.rmtree(path, ignore_errors=True)
