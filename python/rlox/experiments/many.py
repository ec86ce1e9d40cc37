"""Many runs side by side: seeds, settings, or both, each equal to the same run done alone."""

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlox._concurrency import InterruptScope, stop_on_interrupt
from rlox._errors import ArgumentError, ArgumentTypeError, StructuredError, one_line
from rlox._registry import ALGORITHMS
from rlox._system import threads
from rlox._training.hooks import Callback
from rlox._training.results import CTRL_C, TrainResult
from rlox._validation import check_bool, check_int, hint, short_repr
from rlox.callbacks.base import as_callbacks
from rlox.experiments._jobs import (
    RunOutcome,
    RunOutcomes,
    TrainJob,
    run_in_processes,
    run_in_threads,
)
from rlox.learners._backends import Backend
from rlox.logger.base import as_loggers
from rlox.trainers import EnvLike, Trainer

Runner = Callable[[Sequence[TrainJob], int, InterruptScope], RunOutcomes]
Callbacks = Callable[[], Sequence[Callback | Callable[[Trainer, dict[str, float]], object]]]
ResultCallback = Callable[[int, RunOutcome], object]


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
    """Checked runs of `train_many`."""

    jobs: list[TrainJob]
    workers: int
    runner: Runner  # runs the jobs side by side
    scope: InterruptScope = field(default_factory=InterruptScope)

    def train(self, on_result: ResultCallback | None = None) -> list[TrainResult]:
        """Train as `train_many` does."""
        outcomes: dict[int, RunOutcome] = {}
        running = closing(self.runner(self.jobs, self.workers, self.scope))
        with stop_on_interrupt(self.scope.stop), running as finished:
            for index, outcome in finished:
                outcomes[index] = outcome
                if on_result is not None:
                    on_result(index, outcome)
        results: list[TrainResult | None] = []
        errors: dict[int, BaseException] = {}
        for index in range(len(self.jobs)):
            outcome = outcomes.get(index, not_started())
            if isinstance(outcome, BaseException):
                errors[index] = outcome
            results.append(None if isinstance(outcome, BaseException) else outcome)
        if errors:
            raise RunsFailedError(_describe_failures(self.jobs, errors), results, errors)
        return [result for result in results if result is not None]


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
    on_result: ResultCallback | None = None,
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
        on_result: Called with the index of each run that has ended and its result or error.
        **common: What all trainers are made with: settings, `env_kwargs`, `policy` and others.

    Returns:
        A result for each run, in the order of the settings and their seeds.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError, OSError: An argument is wrong, or
            no trainer takes it, before anything is trained.
        rlox.experiments.many.RunsFailedError: Runs failed; the others have ended as if they had
            not. It names the seeds and what was wrong, and has the other runs' `results`.

    >>> results = train_many("ppo", "CartPole-v1", seeds=[1, 2], total_timesteps=512, runs_dir=None)
    >>> [result["timesteps"] for result in results]
    [512, 512]
    """
    checked = make_runs(
        algorithm,
        env,
        seeds,
        total_timesteps,
        settings=settings,
        workers=workers,
        processes=processes,
        callbacks=callbacks,
        loggers=loggers,
        backend=backend,
        runs_dir=runs_dir,
        **common,
    )
    if on_result is not None and not callable(on_result):
        raise ArgumentTypeError(
            "on_result", "a function or None", short_repr(on_result), "pass print"
        )
    return checked.train(on_result)


def make_runs(
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
    runner: Runner | None = None,
    **common: Any,
) -> Runs:
    """Check the arguments of `train_many` and return its runs.

    Args:
        runner: What runs the jobs side by side; None: threads or processes.
    """
    trainer_class = _trainer_class(algorithm)
    steps = check_int("total_timesteps", total_timesteps, 1)
    seeds = _check_seeds(seeds)
    variants = _check_variants(settings, common)
    count = (
        threads() if workers is None else check_int("workers", workers, 1, fix="pass None for all")
    )
    if processes is not None:
        processes = check_bool("processes", processes)
    _check_shared(env, callbacks, loggers, folder=common.get("runs_dir", "runs") is not None)
    variant_jobs = {}  # the first job of each variant, by the section that errors name
    jobs = []
    for index, variant in enumerate(variants):
        arguments = {**common, **variant}
        names = tuple(loggers)
        seed_jobs = [
            TrainJob(trainer_class, env, seed, steps, arguments, callbacks, names) for seed in seeds
        ]
        variant_jobs[None if settings is None else f"settings[{index}]"] = seed_jobs[0]
        jobs += seed_jobs
    backends = {_backend_of(job, section) for section, job in variant_jobs.items()}
    if "torch" in backends if processes is None else processes:
        processes = True
        for section, job in variant_jobs.items():
            _check_picklable(job, section)
    runner = runner or (run_in_processes if processes else run_in_threads)
    return Runs(jobs, min(count, threads(), len(jobs)), runner)


def not_started() -> TrainResult:
    """Return the result of a run that an interrupt kept from starting."""
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
        "checkpoint_warning": None,
    }
    return nothing


def _trainer_class(algorithm: Any) -> type[Trainer]:
    """Return the trainer class of an algorithm, by its name or as it is."""
    if isinstance(algorithm, type) and issubclass(algorithm, Trainer) and algorithm is not Trainer:
        return algorithm
    if isinstance(algorithm, str):
        if algorithm.lower() in ALGORITHMS:
            return ALGORITHMS[algorithm.lower()].load_trainer()
        raise ArgumentError(
            "algorithm", "a trainer's name", repr(algorithm), hint(algorithm, ALGORITHMS)
        )
    raise ArgumentTypeError(
        "algorithm",
        f"a name ({', '.join(ALGORITHMS)}) or a trainer's class",
        short_repr(algorithm),
        "pass 'ppo'",
    )


def _check_seeds(seeds: Any) -> list[int]:
    """Return seeds as plain integers, each once."""
    if isinstance(seeds, str | bytes | Mapping) or not isinstance(seeds, Iterable):
        raise ArgumentTypeError("seeds", "integers", short_repr(seeds), "pass range(10)")
    checked: list[int] = []
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ArgumentTypeError("seeds", "integers", short_repr(seed), "pass range(10)")
        if seed < 0:
            raise ArgumentError(
                "seeds", "integers of at least 0", short_repr(seed), "pass range(10)"
            )
        if int(seed) in checked:
            raise ArgumentError("seeds", "each once", f"{seed} twice", "leave one out")
        checked.append(int(seed))
    if not checked:
        raise ArgumentError("seeds", "at least one", "none", "pass range(10)")
    return checked


def _check_variants(settings: Any, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the dicts of `settings`, which have no seed, env, backend or folder."""
    if "seed" in common:
        raise ArgumentTypeError(
            "seed", "the seeds of all runs", f"one, {short_repr(common['seed'])}", "pass seeds="
        )
    if settings is None:
        return [{}]
    if isinstance(settings, str | Mapping) or not isinstance(settings, Sequence):
        raise ArgumentTypeError(
            "settings", "a list of dicts", short_repr(settings), "pass [{'gamma': 0.98}]"
        )
    if not settings:
        raise ArgumentError("settings", "at least one dict", "none", "pass None for one run")
    for index, variant in enumerate(settings):
        if not isinstance(variant, Mapping) or not all(isinstance(n, str) for n in variant):
            raise ArgumentTypeError(
                "settings",
                "dicts of settings by name",
                short_repr(variant),
                "pass [{'gamma': 0.98}]",
                section=f"settings[{index}]",
            )
        for name in ("seed", "env", "backend", "runs_dir"):
            if name in variant:
                raise ArgumentTypeError(
                    name,
                    "a setting of the algorithm",
                    "an argument of all runs",
                    f"pass {('seeds' if name == 'seed' else name)} to train_many",
                    section=f"settings[{index}]",
                )
    return [dict(variant) for variant in settings]


