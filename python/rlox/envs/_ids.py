"""Ids of native environments, with their metadata, specs and renderer."""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import env_ids
from rlox._validation import check_str
from rlox.envs._attributes import to_gymnasium_state

# Capsules of the environments of other extension modules, by id; `rlox.register_env` adds them.
# `NativeVectorEnv` accepts such a capsule, or the id of an environment of rlox's own extension.
PLUGINS: dict[str, Any] = {}


def native_ids() -> list[str]:
    """Return the ids of all native environments, including those of other extension modules.

    >>> "CartPole-v1" in native_ids()
    True
    """
    return [*env_ids(), *PLUGINS]


def render_modes(name: str) -> list[str]:
    """Return the render modes of a `VecEnv`; empty if Gymnasium has no environment of this id.

    >>> render_modes("CartPole-v1")
    ['rgb_array']
    """
    return [] if name in PLUGINS else ["rgb_array"]


def native_id(env_id: object) -> str:
    """Return an id without the prefix `rlox/`.

    >>> native_id("rlox/CartPole-v1")
    'CartPole-v1'
    """
    name = check_str("env_id", env_id).removeprefix("rlox/")
    if name not in native_ids() and name in gym.registry:
        raise ArgumentError(
            "env_id",
            f"one of {', '.join(native_ids())}",
            f"{name!r}, which is not native",
            "use rlox.make_vec, which accepts every id in Gymnasium's registry",
        )
    return name


def frames_per_second(env_id: str) -> int:
    """Return the number of rendered frames per second, 30 if the environment defines none.

    >>> frames_per_second("CartPole-v1")
    50
    """
    entry = gym.spec(env_id).entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    return int(getattr(creator, "metadata", {}).get("render_fps", 30))


def vector_spec(
    env_id: str, max_episode_steps: int | None, render_mode: str | None, **kwargs: object
) -> EnvSpec | None:
    """Return the spec for `gymnasium.make_vec`, or None if the id is not registered.

    >>> vector_spec("CartPole-v1", 100, None, num_envs=2).kwargs["max_episode_steps"]
    100
    """
    registered_id = env_id if env_id in PLUGINS else f"rlox/{env_id}"
    spec = copy.deepcopy(gym.registry.get(registered_id))
    if spec is not None:
        options = {"render_mode": render_mode, "max_episode_steps": max_episode_steps}
        spec.kwargs.update({key: value for key, value in options.items() if value}, **kwargs)
    return spec


def check_render_mode(mode: object, known: Sequence[str]) -> None:
    """Check that a render mode is None or one of `known`."""
    if mode is not None and not (isinstance(mode, str) and mode in known):
        error_class = ArgumentError if isinstance(mode, str) else ArgumentTypeError
        expected = " or ".join(["None", *map(repr, known)])
        raise error_class("render_mode", expected, repr(mode), "pass a mode that the environment supports")


class Renderer:
    """Renderer that draws native states with Gymnasium's environment of the same id.

    Needs pygame, from the extra `rlox[classic-control]`.
    """

    def __init__(self, env_id: str, render_mode: str) -> None:
        env = gym.make(env_id, render_mode=render_mode, disable_env_checker=True)
        self._env: Any = env.unwrapped

    def draw(self, state: npt.NDArray[np.float64]) -> Any:
        """Return the frame of one native state, uint8 (height, width, 3); None in "human" mode."""
        self._env.state = to_gymnasium_state(self._env.spec.id, state)
        if self._env.spec.id == "Pendulum-v1":
            torque = np.float32(state[2])
            self._env.last_u = None if np.isnan(torque) else torque
        return self._env.render()

    def close(self) -> None:
        """Close the window, if there is one."""
        self._env.close()
