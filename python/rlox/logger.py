"""The run folder: what was asked for, what happened, what came out.

runs/<env>/<algorithm>/<time>-<seed>/
  config.json     settings and where each comes from, seed, versions
  metrics.csv     a row for each iteration
  checkpoint/     see `rlox.checkpoint`
  curve.png       mean return over steps
  summary.json    what `train` returned
"""

import csv
import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlox._rlox import __version__
from rlox.plotting import plot_curve

_log = logging.getLogger("rlox")


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

    @classmethod
    def make(cls, root: str | os.PathLike[str], env: str, algorithm: str, seed: int) -> "RunFolder":
        """Makes a new folder `<root>/<env>/<algorithm>/<time>-<seed>`."""
        parent = Path(root) / re.sub(r"[^\w.+-]+", "-", env) / algorithm
        parent.mkdir(parents=True, exist_ok=True)
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{seed}"
        for attempt in range(1, 1000):
            folder = parent / (name if attempt == 1 else f"{name}.{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:  # another run of the same second and seed
                continue
            return cls(folder)
        raise FileExistsError(f"{parent / name}: expected a free name, got 1000 runs in one second")

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes strict JSON: NaN, which JSON does not have, becomes null."""
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in content.items()
        }
        (self.path / name).write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n")

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends a row to `metrics.csv`; the first row decides the columns.

        Raises:
            ValueError: A metric that the first row did not have.
        """
        # Opened each time: a run can be watched, a killed one loses nothing, nothing stays open.
        with open(self.path / "metrics.csv", "a", newline="") as file:
            if not self._columns:
                self._columns = list(metrics)
                csv.writer(file, lineterminator="\n").writerow(self._columns)
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow(metrics)

    def plot(self, title: str) -> None:
        """Draws `curve.png`, or says what is missing."""
        if not self._columns:
            return
        try:
            plot_curve(self.path / "metrics.csv", self.path / "curve.png", title)
        except ModuleNotFoundError as error:
            _log.warning("no curve.png: %s", error)


def versions() -> dict[str, str]:
    """Of rlox, Python, and the packages that results depend on."""
    packages = {name: metadata.version(name) for name in ("numpy", "gymnasium", "torch")}
    return {"rlox": __version__, "python": sys.version.split()[0], **packages}
