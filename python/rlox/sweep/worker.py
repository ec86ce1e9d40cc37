"""A process that trains one trial after the other; it tells its scores, and hears when to end."""

import math
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from rlox.callbacks import Callback, EvalCallback
from rlox.evaluation import evaluation_seed
from rlox.processes import serving
from rlox.trainer import Trainer
from rlox.trainers import TRAINERS


@dataclass(frozen=True)
class Job:
    """A trial, as a run of its own would be asked for."""

    algorithm: str
    env: str
    seed: int
    total_timesteps: int
    eval_every: int
    eval_episodes: int
    backend: Any = "auto"
    runs_dir: str | None = "runs"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def trainer(self, **other: Any) -> Trainer:
        """The trainer of the run."""
        about = {"backend": self.backend, "runs_dir": self.runs_dir, **other, **self.settings}
        kind = TRAINERS[self.algorithm]
        return kind(self.env, self.seed, env_kwargs=self.env_kwargs, **about)


@dataclass(frozen=True)
class Score:
    """An evaluation while it trains: which one, counted from 1, and its mean return."""

    step: int
    mean: float


@dataclass(frozen=True)
class Outcome:
    """How a trial ended; without a score it was pruned, or failed where there is an error."""

    score: float | None = None
    error: str | None = None
    run_dir: str | None = None
    timesteps: int = 0


class _Teller(Callback):
    """Tells each evaluation, and ends the run where that is the answer."""

    def __init__(self, connection: Connection, every: int) -> None:
        self._connection, self._every = connection, every
        self.pruned = False
        self.final: float | None = None  # the score after the last step, if it is known

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if "eval/mean_reward" not in metrics:
            return
        if trainer.timesteps >= trainer.target_timesteps:
            self.final = metrics["eval/mean_reward"]
            return
        step = trainer.timesteps // self._every
        self._connection.send(Score(step, metrics["eval/mean_reward"]))
        if self._connection.recv():
            self.pruned = True
            trainer.stop("pruned")


def serve(connection: Connection, ended: Connection) -> None:
    """Trains what comes, until nobody asks any more."""
    with serving(ended):
        while True:
            connection.send(_trained(connection.recv(), connection))


def _trained(job: Job, connection: Connection) -> Outcome:
    trainer: Trainer | None = None
    try:
        with job.trainer() as trainer:
            teller = _Teller(connection, job.eval_every)
            scores = EvalCallback(job.eval_every, job.eval_episodes)
            trainer.train(job.total_timesteps, callbacks=[scores, teller])
            ended = Outcome(run_dir=_folder(trainer), timesteps=trainer.timesteps)
            if teller.pruned:
                return ended
            score = teller.final
            if score is None:
                seed = evaluation_seed(trainer.seed, training=True)
                score = trainer.evaluate(job.eval_episodes, seed=seed)["mean_reward"]
        if not math.isfinite(score):
            return replace(ended, error=f"score: expected a finite number, got {score}")
        return replace(ended, score=score)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # whatever ended this trial, others go on
        said = " ".join(f"{type(error).__name__}: {error}".split())
        steps = 0 if trainer is None else trainer.timesteps
        return Outcome(error=said, run_dir=_folder(trainer), timesteps=steps)


def _folder(trainer: Trainer | None) -> str | None:
    return None if trainer is None or trainer.run is None else str(trainer.run.path)
