"""Rollouts and runs on a Ray cluster, by its own scheduling and object store.

`actors="ray"` has the actors of IMPALA, and of PPO and A2C with `async_collect=True`, work there;
`train_many` trains seeds and settings there. Both use the cluster that the program is connected to
(`ray.init`), or that `RAY_ADDRESS` names, else a local one that is started.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlox._rlox import RolloutBuffer, read_rollout
from rlox.actors import Actors, called, lag_bound, ring
from rlox.collector import Collected, Collector, Plan
from rlox.extras import load_extra
from rlox.interrupt import Group
from rlox.learner import Arrays
from rlox.many import together
from rlox.many.job import Came, Job
from rlox.results import TrainResult
from rlox.rollout import RolloutEnv
from rlox.trainer import EnvLike, Trainer

_log = logging.getLogger("rlox")
# How often an actor is made anew in a row, before it has filled a rollout.
_RESTARTS = 3
# After so many seconds it is told that the cluster has no room.
_PATIENCE = 30.0
# How often it is looked whether to go on, in seconds.
_LOOK = 0.2
# How long environments may take to close, in seconds.
_CLOSING = 2.0


def connect() -> Any:
    """The package ray, connected to a cluster.

    Raises:
        ModuleNotFoundError: It is not installed.
        ConnectionError: The cluster that `RAY_ADDRESS` names does not answer.
    """
    ray = load_extra("ray", "ray", "rlox.distributed.ray")
    if not ray.is_initialized():
        ray.init(logging_level=logging.WARNING)
    return ray


class _Worker:
    """What an actor of Ray is."""

    def make(self, plan: Plan) -> None:
        self._collector = Collector(plan)

    def collect(self, seed: int, weights: Arrays | None) -> Collected | None:
        return self._collector.collect(seed, weights)

    def close(self) -> None:
        self._collector.close()


class _Lent:
    """Weights in the object store, where all actors find them: put there once for each version."""

    def __init__(self, ray: Any, kept: int) -> None:
        self._ray, self._kept, self._lock = ray, kept, threading.Lock()
        self._refs: dict[int, Any] = {}

    def of(self, version: int, weights: Arrays) -> Any:
        with self._lock:
            if version not in self._refs:
                self._refs[version] = self._ray.put(weights)
                for old in sorted(self._refs)[: -self._kept]:
                    del self._refs[old]
            return self._refs[version]


class RayActor:
    """One of them, as `NativeActors.calling` calls it. Where it dies, another takes its place.

    Args:
        number: Its own, for messages.
        ray: The package, connected.
        plan: What it is made of.
        lent: The weights.
        buffers: The ring, for its rollouts.
        statistics: Where it puts those of its normaliser after each buffer's rollout.
    """

    def __init__(
        self,
        number: int,
        ray: Any,
        plan: Plan,
        lent: _Lent,
        buffers: Sequence[RolloutBuffer],
        statistics: list[Arrays],
    ) -> None:
        self._number, self._ray, self._plan, self._lent = number, ray, plan, lent
        self._buffers, self._statistics = buffers, statistics
        self._made = self._failed = 0
        self._version: int | None = None
        self._make()

    def _make(self) -> None:
        # Other seeds than those that were seen, as its episodes begin anew.
        plan = self._plan._replace(seed=self._plan.seed + self._made * 2**31)
        self._made += 1
        self._actor = self._ray.remote(num_cpus=1)(_Worker).remote()
        self._making = self._actor.make.remote(plan)
        self._version = None

    def is_ready(self) -> bool:
        """Whether it is, or will be before long: the cluster may have no room for it yet.

        Raises:
            Whatever its environments, or its policy, fail of.
        """
        done, _ = self._ray.wait([self._making], timeout=_LOOK)
        if done:
            self._answer(self._making)
        return bool(done)

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Has it fill a buffer, by its number, with the weights of a version."""
        self._asked = buffer, version, seed, self._lent.of(version, weights)
        self._ask()

    def _ask(self) -> None:
        _, version, seed, weights = self._asked
        new = weights if version != self._version else None
        self._pending, self._version = self._actor.collect.remote(seed, new), version

    def wait(self, seconds: float) -> Any:
        """The episodes that ended while it filled the buffer; None where it has not yet.

        Raises:
            RuntimeError: It has died many times in a row.
                What its environments or its policy raise is raised here.
        """
        done, _ = self._ray.wait([self._pending], timeout=seconds)
        if not done:
            return None
        lost = self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError
        try:
            self._answer(self._making)  # which tells what went wrong first
            said = self._answer(self._pending)
        except lost as error:
            self._failed += 1
            if self._failed > _RESTARTS:
                raise RuntimeError(
                    f"actor {self._number}: expected one that fills rollouts, got {self._failed} "
                    "that died before; look at Ray's logs, and whether memory ran out"
                ) from error
            _log.warning("actor %d died, another one takes its place", self._number)
            self._make()
            self._ask()
            return None
        buffer, self._failed = self._asked[0], 0
        read_rollout(self._buffers[buffer], said.data)
        self._statistics[buffer] = said.normalizer
        # Another one in its place begins with what it knew.
        self._plan = self._plan._replace(normalizer=said.normalizer)
        return said.returns, said.lengths, said.dropped

    def _answer(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            cause = _cause(error)
            if hasattr(cause, "add_note"):  # from Python 3.11 on
                cause.add_note(f"raised by actor {self._number}, on the cluster")
            raise cause from error

    def end(self) -> None:
        """Has it close its environments, if it does so soon, and ends it."""
        if not self._ray.is_initialized():  # else that would begin with another cluster
            return
        with suppress(Exception):  # it has died, or the cluster is gone
            self._ray.wait([self._actor.close.remote()], timeout=_CLOSING)
            self._ray.kill(self._actor)


def _cause(error: Any) -> BaseException:
    """What a task raised, where Ray could send it."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else error


def in_ray(
    env: RolloutEnv,
    config: Any,
    plan: Plan,
    weights: Arrays,
    stream: np.random.Generator,
    stopping: Callable[[], bool],
) -> Actors | None:
    """Actors of Ray, each with environments and a policy of its own.

    Args:
        env: The learner's environments, whose spaces are theirs.
        config: Has `num_actors`, `max_lag` and `lockstep` beside the settings of rollouts.
        plan: What the first actor is made of; the others have the seeds after its.
        weights: To begin with, by name.
        stream: Where each rollout's seed comes from.
        stopping: Whether not to wait any longer for the cluster to have room: there are none then.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        MemoryError: The rollouts do not fit into memory.
            What their environments raise is raised here.
    """
    ray, each = connect(), plan.config.num_envs
    buffers, lent = ring(env, config), _Lent(ray, lag_bound(config) + 2)
    statistics: list[Arrays] = [{} for _ in buffers]
    made: list[RayActor] = []

    def end() -> None:
        for actor in made:
            actor.end()

    until = [time.monotonic() + _PATIENCE]

    def tire(number: int) -> None:
        if until and time.monotonic() > until[0]:
            there = int(ray.cluster_resources().get("CPU", 0))
            _log.warning("actors wait for room on the cluster, which has %d CPUs", there)
            until.clear()

    try:
        for i in range(config.num_actors):
            own = plan._replace(seed=plan.seed + i * each)
            made.append(RayActor(i, ray, own, lent, buffers, statistics))
        native = called(made, config, weights, stream, stopping, tire)
    except BaseException:
        end()
        raise
    if native is None:
        end()
        return None
    return Actors(native, buffers, statistics, end)


def train_many(
    algorithm: str | type[Trainer],
    env: EnvLike,
    seeds: Iterable[int],
    total_timesteps: int,
    *,
    tell: together.Tell | None = None,
    **common: Any,
) -> list[TrainResult]:
    """`rlox.train_many` on a cluster: every run is a task of Ray, which a CPU of it works on.

    Where a machine dies, Ray begins its runs anew on others. Folders of runs are on the machine
    that trains, so that `runs_dir` is best one that all of them share. Ctrl-C ends all runs.

    Args:
        algorithm, env, seeds, total_timesteps, tell, **common: As for `rlox.train_many`, but
            `workers` and `processes`.

    Returns:
        A result for each run, in the order of the settings and their seeds.

    Raises:
        ModuleNotFoundError: Ray is not installed.
            What `rlox.train_many` raises.

    Example:
        >>> from rlox.distributed import ray  # doctest: +SKIP
        >>> results = ray.train_many("ppo", "CartPole-v1", range(10), 100_000)  # doctest: +SKIP
    """
    for name in ("workers", "processes"):
        if name in common:
            raise TypeError(
                f"train_many has no argument {name!r} on a cluster, which decides it; leave it out"
            )
    connect()
    asked = together.runs(
        algorithm, env, seeds, total_timesteps, processes=True, every=_in_tasks, **common
    )
    return asked.train(tell)


def _train(job: Job) -> TrainResult:
    return job.train()


def _in_tasks(
    jobs: Sequence[Job], workers: int, group: Group
) -> Generator[tuple[int, Came], None, None]:
    """Runs as tasks, and gives each that has ended, by its number. Ray has the others wait."""
    ray = connect()
    task = ray.remote(num_cpus=1)(_train)
    left = {task.remote(job): number for number, job in enumerate(jobs)}

    def cancel() -> None:
        for ref in list(left):
            ray.cancel(ref)

    try:
        with group.going_on(cancel):
            while left:
                done, _ = ray.wait(list(left), timeout=_LOOK)
                for ref in done:
                    number = left.pop(ref)
                    try:
                        came: Came = ray.get(ref)
                    except ray.exceptions.TaskCancelledError:
                        continue
                    except ray.exceptions.RayTaskError as error:
                        came = _cause(error)
                    except ray.exceptions.RayError as error:
                        came = error
                    yield number, came
    finally:
        for ref in left:  # where who asked does not go on
            ray.cancel(ref, force=True)
