"""Environments as models take them: what `rlox.make_vec` does, and none of SB3's own."""

import dataclasses
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rlox._errors import ArgumentTypeError
from rlox.foreign import ForeignVecEnv
from rlox.registered import name_of
from rlox.trainer import Trainer
from rlox.vec_env import VecEnv
from rlox.vector import make_vec


def expect_environment(env: object) -> None:
    """Refuses Stable-Baselines3's own vector environments and wrappers.

    Their `step` gives four things, and their observations after an episode's end are the next
    one's.

    Raises:
        TypeError: It is one, or there is none.

    >>> expect_environment(None)
    Traceback (most recent call last):
    TypeError: env: expected an environment or its id, got None; models are made with one
    """
    if env is None:
        raise ArgumentTypeError(
            "env", "an environment or its id", "None", "models are made with one"
        )
    kinds = env.__mro__ if isinstance(env, type) else type(env).__mro__
    if any(kind.__module__.startswith("stable_baselines3.common.vec_env") for kind in kinds):
        name = env.__name__ if isinstance(env, type) else type(env).__name__
        raise ArgumentTypeError(
            "env",
            "an id, a gymnasium.Env or a vector environment of rlox or Gymnasium",
            f"Stable-Baselines3's {name}",
            "pass rlox.make_vec(id, num_envs=8), or functions to gymnasium.vector.SyncVectorEnv; "
            "normalize_obs and normalize_reward are settings of rlox.trainers",
        )


def ready(env: Any, num_envs: int | None = None) -> VecEnv | ForeignVecEnv:
    """Environments ready for rollouts."""
    return make_vec(env, num_envs)


_STANDARD = (TimeLimit, OrderEnforcing, PassiveEnvChecker)


def named(trainer: Trainer, env: object) -> Trainer:
    """The trainer, which knows the id of an environment that is what its id makes.

    Args:
        trainer: Made with `env`.
        env: As `expect_environment` takes it.
    """
    if trainer.env_id is None and (env_id := told_id(env)) is not None:
        trainer.env_id = trainer.env_name = env_id
    return trainer


def told_id(env: object) -> str | None:
    """The id that makes such environments; None where it does not tell all about them.

    >>> told_id(gym.make("CartPole-v1")), told_id(gym.make("CartPole-v1", sutton_barto_reward=True))
    ('CartPole-v1', None)
    """
    spec = getattr(env, "spec", None)
    without: tuple[str, ...] = ("render_mode",)
    if spec is None or spec.id not in gym.registry:
        return None
    if isinstance(env, gym.Env):
        inner: Any = env
        while isinstance(inner, gym.Wrapper):
            if type(inner) not in _STANDARD:
                return None
            inner = inner.env
    elif type(env) is VecEnv and spec.kwargs.get("autoreset_mode") == "SameStep":
        without = ("num_envs", "autoreset_mode")
    else:
        return None
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in without}
    plain = dataclasses.replace(spec, kwargs=kwargs)
    return name_of(spec) if plain == gym.spec(spec.id) else None
