"""Concurrent training of many seeds and settings."""

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlox._concurrency import InterruptScope, stop_on_interrupt
from rlox._errors import ArgumentError, ArgumentTypeError, StructuredError, one_line
from rlox._registry import ALGORITHMS
from rlox._system import threads
from rlox._training.results import TrainResult
from rlox._training.run import CTRL_C, Callback, Run
from rlox._validation import check_bool, check_int, check_str, short_repr
from rlox.callbacks.base import as_callbacks
from rlox.envs._make import EnvLike
from rlox.experiments._jobs import RunOutcome, RunOutcomes, TrainJob, run_in_processes, run_in_threads
from rlox.learners._backends import Backend
from rlox.logger.base import as_loggers
from rlox.trainers import Trainer, load_trainer

Runner = Callable[[Sequence[TrainJob], int, InterruptScope], RunOutcomes]
Callbacks = Callable[[], Sequence[Callback | Callable[[Run, dict[str, float]], object]]]
ResultCallback = Callable[[int, RunOutcome], object]


class RunsFailedError(RuntimeError):
    """Some runs of `train_many` failed; the text names their seeds and errors.

    Attributes:
        results: Results in the order of the runs; None for failed runs.
        errors: Errors of the failed runs, by the index of the run.
    """

    def __init__(self, message: str, results: list[TrainResult | None], errors: dict[int, BaseException]) -> None:
        super().__init__(message)
        self.results = results
        self.errors = errors

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.results, self.errors)


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
    """Train an algorithm with many seeds, many settings or both, several runs at a time.

    Each run has the same results as if it were trained alone, except for measured times. Native
    learners train in threads of this process. PyTorch has one generator and one number of threads
    per process, so torch learners train in worker processes. A script must then call `train_many`
    below `if __name__ == "__main__":`, as Python's `multiprocessing` requires. Each process uses
    the number of cores divided by `workers` as torch threads, which affects the rounding of large
    networks.

    Ctrl-C ends all runs. Each run saves its checkpoint and summary, and `train_many` returns the
    results. In results with missing steps, `interrupted` is True. Runs that had not started have no
    folder and 0 steps. A second Ctrl-C raises KeyboardInterrupt.

    Args:
        algorithm: "ppo", "a2c", "impala", "dqn", "sac", "td3", or a trainer class.
        env: Environment as for the trainer, but not an existing environment.
        seeds: Different seeds; each is used by one run per variant.
        total_timesteps: Environment steps per run, summed over its environments.
        settings: Variants, each a dict of fields of the algorithm's config. Every variant runs with
            every seed. None: one variant, with the settings in `common`.
        workers: Number of runs at a time, at most the number of usable CPUs; None: all of them.
        processes: True: worker processes, for which arguments must be picklable; False: threads;
            None: worker processes if a run uses the torch backend, else threads.
        runs_dir: Folder of the run folders; None: nothing is written.
        backend: Backend as for the trainer.
        callbacks: Function that returns the callbacks of one run. The function is called for each
            run in its thread or process, and once before training as a check.
        loggers: Names of loggers; each run creates its own.
        on_result: Called with the index of each finished run and its result or error.
        **common: Arguments of all trainers, such as settings, `env_kwargs` and `policy`.

    Returns:
        Result of each run, in the order of the variants and, within a variant, of the seeds.

    Raises:
        ArgumentError: An argument is out of range.
        ArgumentTypeError: An argument has a wrong type, is unknown or cannot be pickled.
        ModuleNotFoundError: A package of the environment, backend or a logger is not installed.
        MemoryError: A trainer does not fit into memory.
        rlox.experiments.many.RunsFailedError: Some runs failed, and the others finished. The
            errors above are raised before training.

    >>> results = train_many("ppo", "CartPole-v1", seeds=[1, 2], total_timesteps=512, runs_dir=None)
    >>> [result["timesteps"] for result in results]
    [512, 512]
    """
    return train_runs(
        algorithm,
        env,
        seeds,
        total_timesteps,
        settings=settings,
        workers=workers,
        processes=processes,
        callbacks=callbacks,
        loggers=loggers,
        on_result=on_result,
        backend=backend,
        runs_dir=runs_dir,
        **common,
    )


def train_runs(
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
    on_result: ResultCallback | None = None,
    runner: Runner | None = None,
    **common: Any,
) -> list[TrainResult]:
    """Train as `train_many` does; `runner` is a function that runs the jobs, None: the default."""
    trainer_class = _trainer_class(algorithm)
    steps = check_int("total_timesteps", total_timesteps, 1)
    seeds = _check_seeds(seeds)
    variants = _check_variants(settings, common)
    count = threads() if workers is None else check_int("workers", workers, 1, fix="pass None for all CPUs")
    if processes is not None:
        processes = check_bool("processes", processes)
    if on_result is not None and not callable(on_result):
        raise ArgumentTypeError(
            "on_result", "a function of (index, result) or None", short_repr(on_result), "pass print"
        )
    _check_shared(env, callbacks, loggers, folder=common.get("runs_dir", "runs") is not None)
    variant_jobs = {}  # the first job of each variant, by the section that errors name
    jobs = []
    for index, variant in enumerate(variants):
        arguments = {**common, **variant}
        names = tuple(loggers)
        seed_jobs = [TrainJob(trainer_class, env, seed, steps, arguments, callbacks, names) for seed in seeds]
        variant_jobs[None if settings is None else f"settings[{index}]"] = seed_jobs[0]
        jobs += seed_jobs
    backends = {_backend_of(job, section) for section, job in variant_jobs.items()}
    if "torch" in backends if processes is None else processes:
        processes = True
        for section, job in variant_jobs.items():
            _check_picklable(job, section)
    runner = runner or (run_in_processes if processes else run_in_threads)
    outcomes = [_not_started() for _ in jobs]
    scope = InterruptScope()
    running = closing(runner(jobs, min(count, threads(), len(jobs)), scope))
    with stop_on_interrupt(scope.stop), running as finished:
        for index, outcome in finished:
            outcomes[index] = outcome
            if on_result is not None:
                on_result(index, outcome)
    return _get_results(jobs, outcomes)


