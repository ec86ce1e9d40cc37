"""How many frames observations stack: replay buffers store each of them once."""

from numbers import Integral
from typing import Any

import gymnasium as gym

from rlox.mask_source import all_have


def stacked_frames(env: Any, asked: int | None) -> int:
    """How many frames observations stack along their first axis, oldest first.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        asked: What the settings say. None: as many as `gymnasium.wrappers.FrameStackObservation`
            stacks, if that made the environments' observations, else 1.

    Raises:
        ValueError: The first axis is no stack of as many as are asked for.

    >>> import rlox
    >>> stack = lambda env: gym.wrappers.FrameStackObservation(env, 3)
    >>> stacked_frames(rlox.make_vec("CartPole-v1", 2, wrappers=[stack]), None)
    3
    """
    space = env.single_observation_space
    length = space.shape[0] if isinstance(space, gym.spaces.Box) and space.shape else 0
    if asked is None:
        return _of_wrapper(env.unwrapped, length)
    if asked > 1 and (length == 0 or length % asked > 0):
        raise ValueError(
            f"frame_stack: expected 1, or a number of frames that divides the first axis of a Box, "
            f"got {asked} for {space}; leave it out"
        )
    return asked


def _of_wrapper(inner: Any, length: int) -> int:
    """The length of the first axis, if the wrapper made it in all environments; else 1."""
    if length == 0 or not all_have(inner, "stack_size"):
        return 1
    sizes = inner.get_attr("stack_size")
    return length if all(isinstance(size, Integral) and size == length for size in sizes) else 1
