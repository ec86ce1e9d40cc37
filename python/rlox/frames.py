"""How many frames observations stack: replay buffers store each of them once."""

from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorActionWrapper, VectorRewardWrapper
from gymnasium.wrappers import vector as vector_wrappers

from rlox._errors import ArgumentError
from rlox.contract import OwnLast
from rlox.mask_source import all_have

# Wrappers that leave observations alone, of single environments and of vector ones: of others it is
# not known whether a step of theirs moves a stack on by one frame.
_SINGLE = (
    wrappers.TimeLimit,
    wrappers.Autoreset,
    wrappers.PassiveEnvChecker,
    wrappers.OrderEnforcing,
    wrappers.RecordEpisodeStatistics,
    wrappers.RecordVideo,
    wrappers.RenderCollection,
    wrappers.HumanRendering,
    wrappers.NormalizeReward,
    wrappers.StickyAction,
    OwnLast,
)
_VECTOR = (
    vector_wrappers.RecordEpisodeStatistics,
    vector_wrappers.RecordVideo,
    vector_wrappers.HumanRendering,
    vector_wrappers.DictInfoToList,
    vector_wrappers.NormalizeReward,
)
# Steps of wrappers that change rewards or actions alone, unless they have their own.
_STEPS = (
    gym.RewardWrapper.step,
    gym.ActionWrapper.step,
    VectorRewardWrapper.step,
    VectorActionWrapper.step,
)
_RESETS = (gym.Wrapper.reset, gym.vector.VectorWrapper.reset)


def stacked_frames(env: Any, asked: int | None) -> int:
    """How many frames observations stack along their first axis, oldest first.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        asked: What the settings say. None: as many as `gymnasium.wrappers.FrameStackObservation`
            stacks, if that made the environments' observations and all that wraps it is known to
            leave them alone, else 1.

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
        return length if length > 1 and _stacks(env, length) else 1
    if asked > 1 and (length == 0 or length % asked > 0):
        raise ArgumentError(
            "frame_stack",
            "1, or a number of frames that divides the first axis of a Box",
            f"{asked} for {space}",
            "leave it out",
        )
    return asked


def _stacks(env: Any, length: int) -> bool:
    """Whether Gymnasium's wrapper made what all environments observe."""
    inner = env.unwrapped
    while env is not inner:
        # What makes environments ready for rollouts is rlox's own.
        if not type(env).__module__.startswith("rlox.") and not _passes(env, _VECTOR):
            return False
        env = env.env
    if not all_have(inner, "stack_size"):
        return False
    if isinstance(inner, SyncVectorEnv):
        return all(_is_stack(one, length) for one in inner.envs)
    if not isinstance(inner, AsyncVectorEnv):
        return False
    if any(size != length for size in inner.get_attr("stack_size")):
        return False
    one = inner.env_fns[0]()  # workers do not tell what they wrap
    try:
        return _is_stack(one, length)
    finally:
        one.close()


def _is_stack(env: Any, length: int) -> bool:
    while _passes(env, _SINGLE):
        env = env.env
    return isinstance(env, wrappers.FrameStackObservation) and env.stack_size == length


def _passes(env: Any, known: tuple[type, ...]) -> bool:
    """Whether a wrapper is known to leave observations alone."""
    kind = type(env)
    return kind in known or (kind.step in _STEPS and kind.reset in _RESETS)
