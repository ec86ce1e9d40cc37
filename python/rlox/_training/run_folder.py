"""Run folder: the files of a run.

runs/<env>/<algorithm>/<time>-<seed>/
  config.json        settings with their origin, seed, versions
  run_options.json   options of `rlox train`, such as evaluations and loggers, for `rlox resume`
  metrics.csv        one row per iteration
  wandb.id           id of the run at Weights & Biases, with that logger; mlflow.id at MLflow
  checkpoint/        see `rlox.checkpoint`
  checkpoints/       checkpoints of `CheckpointCallback` and `EvalCallback`
  videos/            videos of `VideoRecordingCallback`
  diagnosis/         see `rlox._training.diagnosis`; only after NaN or infinity
  curve.png          mean return over steps
  summary.json       result of `train`
"""

import json
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


class RunFolder:
    """Writer of the files of a run.

    Args:
        path: Existing folder; new rows are appended to its `metrics.csv`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = RunFolder.make(root, "ALE/Pong-v5", "ppo", seed=3)
    ...     folder.log({"time/total_timesteps": 256, "rollout/ep_rew_mean": 9.5})
    ...     (folder.path / "metrics.csv").read_text().split()
    ['time/total_timesteps,rollout/ep_rew_mean', '256,9.5']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = MetricsFile(path / "metrics.csv")

    @classmethod
    def make(cls, root: str | os.PathLike[str], task: str, algorithm: str, seed: int) -> "RunFolder":
        """Create a new folder `<root>/<task>/<algorithm>/<time>-<seed>`.

        Raises:
            OSError: The folder cannot be created.
        """
        parent = Path(root) / re.sub(r"[^\w.+-]+", "-", task) / algorithm
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
                f"runs_dir: expected a folder in which run folders can be created, got "
                f"{os.fspath(root)!r}, where the system cannot create {error.filename} "
                f"({error.strerror}); pass another path",
            ) from error
        raise FileExistsError(f"{parent / name}: expected a free name, got 1000 runs in one second")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Prevent other processes from training in the folder during the block.

        Raises:
            BlockingIOError: Another process trains in the folder.
        """
        file = self.path / "config.json"
        with ExitStack() as stack:
            if file.exists():
                try:
                    stack.enter_context(locked(file, wait=False))
                except BlockingIOError as error:
                    raise BlockingIOError(
                        error.errno,
                        "run: another trainer trains in the run folder; wait until it has finished",
                        os.fspath(self.path),
                    ) from error
            yield

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file of strict JSON; NaN and infinity become null."""
        write_json(self.path / name, content)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append a row to `metrics.csv` within a second; see `MetricsFile.log`.

        Raises:
            OSError: Rows cannot be written; the next call tries again.
        """
        self.metrics.log(metrics)

    def flush(self) -> None:
        """Write the pending rows.

        Raises:
            OSError: The rows cannot be written, and remain pending.
        """
        self.metrics.flush()


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file of strict JSON; NaN and infinity become null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in content.items()
    }
    write_file(file, f"{json.dumps(plain, indent=2, allow_nan=False)}\n".encode())


def check_runs_dir(root: object) -> Path | None:
    """Return the path of a folder in which run folders can be created, or None; create nothing.

    Raises:
        ArgumentTypeError: `root` is not a path.
        ArgumentError: The path or one of its parents is not a folder, or is not writable.
    """
    if root is None:
        return None
    expected = "a folder for run folders, or None"
    if not isinstance(root, str | os.PathLike) or not isinstance(os.fspath(root), str):
        raise ArgumentTypeError("runs_dir", expected, repr(root), "pass a str or a pathlib.Path")
    path = Path(root)
    existing = next(x for x in (path, *path.absolute().parents) if os.path.lexists(x))
    is_usable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if "\0" in os.fspath(root):
        got = f"{root!r}, which contains a null character"
        raise ArgumentError("runs_dir", expected, got, "pass another path")
    if not is_usable:
        reason = "is not writable" if existing.is_dir() else "is not a folder"
        got = f"{root!r}, where {existing} {reason}"
        raise ArgumentError("runs_dir", expected, got, "pass another path")
    return path


def versions() -> dict[str, str]:
    """Return the versions of rlox, Python, and the installed packages that affect results."""
    result = {"rlox": __version__, "python": sys.version.split()[0]}
    for name in ("numpy", "gymnasium", "torch"):
        with suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result
