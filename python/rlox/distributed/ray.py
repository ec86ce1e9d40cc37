"""Rollouts and runs on a Ray cluster.

`actors="ray"` has the actors of IMPALA, and of PPO and A2C with `async_collect=True`, work there;
`train_many` trains seeds and settings there. Both use the cluster that the program is connected to
(`ray.init`), or that `RAY_ADDRESS` names, else a local one that is started.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from rlox._concurrency import InterruptScope
from rlox._errors import ArgumentTypeError
from rlox._rlox import RolloutBuffer
from rlox.actors import Actors, Episodes, lag_bound, start_remote, store
from rlox.collector import Collector, Rollout, WorkerPlan
from rlox.extras import load_extra
from rlox.learner import Arrays
from rlox.many import together
from rlox.many._jobs import Outcome, Outcomes, TrainJob
from rlox.results import TrainResult
from rlox.rollout import RolloutEnv
from rlox.trainer import EnvLike, Trainer

# Times that Ray repeats a rollout or a run whose process or machine was lost.
_RETRIES = 3
# Seconds between two checks whether to go on waiting.
_POLL = 0.2
# Seconds that an actor has to close its environments.
_GRACE = 2.0


def _connect() -> Any:
    """Return the package ray, connected to a cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
            `ray.init` raises errors of its own, where the cluster does not answer for instance.
    """
    ray = load_extra("ray", "ray", "rlox.distributed.ray")
    if not ray.is_initialized():
        ray.init(logging_level=logging.WARNING)
    return ray


class _Worker:
    """Code of a Ray actor, which Ray restarts with the same plan if the process is lost."""

    def __init__(self, plan: CloudpickleWrapper) -> None:
        self._plan = plan
        self._collector: Collector | None = None

    def prepare(self) -> None:
        """Make the environments and the policy, if they are not made."""
        if self._collector is None:
            self._collector = Collector(self._plan.fn)  # type: ignore[arg-type]  # see `pickled`

    def collect(self, seed: int, weights: Arrays, normalizer: Arrays) -> Rollout | None:
        """Return a rollout; see `Collector.collect`."""
        self.prepare()
        assert self._collector is not None
        return self._collector.collect(seed, weights, normalizer)

    def close(self) -> None:
        """Close the environments."""
        if self._collector is not None:
            self._collector.close()


class RayActor:
    """Actor on a Ray cluster; see `rlox.actors.RemoteActor`.

    Args:
        put: Returns the reference of weights, by their version, in Ray's object store.
    """

    def __init__(
        self,
        ray: Any,
        plan: WorkerPlan,
        put: Callable[[int, Arrays], Any],
        buffers: Sequence[RolloutBuffer],
        statistics: list[Arrays],
    ) -> None:
        self._ray, self._put = ray, put
        self._buffers, self._statistics = buffers, statistics
        self._normalizer = plan.normalizer
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": _RETRIES}
        self._actor = ray.remote(**options)(_Worker).remote(plan.pickled())
        self._pending = self._actor.prepare.remote()
        self._buffer = 0

    def is_ready(self) -> bool:
        """Wait a moment; whether the environments and the policy are made."""
        if not self._ray.wait([self._pending], timeout=_POLL)[0]:
            return False
        self._ray.get(self._pending)
        return True

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Start to fill a buffer with the weights of a version."""
        ref = self._put(version, weights)
        self._pending = self._actor.collect.remote(seed, ref, self._normalizer)
        self._buffer = buffer

    def wait(self, seconds: float) -> Episodes | None:
        """Return the episodes that ended in the rollout; None if it is not done after `seconds`."""
        if not self._ray.wait([self._pending], timeout=seconds)[0]:
            return None
        rollout = self._ray.get(self._pending)
        self._normalizer = rollout.normalizer  # a restarted actor goes on from these statistics
        return store(rollout, self._buffers, self._statistics, self._buffer)

    def end(self) -> None:
        """Close the environments, if they do so soon, and end the actor."""
        if not self._ray.is_initialized():  # a call would connect to another cluster
            return
        with suppress(Exception):  # the actor has died, or the cluster is gone
            self._ray.wait([self._actor.close.remote()], timeout=_GRACE)
            self._ray.kill(self._actor)


def in_ray(
    env: RolloutEnv,
    config: Any,
    plan: WorkerPlan,
    weights: Arrays,
    stream: np.random.Generator,
    stopping: Callable[[], bool],
) -> Actors | None:
    """Start Ray actors; see `rlox.actors.start_remote`.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    ray = _connect()
    actors: list[RayActor] = []
    refs: dict[int, Any] = {}

    def put(version: int, weights: Arrays) -> Any:
        if version not in refs:
            refs[version] = ray.put(weights)
            for old in sorted(refs)[: -lag_bound(config) - 2]:
                refs.pop(old, None)
        return refs[version]

    def make(
        plan: WorkerPlan, buffers: Sequence[RolloutBuffer], statistics: list[Arrays]
    ) -> RayActor:
        actors.append(RayActor(ray, plan, put, buffers, statistics))
        return actors[-1]

    def end() -> None:
        for actor in actors:
            actor.end()

    return start_remote(
        make,
        env=env,
        config=config,
        plan=plan,
        weights=weights,
        stream=stream,
        stopping=stopping,
        end=end,
    )


def train_many(
    algorithm: str | type[Trainer],
    env: EnvLike,
    seeds: Iterable[int],
    total_timesteps: int,
    *,
    tell: together.Tell | None = None,
    **common: Any,
) -> list[TrainResult]:
    """Train as `rlox.train_many` does, with every run as a task of Ray that takes one CPU.

    Where a machine dies, Ray begins its runs anew on others. Run folders are on the machine that
    trains, so use a `runs_dir` that all machines share. Ctrl-C ends all runs.

    Args:
        algorithm, env, seeds, total_timesteps, tell, **common: As for `rlox.train_many`, except
            `workers` and `processes`.

    Returns:
        A result for each run, in the order of the settings and their seeds.

    Raises:
        ModuleNotFoundError: Ray is not installed.
            `rlox.train_many` raises errors of its own.

    Example:
        >>> from rlox.distributed import ray  # doctest: +SKIP
        >>> results = ray.train_many("ppo", "CartPole-v1", range(10), 100_000)  # doctest: +SKIP
    """
    for name in ("workers", "processes"):
        if name in common:
            got = f"on a cluster has no argument {name!r}"
            raise ArgumentTypeError("train_many", None, got, "leave it out")
    _connect()
    checked = together.runs(
        algorithm, env, seeds, total_timesteps, processes=True, runner=_run_in_ray, **common
    )
    return checked.train(tell)


def _run_in_ray(jobs: Sequence[TrainJob], workers: int, scope: InterruptScope) -> Outcomes:
    """Run jobs as tasks; yield each number and outcome. Ray schedules the tasks."""
    ray = _connect()
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(TrainJob.run)
    pending = {task.remote(job): number for number, job in enumerate(jobs)}

    def cancel(force: bool = False) -> None:
        for ref in list(pending):
            ray.cancel(ref, force=force)

    try:
        with scope.calling(cancel):
            while pending:
                for ref in ray.wait(list(pending), timeout=_POLL)[0]:
                    number = pending.pop(ref)
                    outcome: Outcome
                    try:
                        outcome = ray.get(ref)
                    except ray.exceptions.TaskCancelledError:
                        continue
                    except ray.exceptions.RayError as error:
                        outcome = getattr(error, "cause", None) or error
                    yield number, outcome
    finally:
        cancel(force=True)  # where the caller does not go on
