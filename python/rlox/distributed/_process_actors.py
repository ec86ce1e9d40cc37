"""Actors in worker processes, for environments and policies in Python, which need its lock."""

from typing import Any

from rlox._processes import Process, end_all
from rlox._system import threads
from rlox._types import Arrays
from rlox.distributed._worker import CollectTask
from rlox.learners._actors import WorkerPlan

# Seconds that a process has to end: the process may be in the middle of a step.
_GRACE = 2.0


class ActorProcess:
    """Worker process that collects rollouts; see `rlox.learners._actors.Worker`."""

    def __init__(self, plan: WorkerPlan, threads: int) -> None:
        self.process = Process(threads)
        self.process.send(CollectTask(plan.pickled()))
        self._version: int | None = None

    def request(self, version: int, seed: int, weights: Arrays) -> None:
        """Ask for a rollout with the weights of a version, which are sent once."""
        self.process.send((seed, None if version == self._version else weights))
        self._version = version

    def poll(self, seconds: float) -> bool:
        """Wait for an answer; return whether there is one."""
        return self.process.connection.poll(seconds)

    def receive(self) -> Any:
        """Return the answer; raise what the environments or the policy raised."""
        is_result, value = self.process.receive()
        if is_result:  # the task runs until an error ends it
            raise value
        return value


class ActorProcesses:
    """Worker processes of the actors of a learner with these settings."""

    def __init__(self, config: Any) -> None:
        self._threads = max(1, threads() // (config.num_actors + 1))  # the learner has one, too
        self._workers: list[ActorProcess] = []

    def start(self, plan: WorkerPlan) -> ActorProcess:
        """Start a worker."""
        self._workers.append(ActorProcess(plan, self._threads))
        return self._workers[-1]

    def end(self) -> None:
        """Close the environments, and end all workers."""
        end_all([worker.process for worker in self._workers], _GRACE)
