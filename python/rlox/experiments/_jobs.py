"""Runs of `train_many` and sweeps, side by side in threads or in worker processes."""

import math
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlox._concurrency import InterruptScope
from rlox._errors import one_line
from rlox._processes import Pool, Report
from rlox._system import threads
from rlox._training.hooks import Callback
from rlox._training.results import TrainResult
from rlox.callbacks.evaluation import EvalCallback
from rlox.evaluation import evaluation_seed
from rlox.trainers import Trainer

# Seconds that threads have to end. Python aborts if a thread is still in C++ at its exit.
_GRACE = 5.0
# Seconds between two checks for signals.
_POLL = 0.5
# A run's result, or the error that ended the run.
RunOutcome = TrainResult | BaseException
RunOutcomes = Generator[tuple[int, RunOutcome], None, None]


@dataclass(frozen=True)
class TrainJob:
    """One run: the arguments of its trainer and of `Trainer.train`."""

    trainer_class: type[Trainer]
    env: Any
    seed: int
    total_timesteps: int
    arguments: dict[str, Any] = field(default_factory=dict)  # of the trainer, settings included
    callbacks: Callable[[], Sequence[Any]] | None = None
    loggers: tuple[str, ...] = ()

    def make_trainer(self) -> Trainer:
        """Return a new trainer."""
        return self.trainer_class(self.env, self.seed, **self.arguments)

    def run(self, report: Report | None = None) -> TrainResult:
        """Train."""
        callbacks = () if self.callbacks is None else self.callbacks()
        with self.make_trainer() as trainer:
            return trainer.train(self.total_timesteps, callbacks=callbacks, loggers=self.loggers)


@dataclass(frozen=True)
class TrialScore:
    """Mean return of an evaluation during a trial; `step` counts evaluations from 1."""

    step: int
    mean: float


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial. A trial without score and error was pruned."""

    score: float | None = None
    error: str | None = None
    run_dir: str | None = None
    timesteps: int = 0


@dataclass(frozen=True)
class TrialJob(TrainJob):
    """One trial of a sweep: a run that reports its scores and may be pruned."""

    eval_every: int = 1
    eval_episodes: int = 1

    def run(self, report: Report | None = None) -> Any:
        """Train, and return a `TrialResult`. `report(score)` returns whether to prune the trial."""
        trainer: Trainer | None = None
        assert report is not None
        reporter = _ReportScores(report, self.eval_every)
        try:
            with self.make_trainer() as trainer:
                evaluations = EvalCallback(self.eval_every, self.eval_episodes)
                trainer.train(self.total_timesteps, callbacks=[evaluations, reporter])
                result = TrialResult(run_dir=_run_dir(trainer), timesteps=trainer.timesteps)
                if reporter.pruned:
                    return result
                score = reporter.final
                if score is None:
                    seed = evaluation_seed(trainer.seed, training=True)
                    score = trainer.evaluate(self.eval_episodes, seed=seed)["mean_reward"]
        except Exception as error:
            steps = 0 if trainer is None else trainer.timesteps
            return TrialResult(error=one_line(error), run_dir=_run_dir(trainer), timesteps=steps)
        if not math.isfinite(score):
            return replace(result, error=f"score: expected a finite number, got {score}")
        return replace(result, score=score)


class _ReportScores(Callback):
    """Report each evaluation, and end the run if the answer says so."""

    def __init__(self, report: Report, every: int) -> None:
        self._report, self._every = report, every
        self.pruned = False
        self.final: float | None = None  # score after the last step, if known

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if "eval/mean_reward" not in metrics:
            return
        if trainer.timesteps >= trainer.target_timesteps:
            self.final = metrics["eval/mean_reward"]
            return
        step = trainer.timesteps // self._every
        if self._report(TrialScore(step, metrics["eval/mean_reward"])):
            self.pruned = True
            trainer.stop("pruned")


def _run_dir(trainer: Trainer | None) -> str | None:
    return None if trainer is None or trainer.run is None else str(trainer.run.path)


def run_in_processes(jobs: Sequence[TrainJob], workers: int, scope: InterruptScope) -> RunOutcomes:
    """Run jobs in worker processes that share the cores; yield each number and outcome.

    Args:
        jobs: What pickle takes.
        workers: Number of processes.
        scope: Stops the runs.
    """
    pending = list(enumerate(jobs))[::-1]
    pool = Pool(workers, max(1, threads() // workers))
    with pool, scope.calling(pool.stop):
        while True:
            while pending and pool.free and not scope.stop_requested:
                index, job = pending.pop()
                pool.submit(job, index)
            if pool.free == workers:
                return
            yield from ((number, outcome) for number, _, outcome, _ in pool.wait())


def run_in_threads(jobs: Sequence[TrainJob], workers: int, scope: InterruptScope) -> RunOutcomes:
    """Run jobs in threads of this process; yield each number and outcome."""
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
                except BaseException as error:  # other runs go on
                    outcome = error
                finished.put((index, outcome))
        finally:
            finished.put(None)

    # Daemons: a run that cannot be stopped does not keep the program from its end.
    pool = [threading.Thread(target=work, name=f"rlox-{n}", daemon=True) for n in range(workers)]
    for thread in pool:
        thread.start()
    running = workers
    try:
        while running:
            try:
                # A signal just before a wait without a limit would be handled only after the wait.
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
