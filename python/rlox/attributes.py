"""Attributes that native environments share with Gymnasium's environments of the same ids."""

from functools import cache
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._rlox import NativeVectorEnv
from rlox.ids import PLUGINS

# Numbers in Gymnasium's `state`; native states have further ones behind them.
_STATE_SIZES = {
    "Acrobot-v1": 4,
    "CartPole-v1": 4,
    "MountainCar-v0": 2,
    "MountainCarContinuous-v0": 2,
    "Pendulum-v1": 2,
}
# Constructor arguments, by the names of Gymnasium's attributes.
_ARGUMENTS = {
    "Acrobot-v1": {"dt": "dt", "torque_noise_max": "torque_noise_max", "book_or_nips": "nips"},
    "MountainCar-v0": {"goal_velocity": "goal_velocity"},
    "MountainCarContinuous-v0": {"goal_velocity": "goal_velocity"},
    "Pendulum-v1": {"g": "g"},
}


def expect_state(env_id: str) -> None:
    """Raise an AttributeError for environments of which Gymnasium has none with a `state`."""
    if env_id not in _STATE_SIZES:
        raise AttributeError(f"state: expected one of Gymnasium's environments, got {env_id!r}")


def to_gymnasium_state(env_id: str, state: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return a native state as Gymnasium's environment holds it, in its dtype.

    >>> to_gymnasium_state("Acrobot-v1", np.zeros(5)).dtype
    dtype('float32')
    """
    own = state[: _STATE_SIZES.get(env_id)]
    single = {"Acrobot-v1": 0.0, "MountainCarContinuous-v0": 1.0}.get(env_id)
    return own if single is None or state[-1] != single else own.astype(np.float32)


def to_native_state(env_id: str, state: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a state of Gymnasium's environment as native environments hold it.

    Raises:
        ValueError: The state has another shape, or is not made of real numbers.

    >>> to_native_state("MountainCarContinuous-v0", [0.5, 0.0])
    array([0.5, 0. , 0. ])
    """
    own, size = np.asarray(state), _STATE_SIZES[env_id]
    if own.shape != (size,) or own.dtype.kind not in "biuf":
        raise ArgumentError(
            "state",
            f"{size} real numbers",
            f"shape {own.shape} of dtype {own.dtype}",
            f"pass a state of {env_id}",
        )
    single = own.dtype == np.float32
    # The marks of precision, and the pendulum's last torque, which is not known.
    behind = {"Acrobot-v1": not single, "MountainCarContinuous-v0": single, "Pendulum-v1": np.nan}
    return np.append(own, behind.get(env_id, [])).astype(np.float64)


@cache
def _constants(env_id: str) -> dict[str, Any]:
    """Return the constants of Gymnasium's environment; native arguments have their defaults."""
    if env_id in PLUGINS:
        return {}
    env = gym.make(env_id, disable_env_checker=True).unwrapped
    constants: dict[str, Any] = {}
    for name, value in {**vars(type(env)), **vars(env)}.items():
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
    """Base class of native environments, whose physics is compiled.

    The constants of Gymnasium's environment can be read, but not set. Unknown attributes can be
    set only by subclasses outside of rlox.
    """

    _native: NativeVectorEnv
    _env_kwargs: dict[str, float]
    _initialized = False

    if not TYPE_CHECKING:  # type checkers shall report unknown attributes

        def __getattr__(self, name: str) -> Any:
            constants = {} if name.startswith("_") else _constants(self._native.env_id)
            if name not in constants:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            argument = _ARGUMENTS.get(self._native.env_id, {}).get(name)
            if argument not in self._env_kwargs:
                return constants[name]
            value = self._env_kwargs[argument]
            return value if argument != "nips" else "nips" if value else "book"

    def __setattr__(self, name: str, value: object) -> None:
        if self._initialized and name not in self.__dict__ and not hasattr(type(self), name):
            self._refuse(name, value)
        super().__setattr__(name, value)

    def _refuse(self, name: str, value: object) -> None:
        """Raise an AttributeError, unless a user's subclass has an attribute of its own."""
        env_id = self._native.env_id
        if name in _constants(env_id):
            argument = _ARGUMENTS.get(env_id, {}).get(name)
            fix = f"make Gymnasium's environment with gymnasium.make({env_id!r}) to change it"
            if argument is not None:
                fix = f"pass {argument}= to the constructor"
            raise AttributeError(f"{name}: expected {getattr(self, name)!r}, got {value!r}; {fix}")
        if type(self).__module__.partition(".")[0] == "rlox":
            raise AttributeError(
                f"{name}: expected an attribute of {type(self).__name__}, got an unknown name; set "
                "it on a wrapper, or in a subclass"
            )
