"""Runs and checkpoints on the disk, as trainers."""

import json
from pathlib import Path
from typing import Any

from rlox.checkpoint import MANIFEST, read_checkpoint
from rlox.trainer import Trainer


def trainers() -> dict[str, type[Trainer]]:
    """The trainers by their algorithms' names.

    >>> sorted(trainers())
    ['a2c', 'dqn', 'ppo', 'sac', 'td3']
    """
    from rlox.trainers import TRAINERS

    return dict(sorted(TRAINERS.items()))


def trainer_of(algorithm: str) -> Any:
    """The class of an algorithm's trainer."""
    return trainers()[algorithm]


def open_trainer(path: str, **how: Any) -> Trainer:
    """The trainer that was saved, whatever its algorithm.

    Args:
        path: A run folder, or a checkpoint.
        **how: As for `Trainer.load`; None stands for what was saved.

    Raises:
        FileNotFoundError, rlox.CorruptFileError, ValueError: As `Trainer.load` does.
    """
    refuse_above(Path(path))
    algorithm = _algorithm_of(Path(path))
    if algorithm not in trainers():
        # Reading says what is wrong with a file that names no algorithm, if it is not that.
        algorithm = read_checkpoint(path).manifest.get("algorithm")
    if algorithm not in trainers():
        raise ValueError(
            f"{path}: expected a checkpoint of {', '.join(trainers())}, got one of {algorithm!r}; "
            "pass another"
        )
    given = {name: value for name, value in how.items() if value is not None}
    loaded: Trainer = trainer_of(algorithm).load(path, **{"runs_dir": None, **given})
    return loaded


def run_folder(path: str) -> Path | None:
    """The run folder that a path is or lies in, if it is one of a run."""
    folder = Path(path).resolve()
    for one in (folder, folder.parent, folder.parent.parent):  # `checkpoints` lies between
        if (one / "config.json").is_file():
            return one
    return None


def refuse_above(path: Path) -> None:
    """Names the newest of the runs below a folder that is none itself."""
    if any((folder / MANIFEST).exists() for folder in (path, path / "checkpoint")):
        return
    runs = [file.parent.parent for file in path.glob(f"**/checkpoint/{MANIFEST}")]
    if runs:
        newest = max(runs, key=lambda run: (run / "checkpoint" / MANIFEST).stat().st_mtime)
        raise ValueError(
            f"{path}: expected a run folder, got one above {len(runs)} of them; pass {newest}"
        )


def _algorithm_of(path: Path) -> Any:
    for folder in (path, path / "checkpoint"):
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        return manifest.get("algorithm") if isinstance(manifest, dict) else None
    return None
