"""Actors in processes: for environments and policies in Python, which would wait for its lock."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox import collector
from rlox._rlox import RolloutBuffer, read_rollout
from rlox.actors import Actors, called, ring
from rlox.learner import Arrays
from rlox.machine import threads
from rlox.processes import Process, end_all
from rlox.rollout import RolloutEnv

# How long a process may take to begin, in seconds.
_BEGINNING = 120.0
# How often it is looked whether to go on waiting, in seconds.
_LOOK = 0.1
# How long one that is to end is waited for: it may be in the middle of a step.
_PATIENCE = 2.0
Episodes = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int]


class ActorProcess:
    """One of them, as `NativeActors.calling` calls it.

    Args:
        number: Its own, for messages.
        process: In which `rlox.collector.serve` works.
        buffers: The ring, for its rollouts.
        statistics: Where it puts those of its normaliser after each buffer's rollout.
    """

    def __init__(
        self,
        number: int,
        process: Process,
        buffers: Sequence[RolloutBuffer],
        statistics: list[Arrays],
    ) -> None:
        self._number, self._process = number, process
        self._buffers, self._statistics = buffers, statistics
        self._version: int | None = None
        self._buffer = 0

    def prepare(self, plan: collector.Plan) -> None:
        """Tells it what it is made of.

        Raises:
            TypeError: That cannot be sent.
        """
        self._send(collector.sent(plan))

    def is_ready(self) -> bool:
        """Whether it is, or will be before long.

        Raises:
            RuntimeError: It died. What its environments raise is raised here.
        """
        if not self._process.connection.poll(_LOOK):
            return False
        self._said()
        return True

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Has it fill a buffer, by its number, with the weights of a version."""
        new = weights if version != self._version else None
        self._send((seed, new))
        self._buffer, self._version = buffer, version

    def wait(self, seconds: float) -> Episodes | None:
        """The episodes that ended while it filled the buffer; None where it has not yet.

        Raises:
            RuntimeError: It died. What its environments or its policy raise is raised here.
        """
        if not self._process.connection.poll(seconds):
            return None
        said = self._said()
        if said is None:
            raise RuntimeError(
                f"actor {self._number}: expected a rollout, got none from a process that is to "
                "end; make a new learner"
            )
        read_rollout(self._buffers[self._buffer], said.data)
        self._statistics[self._buffer] = said.normalizer
        return said.returns, said.lengths, said.dropped

    def _send(self, what: object) -> None:
        try:
            self._process.connection.send(what)
        except ConnectionError as error:
            raise self._died() from error

    def _said(self) -> Any:
        try:
            said = self._process.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died() from error
        if isinstance(said, BaseException):
            if hasattr(said, "add_note"):  # from Python 3.11 on
                said.add_note(f"raised by actor {self._number}, in a process of its own")
            raise said
        return said

    def _died(self) -> RuntimeError:
        return RuntimeError(
            f"actor {self._number}: expected a living process, got one that died with "
            f"{self._process.died()}; look at its output, and whether memory ran out"
        )


def in_processes(
    env: RolloutEnv,
    config: Any,
    plan: collector.Plan,
    weights: Arrays,
    stream: np.random.Generator,
    stopping: Callable[[], bool],
) -> Actors | None:
    """Processes, each with environments and a policy of its own.

    Args:
        env: The learner's environments, whose spaces are theirs.
        config: Has `num_actors`, `max_lag` and `lockstep` beside the settings of rollouts.
        plan: What the first actor is made of; the others have the seeds after its.
        weights: To begin with, by name.
        stream: Where each rollout's seed comes from.
        stopping: Whether not to wait for them any longer: there are none then.

    Raises:
        MemoryError: The rollouts do not fit into memory.
        RuntimeError: A process died, or takes too long to begin.
            What their environments raise is raised here.
    """
    count, each = config.num_actors, plan.config.num_envs
    buffers = ring(env, config)
    statistics: list[Arrays] = [{} for _ in buffers]
    processes: list[Process] = []
    try:
        share = max(1, threads() // (count + 1))  # the learner has one, too
        processes.extend(Process(collector.serve, share) for _ in range(count))
        made = [ActorProcess(i, p, buffers, statistics) for i, p in enumerate(processes)]
        for i, actor in enumerate(made):
            actor.prepare(plan._replace(seed=plan.seed + i * each))
        until = time.monotonic() + _BEGINNING

        def tire(number: int) -> None:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"actor {number}: expected one that begins within {_BEGINNING:.0f} s, got "
                    "none; make environments that are made faster"
                )

        native = called(made, config, weights, stream, stopping, tire)
    except BaseException:
        end_all(processes, 0)
        raise
    end = partial(end_all, processes, _PATIENCE)
    if native is None:
        end()
        return None
    return Actors(native, buffers, statistics, end)
