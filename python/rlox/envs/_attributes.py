"""Attributes of native environments that mirror Gymnasium's environments of the same ids."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs import classic_control

from rlox._errors import ArgumentError
from rlox._rlox import NativeVectorEnv

# Gymnasium's class and the size of its `state`. Native states can have one more number.
_CLASSES = {
    "Acrobot-v1": (classic_control.AcrobotEnv, 4),
    "CartPole-v1": (classic_control.CartPoleEnv, 4),
    "MountainCar-v0": (classic_control.MountainCarEnv, 2),
    "MountainCarContinuous-v0": (classic_control.Continuous_MountainCarEnv, 2),
    "Pendulum-v1": (classic_control.PendulumEnv, 2),
}
# Gymnasium's attribute names and the constructor arguments that set them.
_ARGUMENTS = {
    "Acrobot-v1": {"dt": "dt", "torque_noise_max": "torque_noise_max", "book_or_nips": "nips"},
    "MountainCar-v0": {"goal_velocity": "goal_velocity"},
    "MountainCarContinuous-v0": {"goal_velocity": "goal_velocity"},
    "Pendulum-v1": {"g": "g"},
}


def check_has_state(env_id: str) -> None:
    """Raise an AttributeError if Gymnasium has no environment of this id with a `state`."""
    if env_id not in _CLASSES:
        raise AttributeError(f"state: expected one of {', '.join(_CLASSES)}, got {env_id!r}", name="state")


def to_gymnasium_state(env_id: str, state: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return a native state in the shape and dtype of Gymnasium's `state`.

    >>> to_gymnasium_state("Acrobot-v1", np.zeros(5)).dtype
    dtype('float32')
    """
    values = state[: _CLASSES[env_id][1]]
    float32_flag = {"Acrobot-v1": 0.0, "MountainCarContinuous-v0": 1.0}.get(env_id)
    is_float64 = float32_flag is None or state[-1] != float32_flag
    return values if is_float64 else values.astype(np.float32)


def to_native_state(env_id: str, state: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Convert Gymnasium's `state` to a native state, float64.

    >>> to_native_state("MountainCarContinuous-v0", [0.5, 0.0])
    array([0.5, 0. , 0. ])
    """
    values = np.asarray(state)
    _, size = _CLASSES[env_id]
    if values.shape != (size,) or values.dtype.kind not in "iuf":
        got = f"shape {values.shape} of dtype {values.dtype}"
        raise ArgumentError("state", f"{size} real numbers", got, f"pass a state of {env_id}")
    is_float32 = values.dtype == np.float32
    # The additional number of native states: a flag for the precision, or the last torque.
    suffix = {"Acrobot-v1": not is_float32, "MountainCarContinuous-v0": is_float32, "Pendulum-v1": np.nan}
    return np.append(values, suffix.get(env_id, [])).astype(np.float64)


@cache
def _constants(env_id: str) -> dict[str, Any]:
    """Return the constants of Gymnasium's environment with its default arguments."""
    if env_id not in _CLASSES:
        return {}
    env_class, _ = _CLASSES[env_id]
    constants: dict[str, Any] = {}
    for name, value in {**vars(env_class), **vars(env_class())}.items():
        if name.startswith("_") or hasattr(gym.Env, name) or name == "state":
            continue
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        if isinstance(value, int | float | str | np.ndarray) and not isinstance(value, bool):
            constants[name] = value
        elif isinstance(value, list):
            constants[name] = tuple(value)
    return constants


class GymnasiumAttributes:
    """Base class of native environments; mirrors Gymnasium's environment of the same id.

    The physics is compiled, so constants such as `gravity` can be read, but not set. Other
    attributes can be set only if the class defines them, or in subclasses of other packages.
    """

    _native: NativeVectorEnv
    _constants: Mapping[str, Any] | None = None

    def _freeze(self, env_kwargs: Mapping[str, float]) -> None:
        """Copy the constants into the instance, and check later assignments of attributes."""
        # `__getattr__` instead of copies would slow down every attribute access.
        constants = dict(_constants(self._native.env_id))
        for name, argument in _ARGUMENTS.get(self._native.env_id, {}).items():
            if argument in env_kwargs:
                constants[name] = env_kwargs[argument]
        if "nips" in env_kwargs:
            constants["book_or_nips"] = "nips" if env_kwargs["nips"] else "book"
        self._constants = constants
        for name in [*constants]:  # a subclass may define attributes with these names
            attribute = self.__dict__.get(name, getattr(type(self), name, None))
            if isinstance(attribute, int | float | str | np.ndarray):
                self._check_attribute(name, attribute)
            if attribute is not None:
                del constants[name]
        self.__dict__.update(constants)

    def __setattr__(self, name: str, value: object) -> None:
        constants = self._constants
        unknown = name not in self.__dict__ and not hasattr(type(self), name)
        if constants is not None and (name in constants or unknown):
            if name in constants and np.array_equal(value, constants[name]):  # type: ignore[arg-type]
                return
            self._check_attribute(name, value)
        super().__setattr__(name, value)

    def _check_attribute(self, name: str, value: object) -> None:
        """Raise an AttributeError for a constant and, in rlox's own classes, an unknown name."""
        env_id = self._native.env_id
        constants = self._constants or {}
        if name in constants:
            argument = _ARGUMENTS.get(env_id, {}).get(name)
            fix = f"pass {argument}= to the constructor"
            if argument is None:
                fix = f"use gymnasium.make({env_id!r}) to change this constant"
            raise AttributeError(f"{name}: expected {constants[name]!r}, got {value!r}; {fix}", name=name, obj=self)
        if type(self).__module__.partition(".")[0] == "rlox":
            raise AttributeError(
                f"{name}: expected an attribute of {type(self).__name__}, got an unknown name; set "
                "the attribute on a wrapper, or define it in a subclass",
                name=name,
                obj=self,
            )
