"""Frames that observations stack: replay buffers store each of them once."""

from typing import Any

import gymnasium as gym

from rlox._errors import ArgumentError


def check_frame_stack(space: gym.Space[Any], frame_stack: int | None) -> int:
    """Return how many frames observations stack along their first axis, oldest first.

    Args:
        space: The observation space.
        frame_stack: The setting; None: observations are stored whole.

    Raises:
        ValueError: The first axis is not a stack of that many frames.

    >>> check_frame_stack(gym.spaces.Box(0, 1, (4, 84, 84)), 4)
    4
    """
    frames = 1 if frame_stack is None else frame_stack
    length = space.shape[0] if isinstance(space, gym.spaces.Box) and space.shape else 0
    if frames > 1 and (length == 0 or length % frames > 0):
        raise ArgumentError(
            "frame_stack",
            "1, or a number of frames that divides the first axis of a Box",
            f"{frames} for {space}",
            "leave it out",
        )
    return frames
