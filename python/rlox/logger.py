"""The run folder: what was asked for, what happened, what came out.

runs/<env>/<algorithm>/<time>-<seed>/
  config.json     settings and where each comes from, seed, versions
  metrics.csv     a row for each iteration, of very many some
  checkpoint/     see `rlox.checkpoint`
  curve.png       mean return over steps
  summary.json    what `train` returned
"""

import csv
import errno
import io
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlox._rlox import __version__
from rlox.plotting import plot_curve

_log = logging.getLogger("rlox")

# Seconds between two writings of metrics.
EVERY = 1.0


@dataclass
class _Waiting:
    """Rows to be written, and where in the file they begin: known once writing them has begun."""

    rows: list[Mapping[str, float]] = field(default_factory=list)
    begin: int | None = None


class RunFolder:
    """Writes what a run leaves behind.

    Args:
        path: An existing folder; rows go after those that are in its `metrics.csv`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     run = RunFolder.make(root, "ALE/Pong-v5", "ppo", seed=3)
    ...     run.log({"time/total_timesteps": 256, "rollout/ep_rew_mean": 9.5})
    ...     (run.path / "metrics.csv").read_text().split()
    ['time/total_timesteps,rollout/ep_rew_mean', '256,9.5']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []
        self._told = 0
        self._waiting = _Waiting()
        self._written = -math.inf
        if (path / "metrics.csv").exists():
            with open(path / "metrics.csv", newline="") as file:
                self._columns = next(csv.reader(file), [])

    @classmethod
    def make(cls, root: str | os.PathLike[str], env: str, algorithm: str, seed: int) -> "RunFolder":
        """Makes a new folder `<root>/<env>/<algorithm>/<time>-<seed>`.

        Raises:
            OSError: The folder cannot be made.
        """
        parent = Path(root) / re.sub(r"[^\w.+-]+", "-", env) / algorithm
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{seed}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 1000):
                folder = parent / (name if attempt == 1 else f"{name}.{attempt}")
                with suppress(FileExistsError):  # another run of the same second and seed
                    folder.mkdir()
                    return cls(folder)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"runs_dir: expected where run folders can be made, got {os.fspath(root)!r}, where "
                f"the system does not make {error.filename} ({error.strerror}); pass another path",
            ) from error
        raise FileExistsError(f"{parent / name}: expected a free name, got 1000 runs in one second")

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes strict JSON: NaN, which JSON does not have, becomes null."""
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in content.items()
        }
        (self.path / name).write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n")

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends a row to `metrics.csv`, within a second; the first row decides the columns.

        After 10,000 rows only every tenth is kept, after 100,000 every hundredth, and so on.

        Raises:
            ValueError: A metric that the first row did not have.
            OSError: Rows cannot be written; the next call tries again.
        """
        self._columns = self._columns or list(metrics)
        if unknown := [name for name in metrics if name not in self._columns]:
            raise ValueError(
                f"metrics: expected those of the first row, got {unknown[0]!r}; log it in every row"
            )
        told = self._told + 1
        if told % 10 ** max(len(str(told)) - 5, 0) == 0:
            self._waiting.rows.append(dict(metrics))
        self._told = told
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
        table = csv.DictWriter(text, self._columns, lineterminator="\n")
        # Opened each time: a run can be watched, and nothing stays open.
        with open(self.path / "metrics.csv", "ab", buffering=0) as file:
            end = file.tell()
            if waiting.begin is not None and waiting.begin < end:  # a flush was cut off
                end = file.truncate(waiting.begin)
            waiting.begin = end
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

    def plot(self, title: str) -> None:
        """Draws `curve.png`, or says what is missing."""
        self.flush()
        if not self._columns:
            return
        try:
            plot_curve(self.path / "metrics.csv", self.path / "curve.png", title)
        except Exception as error:  # a picture ends no run
            _log.warning("no curve.png: %s", error)


def expect_root(root: Any) -> Path | None:
    """Where run folders can be made, or None for nowhere. Nothing is made yet.

    Raises:
        TypeError: It is no path.
        ValueError: It is, or lies below, something that is no folder or cannot be written.
    """
    if root is None:
        return None
    expected = "runs_dir: expected a folder to make run folders in, or None"
    if not isinstance(root, str | os.PathLike) or not isinstance(os.fspath(root), str):
        raise TypeError(f"{expected}, got {root!r}; pass a str or a pathlib.Path")
    path = Path(root)
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if "\0" in os.fspath(root):
        raise ValueError(f"{expected}, got {root!r}, which no system has; pass another path")
    if not usable:
        why = "cannot be written" if there.is_dir() else "is no folder"
        raise ValueError(f"{expected}, got {root!r}, where {there} {why}; pass another path")
    return path


def versions() -> dict[str, str]:
    """Of rlox, Python, and the packages that results depend on, as far as they are installed."""
    said = {"rlox": __version__, "python": sys.version.split()[0]}
    for name in ("numpy", "gymnasium", "torch"):
        with suppress(metadata.PackageNotFoundError):
            said[name] = metadata.version(name)
    return said
