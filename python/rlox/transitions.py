"""The replay buffers that settings ask for; the same transitions on torch and in Rust."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import native_shapes
from rlox._errors import ArgumentError
from rlox._rlox import NativeAgent, PrioritizedReplayBuffer, ReplayBuffer
from rlox.goals import GoalFunctions
from rlox.hindsight import HindsightReplayBuffer
from rlox.layouts import Layout
from rlox.spaces import action_dtype

if TYPE_CHECKING:
    from rlox.learner import Arrays

Array = npt.NDArray[Any]
# The parts of a buffer's state that are observations.
_OBSERVATIONS = ("step.obs", "ahead.obs", "next.obs")


def parts_of(layout: Layout) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of the parts of Dict observations, as goals need them, by name.

    Those with parts of parts are stored as packed rows: they have none.
    """
    flat = all(len(leaf.path) == 1 for leaf in layout.leaves)
    if not (isinstance(layout.space, gym.spaces.Dict) and flat):
        return {}
    return {leaf.path[0]: (leaf.shape, leaf.dtype.name) for leaf in layout.leaves}


def replay_buffer(
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
    kind = action_dtype(action_space)
    width = () if kind == "int64" else (math.prod(action_space.shape or ()),)
    about: dict[str, Any] = {
        "capacity": max(config.buffer_size, num_envs),
        "obs_dim": parts_of(layout) or layout.shape,
        "act_dim": width,
        "num_envs": num_envs,
        "obs_dtype": layout.dtype.name,
        "act_dtype": kind,
        "frame_stack": frames,
        "n_step": config.n_steps,
        "gamma": config.gamma,
        "extra": None if mask_width is None else {"next_masks": ((mask_width,), "bool")},
        "seed": 0,  # samples name their own
        "capacity_name": "buffer_size",
    }
    return _made(config, about, goals)


def _made(config: Any, about: dict[str, Any], goals: GoalFunctions | None) -> ReplayBuffer:
    prioritized = getattr(config, "prioritized", False)
    if goals is not None:
        if prioritized:
            raise ArgumentError(
                "prioritized", f"False beside her={config.her!r}", "True", "leave one out"
            )
        left_out = ("n_step", "gamma", "frame_stack")
        rest = {name: x for name, x in about.items() if name not in left_out}
        how = {"strategy": config.her, "n_sampled_goal": config.n_sampled_goal}
        return HindsightReplayBuffer(**rest, **how, **goals._asdict())
    if prioritized:
        how = {"alpha": config.priority_alpha, "beta": config.priority_beta}
        return PrioritizedReplayBuffer(**about, **how)
    return ReplayBuffer(**about)


def replay_on_torch(arrays: "Arrays", layout: Layout, empty: "Arrays") -> "Arrays":
    """The state of a replay buffer in Rust, as that of one on torch.

    Args:
        arrays: What `NativeAgent.replay_state` gave.
        layout: Of the observations.
        empty: The state of the buffer that takes it, which has a random stream.
    """
    taken = {name: _decoded(x, layout) for name, x in arrays.items() if name in _OBSERVATIONS}
    return {**arrays, **taken, "stream": empty["stream"]}


def replay_in_rust(arrays: "Arrays", layout: Layout) -> "Arrays":
    """The state of a replay buffer on torch, as that of one in Rust.

    Raises:
        ValueError: It stores frames of stacks, each once, which those do not.
    """
    frames = np.ravel(arrays.get("frame_stack", 1)).tolist()
    if frames != [1]:
        raise ArgumentError(
            "replay",
            "whole observations on networks in Rust",
            f"a buffer that stores {frames[0]} frames of each",
            "save it with replay=False, to begin with an empty one",
        )
    taken = {name: _encoded(x, layout) for name, x in arrays.items() if name in _OBSERVATIONS}
    return {name: x for name, x in {**arrays, **taken}.items() if name != "stream"}


def _counts(layout: Layout) -> list[int]:
    """How many values each integer of an observation has; nothing for numbers."""
    counts: list[int] = native_shapes.observed(layout).get("counts", [])
    return counts


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))  # -1 is unknown of no rows


def _encoded(rows: Array, layout: Layout) -> Array:
    """Rows of a layout as networks in Rust take them: numbers, integers one-hot; (n, inputs)."""
    counts, flat = _counts(layout), _flat(rows)
    if not counts:
        return flat.astype(np.float32)
    if flat.shape[1] != len(counts):
        return rows  # what is damaged is refused by who takes it
    columns = zip(flat.T, counts, strict=True)
    parts = [column[:, None] == np.arange(count) for column, count in columns]
    return np.concatenate(parts, 1).astype(np.float32)


def _decoded(rows: Array, layout: Layout) -> Array:
    """What `_encoded` was given."""
    counts, flat = _counts(layout), _flat(rows)
    if flat.shape[1] != (sum(counts) or math.prod(layout.shape)):
        return rows  # see there
    if counts:
        parts = np.split(flat, np.cumsum(counts)[:-1], axis=1)
        flat = np.stack([part.argmax(1) for part in parts], 1)
    return flat.reshape(len(rows), *layout.shape).astype(layout.dtype)


@dataclasses.dataclass(frozen=True)
class NativeReplay:
    """What a learner in Rust remembers, to look at: every look but `len` is a copy.

    Args:
        agent: Who remembers.
        about: The arguments of `replay_buffer`, but for the number of environments.
    """

    agent: NativeAgent
    about: tuple[Layout, gym.Space[Any], Any, int | None]

    def __len__(self) -> int:
        return self.agent.replay_len()

    def state(self) -> "Arrays":
        """Copies of all that the buffer holds, and where it stands."""
        return dict(self.agent.replay_state())

    @property
    def buffer(self) -> ReplayBuffer:
        """A buffer of its own that holds the same transitions, as the one on torch would."""
        arrays, (layout, space, config, width) = self.state(), self.about
        made: Any = replay_buffer(layout, space, config, int(arrays["num_envs"][0]), width)
        made.load_state(replay_on_torch(arrays, layout, made.state()))
        return made  # type: ignore[no-any-return]  # a ReplayBuffer
