"""Concurrent runs of `train_many` and of sweeps, in threads or in worker processes."""

import math
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from rlox._concurrency import InterruptScope
from rlox._errors import one_line
from rlox._processes import Pool, Report
from rlox._registry import ENCODERS
from rlox._system import threads
from rlox._training.results import TrainResult
from rlox._training.run import Callback, Run
from rlox.callbacks.evaluation import EvalCallback
from rlox.envs._make import EnvLike
from rlox.evaluation import evaluation_seed
from rlox.trainers import Trainer

# Seconds to wait for threads. Python aborts if a thread still runs native code at exit.
_GRACE = 5.0
# Seconds between two checks for signals.
_POLL = 0.5
# Arguments that may be torch modules, of which each run trains a copy.
_MODULES = ("policy", "features_extractor")
# A run's result, or the error that ended the run.
RunOutcome = TrainResult | BaseException
RunOutcomes = Generator[tuple[int, RunOutcome], None, None]


@dataclass(frozen=True)
class TrainJob:
    """Arguments for one run: those of the trainer and those of `Trainer.train`."""

    trainer_class: type[Trainer]
    env: EnvLike
    seed: int
    total_timesteps: int
    arguments: dict[str, Any] = field(default_factory=dict)  # of the trainer, including settings
    callbacks: Callable[[], Sequence[Any]] | None = None
    loggers: tuple[str, ...] = ()
    # Registered encoders of observations, which another process lacks.
    encoders: dict[Any, Any] = field(default_factory=ENCODERS.copy)

    def make_trainer(self) -> Trainer:
        """Return a new trainer."""
        ENCODERS.update(self.encoders)
        modules = {name: deepcopy(self.arguments[name]) for name in _MODULES if name in self.arguments}
        return self.trainer_class(self.env, self.seed, **self.arguments | modules)

    def run(self, report: Report | None = None) -> TrainResult:
        """Train the run, and return its result."""
        callbacks = () if self.callbacks is None else self.callbacks()
        with self.make_trainer() as trainer:
            return trainer.train(self.total_timesteps, callbacks=callbacks, loggers=self.loggers)


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial. A trial with neither a score nor an error was pruned."""

    score: float | None = None
    error: str | None = None
    run_dir: str | None = None
    timesteps: int = 0


@dataclass(frozen=True)
class TrialJob(TrainJob):
    """One trial of a sweep: a run that reports its scores and may be pruned."""

    eval_every: int = 1
    eval_episodes: int = 1

    def run(self, report: Report | None = None) -> TrialResult:  # type: ignore[override]
        """Train, and return a `TrialResult`.

        `report` is called with (n, mean reward) after evaluation n = 1, 2, ..., and returns True to
        prune the trial.
        """
        assert report is not None
        try:
            trainer = self.make_trainer()
        except Exception as failure:
            return TrialResult(error=one_line(failure))
        reporter = _ReportScores(report, self.eval_every)
        score: float | None = None
        error: str | None = None
        with trainer:
            try:
                evaluations = EvalCallback(self.eval_every, self.eval_episodes)
                trainer.train(self.total_timesteps, callbacks=[evaluations, reporter])
                score = reporter.final
                if score is None and not reporter.pruned:
                    seed = evaluation_seed(trainer.seed, training=True)
                    score = trainer.evaluate(self.eval_episodes, seed=seed)["mean_reward"]
            except Exception as failure:
                error = one_line(failure)
        if score is not None and not math.isfinite(score):
            error = f"score: expected a finite number, got {score}"
        run_dir = None if trainer.run.path is None else str(trainer.run.path)
        return TrialResult(None if error else score, error, run_dir, trainer.timesteps)


class _ReportScores(Callback):
    """Callback that reports each evaluation, and ends the run if the trial is pruned."""

    def __init__(self, report: Report, every: int) -> None:
        self._report, self._every = report, every
        self.pruned = False
        self.final: float | None = None  # score after the last step, if known

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        if "eval/mean_reward" not in metrics:
            return
        if run.budget_used >= run.budget_end:
            self.final = metrics["eval/mean_reward"]
            return
        step = run.budget_used // self._every
        if self._report((step, metrics["eval/mean_reward"])):
            self.pruned = True
            run.stop("pruned")


def run_in_processes(jobs: Sequence[TrainJob], workers: int, scope: InterruptScope) -> RunOutcomes:
    """Run jobs in processes, which share the CPUs; yield the index and the outcome of each job as it ends."""
    pending = list(enumerate(jobs))[::-1]
    pool = Pool(workers, max(1, threads() // workers))
    with pool, scope.calling(pool.stop):
        while True:
            while pending and pool.free and not scope.stop_requested:
                index, job = pending.pop()
                pool.submit(job, index)
            if pool.free == workers:
                return
            yield from ((index, outcome) for index, _, outcome, _ in pool.wait())


def run_in_threads(jobs: Sequence[TrainJob], workers: int, scope: InterruptScope) -> RunOutcomes:
    """Run jobs in threads; yield the index and the outcome of each job as it ends."""
    finished: queue.Queue[tuple[int, RunOutcome] | None] = queue.Queue()
    pending = list(enumerate(jobs))[::-1]

    def work() -> None:
        try:
            while not scope.stop_requested:
                try:
                    index, job = pending.pop()
                except IndexError:
                    return
                outcome: RunOutcome
                try:
                    with scope.active():
                        outcome = job.run()
                except BaseException as error:  # other runs continue
                    outcome = error
                finished.put((index, outcome))
        finally:
            finished.put(None)

    # Daemon threads do not keep the program alive if a run cannot be stopped.
    pool = [threading.Thread(target=work, name=f"rlox-{n}", daemon=True) for n in range(workers)]
    for thread in pool:
        thread.start()
    running = workers
    try:
        while running:
            try:
                # Without a timeout, a signal just before the wait is handled only after the wait.
                item = finished.get(timeout=_POLL)
            except queue.Empty:
                continue
            if item is None:
                running -= 1
            else:
                yield item
    except BaseException:
        scope.stop()
        raise
    finally:
        for thread in pool:
            thread.join(_GRACE / workers)
