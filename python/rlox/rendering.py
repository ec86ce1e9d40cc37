"""Frames of native environments, drawn by Gymnasium's own renderers from our states."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.attributes import to_gymnasium_state

State = npt.NDArray[np.float64]


def expect_render_mode(mode: object, known: Sequence[str]) -> None:
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
        made = gym.make(env_id, render_mode=render_mode, disable_env_checker=True)
        self._env: Any = made.unwrapped

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
