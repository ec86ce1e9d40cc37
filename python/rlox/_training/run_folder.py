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

import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError
from rlox._files import flush_folder, locked, make_folder, write_file
from rlox._rlox import __version__
from rlox._serialize import dumps
from rlox._validation import check_path
from rlox.logger.files import MetricsFile


class RunFolder:
    """Writer of the files of a run.

    Args:
        path: Existing folder. `metrics` appends rows to its `metrics.csv`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = RunFolder.make(root, "ALE/Pong-v5", "ppo", seed=3)
    ...     folder.metrics.log({"time/total_timesteps": 256, "rollout/ep_rew_mean": 9.5})
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
                f"runs_dir: expected a folder in which run folders can be created, got {os.fspath(root)!r}, "
                f"where the system cannot create {error.filename} ({error.strerror}); pass another path",
            ) from error
        raise FileExistsError(f"{parent / name}: expected a free name, got 1000 runs in one second")

    def lock(self) -> AbstractContextManager[None]:
        """Prevent other processes from training in the folder within the context.

        Raises:
            BlockingIOError: Another process trains in the folder.
        """
        file = self.path / "config.json"
        busy = "run: another trainer trains in the run folder; wait until it has finished"
        return locked(file, wait=False, busy=busy, owner=self.path) if file.exists() else nullcontext()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file of strict JSON; NaN and infinity become null."""
        write_json(self.path / name, content)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file of strict JSON; NaN and infinity become null."""
    write_file(file, f"{dumps(content, indent=2)}\n".encode())


def check_runs_dir(root: object) -> Path | None:
    """Return the path of a folder in which run folders can be created, or None; create nothing.

    Raises:
        ArgumentTypeError: `root` is not a path.
        ArgumentError: The path or one of its parents is not a folder, or is not writable.
    """
    path = check_path("runs_dir", root)
    if path is None:
        return None
    existing = next(x for x in (path, *path.absolute().parents) if os.path.lexists(x))
    if "\0" in str(path):
        problem = "which contains a null character"
    elif not existing.is_dir():
        problem = f"where {existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"where {existing} is not writable"
    else:
        return path
    raise ArgumentError("runs_dir", "a folder for run folders, or None", f"{root!r}, {problem}", "pass another path")


def versions() -> dict[str, str]:
    """Return the versions of rlox, Python, and the installed packages that affect results."""
    result = {"rlox": __version__, "python": sys.version.split()[0]}
    for name in ("numpy", "gymnasium", "torch"):
        with suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result
