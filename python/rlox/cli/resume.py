"""`rlox resume RUN`: a run goes on where it stood, in its own folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rlox._errors import ArgumentError
from rlox.cli.around import Around, surroundings, take_kept
from rlox.cli.outcome import tell_training
from rlox.cli.saved import open_trainer, run_folder
from rlox.cli.usage import POSITIONAL, named, parse
from rlox.restoring import go_on_in
from rlox.settings import whole


@dataclass
class _Run:
    run: Annotated[str, POSITIONAL, named("RUN")]
    """Run folder, or a checkpoint."""
    total_timesteps: Annotated[int | None, named("N", hint="")] = None
    """steps to make from here; else those that are left"""
    env: Annotated[str | None, named("ENV", hint="")] = None
    """id of the environment, in the place of the saved one"""
    backend: Annotated[str | None, named("NAME", hint="")] = None
    """what computes the networks; else what did"""
    device: Annotated[str | None, named("NAME", hint="")] = None
    """where the networks live; else where they were"""
    actors: Annotated[str | None, named("PLACE", hint="")] = None
    """where actors work, grpc://host:port for instance; else where they did"""
    runs_dir: Annotated[str, named("DIR")] = "runs"
    """where a checkpoint that lies in no run gets one"""
    progress: bool = True  # show progress on stderr
    json: bool = False  # print what came of it as JSON


@dataclass
class Resume(Around, _Run):
    """Go on with a run, to where it was to end or for more steps, and with what surrounded it."""


def run(words: Sequence[str]) -> int:
    """Trains on, and tells what came of it."""
    asked = parse(Resume, "resume", words)
    if asked.total_timesteps is not None:  # before anything of the run changes
        whole("total_timesteps", asked.total_timesteps, 1, fix="say how many steps to make")
    how = {name: getattr(asked, name) for name in ("env", "backend", "device", "actors")}
    with open_trainer(asked.run, runs_dir=asked.runs_dir, **how) as trainer:
        done = trainer.timesteps >= trainer.target_timesteps
        if asked.total_timesteps is None and done:
            raise ArgumentError(
                "RUN",
                "a run that was stopped",
                f"one that made all its {trainer.timesteps:,} steps",
                "add --total-timesteps 100_000 for more",
            )
        folder = run_folder(asked.run, trainer)
        if folder is not None:
            take_kept(asked, folder, words)
        about = surroundings(asked)
        if folder is not None:
            go_on_in(trainer, folder)
        result = trainer.train(asked.total_timesteps, progress_bar=asked.progress, **about)
        return tell_training(trainer, result, as_json=asked.json)
