"""What callbacks that write files have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlox._errors import ArgumentError
from rlox.warning import warn

if TYPE_CHECKING:
    from rlox.trainers import Trainer


def folder_for(trainer: "Trainer", path: Path | None, name: str, what: str) -> Path:
    """Where files lie: at `path`, or in the run folder, under `name`.

    Raises:
        ValueError: There is neither.
    """
    if path is not None:
        return path
    if trainer.run is None:
        raise ArgumentError(
            "path",
            f"where {what} shall lie, as there is no run folder",
            "None",
            "pass path=, or a runs_dir to the trainer",
        )
    return trainer.run.path / name


@contextmanager
def going_on(trainer: "Trainer", what: str, every: int) -> Iterator[None]:
    """Lets a run go on where there is no room for a file; a warning says so."""
    try:
        yield
    except (OSError, MemoryError) as error:
        warn(
            f"no {what} after {trainer.timesteps:,} steps ({error}); the run goes on, and tries "
            f"again in {every:,}"
        )
