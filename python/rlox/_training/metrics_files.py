"""Reading and truncation of the metrics files of a run."""

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
from rlox.learners import TIMESTEPS

Rows = dict[str, list[str | None]]


def read_metrics(file: str | Path) -> Rows:
    """Return the cells of each column by name, without an incomplete last row.

    Raises:
        FileNotFoundError: The file does not exist.
        ArgumentError: The file is not a table.
    """
    try:
        with open(file, newline="", encoding="utf-8") as opened:
            head, *rows = [*csv.reader(opened)] or [[]]
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{file}: expected the metrics of a run, got no such file; pass a run folder"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(str(file), "the metrics of a run", f"no table ({error})", "pass another run") from error
    complete_rows = [row for row in rows if len(row) == len(head)]
    return {name: [row[i] or None for row in complete_rows] for i, name in enumerate(head)}


def remove_rows_after(file: str | Path, count: int, counter: str = TIMESTEPS) -> None:
    """Remove the rows of `metrics.csv` after a checkpoint, and an incomplete last row.

    A run that was killed has rows after its last checkpoint, which the resumed run writes again.

    Args:
        file: File of the run, which is replaced atomically. Nothing happens if it does not exist.
        count: Value of the column `counter` at the checkpoint.
        counter: Name of the column.

    Raises:
        ArgumentError: The file is not a table of metrics with the column.
    """
    try:
        rows = read_metrics(file)
    except FileNotFoundError:
        return
    mask: Any = column(rows, counter, file) <= count if rows else []
    table = [[cells[i] or "" for cells in rows.values()] for i, keep in enumerate(mask) if keep]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([[*rows], *table] if rows else [])
    write_file(Path(file), buffer.getvalue().encode())


def remove_lines_after(file: str | Path, count: int, counter: str = TIMESTEPS) -> None:
    """Remove the lines of `metrics.jsonl` after a checkpoint and lines without the counter; see `remove_rows_after`."""
    try:
        lines = Path(file).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    remaining = [x for x in lines if x.endswith(b"\n") and _read_counter(x, counter) <= count]
    if remaining != lines:
        write_file(Path(file), b"".join(remaining))


def _read_counter(line: bytes, counter: str) -> float:
    """Return the counter of a line of JSON; infinity if there is none."""
    try:
        count = json.loads(line)[counter]
    except (ValueError, LookupError, TypeError, RecursionError):
        return math.inf
    return count if isinstance(count, int | float) else math.inf


def column(rows: Rows, name: str, file: str | Path) -> npt.NDArray[np.float64]:
    """Return the numbers of a column, (n,); NaN for empty cells.

    Raises:
        ArgumentError: The column does not exist, or has a cell that is not a number.
    """
    if name not in rows:
        raise ArgumentError(str(file), "one of its metrics", repr(name), hint(name, rows))
    try:
        return np.array([np.nan if cell is None else float(cell) for cell in rows[name]])
    except ValueError as error:
        raise ArgumentError(
            str(file), f"numbers in the column {name}", f"other cells ({error})", "the file is damaged"
        ) from error


def smoothed(values: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
    """Return the mean of each value and up to `rows - 1` values before it, (n,).

    >>> smoothed(np.array([1.0, 3.0, 5.0]), 2).tolist()
    [1.0, 2.0, 4.0]
    """
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - rows, 0)
    means: npt.NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means
