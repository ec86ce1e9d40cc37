"""What is left behind where NaN or infinity ended a run, to find out why.

diagnosis/
  error.json      the message, the steps, and which tensors are not finite, by name
  config.json     settings and where each comes from, seed, versions
  metrics.csv     the last rows before
  checkpoint/     all that could be had of the learner, as it was then; see `rlox.checkpoint`
"""

import math
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlox._errors import StructuredError
from rlox.learner import MEMBERS, LearnerState
from rlox.logger.csv_file import MetricsFile
from rlox.logger.run_folder import write_json
from rlox.manifest import describe

if TYPE_CHECKING:
    from rlox.trainer import Trainer

FOLDER = "diagnosis"
_ROWS = 50


class Recent:
    """The last rows of metrics."""

    def __init__(self) -> None:
        self.rows: deque[Mapping[str, float]] = deque(maxlen=_ROWS)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Takes a row in."""
        self.rows.append(metrics)


def is_not_finite(error: BaseException) -> bool:
    """Whether an error says that a number is NaN or infinite.

    >>> is_not_finite(ValueError("obs: expected finite numbers, got nan from environment 1"))
    True
    >>> is_not_finite(ValueError("obs: expected 4 numbers, got 3"))
    False
    """
    said = isinstance(error, ValueError) and "expected finite number" in str(error)
    return said or isinstance(error, FloatingPointError)


@contextmanager
def diagnosed(trainer: "Trainer", recent: Recent) -> Iterator[None]:
    """Within it, errors of numbers that are not finite leave a `diagnosis` in the run folder.

    The message says where; what cannot be written is left out.
    """
    try:
        yield
    except (ValueError, FloatingPointError) as error:
        if trainer.run is not None and is_not_finite(error):
            folder = trainer.run.path / FOLDER
            with suppress(Exception):  # the error itself is the one to be told
                _write(trainer, recent, error, folder)
            if (folder / "error.json").exists():
                if isinstance(error, StructuredError):
                    error.hint = f"{error.hint}; {folder} has a diagnosis"
                else:
                    error.args = (f"{error}; {folder} has a diagnosis", *error.args[1:])
        raise


def _write(trainer: "Trainer", recent: Recent, error: Exception, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.csv").unlink(missing_ok=True)
    about: dict[str, Any] = {
        "error": type(error).__name__,
        "message": str(error),
        "timesteps": trainer.timesteps,
        "updates": getattr(trainer.learner, "updates", None),
        "not_finite": [],
        "left_out": [],
        "traceback": traceback.format_exception(error),
    }
    # First of all, should the rest fail.
    write_json(folder / "error.json", about)
    steps: dict[str, Callable[[], object]] = {
        "config.json": lambda: write_json(folder / "config.json", describe(trainer)),
        "metrics.csv": lambda: _write_rows(recent, folder / "metrics.csv"),
        "not_finite": lambda: about.update(not_finite=_not_finite(trainer.learner.state(False))),
        "checkpoint": lambda: trainer.save(folder / "checkpoint", replay=False),
    }
    for name, step in steps.items():
        if (failed := _failed(step)) is not None:
            about["left_out"].append(f"{name}: {failed}")
    write_json(folder / "error.json", about)


def _failed(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as error:
        return error
    return None


def _write_rows(recent: Recent, path: Path) -> None:
    file = MetricsFile(path)
    for row in recent.rows:
        file.log(row)
    file.flush()


def _not_finite(state: LearnerState) -> list[dict[str, Any]]:
    """The arrays of a state that hold NaN or infinity, where first, and how often."""
    found = []
    for member in MEMBERS:
        for name, array in (getattr(state, member) or {}).items():
            values = np.asarray(array)
            if values.dtype.kind != "f" or (good := np.isfinite(values)).all():
                continue
            at = np.argwhere(~good)[0].tolist()
            first = float(values[tuple(at)])
            found.append(
                {
                    "name": f"{member}.{name}",
                    "shape": list(values.shape),
                    "count": int(values.size - good.sum()),
                    "first_at": at,
                    "first": "nan" if math.isnan(first) else str(first),
                }
            )
    return found
