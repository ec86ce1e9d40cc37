"""Frames of native environments, drawn by Gymnasium's own renderers from our states."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

State = npt.NDArray[np.float64]


def _show_acrobot(env: Any, state: State) -> None:
    env.state = state[:4] if state[4] else state[:4].astype(np.float32)


def _show_continuous_car(env: Any, state: State) -> None:
    env.state = state[:2].astype(np.float32) if state[2] else state[:2]


def _show_pendulum(env: Any, state: State) -> None:
    torque = np.float32(state[2])
    env.state = state[:2]
    env.last_u = None if np.isnan(torque) else torque


# Native states hold more than what Gymnasium calls state: its precision, or the last action.
_SHOWN: dict[str, Callable[[Any, State], None]] = {
    "Acrobot-v1": _show_acrobot,
    "MountainCarContinuous-v0": _show_continuous_car,
    "Pendulum-v1": _show_pendulum,
}


def expect_render_mode(mode: object, known: Sequence[str]) -> None:
    """Refuses a mode that is neither known nor None.

    Raises:
        TypeError: It is no str.
        ValueError: There is no such mode.
    """
    if mode is None or (isinstance(mode, str) and mode in known):
        return
    expected = " or ".join(["None", *map(repr, known)])
    error = ValueError if isinstance(mode, str) else TypeError
    raise error(f"render_mode: expected {expected}, got {mode!r}; pass one of them")


class Renderer:
    """Gymnasium's environment `env_id`, used only to draw; needs `rlox[classic-control]`."""

    def __init__(self, env_id: str, render_mode: str) -> None:
        made = gym.make(env_id, render_mode=render_mode, disable_env_checker=True)
        self._env: Any = made.unwrapped

    def draw(self, state: State) -> npt.NDArray[np.uint8] | None:
        """The frame of one native state, (height, width, 3) uint8; None in "human" mode."""
        show = _SHOWN.get(self._env.spec.id)
        if show is None:
            self._env.state = state
        else:
            show(self._env, state)
        frame: npt.NDArray[np.uint8] | None = self._env.render()
        return frame

    def draw_all(self, states: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint8], ...]:
        """The frames of many states; none in "human" mode."""
        frames = map(self.draw, states)
        return tuple(frame for frame in frames if frame is not None)

    def close(self) -> None:
        """Closes the window, if there is one."""
        self._env.close()
