"""Actors in worker processes, for environments and policies in Python, which need its lock."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlox._processes import Process, end_all
from rlox._rlox import RolloutBuffer
from rlox.actors import Actors, Episodes, start_remote, store
from rlox.collector import CollectTask, WorkerPlan
from rlox.learner import Arrays
from rlox.machine import threads
from rlox.rollout import RolloutEnv

# Seconds between two checks whether to go on waiting for an actor.
_POLL = 0.1
# Seconds that a process has to end: the process may be in the middle of a step.
_GRACE = 2.0


class ActorProcess:
    """Actor in a worker process; see `rlox.actors.RemoteActor`.

    Args:
        process: Runs a `CollectTask`.
        buffers: Ring for the rollouts.
        statistics: Normalizer state after the rollout in each buffer, which the actor writes.
    """

    def __init__(
        self, process: Process, buffers: Sequence[RolloutBuffer], statistics: list[Arrays]
    ) -> None:
        self._process = process
        self._buffers = buffers
        self._statistics = statistics
        self._version: int | None = None
        self._buffer = 0

    def is_ready(self) -> bool:
        """Wait a moment; whether the environments and the policy are made."""
        if not self._process.connection.poll(_POLL):
            return False
        self._receive()
        return True

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Start to fill a buffer with the weights of a version."""
        self._process.send((seed, None if version == self._version else weights))
        self._buffer = buffer
        self._version = version

    def wait(self, seconds: float) -> Episodes | None:
        """Return the episodes that ended in the rollout; None if it is not done after `seconds`."""
        if not self._process.connection.poll(seconds):
            return None
        return store(self._receive(), self._buffers, self._statistics, self._buffer)

    def _receive(self) -> Any:
        """Return a report; raise what the environments or the policy raised."""
        is_result, value = self._process.receive()
        if is_result:  # the task runs until an error ends it
            raise value
        return value


def in_processes(
    env: RolloutEnv,
    config: Any,
    plan: WorkerPlan,
    weights: Arrays,
    stream: np.random.Generator,
    stopping: Callable[[], bool],
) -> Actors | None:
    """Start worker processes as actors; see `rlox.actors.start_remote`."""
    processes: list[Process] = []
    share = max(1, threads() // (config.num_actors + 1))  # the learner has one, too

    def make(
        plan: WorkerPlan, buffers: Sequence[RolloutBuffer], statistics: list[Arrays]
    ) -> ActorProcess:
        processes.append(Process(share))
        processes[-1].send(CollectTask(plan.pickled()))
        return ActorProcess(processes[-1], buffers, statistics)

    return start_remote(
        make,
        env=env,
        config=config,
        plan=plan,
        weights=weights,
        stream=stream,
        stopping=stopping,
        end=partial(end_all, processes, _GRACE),
    )
