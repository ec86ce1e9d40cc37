"""Rollout collection for a learner in another process."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import CloudpickleWrapper

from rlox._concurrency import stop_on_interrupt
from rlox._errors import ArgumentError
from rlox._registry import ENCODERS
from rlox._rlox import write_rollout
from rlox._types import Arrays
from rlox.envs._rollout_env import RolloutEnv
from rlox.learners._actors import RolloutMessage, WorkerPlan

# Seconds after a stop request until a process that is still in a step exits.
_GRACE = 10.0


class RolloutWorker:
    """Environments and a policy that collect rollouts for a learner in another process.

    Args:
        plan: Environments, settings and learner class of the worker.

    Raises:
        ArgumentError: The spaces of the environments differ from those of the learner.
        Exception: The environments or the policy raise an error.
    """

    def __init__(self, plan: WorkerPlan) -> None:
        ENCODERS.update(plan.encoders)
        env = plan.env.make(plan.config.num_envs, plan.seed)
        self._env = env
        try:
            _check_spaces(env, plan.spaces)
            self._learner = plan.learner(env, plan.config, 0, *plan.learner_args)
            self._load(plan.normalizer)
        except BaseException:
            self.close()
            raise
        self._learner.env_initialized = True  # `env` was created with the plan's seed

    def stop(self) -> None:
        """Make `collect` in another thread return after the current step."""
        self._learner.stop_requested = True

    def collect(self, seed: int, weights: Arrays | None, normalizer: Arrays | None = None) -> RolloutMessage | None:
        """Return a rollout whose random numbers come from `seed`; None if `stop` was called.

        Args:
            seed: Seed, in [0, 2**64).
            weights: Weights of the policy by name; None: the weights of the previous call.
            normalizer: Statistics to start from; None: the statistics of this worker.
        """
        learner, env = self._learner, self._env
        if weights is not None:
            learner.load_weights(weights)
        self._load(normalizer)
        if not learner.collect_for_remote(seed):
            return None
        learner.timesteps += learner.buffer.n_transitions  # errors report this count
        returns, lengths = env.pop_episodes()
        statistics = {} if learner.normalizer is None else dict(learner.normalizer.state())
        rollout = write_rollout(learner.buffer)
        return RolloutMessage(rollout, returns, lengths, env.dropped_episodes, statistics)

    def _load(self, normalizer: Arrays | None) -> None:
        if self._learner.normalizer is not None and normalizer:
            self._learner.normalizer.load_state(normalizer)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def _check_spaces(env: RolloutEnv, expected: tuple[gym.Space[Any], gym.Space[Any]]) -> None:
    actual = env.single_observation_space, env.single_action_space
    for name, space, found in zip(("observation", "action"), expected, actual, strict=True):
        if space != found:
            raise ArgumentError(
                "env",
                f"the learner's {name} space {space} in the environments of each actor",
                str(found),
                "create the same environments in every process",
            )


@dataclass(frozen=True)
class CollectTask:
    """Task of a worker process that collects rollouts until the learner's process ends it."""

    plan: CloudpickleWrapper  # contains a `WorkerPlan`

    def run(self, report: Callable[[Any], Any]) -> None:
        """Report None when ready, then a rollout for each request (seed, weights)."""
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
