"""Check that environments follow Gymnasium's API; errors name the environment."""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rlox import snapshots
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.learner import Arrays

FIX = (
    "update it to Gymnasium's API, or, if it follows Gym's, wrap it in "
    "shimmy.GymV21CompatibilityV0(env=...)"
)


def require_env(env: object) -> gym.Env[Any, Any]:
    """Return the result of a function that makes environments.

    Raises:
        TypeError: The result is not a `gymnasium.Env`.
    """
    if isinstance(env, gym.Env):
        return env
    raise ArgumentTypeError(
        "env",
        "a function that returns a gymnasium.Env",
        f"a {type(env).__name__} from it",
        f"pass a vector environment itself, or {FIX}",
    )


class CopyFinalObs(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that copies final observations, and that saves environments in worker processes.

    In autoreset mode SAME_STEP an environment that returns one array again and again would
    overwrite its final observation by the reset.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> Any:
        """Step the environment.

        Raises:
            ValueError: The environment does not return five values.
        """
        result: Any = self.env.step(action)
        if len(result) != 5:
            raise ArgumentError(
                "env",
                f"{type(self.unwrapped).__name__}.step() to return (observation, reward, "
                "terminated, truncated, info)",
                f"{len(result)} values",
                FIX,
            )
        obs, reward, terminated, truncated, info = result
        if terminated or truncated:
            obs = copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def rlox_layers(self) -> list[str]:
        """Return the class names of the wrappers and of the environment."""
        return snapshots.layers(self.env)

    def rlox_snapshot(self) -> Arrays | str:
        """Return `rlox.snapshots.snapshot` of the wrapped environment."""
        return snapshots.snapshot(self.env)

    def rlox_restore(self, arrays: Arrays) -> str | None:
        """Return `rlox.snapshots.restore` of the wrapped environment."""
        return snapshots.restore(self.env, arrays)


def check_observations(env: VectorEnv[Any, Any, Any]) -> None:
    """Check the last observation of each environment of a `SyncVectorEnv` against its space.

    Gymnasium's own errors name neither the environment nor the part of the observation.

    Raises:
        ValueError: A part has another structure, shape or dtype than its space.
    """
    sync: Any = env if isinstance(env, SyncVectorEnv) else None
    for i, obs in enumerate(sync._env_obs if sync else ()):
        if obs is not None and (wrong := _mismatch(sync.single_observation_space, obs, "obs")):
            name, expected, got = wrong
            raise ArgumentError(
                name,
                f"{expected}, as the observation space says",
                f"{got} from {type(sync.envs[i].unwrapped).__name__}",
                "correct reset(), step() or observation_space",
                env=i,
            )


def _mismatch(space: Any, obs: Any, name: str) -> tuple[str, str, str] | None:
    """Return the name of the first part that does not fit, with its expected and actual form."""
    match space:
        case spaces.Dict():
            if not isinstance(obs, Mapping) or not {*space.spaces} <= {*obs}:
                keys = [*obs] if isinstance(obs, Mapping) else type(obs).__name__
                return name, f"a dict with the keys {[*space.spaces]}", str(keys)
            parts: list[tuple[Any, gym.Space[Any]]] = [*space.spaces.items()]
        case spaces.Tuple():
            # Gymnasium also accepts an array with a row for each part.
            sequence = isinstance(obs, tuple | list) or np.ndim(obs) > 0
            if not sequence or len(obs) != len(space.spaces):
                return name, f"a tuple of {len(space.spaces)}", type(obs).__name__
            parts = [*enumerate(space.spaces)]
        case _:
            try:
                array = np.asarray(obs)
            except (TypeError, ValueError):
                return name, f"shape {space.shape}", f"a {type(obs).__name__} that is no array"
            if space.shape is not None and array.shape != space.shape:
                return name, f"shape {space.shape}", f"shape {array.shape}"
            if space.dtype is None or np.can_cast(array.dtype, space.dtype, "same_kind"):
                return None
            return name, f"dtype {space.dtype}", f"dtype {array.dtype}"
    wrong = (_mismatch(part, obs[key], f"{name}[{key!r}]") for key, part in parts)
    return next(filter(None, wrong), None)
