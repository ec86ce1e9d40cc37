"""Many runs side by side: seeds, settings, or both, each equal to the same run done alone."""

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from rlox._errors import ArgumentTypeError, StructuredError
from rlox.backends import Backend
from rlox.callbacks import Callback
from rlox.interrupt import Group, stop_on_interrupt
from rlox.machine import threads
from rlox.many.arguments import (
    checked_seeds,
    checked_variants,
    expect_callbacks,
    expect_loggers,
    expect_pickled,
    expect_shareable,
    known_trainer,
)
from rlox.many.in_processes import in_processes
from rlox.many.in_threads import in_threads
from rlox.many.job import Came, Job
from rlox.results import CTRL_C, TrainResult
from rlox.settings import flag, shown, whole
from rlox.trainer import EnvLike, Trainer

Every = Callable[[Sequence[Job], int, Group], Generator[tuple[int, Came], None, None]]
Callbacks = Callable[[], Sequence[Callback | Callable[[Trainer, dict[str, float]], object]]]
Tell = Callable[[int, Came], object]


class RunsFailedError(RuntimeError):
    """Some of many runs failed; the message names their seeds and why."""

    def __init__(
        self, message: str, results: list[TrainResult | None], errors: dict[int, BaseException]
    ) -> None:
        super().__init__(message)
        self.results = results  # in the order of the runs; None for those that failed
        self.errors = errors  # of those, by their place among the runs

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.results, self.errors)


@dataclass(frozen=True)
class Runs:
    """What `train_many` trains, checked; `train` does it."""

    jobs: list[Job]
    workers: int
    every: Every  # how they are trained side by side
    group: Group = field(default_factory=Group)

    def train(self, tell: Tell | None = None) -> list[TrainResult]:
        """As `train_many`."""
        ended: dict[int, Came] = {}
        running = closing(self.every(self.jobs, self.workers, self.group))
        with stop_on_interrupt(self.group.stop), running as ended_runs:
            for number, came in ended_runs:
                ended[number] = came
                if tell is not None:
                    tell(number, came)
        results = [ended.get(number, not_begun()) for number in range(len(self.jobs))]
        errors = {n: one for n, one in enumerate(results) if isinstance(one, BaseException)}
        whole_ones = [None if isinstance(one, BaseException) else one for one in results]
        if errors:
            raise RunsFailedError(_failures(self.jobs, errors), whole_ones, errors)
        return [one for one in whole_ones if one is not None]


def train_many(
    algorithm: str | type[Trainer],
    env: EnvLike,
    seeds: Iterable[int],
    total_timesteps: int,
    *,
    settings: Sequence[Mapping[str, Any]] | None = None,
    workers: int | None = None,
    processes: bool | None = None,
    runs_dir: str | os.PathLike[str] | None = "runs",
    backend: Backend = "auto",
    callbacks: Callbacks | None = None,
    loggers: Sequence[str] = (),
    tell: Tell | None = None,
    **common: Any,
) -> list[TrainResult]:
    """Trains an algorithm with many seeds, settings or both, side by side over the cores.

    Each run is equal to the one that its trainer does alone, whatever the others do and however
    many there are at once, but for what a clock says. Native learners train in threads of this
    process. Torch has one generator and one number of threads for a whole process, so its learners
    train in processes of their own; a program that starts them does so below
    `if __name__ == "__main__":`, as Python's `multiprocessing` asks. Where torch takes several
    threads, for large networks, their number is the cores over the workers, and decides rounding.

    Ctrl-C ends all runs as it ends `Trainer.train`: each saves its checkpoint and summary, and the
    results are returned, with `interrupted` where steps are missing; runs that had not begun have
    no folder and 0 steps. A second one raises `KeyboardInterrupt`.

    Args:
        algorithm: "ppo", "a2c", "impala", "dqn", "sac", "td3", or a trainer's class.
        env: As for the trainer, but for environments already made, which cannot be shared.
        seeds: One run for each, no two the same.
        total_timesteps: Of each run, as `Trainer.train` has it.
        settings: Fields of the algorithm's config, a dict for each variant: every variant runs with
            every seed, the first one's seeds first. None: one variant, that of `common`.
        workers: How many train at once; None, and at most: as many as there are cores.
        processes: Whether each worker is a process, which pays for native learners on machines with
            many cores; what is passed must then be what pickle takes. None: where torch trains.
        runs_dir: Where each run makes its folder; None: nothing is written.
        backend: As for the trainer.
        callbacks: Makes the callbacks of a run; called for each, in the thread or process that
            trains it, and once before, to see that it does.
        loggers: Names, as for `Trainer.train`; each run has loggers of its own.
        tell: Called with the number of each run that has ended, counted from 0, and its result, or
            its error.
        **common: What all trainers are made with: settings, `env_kwargs`, `policy` and others.

    Returns:
        A result for each run, in the order of the settings and their seeds.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError, OSError: An argument is wrong, or
            no trainer takes it, before anything is trained.
        rlox.many.RunsFailedError: Runs failed; the others have ended as if they had not. It names
            the seeds and what was wrong, and has the other runs' `results`.

    >>> results = train_many("ppo", "CartPole-v1", seeds=[1, 2], total_timesteps=512, runs_dir=None)
    >>> [result["timesteps"] for result in results]
    [512, 512]
    """
    about = {"backend": backend, "runs_dir": runs_dir, **common}
    asked = runs(
        algorithm,
        env,
        seeds,
        total_timesteps,
        settings=settings,
        workers=workers,
        processes=processes,
        callbacks=callbacks,
        loggers=loggers,
        **about,
    )
    if tell is not None and not callable(tell):
        raise ArgumentTypeError("tell", "a function or None", shown(tell), "pass print")
    return asked.train(tell)


