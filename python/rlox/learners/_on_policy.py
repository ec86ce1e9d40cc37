"""Rollouts from actors, for the on-policy learners of all backends."""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym
import numpy as np

from rlox import learners
from rlox._rlox import NativePolicy, Normalizer
from rlox._types import Arrays
from rlox.configs import OnPolicyConfig, local_config
from rlox.envs._make import get_env_factory
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import _actors

# Workers outside of this process, by mode; imported on first use.
_WORKERS = {
    "processes": "rlox.distributed._process_actors:ActorProcesses",
    "ray": "rlox.distributed.ray:RayWorkers",
}
_START_GRPC = "rlox.distributed.remote:start_remote_actors"


@dataclass(frozen=True)
class ActorPlan:
    """Facts about the actors of a learner, which start with the first rollout."""

    mode: str  # result of `resolve_actors`
    learner_class: Callable[..., _actors.RemoteLearner]  # created again in worker processes
    env: RolloutEnv
    config: OnPolicyConfig
    spaces: tuple[gym.Space[Any], gym.Space[Any]]

    @property
    def uses_native_policy(self) -> bool:
        """Whether actors copy the weights into native networks."""
        return self.mode in ("threads", "grpc")

    def start(
        self,
        seed: int,
        stream: np.random.Generator,
        normalizer: Normalizer | None,
        weights: NativePolicy | Arrays,
        worker_args: Callable[[], tuple[object, ...]],
        stop_requested: Callable[[], bool],
    ) -> _actors.Actors | None:
        """Start the actors; return None if `stop_requested` returned True meanwhile.

        `stream` draws the seeds of the rollouts, and `worker_args` returns further arguments of the
        learner class. A single actor continues the statistics of `normalizer`.
        """
        env, config = self.env, self.config
        statistics: Arrays = {} if normalizer is None else dict(normalizer.state())
        if self.uses_native_policy:
            assert isinstance(env, VecEnv)  # checked by `resolve_actors`
            if self.mode == "grpc":
                start_grpc: Callable[..., _actors.Actors] = resolve_name(_START_GRPC)
                return start_grpc(env, config, weights, seed, stream)
            # The learner's normalizer follows the learned rollouts, so the actor needs a copy.
            copied = learners.make_normalizer(config, self.spaces[0], statistics or None)
            return _actors.start_thread_actors(env, config, weights, copied, seed, stream)
        env_factory = get_env_factory(env)
        assert env_factory is not None  # checked by `resolve_actors`
        assert not isinstance(weights, NativePolicy)
        make_workers: Callable[[OnPolicyConfig], _actors.Workers] = resolve_name(
            _WORKERS[self.mode]
        )
        return _actors.start_worker_actors(
            make_workers(config),
            env=env,
            config=config,
            plan=_actors.WorkerPlan(
                self.learner_class,
                env_factory,
                local_config(config, config.num_envs // config.num_actors),
                seed,
                worker_args(),
                statistics,
                self.spaces,
            ),
            weights=weights,
            stream=stream,
            stop_requested=stop_requested,
        )
