"""Construction of the replay buffer of an off-policy algorithm."""

import math
from typing import Any

import gymnasium as gym

from rlox._errors import ArgumentError
from rlox._layout import Layout
from rlox._rlox import PrioritizedReplayBuffer, ReplayBuffer
from rlox._spaces import action_dtype
from rlox.buffers.hindsight import GoalFunctions, HindsightReplayBuffer
from rlox.configs import DQNConfig, OffPolicyConfig


def parts_of(layout: Layout) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of each part of flat Dict observations, by name.

    The result is empty for nested Dict observations, which are stored as packed rows, and for other
    spaces.
    """
    flat = all(len(leaf.path) == 1 for leaf in layout.leaves)
    if not (isinstance(layout.space, gym.spaces.Dict) and flat):
        return {}
    return {leaf.path[0]: (leaf.shape, leaf.dtype.name) for leaf in layout.leaves}


def make_replay_buffer(
    layout: Layout,
    action_space: gym.Space[Any],
    config: OffPolicyConfig,
    num_envs: int,
    mask_width: int | None = None,
    goals: GoalFunctions | None = None,
    frames: int = 1,
) -> ReplayBuffer:
    """Create the replay buffer of an off-policy algorithm.

    Args:
        layout: Layout of the observations.
        action_space: Box or Discrete.
        config: Config of the algorithm.
        num_envs: Number of environments, whose rows alternate in the buffer; 1 if they do not alternate.
        mask_width: Number of flags in an action mask; None: masks of next states are not stored.
        goals: Goal functions if `config.her` is set, else None.
        frames: Number of frames stacked in an observation; each frame is stored once.

    Raises:
        ArgumentError: `goals` and `config.prioritized` are both set, or observations have no goals.
        OutOfMemoryError: The buffer does not fit into memory.
    """
    dtype = action_dtype(action_space)
    width = () if dtype == "int64" else (math.prod(action_space.shape or ()),)
    kwargs: dict[str, Any] = {
        "capacity": max(config.buffer_size, num_envs),
        "obs_dim": parts_of(layout) or layout.shape,
        "act_dim": width,
        "num_envs": num_envs,
        "obs_dtype": layout.dtype.name,
        "act_dtype": dtype,
        "extra": None if mask_width is None else {"next_masks": ((mask_width,), "bool")},
        "seed": 0,  # unused: every call of `sample` passes a seed
        "capacity_name": "buffer_size",
    }
    if goals is not None:
        if config.prioritized:
            raise ArgumentError(
                "prioritized", f"False with her={config.her!r}", "True", "set prioritized=False or her=None"
            )
        kwargs |= {"strategy": config.her, "n_sampled_goal": config.n_sampled_goal, **goals._asdict()}
        return HindsightReplayBuffer(**kwargs)
    kwargs |= {"frame_stack": frames, "n_step": config.n_steps, "gamma": config.gamma}
    if isinstance(config, DQNConfig) and config.prioritized:
        return PrioritizedReplayBuffer(**kwargs, alpha=config.priority_alpha, beta=config.priority_beta)
    return ReplayBuffer(**kwargs)


def check_frame_stack(space: gym.Space[Any], frame_stack: int | None) -> int:
    """Return the number of frames that observations stack along their first axis, oldest first.

    Args:
        space: Observation space.
        frame_stack: Value of the setting; None: the result is 1.

    Raises:
        ArgumentError: `frame_stack` does not divide the first axis.

    >>> check_frame_stack(gym.spaces.Box(0, 1, (4, 84, 84)), 4)
    4
    """
    frames = frame_stack or 1
    length = space.shape[0] if isinstance(space, gym.spaces.Box) and space.shape else 0
    if frames > 1 and (length == 0 or length % frames > 0):
        raise ArgumentError(
            "frame_stack",
            "1, or a divisor of the first axis of a Box",
            f"{frames} for {space}",
            "pass the number of stacked frames, or omit frame_stack",
        )
    return frames
