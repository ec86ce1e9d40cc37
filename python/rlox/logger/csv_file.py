"""Metrics of a run as a CSV file."""

import csv
import errno
import io
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlox.files import write_file
from rlox.metrics import ELAPSED

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer

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
        """Append a row within a second. A new metric adds a column and rewrites the file.

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
        text = io.StringIO()
        table = csv.DictWriter(text, self.columns, lineterminator="\n")
        # The file is opened for each flush, so that no handle stays open between iterations.
        with open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            if end == 0:  # the file was removed
                table.writeheader()
            table.writerows(rows)
            data = text.getvalue().encode()
            try:
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
                self._rows = []
            except BaseException:  # an interrupt, too, so that rows are written once
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
        """Return the columns and the rows of the file; an empty line if it does not exist."""
        if not self.path.exists():
            return [[]]
        with open(self.path, newline="", encoding="utf-8") as file:
            return [*csv.reader(file)] or [[]]

    def _add_columns(self, names: list[str]) -> None:
        """Replace the file by one with more columns."""
        _, *rows = self._lines()
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(self.columns + names)
        table.writerows(row + [""] * len(names) for row in rows)
        try:
            write_file(self.path, text.getvalue().encode())
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

    def start(self, trainer: "Trainer") -> None:
        """Open the file and read its columns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = MetricsFile(self.path)

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Append a row within a second."""
        self._file.log(metrics)

    def finish(self, result: "TrainResult | None") -> None:
        """Write the pending rows."""
        self._file.flush()
