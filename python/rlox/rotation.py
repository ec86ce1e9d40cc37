"""The checkpoints of a run folder while it runs: which are kept, and which is the newest.

checkpoints/
  step-000100000/   see `rlox.checkpoint`; the number is that of the environment steps
  best/             that of the best evaluation, see `rlox.callbacks.EvalCallback`
  latest            a line: the name of the newest one
  scores.json       what is known of how good they are, by name
"""

import json
import math
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from rlox.files import locked, write_file

FOLDER, LATEST, BEST, SCORES = "checkpoints", "latest", "best", "scores.json"
FINAL = "checkpoint"
_STEP = re.compile(r"step-(\d{9,})")
_MANIFEST, _CONFIG = "manifest.json", "config.json"
# What reading JSON that is not as it was written may raise.
_DAMAGED = (
    *(OSError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError),
    RecursionError,
)


def step_name(timesteps: int) -> str:
    """The name of a checkpoint after so many environment steps; names sort as steps do.

    >>> step_name(100_000)
    'step-000100000'
    """
    return f"step-{timesteps:09d}"


def steps_in(folder: Path) -> list[Path]:
    """The checkpoints of steps in a folder, the oldest first."""
    found = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def note_latest(folder: Path, name: str) -> None:
    """Has `latest` name a checkpoint.

    Raises:
        OSError: It cannot be written.
    """
    write_file(folder / LATEST, f"{name}\n".encode())


def read_scores(folder: Path) -> dict[str, float]:
    """How good checkpoints are, by name; nothing where that is not known."""
    with suppress(*_DAMAGED):
        saved = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        return {str(name): float(score) for name, score in saved.items()}
    return {}


def note_score(folder: Path, name: str, score: float) -> None:
    """Notes how good a checkpoint is, and forgets those that are gone.

    Raises:
        OSError: It cannot be written.
    """
    scores = read_scores(folder)
    if math.isfinite(score):
        scores[name] = score
    _write_scores(folder, scores)


def _write_scores(folder: Path, scores: dict[str, float]) -> None:
    there = {name: score for name, score in scores.items() if (folder / name).exists()}
    write_file(folder / SCORES, f"{json.dumps(there, indent=2)}\n".encode())


def prune(folder: Path, written: str, keep_last: int | None, keep_best: bool) -> None:
    """Removes the oldest checkpoints of steps.

    Args:
        folder: Theirs.
        written: The name of the one written last, which stays.
        keep_last: How many of the newest stay; None: all.
        keep_best: Whether the one with the highest score stays beside them.
    """
    there = steps_in(folder)
    if keep_last is None:
        return
    known = {name: x for name, x in read_scores(folder).items() if _STEP.fullmatch(name)}
    best = max(known, key=lambda name: known[name], default=None) if keep_best else None
    for path in there[: max(len(there) - keep_last, 0)]:
        if path.name not in (best, written):
            # Under another name first: what is half removed is no checkpoint.
            going = path.with_name(f".{path.name}.going")
            shutil.rmtree(going, ignore_errors=True)
            with suppress(OSError):
                os.replace(path, going)
                shutil.rmtree(going, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Removes what a killed process left half written or half removed; nothing whole is lost."""
    if not folder.is_dir():
        return
    with locked(folder):
        for left in folder.glob(".*.previous"):
            with suppress(OSError):  # that one was replaced by
                left.rename(folder / left.name[1:].removesuffix(".previous"))
        for ending in ("partial", "going", "previous"):
            for left in folder.glob(f".*.{ending}"):
                shutil.rmtree(left, ignore_errors=True)


def check_no_newer(run: Path, timesteps: int) -> None:
    """Check that a run folder has no checkpoint of more environment steps.

    Args:
        run: The run folder.
        timesteps: Environment steps of the checkpoint that training resumes from.

    Raises:
        FileExistsError: It has one; training would overwrite it.
    """
    newer = newest(run)
    if newer is not None and steps_of(newer) > timesteps:
        raise FileExistsError(
            f"{newer}: this checkpoint is newer than the one to resume from ({steps_of(newer)} "
            f"against {timesteps} environment steps); resume from it, move it elsewhere, or train "
            "in another run folder"
        )


def newest(run: Path) -> Path | None:
    """The checkpoint of a run folder that has the most steps; None where there is none.

    >>> newest(Path("no such run")) is None
    True
    """
    final = run / FINAL
    if not final.exists():  # killed while it was replaced
        final = run / f".{FINAL}.previous"
    found = [*steps_in(run / FOLDER), final]
    there = [(steps_of(path), path) for path in found if (path / _MANIFEST).is_file()]
    return max(there, key=lambda one: (one[0], one[1] == final), default=(0, None))[1]


def steps_of(checkpoint: Path) -> int:
    """The environment steps of a checkpoint, by its name or its manifest; 0 where none tells."""
    named = _STEP.fullmatch(checkpoint.name)
    if named is not None:
        return int(named[1])
    with suppress(*_DAMAGED):
        manifest = json.loads((checkpoint / _MANIFEST).read_bytes())
        return int(manifest["counters"]["timesteps"])
    return 0


def no_checkpoint(path: Path) -> str | None:
    """What there is in the place of a checkpoint, and what to do; None where there may be one."""
    if not path.exists():
        return "does not exist; pass where one is"
    if path.is_file():
        return "is a file; pass the folder of a checkpoint"
    names = {file.name for file in path.iterdir()}
    if _MANIFEST in names:
        return None
    if _CONFIG in names:
        return (
            f"is a run that ended before its first one; begin it again with rlox train --config "
            f"{path / _CONFIG}, and --checkpoint-every N where it may be killed"
        )
    if not any(name.endswith(".safetensors") for name in names):
        return f"{'has no' if names else 'is empty, without'} {_MANIFEST}; pass where one is"
    return None
