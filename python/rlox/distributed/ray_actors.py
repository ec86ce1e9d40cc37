"""Actors on a Ray cluster, each of which is replaced where it is lost."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlox._errors import ArgumentError
from rlox._rlox import RolloutBuffer, read_rollout
from rlox.actors import Actors, called, lag_bound, ring
from rlox.collector import Collected, Collector, Plan, sent
from rlox.extras import load_extra
from rlox.learner import Arrays
from rlox.rollout import RolloutEnv

_log = logging.getLogger("rlox")
# How often an actor is made anew in a row, before it has filled a rollout.
_RESTARTS = 3
# After so many seconds it is told that the cluster has no room, and after so many it is an error:
# clusters that grow take minutes.
_PATIENCE, _ROOM = 30.0, 1800.0
# How often it is looked whether to go on, in seconds.
LOOK = 0.2
# How long a cluster may take to answer, in seconds.
_ANSWER = 5.0
# How long environments may take to close, in seconds.
_CLOSING = 2.0


def connect() -> Any:
    """The package ray, connected to a cluster.

    Raises:
        ModuleNotFoundError: It is not installed.
        ConnectionError: The cluster that `RAY_ADDRESS` names does not answer.
        ValueError: It names none.
    """
    ray = load_extra("ray", "ray", "rlox.distributed.ray")
    if not ray.is_initialized():
        _expect_answer(os.environ.get("RAY_ADDRESS", ""))
        ray.init(logging_level=logging.WARNING)
    return ray


def _expect_answer(address: str) -> None:
    """Somebody listens where the cluster is to be: Ray itself would look for minutes.

    Raises:
        ConnectionError: Nobody does.
        ValueError: It is no address.
    """
    if address in ("", "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ArgumentError(
            "RAY_ADDRESS",
            "a cluster's host:port, ray://host:port, 'auto' or 'local'",
            repr(address),
            "set it so, or leave it out for a local cluster",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except OSError as error:
        raise ConnectionError(
            f"RAY_ADDRESS: expected a cluster that answers at {address}, got {error}; start it "
            "with ray start --head, or leave the variable out for a local one"
        ) from error


class _Worker:
    """What an actor of Ray is."""

    def make(self, plan: Any) -> None:
        self._collector = Collector(plan.fn)

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

    def forget(self, version: int) -> None:
        """Has those of a version put there again, as they may be lost."""
        with self._lock:
            self._refs.pop(version, None)


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
        self._making = self._actor.make.remote(sent(plan))
        self._version, self._since, self._told = None, time.monotonic(), False

    def is_ready(self) -> bool:
        """Whether it is, or will be before long: the cluster may have no room for it yet.

        Raises:
            RuntimeError: It has died many times in a row, or the cluster does not work.
                Whatever its environments, or its policy, fail of.
        """
        done, _ = self._ray.wait([self._making], timeout=LOOK)
        if not done:
            self._tell_of_room()
            return False
        try:
            self._answer(self._making)
        except _lost(self._ray) as error:
            self._replace(error)
            return False
        return True

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Has it fill a buffer, by its number, with the weights of a version."""
        self._asked = buffer, version, seed, weights
        self._ask()

    def _ask(self) -> None:
        _, version, seed, weights = self._asked
        new = None if version == self._version else self._lent.of(version, weights)
        self._pending, self._version = self._actor.collect.remote(seed, new), version

    def wait(self, seconds: float) -> Any:
        """The episodes that ended while it filled the buffer; None where it has not yet.

        Raises:
            RuntimeError: It has died many times in a row, or the cluster does not work.
                What its environments or its policy raise is raised here.
        """
        done, _ = self._ray.wait([self._pending], timeout=seconds)
        if not done:
            self._tell_of_room()
            return None
        try:
            self._answer(self._making)  # which tells what went wrong first
            said = self._answer(self._pending)
        except _lost(self._ray) as error:
            self._replace(error)
            self._lent.forget(self._asked[1])
            self._ask()
            return None
        buffer, self._failed = self._asked[0], 0
        read_rollout(self._buffers[buffer], said.data)
        self._statistics[buffer] = said.normalizer
        # Another one in its place begins with what it knew.
        self._plan = self._plan._replace(normalizer=said.normalizer)
        return said.returns, said.lengths, said.dropped

    def _replace(self, error: Exception) -> None:
        """Another one takes its place, as it has died, or what it sent was lost on the way.

        Raises:
            RuntimeError: That was so many times in a row.
        """
        self._failed += 1
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        if self._failed > _RESTARTS:
            raise RuntimeError(
                f"actor {self._number}: expected one that fills rollouts, got {self._failed} that "
                f"died before, or whose rollouts were lost ({why}); look at Ray's logs, and "
                "whether memory ran out"
            ) from error
        _log.warning("actor %d is lost, another one takes its place (%s)", self._number, why)
        with suppress(Exception):  # where it lives, it would keep its CPU
            self._ray.kill(self._actor)
        self._make()

    def _tell_of_room(self) -> None:
        """Says once that it waits for the cluster, where it does so for long.

        Raises:
            RuntimeError: It did so for half an hour.
        """
        waited = time.monotonic() - self._since
        if waited < _PATIENCE or self._ray.wait([self._making], timeout=0)[0]:
            return
        there = int(self._ray.cluster_resources().get("CPU", 0))
        if waited > _ROOM:
            raise RuntimeError(
                f"actor {self._number}: expected room on the cluster within {_ROOM:g} s, got none "
                f"of {there} CPUs; take fewer actors, or add machines"
            )
        if not self._told:
            _log.warning(
                "actor %d waits for room on the cluster, which has %d CPUs", self._number, there
            )
            self._told = True

    def _answer(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            cause = cause_of(error)
            if hasattr(cause, "add_note"):  # from Python 3.11 on
                cause.add_note(f"raised by actor {self._number}, on the cluster")
            raise cause from error
        except _lost(self._ray):
            raise
        except self._ray.exceptions.RayError as error:
            raise RuntimeError(
                f"actor {self._number}: expected a cluster that works, got {type(error).__name__}: "
                f"{error}; look at Ray's logs, and at `ray status`"
            ) from error

    def end(self) -> None:
        """Has it close its environments, if it does so soon, and ends it."""
        if not self._ray.is_initialized():  # else that would begin with another cluster
            return
        with suppress(Exception):  # it has died, or the cluster is gone
            self._ray.wait([self._actor.close.remote()], timeout=_CLOSING)
            self._ray.kill(self._actor)


def _lost(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where an actor, its machine, or an object is lost."""
    known = ray.exceptions
    return (
        known.RayActorError,
        known.ObjectLostError,
        known.WorkerCrashedError,
        known.NodeDiedError,
        known.OutOfMemoryError,
    )


def cause_of(error: Any) -> BaseException:
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

    try:
        for i in range(config.num_actors):
            own = plan._replace(seed=plan.seed + i * each)
            made.append(RayActor(i, ray, own, lent, buffers, statistics))
        native = called(made, config, weights, stream, stopping, lambda number: None)
    except BaseException:
        end()
        raise
    if native is None:
        end()
        return None
    return Actors(native, buffers, statistics, end)
