"""Rollout collection and training runs on a Ray cluster.

With `actors="ray"`, the actors of IMPALA (and of PPO and A2C with `async_collect=True`) run on the
cluster. `train_many` trains seeds and settings on the cluster. Both use the connected cluster
(`ray.init`), else the cluster at `RAY_ADDRESS`, else a new local cluster.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from types import ModuleType
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from rlox._concurrency import InterruptScope
from rlox._errors import ArgumentTypeError
from rlox._optional import load_extra
from rlox._training.results import TrainResult
from rlox._types import Arrays
from rlox._validation import short_repr
from rlox.configs import OnPolicyConfig
from rlox.distributed._worker import RolloutWorker
from rlox.envs._make import EnvLike
from rlox.experiments import many
from rlox.experiments._jobs import RunOutcome, RunOutcomes, TrainJob
from rlox.learners._actors import RolloutMessage, WorkerPlan, max_staleness_of
from rlox.trainers import Trainer

__all__ = ["train_many"]

# Number of times that Ray repeats a rollout or a run after the loss of its process or machine.
_RETRIES = 3
# Seconds between two checks for signals.
_POLL = 0.2
# Seconds that actors have to close their environments.
_GRACE = 2.0


def _connect() -> ModuleType:
    """Connect to a cluster, and return the module ray."""
    ray = load_extra("ray", "ray", "rlox.distributed.ray")
    if not ray.is_initialized():
        ray.init(logging_level=logging.WARNING)
    return ray


class _Worker:
    """Class of the Ray actors. Ray restarts a lost actor with the same plan."""

    def __init__(self, plan: CloudpickleWrapper) -> None:
        self._plan = plan

    @cached_property
    def _rollout_worker(self) -> RolloutWorker:
        return RolloutWorker(self._plan.fn)  # type: ignore[arg-type]  # see `WorkerPlan.pickled`

    def collect(self, *request: Any) -> RolloutMessage | None:
        """Return a rollout for arguments of `RolloutWorker.collect`; None without arguments."""
        worker = self._rollout_worker
        return worker.collect(*request) if request else None

    def close(self) -> None:
        """Close the environments."""
        self._rollout_worker.close()


class RayWorker:
    """Actor on a Ray cluster; see `rlox.learners._actors.Worker`.

    Args:
        workers: Owner of the weights in Ray's object store.
        plan: Plan of the rollout worker.
    """

    def __init__(self, workers: "RayWorkers", plan: WorkerPlan) -> None:
        self._workers = workers
        self._ray = workers.ray
        self._normalizer = plan.normalizer
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": _RETRIES}
        self.actor = self._ray.remote(**options)(_Worker).remote(plan.pickled())
        self._pending = self.actor.collect.remote()

    def request(self, version: int, seed: int, weights: Arrays) -> None:
        """Request a rollout with `weights`, whose version number is `version`."""
        ref = self._workers.store_weights(version, weights)
        self._pending = self.actor.collect.remote(seed, ref, self._normalizer)

    def poll(self, seconds: float) -> bool:
        """Wait at most `seconds` for an answer, and return whether it has arrived."""
        return bool(self._ray.wait([self._pending], timeout=seconds)[0])

    def receive(self) -> RolloutMessage | None:
        """Return the answer."""
        rollout: RolloutMessage | None = self._ray.get(self._pending)
        if rollout is not None:
            self._normalizer = rollout.normalizer  # a restarted actor continues from these
        return rollout


class RayWorkers:
    """Ray actors of a learner.

    Args:
        config: Settings of the learner.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """

    def __init__(self, config: OnPolicyConfig) -> None:
        self.ray = _connect()
        self._versions = max_staleness_of(config) + 2
        self._refs: dict[int, object] = {}
        self._workers: list[RayWorker] = []

    def store_weights(self, version: int, weights: Arrays) -> object:
        """Return the object reference of weights; store the weights of a new version first."""
        if version not in self._refs:
            self._refs[version] = self.ray.put(weights)
            for old in sorted(self._refs)[: -self._versions]:
                self._refs.pop(old, None)
        return self._refs[version]

    def start(self, plan: WorkerPlan) -> RayWorker:
        """Start a worker."""
        self._workers.append(RayWorker(self, plan))
        return self._workers[-1]

    def end(self) -> None:
        """Close the environments within a time limit, and kill all workers."""
        if not self.ray.is_initialized():  # a Ray call would connect to another cluster
            return
        actors = [worker.actor for worker in self._workers]
        with suppress(Exception):  # an actor or the cluster may be lost
            closing = [actor.close.remote() for actor in actors]
            self.ray.wait(closing, num_returns=len(closing), timeout=_GRACE)
        for actor in actors:
            with suppress(Exception):
                self.ray.kill(actor)


def train_many(
    algorithm: str | type[Trainer],
    env: EnvLike,
    seeds: Iterable[int],
    total_timesteps: int,
    *,
    on_result: many.ResultCallback | None = None,
    **common: Any,
) -> list[TrainResult]:
    """Train as `rlox.train_many` does, with one Ray task of one CPU for each run.

    If a machine is lost, Ray restarts its runs on other machines, at most 3 times. Each run folder is written on the
    machine that trains, so pass a `runs_dir` that all machines share. Ctrl-C stops all runs.

    Args:
        algorithm: Name of the algorithm, or class of a trainer.
        env: As for `rlox.train_many`.
        seeds: Seeds, one run per seed.
        total_timesteps: Steps of each run.
        on_result: As for `rlox.train_many`.
        **common: As for `rlox.train_many`, without `workers` and `processes`.

    Returns:
        One result per run, ordered by settings and then by seeds.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ArgumentTypeError: `workers` or `processes` is passed; also as for `rlox.train_many`.

    Example:
        >>> from rlox.distributed import ray  # doctest: +SKIP
        >>> results = ray.train_many("ppo", "CartPole-v1", range(10), 100_000)  # doctest: +SKIP
    """
    for name in ("workers", "processes"):
        if name in common:
            expected = "no value, because Ray schedules the runs"
            raise ArgumentTypeError(name, expected, short_repr(common[name]), "remove the argument")
    return many.train_runs(
        algorithm, env, seeds, total_timesteps, processes=True, on_result=on_result, runner=_run_in_ray, **common
    )


def _run_in_ray(jobs: Sequence[TrainJob], workers: int, scope: InterruptScope) -> RunOutcomes:
    """Run jobs as Ray tasks; yield the index and the outcome of each job."""
    ray = _connect()
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(TrainJob.run)
    pending = {task.remote(job): index for index, job in enumerate(jobs)}

    def cancel(force: bool = False) -> None:
        for ref in list(pending):
            ray.cancel(ref, force=force)

    try:
        with scope.calling(cancel):
            while pending:
                for ref in ray.wait(list(pending), timeout=_POLL)[0]:
                    index = pending.pop(ref)
                    outcome: RunOutcome
                    try:
                        outcome = ray.get(ref)
                    except ray.exceptions.TaskCancelledError:
                        continue
                    except ray.exceptions.RayError as error:
                        outcome = getattr(error, "cause", None) or error
                    yield index, outcome
    finally:
        cancel(force=True)  # the caller may close the generator early
