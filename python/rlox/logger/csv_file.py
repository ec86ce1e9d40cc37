"""Rows of metrics in a CSV file, whose columns may become more."""

import csv
import errno
import io
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlox.metrics import ELAPSED, ITERATIONS

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer

# Seconds between two writings.
EVERY = 1.0


class _Number:
    """The number of a row in its run: by its iteration, whoever opened the file in between.

    Where iterations begin to count anew, as with each call of `train`, the numbers go on.
    """

    def __init__(self) -> None:
        self._before, self._last, self._number = 0, 0, 0

    def of(self, iteration: float | None) -> int:
        """That of the next row.

        Args:
            iteration: What the row says; None where it says nothing.
        """
        if iteration is None:
            self._number += 1
            return self._number
        if iteration <= self._last:
            self._before = self._number
        self._last = int(iteration)
        # No less than one more, should some rows have said nothing.
        self._number = max(self._before + self._last, self._number + 1)
        return self._number


@dataclass
class _Waiting:
    """Rows to be written, and where in the file they begin: known once writing them has begun."""

    rows: list[Mapping[str, float]] = field(default_factory=list)
    begin: int | None = None


class MetricsFile:
    """A CSV file that can be watched while it grows.

    Args:
        path: Of the file; rows go after those that are in it.

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
        self._usual: frozenset[str] = frozenset()
        self._number = _Number()
        self._waiting = _Waiting()
        self._written = -math.inf
        self.elapsed = 0.0
        """Seconds of training until the last row."""
        if path.exists():
            self._go_on()

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends a row, within a second.

        After 10,000 rows only every tenth is kept, after 100,000 every hundredth, and so on; but
        all with a metric that the first row did not have. Rows count by `time/iterations`, so that
        the file of a run that was resumed is that of one that was not. A new metric is a column
        from then on, for which the file is written anew once.

        Raises:
            OSError: Rows cannot be written; the next call tries again.
        """
        self._usual = self._usual or frozenset(metrics)
        self.elapsed = metrics.get(ELAPSED, self.elapsed)
        told = self._number.of(metrics.get(ITERATIONS))
        if told % 10 ** max(len(str(told)) - 4, 0) == 0 or not metrics.keys() <= self._usual:
            known = {*self.columns}
            self.columns += [name for name in metrics if name not in known]
            self._waiting.rows.append(dict(metrics))
        if time.monotonic() - self._written >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait.

        Raises:
            OSError: They cannot be written, and go on waiting.
        """
        waiting = self._waiting
        if not waiting.rows:
            return
        text = io.StringIO()
        table = csv.DictWriter(text, self.columns, lineterminator="\n")
        # Opened each time: a run can be watched, and nothing stays open.
        with open(self.path, "ab", buffering=0) as file:
            if waiting.begin is not None and waiting.begin < file.tell():  # a flush was cut off
                file.truncate(waiting.begin)
        # What is in the file is whole from here on, whichever way it is written anew.
        waiting.begin = None
        self._widen()
        with open(self.path, "ab", buffering=0) as file:
            end = waiting.begin = file.tell()
            if end == 0:
                table.writeheader()
            table.writerows(waiting.rows)
            rows = text.getvalue().encode()
            try:
                if file.write(rows) < len(rows):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
            except OSError:
                file.truncate(end)
                raise
            # One assignment: Ctrl-C comes before it or after it, never to rows half forgotten.
            self._waiting = _Waiting()
        self._written = time.monotonic()

    def _go_on(self) -> None:
        """Finds out what is in the file: its columns, what its first row has, how far it counts.

        A row that was cut off is removed, so that the next one does not go on with its number.
        """
        data = self.path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)
        with open(self.path, newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            self.columns = next(rows, [])
            for words in rows:
                if len(words) != len(self.columns):
                    continue
                row = dict(zip(self.columns, words, strict=True))
                if not self._usual:
                    self._usual = frozenset(name for name, cell in row.items() if cell)
                self._number.of(_number(row.get(ITERATIONS, "")))
                self.elapsed = _number(row.get(ELAPSED, "")) or self.elapsed

    def _header(self) -> list[str]:
        with open(self.path, newline="", encoding="utf-8") as file:
            return next(csv.reader(file), [])

    def _widen(self) -> None:
        """Gives the file the columns that are new, by another that takes its place."""
        header = self._header()
        if not header or header == self.columns:
            return
        wider = self.path.with_name(f"{self.path.name}.wider")
        more = [""] * (len(self.columns) - len(header))
        try:
            with (
                open(self.path, newline="", encoding="utf-8") as old,
                open(wider, "w", newline="", encoding="utf-8") as new,
            ):
                table, rows = csv.writer(new, lineterminator="\n"), csv.reader(old)
                next(rows)
                table.writerow(self.columns)
                table.writerows(row + more for row in rows)
            os.replace(wider, self.path)
        finally:
            wider.unlink(missing_ok=True)


def _number(word: str) -> float | None:
    """What a cell says; None where it is no finite number."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class CSVLogger:
    """Writes a CSV file elsewhere than into the run folder, which always has `metrics.csv`.

    Args:
        path: Of the file; rows go after those that are in it.

    >>> CSVLogger("metrics.csv").path.name
    'metrics.csv'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start(self, trainer: "Trainer") -> None:
        """Looks which columns there are."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = MetricsFile(self.path)

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes a row within a second."""
        self._file.log(metrics)

    def finish(self, result: "TrainResult | None") -> None:
        """Writes what waits."""
        self._file.flush()