def _get_results(jobs: Sequence[TrainJob], outcomes: Sequence[RunOutcome]) -> list[TrainResult]:
    """Return the results of all runs; raise RunsFailedError if a run failed."""
    errors = {index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)}
    results = [None if isinstance(outcome, BaseException) else outcome for outcome in outcomes]
    if errors:
        raise RunsFailedError(_describe_failures(jobs, errors), results, errors)
    return [result for result in results if result is not None]


def _not_started() -> RunOutcome:
    """Return the result of a run that an interrupt prevented from starting."""
    nan = float("nan")
    return {
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


def _trainer_class(algorithm: object) -> type[Trainer]:
    """Return the trainer class of an algorithm from its name or the class itself."""
    if isinstance(algorithm, type) and issubclass(algorithm, Trainer) and algorithm is not Trainer:
        return algorithm
    name = algorithm.lower() if isinstance(algorithm, str) else algorithm
    return load_trainer(ALGORITHMS[check_str("algorithm", name, tuple(ALGORITHMS))])


def _check_seeds(seeds: object) -> list[int]:
    """Return seeds as plain integers without repetition."""
    if isinstance(seeds, str | bytes | Mapping) or not isinstance(seeds, Iterable):
        raise ArgumentTypeError("seeds", "a list of integers", short_repr(seeds), "pass range(10)")
    checked: list[int] = []
    for seed in seeds:
        plain = check_int("seeds", seed, 0, fix="pass range(10)")
        if plain in checked:
            raise ArgumentError("seeds", "each seed once", f"{seed} twice", "remove one of them")
        checked.append(plain)
    if not checked:
        raise ArgumentError("seeds", "at least one seed", "none", "pass range(10)")
    return checked


def _check_variants(settings: object, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the variants after a check that they contain no arguments of `train_many`."""
    if "seed" in common:
        raise ArgumentTypeError("seed", "no argument", short_repr(common["seed"]), "pass seeds=...")
    if settings is None:
        return [{}]
    if isinstance(settings, str | Mapping) or not isinstance(settings, Sequence):
        raise ArgumentTypeError("settings", "a list of dicts", short_repr(settings), "pass [{'gamma': 0.98}]")
    if not settings:
        raise ArgumentError("settings", "at least one dict", "none", "pass None for one variant")
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
                    f"pass {('seeds' if name == 'seed' else name)}=... to train_many",
                    section=f"settings[{index}]",
                )
    return [dict(variant) for variant in settings]


def _check_shared(env: object, callbacks: object, loggers: object, *, folder: bool) -> None:
    """Check the arguments that all runs share: env, callbacks and loggers."""
    if isinstance(env, VectorEnv | gym.Env):
        raise ArgumentError(
            "env",
            "an id, a spec or a function that creates an environment for each run",
            short_repr(env),
            "pass lambda: ...",
        )
    if callbacks is not None:
        if not callable(callbacks):
            raise ArgumentTypeError(
                "callbacks",
                "a function that returns the callbacks of a run",
                short_repr(callbacks),
                "pass lambda: [EvalCallback(10_000)]",
            )
        as_callbacks(callbacks())
    if isinstance(loggers, str) or not isinstance(loggers, Sequence):
        raise ArgumentTypeError("loggers", "a list of names", short_repr(loggers), "pass ['jsonl']")
    instances = [x for x in loggers if not isinstance(x, str)]
    if instances:
        raise ArgumentTypeError(
            "loggers", "names, as each run creates its own loggers", short_repr(instances[0]), "pass 'jsonl'"
        )
    as_loggers(loggers, folder=folder)


def _check_picklable(job: TrainJob, section: str | None) -> None:
    """Check that a job can be sent to another process."""
    try:
        pickle.dumps(job)
    except Exception as error:
        raise ArgumentTypeError(
            "processes",
            "an env, callbacks and settings that can be pickled",
            f"arguments that cannot be pickled ({error})",
            "define functions and classes at the top level of a module",
            section=section,
        ) from error


def _backend_of(job: TrainJob, section: str | None) -> str:
    """Return the backend of a job's trainer; errors name the variant as their section."""
    try:
        with job.make_trainer() as trainer:
            return str(trainer.learner.backend)
    except StructuredError as error:
        error.section = error.section or section
        raise


def _describe_failures(jobs: Sequence[TrainJob], errors: Mapping[int, BaseException]) -> str:
    has_variants = len({job.seed for job in jobs}) < len(jobs)
    failures = []
    for index, error in errors.items():
        run = f"run {index}, " if has_variants else ""
        failures.append(f"{run}seed {jobs[index].seed}: {one_line(error)}")
    return (
        f"{len(errors)} of {len(jobs)} runs failed ({'; '.join(failures)}); the attribute "
        "`results` has the results of the others"
    )