def runs(
    algorithm: str | type[Trainer],
    env: EnvLike,
    seeds: Iterable[int],
    total_timesteps: int,
    *,
    settings: Sequence[Mapping[str, Any]] | None = None,
    workers: int | None = None,
    processes: bool | None = None,
    callbacks: Callbacks | None = None,
    loggers: Sequence[str] = (),
    every: Every | None = None,
    **common: Any,
) -> Runs:
    """What `train_many` is to do, checked; the arguments are those of it.

    What trains side by side may be another than threads or processes: `every`.
    """
    kind, steps = known_trainer(algorithm), whole("total_timesteps", total_timesteps, 1)
    each, variants = checked_seeds(seeds), checked_variants(settings, common)
    count = threads() if workers is None else whole("workers", workers, 1, fix="pass None for all")
    apart = None if processes is None else flag("processes", processes, fix="pass one of them")
    expect_shareable(env)
    expect_callbacks(callbacks)
    expect_loggers(loggers, folder=common.get("runs_dir", "runs") is not None)
    on_torch = False
    for number, variant in enumerate(variants):
        told = None if settings is None else f"settings[{number}]"
        on_torch |= _backend_of(kind, env, each[0], {**common, **variant}, told) == "torch"
    jobs = [
        Job(kind, env, seed, steps, {**common, **variant}, callbacks, tuple(loggers))
        for variant in variants
        for seed in each
    ]
    apart = on_torch if apart is None else apart
    if apart:
        for number, job in enumerate(jobs[:: len(each)]):
            expect_pickled(job, None if settings is None else f"settings[{number}]")
    every = every or (in_processes if apart else in_threads)
    return Runs(jobs, min(count, threads(), len(jobs)), every)


def not_begun() -> TrainResult:
    """The result of a run that an interrupt came before."""
    nan = float("nan")
    nothing: TrainResult = {
        "mean_reward": nan,
        "mean_length": nan,
        "episodes": 0,
        "timesteps": 0,
        "sps": nan,
        "seconds": 0.0,
        "interrupted": True,
        "stopped_by": CTRL_C,
        "run_dir": None,
        "left_out": None,
    }
    return nothing


def _backend_of(
    kind: type[Trainer], env: Any, seed: int, about: dict[str, Any], told: str | None
) -> str:
    """The backend on which such a trainer trains; what it refuses is refused."""
    try:
        with kind(env, seed, **about) as trainer:
            return str(trainer.learner.backend)
    except (TypeError, ValueError) as error:
        if told is None or type(error) not in (TypeError, ValueError):
            if told is not None and isinstance(error, StructuredError):
                error.argument = f"{told}: {error.argument}"
            raise
        raise type(error)(f"{told}: {error}") from error


def _failures(jobs: Sequence[Job], errors: Mapping[int, BaseException]) -> str:
    several = len({repr(sorted(job.about.items(), key=str)) for job in jobs}) > 1
    said = []
    for number, error in errors.items():
        which = (
            f"run {number}, seed {jobs[number].seed}" if several else f"seed {jobs[number].seed}"
        )
        said.append(f"{which}: {type(error).__name__}: {' '.join(str(error).split())}")
    return (
        f"runs: expected all {len(jobs)} to end, got {len(errors)} that failed "
        f"({'; '.join(said)}); `results` of this error has the others"
    )
