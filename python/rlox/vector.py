"""Vector environments: `VecEnv` (native), `ForeignVecEnv` (any other), and `make_vec`."""

import difflib
import importlib
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlox._rlox import env_ids
from rlox.foreign import ForeignVecEnv
from rlox.rollout import RolloutBatch, RolloutEnv, collect_rollout
from rlox.vec_env import VecEnv

__all__ = ["ForeignVecEnv", "RolloutBatch", "RolloutEnv", "VecEnv", "collect_rollout", "make_vec"]

Factory = Callable[..., gym.Env[Any, Any]]
# Bytes of a Gymnasium environment in Python: its spaces alone take more.
SMALLEST_ENV = 2000


def make_vec(
    env: str | VectorEnv[Any, Any, Any] | gym.Env[Any, Any] | Factory,
    num_envs: int = 1,
    *,
    seed: int | None = None,
    **kwargs: Any,
) -> VecEnv | ForeignVecEnv:
    """Makes `num_envs` environments ready for rollouts.

    Args:
        env: An id (native where there is a native implementation, else Gymnasium's, stepped one by
            one), an environment class or a function that makes one, a vector environment in
            SAME_STEP mode (`num_envs` is its own then), or a single environment for `num_envs=1`.
        num_envs: How many, at least 1.
        seed: For the first reset: environment i gets `seed + i`.
        **kwargs: Passed to what makes the environments.

    Raises:
        ValueError: Unknown id (near ones are named), a wrong number or autoreset mode.
        MemoryError: So many environments do not fit into memory.
        TypeError: `env` is none of the above, or keywords for an environment already made.

    >>> make_vec("CartPole-v1", 4, seed=0)
    VecEnv(rlox/CartPole-v1, num_envs=4)
    >>> make_vec(lambda: gym.make("CartPole-v1"), 2)  # Gymnasium's own
    <ForeignVecEnv, SyncVectorEnv(num_envs=2)>
    """
    if not isinstance(num_envs, int | np.integer):
        raise TypeError(f"num_envs: expected an integer, got {num_envs!r}; pass how many to make")
    if num_envs < 1:
        raise ValueError(f"num_envs: expected at least 1, got {num_envs}; ask for one or more")
    if isinstance(env, str):
        return _from_id(env, num_envs, seed, kwargs)
    if isinstance(env, VectorEnv | gym.Env) and kwargs:
        raise TypeError(
            f"{next(iter(kwargs))}: expected no keywords for an environment already made, got "
            f"{kwargs}; pass them where it is made"
        )
    if isinstance(env, VecEnv):
        if seed is not None:
            env.reset(seed=seed)
        return env
    if isinstance(env, ForeignVecEnv) and seed is None:
        return env
    if isinstance(env, VectorEnv):
        return ForeignVecEnv(env, seed)
    if isinstance(env, gym.Env):
        if num_envs != 1:
            raise ValueError(
                f"num_envs: expected 1 for a single environment, got {num_envs}; pass its class "
                "or a function that makes it"
            )
        return _sync(lambda: env, 1, seed, {})
    if callable(env):
        return _sync(env, num_envs, seed, kwargs)
    raise TypeError(
        "env: expected an id, an environment, a vector environment or a function that makes one, "
        f"got {type(env).__name__}; see gymnasium.make"
    )


def _check_memory(num_envs: int) -> None:
    """Refuses so many Python environments that making them would never end."""
    needed = num_envs * SMALLEST_ENV
    known = hasattr(os, "sysconf")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 2**40
    if needed > memory:
        raise MemoryError(
            f"num_envs: expected environments that fit into {memory:,} bytes, got {num_envs}, "
            f"which need {needed:,} or more; ask for less"
        )


def _sync(make: Factory, n: int, seed: int | None, kwargs: dict[str, Any]) -> ForeignVecEnv:
    _check_memory(n)
    made = SyncVectorEnv([lambda: make(**kwargs)] * n, autoreset_mode=AutoresetMode.SAME_STEP)
    return ForeignVecEnv(made, seed)


def _from_id(
    env_id: str, num_envs: int, seed: int | None, kwargs: dict[str, Any]
) -> VecEnv | ForeignVecEnv:
    name = env_id.removeprefix("rlox:").removeprefix("rlox/")
    native = env_ids()
    if name in native:
        return VecEnv(num_envs, seed, name, **kwargs)
    module, _, plain_id = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    try:
        gym.spec(plain_id)
    except gym.error.Error as error:
        known = [*native, *gym.registry]
        lower = {known_id.lower(): known_id for known_id in known}
        near = [lower[key] for key in difflib.get_close_matches(env_id.lower(), lower, n=3)]
        hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.registry lists all ids"
        raise ValueError(f"env: expected a known id, got {env_id!r}; {hint}") from error
    _check_memory(num_envs)
    vector_kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    made = gym.make_vec(plain_id, num_envs, "sync", vector_kwargs=vector_kwargs, **kwargs)
    return ForeignVecEnv(made, seed)