def _check_shared(env: Any, callbacks: Any, loggers: Any, *, folder: bool) -> None:
    """Check what runs share: makers of environments and callbacks, and names of loggers."""
    if isinstance(env, VectorEnv | gym.Env):
        raise ArgumentError(
            "env",
            "an id, a spec or a function that makes an environment, as each run has its own",
            short_repr(env),
            "pass lambda: ...",
        )
    if callbacks is not None:
        if not callable(callbacks):
            raise ArgumentTypeError(
                "callbacks",
                "a function that makes a run's callbacks",
                short_repr(callbacks),
                "pass lambda: [EvalCallback(10_000)]",
            )
        as_callbacks(callbacks())
    names = [loggers] if isinstance(loggers, str) else loggers
    if isinstance(names, Sequence) and not all(isinstance(name, str) for name in names):
        other = next(name for name in names if not isinstance(name, str))
        raise ArgumentTypeError(
            "loggers", "names, as each run has its own", short_repr(other), "pass 'jsonl'"
        )
    as_loggers(loggers, folder=folder)


def _check_picklable(job: TrainJob, section: str | None) -> None:
    """Check that a job can be sent to another process."""
    try:
        pickle.dumps(job)
    except Exception as error:
        raise ArgumentTypeError(
            "processes",
            "an env, callbacks and settings that processes can be sent, which are functions of a "
            "module's own",
            f"some that cannot ({error})",
            "name them with def at the top of a module",
            section=section,
        ) from error


def _backend_of(job: TrainJob, section: str | None) -> str:
    """Return the backend of a job's trainer, and raise what the trainer refuses."""
    try:
        with job.make_trainer() as trainer:
            return str(trainer.learner.backend)
    except StructuredError as error:
        error.section = section
        raise


def _describe_failures(jobs: Sequence[TrainJob], errors: Mapping[int, BaseException]) -> str:
    several = len({job.seed for job in jobs}) < len(jobs)
    failures = []
    for index, error in errors.items():
        run = f"run {index}, " if several else ""
        failures.append(f"{run}seed {jobs[index].seed}: {one_line(error)}")
    return (
        f"{len(errors)} of {len(jobs)} runs failed ({'; '.join(failures)}); `results` of this "
        "error has the others"
    )
