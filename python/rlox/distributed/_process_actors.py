"""Actors in worker processes, for environments and policies that need Python's GIL."""

from rlox._processes import Process, end_all
from rlox._system import threads
from rlox._types import Arrays
from rlox.configs import OnPolicyConfig
from rlox.distributed._worker import CollectTask
from rlox.learners._actors import RolloutMessage, WorkerPlan

# Seconds that a process has to finish its current step before it is killed.
_GRACE = 2.0


class ActorProcess:
    """Worker process that collects rollouts; see `rlox.learners._actors.Worker`."""

    def __init__(self, plan: WorkerPlan, threads: int) -> None:
        self.process = Process(threads)
        self.process.send(CollectTask(plan.pickled()))
        self._version: int | None = None

    def request(self, version: int, seed: int, weights: Arrays) -> None:
        """Request a rollout; the weights of a version are sent once."""
        self.process.send((seed, None if version == self._version else weights))
        self._version = version

    def poll(self, seconds: float) -> bool:
        """Wait at most `seconds` for an answer, and return whether it has arrived."""
        return self.process.connection.poll(seconds)

    def receive(self) -> RolloutMessage | None:
        """Return the answer, or raise the error of the environments or the policy."""
        is_result, value = self.process.receive()
        if is_result:  # only an error ends the task
            raise value
        message: RolloutMessage | None = value
        return message


class ActorProcesses:
    """Worker processes of a learner's actors.

    Args:
        config: Settings of the learner.
    """

    def __init__(self, config: OnPolicyConfig) -> None:
        self._threads = max(1, threads() // (config.num_actors + 1))  # actors and the learner
        self._workers: list[ActorProcess] = []

    def start(self, plan: WorkerPlan) -> ActorProcess:
        """Start a worker."""
        self._workers.append(ActorProcess(plan, self._threads))
        return self._workers[-1]

    def end(self) -> None:
        """Close the environments and end all workers."""
        end_all([worker.process for worker in self._workers], _GRACE)
