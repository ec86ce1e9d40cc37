"""Diagnosis of a run that ended because a number was NaN or infinite.

diagnosis/
  error.json      the error with its attributes, the time step, and the tensors that are not finite
  checkpoint/     the learner's state at that moment, without its replay buffer
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlox._errors import NonFiniteError
from rlox._training.run import Run
from rlox._training.run_folder import write_json
from rlox.learners import MEMBERS, LearnerState

FOLDER = "diagnosis"


@contextmanager
def write_diagnosis_on_error(run: Run) -> Iterator[None]:
    """Write `diagnosis/` into the run folder if a number that is not finite ends the block."""
    try:
        yield
    except NonFiniteError as error:
        if run.path is not None:
            with suppress(Exception):  # the run's own error is raised
                _write(run, run.path / FOLDER, error)
                error.diagnosis = str(run.path / FOLDER)
        raise


def _write(run: Run, folder: Path, error: NonFiniteError) -> None:
    folder.mkdir(exist_ok=True)
    report: dict[str, Any] = {
        "error": type(error).__name__,
        "message": str(error),
        **vars(error),
        "timesteps": run.budget_used,
        "not_finite": _not_finite(run.learner.state(False)),
        "traceback": traceback.format_exception(error),
    }
    write_json(folder / "error.json", report)
    run.save(folder / "checkpoint", replay=False)


def _not_finite(state: LearnerState) -> list[dict[str, Any]]:
    """Return the arrays of a state that are not finite: name, shape, count and first index."""
    found = []
    for member in MEMBERS:
        for name, array in (getattr(state, member) or {}).items():
            values = np.asarray(array)
            if values.dtype.kind != "f" or (good := np.isfinite(values)).all():
                continue
            at = np.argwhere(~good)[0].tolist()
            found.append(
                {
                    "name": f"{member}.{name}",
                    "shape": list(values.shape),
                    "count": int(values.size - good.sum()),
                    "first_at": at,
                    "first": str(values[tuple(at)]),
                }
            )
    return found
