"""Frames of native environments, drawn by Gymnasium's own renderers from our states."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator


def frames_per_second(env_id: str) -> int:
    """How many steps make a second of the environment's film.

    >>> frames_per_second("CartPole-v1")
    50
    """
    entry = gym.spec(env_id).entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    return int(getattr(creator, "metadata", {}).get("render_fps", 30))


class Renderer:
    """Gymnasium's environment `env_id`, used only to draw; needs `rlox[classic-control]`."""

    def __init__(self, env_id: str, render_mode: str) -> None:
        made = gym.make(env_id, render_mode=render_mode, disable_env_checker=True)
        self._env: Any = made.unwrapped

    def draw(self, state: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8] | None:
        """The frame of one native state, (height, width, 3) uint8; None in "human" mode."""
        if self._env.spec.id == "Pendulum-v1":
            torque = np.float32(state[2])
            self._env.state = state[:2]
            self._env.last_u = None if np.isnan(torque) else torque
        else:
            self._env.state = state
        frame: npt.NDArray[np.uint8] | None = self._env.render()
        return frame

    def close(self) -> None:
        """Closes the window, if there is one."""
        self._env.close()
