"""Loggers that write to the console, to CSV files and to JSON lines."""

import csv
import errno
import io
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rlox._files import write_file
from rlox._serialize import dumps
from rlox._validation import check_path
from rlox.logger.base import ELAPSED, EVERY, IntervalLogger, RunInfo


class ConsoleLogger(IntervalLogger):
    """Logger that prints rows as tables.

    Args:
        every: Environment steps between two tables; 1: all rows.
        stream: Stream to write to; None: stdout.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: `every` is not an integer.
    """

    def __init__(self, every: int = 10_000, stream: TextIO | None = None) -> None:
        super().__init__(every)
        self._stream = stream

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a table."""
        stream = sys.stdout if self._stream is None else self._stream
        stream.write(format_table(metrics) + "\n")
        stream.flush()


def format_table(metrics: Mapping[str, float]) -> str:
    """Return metrics as the lines of a table, without NaN.

    >>> metrics = {"time/fps": 1000.0, "train/loss": 0.5, "time/total_timesteps": 25600}
    >>> print(format_table(metrics), end="")
    | time/fps             |  1000 |
    | time/total_timesteps | 25600 |
    | train/loss           |   0.5 |
    """
    cells = {name: _format_number(x) for name, x in sorted(metrics.items()) if not math.isnan(x)}
    name_width, value_width = (max(map(len, column), default=0) for column in (cells, cells.values()))
    return "".join(f"| {name:<{name_width}} | {x:>{value_width}} |\n" for name, x in cells.items())


def _format_number(value: float) -> str:
    """Return integers in full, and other numbers with four significant digits."""
    is_integer = float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if is_integer else f"{value:.4g}"


FLUSH_SECONDS = 1.0


class MetricsFile:
    """CSV file of metrics that can be read while it grows.

    Args:
        path: Path of the file. New rows are appended to an existing file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = MetricsFile(Path(folder) / "metrics.csv")
    ...     file.log({"time/total_timesteps": 256, "rollout/ep_rew_mean": 9.5})
    ...     file.log({"time/total_timesteps": 512, "eval/mean_reward": 20.0})
    ...     file.flush()
    ...     file.path.read_text().split()
    ['time/total_timesteps,rollout/ep_rew_mean,eval/mean_reward', '256,9.5,', '512,,20.0']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.elapsed = 0.0
        """Seconds of training until the last row."""
        self._rows: list[Mapping[str, float]] = []
        self._flushed = -math.inf
        if path.exists():
            self._read()

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append a row. A new metric adds a column and rewrites the file.

        Rows are written to the file at most once per second, and by `flush`.

        Raises:
            OSError: The rows cannot be written; the next call tries again.
        """
        self.elapsed = metrics.get(ELAPSED, self.elapsed)
        self._rows.append(dict(metrics))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows.

        Raises:
            OSError: The rows cannot be written and stay pending; the file is unchanged.
        """
        if not self._rows:
            return
        rows = self._rows
        names = dict.fromkeys(name for row in rows for name in row)
        if new := [name for name in names if name not in set(self.columns)]:
            self._add_columns(new)
        buffer = io.StringIO()
        table = csv.DictWriter(buffer, self.columns, lineterminator="\n")
        # The file is opened for each flush, so that no handle stays open between iterations.
        with open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            if end == 0:  # the file was removed
                table.writeheader()
            table.writerows(rows)
            data = buffer.getvalue().encode()
            try:
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
                self._rows = []
            except BaseException:  # including interrupts, so that no row is written twice
                self._rows = rows
                file.truncate(end)
                raise
        self._flushed = time.monotonic()

    def _read(self) -> None:
        """Read the columns and the elapsed time, and remove a last row that was cut off."""
        data = self.path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)
        self.columns, *rows = self._lines()
        for row in reversed(rows):
            elapsed = dict(zip(self.columns, row, strict=False)).get(ELAPSED)
            if elapsed:
                self.elapsed = float(elapsed)
                return

    def _lines(self) -> list[list[str]]:
        """Return the columns and the rows of the file; [[]] if it does not exist."""
        if not self.path.exists():
            return [[]]
        with open(self.path, newline="", encoding="utf-8") as file:
            return [*csv.reader(file)] or [[]]

    def _add_columns(self, names: list[str]) -> None:
        """Replace the file by one with more columns."""
        _, *rows = self._lines()
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        table.writerow(self.columns + names)
        table.writerows(row + [""] * len(names) for row in rows)
        try:
            write_file(self.path, buffer.getvalue().encode())
        finally:  # an interrupt may come after the file was replaced
            self.columns = self._lines()[0] or self.columns


class CSVLogger:
    """Logger that writes a CSV file outside the run folder, which always has `metrics.csv`.

    Args:
        path: Path of the file. New rows are appended to an existing file.

    >>> CSVLogger("metrics.csv").path.name
    'metrics.csv'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start(self, info: RunInfo) -> None:
        """Open the file and read its columns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = MetricsFile(self.path)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a row; see `MetricsFile.log`."""
        self._file.log(metrics)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Write the pending rows."""
        self._file.flush()


class JSONLinesLogger(IntervalLogger):
    """Logger that writes a line of strict JSON per row; NaN and infinity become null.

    Args:
        path: Path of the file; None: `metrics.jsonl` in the run folder. New lines are appended to an existing file.
        every: Environment steps between two lines; 1: all rows.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: An argument has a wrong type.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, every: int = EVERY) -> None:
        super().__init__(every)
        self.path = check_path("path", path)

    def start(self, info: RunInfo) -> None:
        """Choose the file, and create its folder."""
        super().start(info)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path or info.file("metrics.jsonl")

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a line to the file."""
        line = dumps(metrics) + "\n"
        # Opened for each line, so that no handle stays open and no line is buffered.
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(line)
