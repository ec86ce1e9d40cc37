"""A run's `metrics.csv`, read as columns of numbers."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._files import write_file
from rlox._validation import hint

METRIC, STEPS, ELAPSED = "rollout/ep_rew_mean", "time/total_timesteps", "time/time_elapsed"
# What numbers the rows of a run, also of one that was resumed.
ITERATIONS = "time/iterations"
Rows = dict[str, list[str | None]]


def read_metrics(file: str | Path) -> Rows:
    """The words of each column, by its name. A last row that is still being written is left out.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no table.
    """
    try:
        with open(file, newline="", encoding="utf-8") as opened:
            head, *rows = [*csv.reader(opened)] or [[]]
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{file}: expected the metrics of a run, got no such file; pass a run folder"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(
            str(file), "the metrics of a run", f"no table ({error})", "pass another run"
        ) from error
    complete_rows = [row for row in rows if len(row) == len(head)]
    return {name: [row[i] or None for row in complete_rows] for i, name in enumerate(head)}


def remove_rows_after(file: str | Path, timesteps: int) -> None:
    """Leaves out the rows of steps that a run makes again, and a last one that was cut off.

    A run that was killed has rows of steps beyond its last checkpoint.

    Args:
        file: Of the run; nothing happens if there is none. It is replaced whole or not at all.
        timesteps: Those of the checkpoint.

    Raises:
        ValueError: It is no table of metrics with a column of steps.
    """
    try:
        rows = read_metrics(file)
    except FileNotFoundError:
        return
    mask: Any = column(rows, STEPS, file) <= timesteps if rows else []
    table = [[cells[i] or "" for cells in rows.values()] for i, keep in enumerate(mask) if keep]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([[*rows], *table] if rows else [])
    write_file(Path(file), buffer.getvalue().encode())


def remove_lines_after(file: str | Path, timesteps: int) -> None:
    """As `remove_rows_after`, of JSON lines; lines that are none, and tell of no steps, go too.

    Args:
        file: Of the run; nothing happens if there is none. It is replaced whole or not at all.
        timesteps: Those of the checkpoint.
    """
    try:
        lines = Path(file).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    remaining = [line for line in lines if line.endswith(b"\n") and _steps_of(line) <= timesteps]
    if remaining == lines:
        return
    write_file(Path(file), b"".join(remaining))


def _steps_of(line: bytes) -> float:
    try:
        steps = json.loads(line)[STEPS]
    except (ValueError, LookupError, TypeError, RecursionError):
        return math.inf
    return steps if isinstance(steps, int | float) else math.inf


def column(rows: Rows, name: str, file: str | Path) -> npt.NDArray[np.float64]:
    """The numbers of a column, (n,); NaN where a row has none.

    Raises:
        ValueError: There is no such column, or it has a word that is no number.
    """
    if name not in rows:
        raise ArgumentError(str(file), "one of its metrics", repr(name), hint(name, rows))
    try:
        return np.array([np.nan if word is None else float(word) for word in rows[name]])
    except ValueError as error:
        raise ArgumentError(
            str(file), f"numbers as {name}", f"other ({error})", "the file is damaged"
        ) from error


def smoothed(values: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
    """The mean of each value and the `rows - 1` before it, (n,); of fewer where there are not.

    >>> smoothed(np.array([1.0, 3.0, 5.0]), 2).tolist()
    [1.0, 2.0, 4.0]
    """
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - rows, 0)
    means: npt.NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means
