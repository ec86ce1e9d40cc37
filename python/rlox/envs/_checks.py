"""Checks that environments follow Gymnasium's API. Errors name the index of the environment."""

import copy
import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._types import Arrays
from rlox.envs import _state

T = TypeVar("T")
FIX = "implement Gymnasium's API, or wrap an environment of the old Gym in shimmy.GymV21CompatibilityV0(env=...)"
_RESULTS = {"reset": ("observations", "infos"), "step": ("observations", "rewards", "terminated", "truncated", "infos")}


def require_env(env: object) -> gym.Env[Any, Any]:
    """Return the result of an environment function after a check that it is an environment."""
    if isinstance(env, gym.Env):
        return env
    raise ArgumentTypeError(
        "env",
        "a function that returns a gymnasium.Env",
        f"a function that returns a {type(env).__name__}",
        f"pass a vector environment itself, or {FIX}",
    )


def check_interface(env: gym.Env[Any, Any]) -> None:
    """Check that an environment has spaces, and that `reset` accepts `seed` and `options`."""
    class_name = type(env).__name__
    for name in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, name, None), gym.Space):
            expected = f"a gymnasium.Space as {class_name}.{name}"
            raise ArgumentTypeError("env", expected, repr(space), f"set {name} in __init__")
    with suppress(ValueError):  # some functions have no signature
        signature = inspect.signature(env.reset)
        try:
            signature.bind(seed=None, options=None)
        except TypeError as error:
            expected = f"{class_name}.reset(*, seed=None, options=None)"
            raise ArgumentTypeError("env", expected, f"reset{signature}", FIX) from error


def check_vector_interface(env: VectorEnv[Any, Any, Any]) -> None:
    """Check that a vector environment has `num_envs` and the spaces of single environments."""
    for name in ("num_envs", "single_observation_space", "single_action_space"):
        if not hasattr(env, name):
            expected = f"{type(env.unwrapped).__name__} to have the attribute {name}"
            raise ArgumentError("env", expected, "none", "set it in __init__")


def check_results(env: VectorEnv[Any, Any, Any], method: str, results: T) -> T:
    """Check the number of results of a vector environment's `method`, and return them."""
    names = _RESULTS[method]
    if isinstance(results, tuple) and len(results) == len(names):
        return results
    got = f"{len(results)} values" if isinstance(results, tuple) else type(results).__name__
    expected = f"{type(env.unwrapped).__name__}.{method}() to return ({', '.join(names)})"
    raise ArgumentError("env", expected, got, FIX)


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that checks the results of an environment, and copies the final observation and mask.

    Some environments return the same array from every call. Without the copies, the reset in
    autoreset mode SAME_STEP would overwrite the final observation and its action mask. The wrapper
    also saves and restores environments in worker processes.

    Args:
        env: The environment.
        index: Index of the environment in its vector environment, for errors.
    """

    def __init__(self, env: gym.Env[Any, Any], index: int | None = None) -> None:
        check_interface(env)
        gym.utils.RecordConstructorArgs.__init__(self, index=index)
        gym.Wrapper.__init__(self, env)
        self.index = index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)  # subclasses of SyncVectorEnv may read attributes

    def set_wrapper_attr(self, name: str, value: object, *, force: bool = True) -> bool:
        """Set an attribute of the wrapped environment."""
        return self.env.set_wrapper_attr(name, value, force=force)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and check the number and types of the results."""
        result: Any = self.env.reset(seed=seed, options=options)
        try:
            obs, info = result
        except (TypeError, ValueError):
            obs = info = None
        if obs is None or not hasattr(info, "items"):
            raise self._wrong("reset", "(observation, dict)", result)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment, and check the number and types of the results."""
        result: Any = self.env.step(action)
        try:
            obs, reward, terminated, truncated, info = result
            over = bool(terminated or truncated)
            if np.ndim(reward):  # NumPy cannot assign an array to an element of `rewards`
                raise TypeError
            float(reward)
        except (TypeError, ValueError, RuntimeError):  # torch tensors raise RuntimeError
            obs = info = None
        if obs is None or not hasattr(info, "items"):
            raise self._wrong("step", "(observation, number, bool, bool, dict)", result)
        if over:
            obs = copy.deepcopy(obs)
            if "action_mask" in info:  # other entries may not support copies
                info = {**info, "action_mask": copy.deepcopy(info["action_mask"])}
        return obs, reward, terminated, truncated, info

    def _wrong(self, method: str, expected: str, result: object) -> ArgumentError:
        got = f"a {type(result).__name__}"
        if isinstance(result, tuple):
            got = f"({', '.join(type(value).__name__ for value in result)})"
        expected = f"{type(self.unwrapped).__name__}.{method}() to return {expected}"
        return ArgumentError("env", expected, got, FIX, env=self.index)

    def rlox_layers(self) -> list[str]:
        """Return the class names of the wrappers and of the environment."""
        return _state.layers(self.env)

    def rlox_get_state(self) -> Arrays | str:
        """Return the state of the wrapped environment, or the reason why there is none."""
        return _state.get_state(self.env)

    def rlox_set_state(self, arrays: Arrays) -> str | None:
        """Restore the state of the wrapped environment; return the reason if that fails."""
        return _state.set_state(self.env, arrays)


def check_observations(env: VectorEnv[Any, Any, Any]) -> None:
    """Check the last observation of each environment of a `SyncVectorEnv` against its space.

    Gymnasium's own errors name neither the environment nor the part of the observation.
    """
    if not isinstance(env, SyncVectorEnv):
        return
    last_obs: list[Any] = env._env_obs  # None before the first reset
    for i, obs in enumerate(last_obs):
        if obs is not None and (wrong := _mismatch(env.single_observation_space, obs, "obs")):
            name, expected, got = wrong
            raise ArgumentError(
                name,
                f"{expected} of the observation space",
                f"{got} from {type(env.envs[i].unwrapped).__name__}",
                "correct reset(), step() or observation_space",
                env=i,
            )


def _mismatch(space: gym.Space[Any], obs: Any, name: str) -> tuple[str, str, str] | None:
    """Return the name, expected form and actual form of the first wrong part of `obs`, or None."""
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
                return name, f"a tuple of {len(space.spaces)} parts", type(obs).__name__
            parts = [*enumerate(space.spaces)]
        case _:
            try:
                array = np.asarray(obs)
            except (TypeError, ValueError):
                return (name, f"shape {space.shape}", f"a {type(obs).__name__} that NumPy cannot convert")
            if space.shape is not None and array.shape != space.shape:
                return name, f"shape {space.shape}", f"shape {array.shape}"
            if space.dtype is None or np.can_cast(array.dtype, space.dtype, "same_kind"):
                return None
            return name, f"dtype {space.dtype}", f"dtype {array.dtype}"
    wrong = (_mismatch(part, obs[key], f"{name}[{key!r}]") for key, part in parts)
    return next(filter(None, wrong), None)
