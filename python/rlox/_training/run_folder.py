"""The run folder: what was asked for, what happened, what came out.

runs/<env>/<algorithm>/<time>-<seed>/
  config.json     settings and where each comes from, seed, versions
  run_options.json     of `rlox train`: evaluations, loggers and so on, with which it is resumed
  metrics.csv     one row per iteration
  wandb.id        which run it is at Weights & Biases, with that logger; mlflow.id at MLflow
  checkpoint/     see `rlox.checkpoint`
  checkpoints/    those that callbacks make, see `rlox.rotation`
  videos/         those of `VideoRecordingCallback`
  diagnosis/      where NaN or infinity ended the run, see `rlox.diagnosis`
  curve.png       mean return over steps
  summary.json    what `train` returned
"""

import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._files import flush_folder, locked, make_folder, write_file
from rlox._rlox import __version__
from rlox.logger.files import MetricsFile
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
        self.metrics = MetricsFile(path / "metrics.csv")

    @classmethod
    def make(cls, root: str | os.PathLike[str], env: str, algorithm: str, seed: int) -> "RunFolder":
        """Makes a new folder `<root>/<env>/<algorithm>/<time>-<seed>`.

        Raises:
            OSError: The folder cannot be made.
        """
        parent = Path(root) / re.sub(r"[^\w.+-]+", "-", env) / algorithm
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{seed}"
        try:
            make_folder(parent)
            for attempt in range(1, 1000):
                folder = parent / (name if attempt == 1 else f"{name}.{attempt}")
                with suppress(FileExistsError):  # another run of the same second and seed
                    folder.mkdir()
                    flush_folder(parent)
                    return cls(folder)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"runs_dir: expected where run folders can be made, got {os.fspath(root)!r}, where "
                f"the system does not make {error.filename} ({error.strerror}); pass another path",
            ) from error
        raise FileExistsError(f"{parent / name}: expected a free name, got 1000 runs in one second")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training here meanwhile.

        Raises:
            BlockingIOError: One does already.
        """
        file = self.path / "config.json"
        with ExitStack() as stack:
            if file.exists():
                try:
                    stack.enter_context(locked(file, wait=False))
                except BlockingIOError as error:
                    raise BlockingIOError(
                        error.errno,
                        "run: expected a run folder in which nobody trains, got one in which "
                        "another trainer does; wait for its end",
                        os.fspath(self.path),
                    ) from error
            yield

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes strict JSON: NaN, which JSON does not have, becomes null."""
        write_json(self.path / name, content)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends a row to `metrics.csv`, within a second; see `MetricsFile.log`.

        Raises:
            OSError: Rows cannot be written; the next call tries again.
        """
        self.metrics.log(metrics)

    def flush(self) -> None:
        """Writes the rows that wait.

        Raises:
            OSError: They cannot be written, and go on waiting.
        """
        self.metrics.flush()

    def read_service_id(self, service: str) -> str | None:
        """The id that the run has where a service keeps it; None if it has none there yet."""
        try:
            return (self.path / f"{service}.id").read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def write_service_id(self, service: str, run: str) -> None:
        """Writes down the id that a service gave the run, for when it is resumed.

        Raises:
            OSError: It cannot be written.
        """
        (self.path / f"{service}.id").write_text(f"{run}\n", encoding="utf-8")

    def plot(self, title: str) -> None:
        """Draws `curve.png`, or says what is missing."""
        if not self.metrics.columns:
            return
        try:
            self.flush()
            plot_curve(self.path / "metrics.csv", self.path / "curve.png", title)
        except Exception as error:  # a picture ends no run
            _log.warning("no curve.png: %s", error)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes strict JSON: NaN, which JSON does not have, becomes null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in content.items()
    }
    write_file(file, f"{json.dumps(plain, indent=2, allow_nan=False)}\n".encode())


def check_runs_dir(root: Any) -> Path | None:
    """Where run folders can be made, or None for nowhere. Nothing is made yet.

    Raises:
        TypeError: It is no path.
        ValueError: It is, or lies below, something that is no folder or cannot be written.
    """
    if root is None:
        return None
    expected = "a folder to make run folders in, or None"
    if not isinstance(root, str | os.PathLike) or not isinstance(os.fspath(root), str):
        raise ArgumentTypeError("runs_dir", expected, repr(root), "pass a str or a pathlib.Path")
    path = Path(root)
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if "\0" in os.fspath(root):
        got = f"{root!r}, which no system has"
        raise ArgumentError("runs_dir", expected, got, "pass another path")
    if not usable:
        why = "cannot be written" if there.is_dir() else "is no folder"
        got = f"{root!r}, where {there} {why}"
        raise ArgumentError("runs_dir", expected, got, "pass another path")
    return path


def versions() -> dict[str, str]:
    """Of rlox, Python, and the packages that results depend on, as far as they are installed."""
    result = {"rlox": __version__, "python": sys.version.split()[0]}
    for name in ("numpy", "gymnasium", "torch"):
        with suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result
