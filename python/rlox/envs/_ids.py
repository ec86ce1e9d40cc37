"""Native ids, and what Gymnasium's registry says of them."""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import env_ids
from rlox._validation import check_str
from rlox.envs._attributes import to_gymnasium_state

# Environments of other extension modules by their ids; `rlox.register_env` puts them here.
PLUGINS: dict[str, Any] = {}


def native_ids() -> list[str]:
    """The ids that `VecEnv` takes.

    >>> "CartPole-v1" in native_ids()
    True
    """
    return [*env_ids(), *PLUGINS]


def source_of(name: str) -> Any:
    """What the extension makes environments of this native id from: the id, or a capsule.

    >>> source_of("CartPole-v1")
    'CartPole-v1'
    """
    return PLUGINS.get(name, name)


def render_modes(name: str) -> list[str]:
    """How native environments of an id can be drawn: not at all where Gymnasium has none such.

    >>> render_modes("CartPole-v1")
    ['rgb_array']
    """
    return [] if name in PLUGINS else ["rgb_array"]


def native_id(env_id: object) -> str:
    """An id without the prefix `rlox/`.

    Raises:
        TypeError: `env_id` is not a str.
        ValueError: It is one of Gymnasium's that has no native implementation.

    >>> native_id("rlox/CartPole-v1")
    'CartPole-v1'
    """
    name = check_str("env_id", env_id).removeprefix("rlox/")
    if name not in native_ids() and name in gym.registry:
        raise ArgumentError(
            "env_id",
            f"one of {', '.join(native_ids())}",
            f"{name!r}, which is not native",
            "rlox.make_vec takes every id that Gymnasium knows",
        )
    return name


def frames_per_second(env_id: str) -> int:
    """How many steps make a second of the environment's film.

    >>> frames_per_second("CartPole-v1")
    50
    """
    entry = gym.spec(env_id).entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    return int(getattr(creator, "metadata", {}).get("render_fps", 30))


def vector_metadata(env_id: str, mode: AutoresetMode) -> dict[str, Any]:
    """What native environments say about themselves.

    >>> vector_metadata("CartPole-v1", AutoresetMode.SAME_STEP)["render_fps"]
    50
    """
    return {
        "render_modes": render_modes(env_id),
        "render_fps": frames_per_second(env_id),
        "autoreset_mode": mode,
    }


def vector_spec(
    env_id: str, max_episode_steps: int | None, render_mode: str | None, **kwargs: Any
) -> EnvSpec | None:
    """How `gymnasium.make_vec` could make such environments; None where they are not registered.

    >>> vector_spec("CartPole-v1", 100, None, num_envs=2).kwargs["max_episode_steps"]
    100
    """
    known = env_id if env_id in PLUGINS else f"rlox/{env_id}"
    spec = copy.deepcopy(gym.registry.get(known))
    if spec is not None:
        options = {"render_mode": render_mode, "max_episode_steps": max_episode_steps}
        spec.kwargs.update({key: value for key, value in options.items() if value}, **kwargs)
    return spec


State = npt.NDArray[np.float64]


def check_render_mode(mode: object, known: Sequence[str]) -> None:
    """Refuses a mode that is neither known nor None.

    Raises:
        TypeError: It is no str.
        ValueError: There is no such mode.
    """
    if mode is None or (isinstance(mode, str) and mode in known):
        return
    expected = " or ".join(["None", *map(repr, known)])
    kind = ArgumentError if isinstance(mode, str) else ArgumentTypeError
    raise kind("render_mode", expected, repr(mode), "pass a mode that the environment has")


class Renderer:
    """Gymnasium's environment `env_id`, used only to draw; needs `rlox[classic-control]`."""

    def __init__(self, env_id: str, render_mode: str) -> None:
        env = gym.make(env_id, render_mode=render_mode, disable_env_checker=True)
        self._env: Any = env.unwrapped

    def draw(self, state: State) -> npt.NDArray[np.uint8] | None:
        """The frame of one native state, (height, width, 3) uint8; None in "human" mode."""
        self._env.state = to_gymnasium_state(self._env.spec.id, state)
        if self._env.spec.id == "Pendulum-v1":
            torque = np.float32(state[2])
            self._env.last_u = None if np.isnan(torque) else torque
        frame: npt.NDArray[np.uint8] | None = self._env.render()
        return frame

    def draw_all(self, states: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint8], ...]:
        """The frames of many states; none in "human" mode."""
        frames = map(self.draw, states)
        return tuple(frame for frame in frames if frame is not None)

    def close(self) -> None:
        """Closes the window, if there is one."""
        self._env.close()
