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

FOLDER, LATEST, BEST, SCORES = "checkpoints", "latest", "best", "scores.json"
_STEP = re.compile(r"step-(\d{9,})")
_MANIFEST = "manifest.json"


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


def replace_text(file: Path, text: str) -> None:
    """Writes a file, whole or not at all, and onto the disk.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def note_latest(folder: Path, name: str) -> None:
    """Has `latest` name a checkpoint.

    Raises:
        OSError: It cannot be written.
    """
    replace_text(folder / LATEST, name + "\n")


def read_scores(folder: Path) -> dict[str, float]:
    """How good checkpoints are, by name; nothing where that is not known."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        saved = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        return {str(name): float(score) for name, score in saved.items()}
    return {}


def note_score(folder: Path, name: str, score: float) -> None:
    """Notes how good a checkpoint is, and forgets those that are gone.

    Raises:
        OSError: It cannot be written.
    """
    scores = {n: x for n, x in read_scores(folder).items() if (folder / n).exists()}
    if math.isfinite(score):
        scores[name] = score
    replace_text(folder / SCORES, json.dumps(scores, indent=2) + "\n")


def prune(folder: Path, keep_last: int | None, keep_best: bool) -> None:
    """Removes the oldest checkpoints of steps.

    Args:
        folder: Theirs.
        keep_last: How many of the newest stay; None: all.
        keep_best: Whether the one with the highest score stays beside them.
    """
    there = steps_in(folder)
    if keep_last is None:
        return
    known = {name: x for name, x in read_scores(folder).items() if _STEP.fullmatch(name)}
    best = max(known, key=lambda name: known[name], default=None) if keep_best else None
    for path in there[: max(len(there) - keep_last, 0)]:
        if path.name != best:
            # Under another name first: what is half removed is no checkpoint.
            going = path.with_name(f".{path.name}.going")
            shutil.rmtree(going, ignore_errors=True)
            with suppress(OSError):
                os.replace(path, going)
                shutil.rmtree(going, ignore_errors=True)


def newest(run: Path) -> Path | None:
    """The checkpoint of a run folder that has the most steps; None where there is none.

    >>> newest(Path("no such run")) is None
    True
    """
    final = run / "checkpoint"
    if not final.exists():  # killed while it was replaced
        final = run / ".checkpoint.previous"
    found = [*steps_in(run / FOLDER), final]
    there = [(_steps_of(path), path) for path in found if (path / _MANIFEST).is_file()]
    return max(there, key=lambda one: (one[0], one[1] == final), default=(0, None))[1]


def _steps_of(checkpoint: Path) -> int:
    named = _STEP.fullmatch(checkpoint.name)
    if named is not None:
        return int(named[1])
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads((checkpoint / _MANIFEST).read_bytes())
        return int(manifest["counters"]["timesteps"])
    return 0
