"""Environments as models take them: what `rlox.make_vec` does, and none of SB3's own."""

from typing import Any

from rlox.foreign import ForeignVecEnv
from rlox.keywords import refuse_policy_name
from rlox.vec_env import VecEnv
from rlox.vector import make_vec


def expect_environment(env: object) -> None:
    """Refuses Stable-Baselines3's own vector environments and wrappers.

    Their `step` gives four things, and their observations after an episode's end are the next
    one's.

    Raises:
        TypeError: It is one, or there is none.
        ValueError: It is a policy's name.

    >>> expect_environment(None)
    Traceback (most recent call last):
    TypeError: env: expected an environment or its id, got None; models are made with one
    """
    if env is None:
        raise TypeError(
            "env: expected an environment or its id, got None; models are made with one"
        )
    refuse_policy_name(env)
    kinds = env.__mro__ if isinstance(env, type) else type(env).__mro__
    if any(kind.__module__.startswith("stable_baselines3.common.vec_env") for kind in kinds):
        name = env.__name__ if isinstance(env, type) else type(env).__name__
        raise TypeError(
            f"env: expected an id, a gymnasium.Env or a vector environment of rlox or Gymnasium, "
            f"got Stable-Baselines3's {name}; pass rlox.make_vec(id, num_envs=8), or functions to "
            "gymnasium.vector.SyncVectorEnv; normalize_obs and normalize_reward are settings of "
            "rlox.trainers"
        )


def ready(env: Any, num_envs: int | None = None) -> VecEnv | ForeignVecEnv:
    """Environments ready for rollouts."""
    return make_vec(env, num_envs)
