"""`RolloutWorker`: environments and a policy that collect rollouts for a learner elsewhere."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from rlox._concurrency import stop_on_interrupt
from rlox._errors import ArgumentError
from rlox._rlox import write_rollout
from rlox._types import Arrays
from rlox.learners._actors import RolloutMessage, WorkerPlan

# Seconds that a step may take after the actor was told to stop.
_GRACE = 10.0


class RolloutWorker:
    """Environments and a policy; `collect` fills rollouts with them.

    Args:
        plan: What to make.

    Raises:
        ValueError: The environments have other spaces than the learner's.
            Environments and policy raise errors of their own.
    """

    def __init__(self, plan: WorkerPlan) -> None:
        env: Any = plan.env.make(plan.config.num_envs, plan.seed)
        self._env = env
        try:
            _check_spaces(env, plan.spaces)
            self._learner: Any = plan.learner(env, plan.config, 0, *plan.learner_args)
            self._load(plan.normalizer)
        except BaseException:
            self.close()
            raise
        self._learner.env_initialized = True  # with the seed of the plan

    def stop(self) -> None:
        """End a `collect` in another thread after its step."""
        self._learner.stop_requested = True

    def collect(
        self, seed: int, weights: Arrays | None, normalizer: Arrays | None = None
    ) -> RolloutMessage | None:
        """Return a rollout whose random numbers come from `seed`; None if `stop` was called.

        Args:
            seed: Below 2**64.
            weights: Weights of the policy by name; None: those of the call before.
            normalizer: Statistics to go on from; None: the collector's own.
        """
        learner, env = self._learner, self._env
        if weights is not None:
            learner.load_weights(weights)
        self._load(normalizer)
        if not learner.collect_for_remote(seed):
            return None
        learner.timesteps += learner.buffer.n_transitions  # errors name the step
        returns, lengths = env.pop_episodes()
        statistics = {} if learner.normalizer is None else dict(learner.normalizer.state())
        dropped = getattr(env, "dropped_episodes", 0)
        return RolloutMessage(write_rollout(learner.buffer), returns, lengths, dropped, statistics)

    def _load(self, normalizer: Arrays | None) -> None:
        if self._learner.normalizer is not None and normalizer:
            self._learner.normalizer.load_state(normalizer)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def _check_spaces(env: Any, expected: tuple[Any, Any]) -> None:
    actual = env.single_observation_space, env.single_action_space
    for name, space, other in zip(("observation", "action"), expected, actual, strict=True):
        if space != other:
            raise ArgumentError(
                "env",
                f"the {name} space of the learner's environments, {space}, where an actor makes "
                "its own",
                str(other),
                "have env make the same everywhere",
            )


@dataclass(frozen=True)
class CollectTask:
    """Task of a worker process that collects rollouts until the learner's process ends it."""

    plan: CloudpickleWrapper  # of a `WorkerPlan`

    def run(self, report: Callable[[Any], Any]) -> None:
        """Report None when ready, then a rollout for each answer, which is (seed, weights)."""
        worker = RolloutWorker(self.plan.fn)  # type: ignore[arg-type]  # a plan, see `pickled`

        def stop() -> None:
            worker.stop()
            timer = threading.Timer(_GRACE, os._exit, (1,))
            timer.daemon = True
            timer.start()

        try:
            with stop_on_interrupt(stop):
                request = report(None)
                while True:
                    request = report(worker.collect(*request))
        finally:
            worker.close()
