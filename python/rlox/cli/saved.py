"""Runs and checkpoints on the disk, as trainers."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError
from rlox.checkpoint import MANIFEST, read_checkpoint
from rlox.diagnosis import FOLDER as DIAGNOSIS
from rlox.manifest import NoEnvironmentError
from rlox.rotation import FOLDER as CHECKPOINTS
from rlox.trainer import Trainer


def trainers() -> dict[str, type[Trainer]]:
    """The trainers by their algorithms' names.

    >>> sorted(trainers())
    ['a2c', 'dqn', 'impala', 'ppo', 'sac', 'td3']
    """
    from rlox.trainers import TRAINERS

    return dict(sorted(TRAINERS.items()))


def trainer_of(algorithm: str) -> Any:
    """The class of an algorithm's trainer."""
    return trainers()[algorithm]


def open_trainer(path: str, *, instead: str | None = None, **how: Any) -> Trainer:
    """The trainer that was saved, whatever its algorithm.

    Args:
        path: A run folder, or a checkpoint.
        instead: Id of an environment, for where the saved one has none.
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
        raise ArgumentError(
            str(path),
            f"a checkpoint of {', '.join(trainers())}",
            f"one of {algorithm!r}",
            "pass another",
        )
    given = {name: value for name, value in how.items() if value is not None}
    load: Callable[..., Trainer] = partial(trainer_of(algorithm).load, path)
    given = {"runs_dir": None, **given}
    try:
        return load(**given)
    except NoEnvironmentError as error:
        if instead is None:
            raise NoEnvironmentError(
                "--env: expected an environment's id, as the run was made without one, got none; "
                "add --env ID"
            ) from error
    return load(**given, env=instead)


def run_folder(path: str, trainer: Trainer) -> Path | None:
    """The run folder that a path is or lies in, if it is that of a trainer's run.

    Folders of other programs may have a `config.json`, too: that of the run names the trainer's
    algorithm and seed.

    Args:
        path: `RUN`, `RUN/checkpoint` or `RUN/checkpoints/NAME`.
        trainer: What was loaded from there.
    """
    folder = Path(path).resolve()
    if folder.name == "checkpoint":
        folder = folder.parent
    elif folder.parent.name == CHECKPOINTS:
        folder = folder.parent.parent
    about = json_of(folder / "config.json")
    versions = about.get("versions")
    ours = isinstance(versions, dict) and "rlox" in versions
    same = (about.get("algorithm"), about.get("seed")) == (trainer.algorithm, trainer.seed)
    return folder if ours and same and folder.name != DIAGNOSIS else None


def refuse_above(path: Path) -> None:
    """Names the newest of the runs below a folder that is none itself."""
    if any((folder / MANIFEST).exists() for folder in (path, path / "checkpoint")):
        return
    found = (file.parent.parent for file in path.glob(f"**/checkpoint/{MANIFEST}"))
    runs = [run for run in found if run.name != DIAGNOSIS]
    if runs:
        newest = max(runs, key=lambda run: (run / "checkpoint" / MANIFEST).stat().st_mtime)
        raise ArgumentError(
            str(path), "a run folder", f"one above {len(runs)} of them", f"pass {newest}"
        )


def _algorithm_of(path: Path) -> Any:
    for folder in (path, path / "checkpoint"):
        if manifest := json_of(folder / MANIFEST):
            return manifest.get("algorithm")
    return None


def json_of(file: Path) -> dict[str, Any]:
    """What a JSON file says by names; nothing where it is none, or is not there."""
    try:
        content = json.loads(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
