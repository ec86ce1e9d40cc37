"""Replay buffers that an off-policy algorithm's settings ask for."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlox._errors import ArgumentError
from rlox._layout import Layout
from rlox._rlox import NativeAgent, PrioritizedReplayBuffer, ReplayBuffer
from rlox._spaces import action_dtype
from rlox.buffers.hindsight import GoalFunctions, HindsightReplayBuffer
from rlox.learners._convert import to_torch_replay

if TYPE_CHECKING:
    from rlox._types import Arrays


def parts_of(layout: Layout) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of the parts of Dict observations, as goals need them, by name.

    Those with parts of parts are stored as packed rows: they have none.
    """
    flat = all(len(leaf.path) == 1 for leaf in layout.leaves)
    if not (isinstance(layout.space, gym.spaces.Dict) and flat):
        return {}
    return {leaf.path[0]: (leaf.shape, leaf.dtype.name) for leaf in layout.leaves}


def make_replay_buffer(
    layout: Layout,
    action_space: gym.Space[Any],
    config: Any,
    num_envs: int,
    mask_width: int | None = None,
    goals: GoalFunctions | None = None,
    frames: int = 1,
) -> ReplayBuffer:
    """The buffer that an off-policy algorithm's settings ask for.

    Args:
        layout: Of the observations.
        action_space: Box or Discrete.
        config: The settings.
        num_envs: How many environments each push has a row of; 1: rows that stand for themselves.
        mask_width: Flags of the masks of what is allowed next; None: no masks.
        goals: What other goals are worth, with `her`; None without.
        frames: How many frames observations stack along their first axis; each is stored once.

    Raises:
        MemoryError: It does not fit into memory.
        ValueError: Goals are asked for, and observations have none.
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
        "frame_stack": frames,
        "n_step": config.n_steps,
        "gamma": config.gamma,
        "extra": None if mask_width is None else {"next_masks": ((mask_width,), "bool")},
        "seed": 0,  # samples name their own
        "capacity_name": "buffer_size",
    }
    return _make_buffer(config, kwargs, goals)


def _make_buffer(config: Any, kwargs: dict[str, Any], goals: GoalFunctions | None) -> ReplayBuffer:
    prioritized = getattr(config, "prioritized", False)
    if goals is not None:
        if prioritized:
            raise ArgumentError(
                "prioritized", f"False beside her={config.her!r}", "True", "leave one out"
            )
        omitted = ("n_step", "gamma", "frame_stack")
        rest = {name: x for name, x in kwargs.items() if name not in omitted}
        options = {"strategy": config.her, "n_sampled_goal": config.n_sampled_goal}
        return HindsightReplayBuffer(**rest, **options, **goals._asdict())
    if prioritized:
        options = {"alpha": config.priority_alpha, "beta": config.priority_beta}
        return PrioritizedReplayBuffer(**kwargs, **options)
    return ReplayBuffer(**kwargs)


@dataclasses.dataclass(frozen=True)
class NativeReplay:
    """What a learner in Rust remembers, to look at: every look but `len` is a copy.

    Args:
        agent: Who remembers.
        about: The arguments of `make_replay_buffer`, but for the number of environments.
    """

    agent: NativeAgent
    buffer_args: tuple[Layout, gym.Space[Any], Any, int | None]

    def __len__(self) -> int:
        return self.agent.replay_len()

    def state(self) -> "Arrays":
        """Copies of all that the buffer holds, and where it stands."""
        return dict(self.agent.replay_state())

    @property
    def buffer(self) -> ReplayBuffer:
        """A buffer of its own that holds the same transitions, as the one on torch would."""
        arrays, (layout, space, config, width) = self.state(), self.buffer_args
        buffer: Any = make_replay_buffer(layout, space, config, int(arrays["num_envs"][0]), width)
        buffer.load_state(to_torch_replay(arrays, layout, buffer.state()))
        return buffer  # type: ignore[no-any-return]  # a ReplayBuffer


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
