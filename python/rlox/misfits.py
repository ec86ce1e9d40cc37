"""Observations that are not of the space that their environment says: which one, where, and how."""

from collections.abc import Mapping
from traceback import walk_tb
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError
from rlox.contract import refuse_other_api

FIX = "mend what its reset and step give, or its observation_space"


def refuse_misfit(env: VectorEnv[Any, Any, Any], error: Exception) -> None:
    """Where environments failed as one gave an observation that does not fit, says which and how.

    Gymnasium's own errors say neither. Failures of anything else than putting observations and
    rewards together are left as they are; of what fails in a worker process, only the error's words
    are known.

    Args:
        env: The environments that failed.
        error: How.

    Raises:
        ValueError: The environment and part of the observation are named, and both shapes or
            dtypes; or a reward is no number.
        TypeError, ValueError: As `refuse_other_api`, for environments that are not Gymnasium's.
    """
    refuse_other_api(env, error)
    inner: Any = env.unwrapped
    space = inner.single_observation_space
    if isinstance(inner, SyncVectorEnv) and _in_concatenation(error):
        for i, obs in enumerate(getattr(inner, "_env_obs", ())):  # what each one gave last
            if obs is not None and (wrong := _misfit(space, obs, "obs")):
                name, expected, got = wrong
                made = type(inner.envs[i].unwrapped).__name__
                raise ArgumentError(
                    name,
                    f"{expected}, as the observation space says",
                    f"{got} from environment {i}, a {made}",
                    FIX,
                ) from error
    if str(error).startswith("setting an array element with a sequence"):
        raise ArgumentError(
            "rewards",
            "a number from each environment",
            f"an array ({error})",
            "return float(reward) from its step",
        ) from error
    # What a worker process saw stays there.
    if isinstance(inner, AsyncVectorEnv) and str(error).startswith("could not broadcast input"):
        raise ArgumentError(
            "obs",
            f"observations of {space}",
            f"another shape from an environment in a worker process ({error})",
            FIX,
        ) from error


def _in_concatenation(error: Exception) -> bool:
    """Whether it was raised as Gymnasium put observations together."""
    where = (frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__))
    return "gymnasium.vector.utils.space_utils" in where


def _misfit(space: gym.Space[Any], obs: Any, name: str) -> tuple[str, str, str] | None:
    """The first part that does not fit: its name, what was expected, what is there."""
    match space:
        case spaces.Dict():
            if not isinstance(obs, Mapping) or not {*space.spaces} <= {*obs}:
                keys = [*obs] if isinstance(obs, Mapping) else type(obs).__name__
                return name, f"a dict with the keys {[*space.spaces]}", str(keys)
            parts: list[tuple[Any, gym.Space[Any]]] = [*space.spaces.items()]
        case spaces.Tuple():
            several = isinstance(obs, tuple | list) or np.ndim(obs) > 0
            if not several or len(obs) != len(space.spaces):
                return name, f"a tuple of {len(space.spaces)}", type(obs).__name__
            parts = [*enumerate(space.spaces)]
        case _:
            got = _shape(obs)
            if space.shape is not None and got != f"shape {space.shape}":
                return name, f"shape {space.shape}", got
            dtype = np.asarray(obs).dtype
            if space.dtype is None or np.can_cast(dtype, space.dtype, "same_kind"):
                return None
            return name, f"dtype {space.dtype}", f"dtype {dtype}"
    wrong = (_misfit(part, obs[key], f"{name}[{key!r}]") for key, part in parts)
    return next(filter(None, wrong), None)


def _shape(obs: Any) -> str:
    try:
        return f"shape {np.shape(obs)}"
    except (TypeError, ValueError):
        return f"a {type(obs).__name__} that is no array"
