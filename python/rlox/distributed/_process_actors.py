"""Actors in worker processes, for environments and policies that need Python's GIL."""

from rlox._processes import Pool, Process
from rlox._system import threads
from rlox._types import Arrays
from rlox.configs import OnPolicyConfig
from rlox.distributed._worker import CollectTask
from rlox.learners._actors import RolloutMessage, WorkerPlan

# Seconds that a process has to finish its current step before it is killed.
_GRACE = 2.0


class ActorProcess:
    """Worker process that collects rollouts; see `rlox.learners._actors.Worker`.

    Args:
        process: Process that runs a `CollectTask`.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
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
        # The actors and the learner share the CPUs.
        self._pool = Pool(config.num_actors, max(1, threads() // (config.num_actors + 1)))

    def start(self, plan: WorkerPlan) -> ActorProcess:
        """Start a worker."""
        return ActorProcess(self._pool.submit(CollectTask(plan.pickled())))

    def end(self) -> None:
        """Close the environments and end all workers."""
        self._pool.end(_GRACE)
