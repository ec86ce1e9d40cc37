"""States of off-policy learners that go from networks in Rust to torch, and back.

Networks, optimisers, normalisers and environments have the same on both. Random streams are others:
in Rust each environment has one for its actions, and learning has its own.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from rlox import _rng
from rlox._errors import ArgumentError
from rlox._layout import Layout
from rlox._types import Array, Arrays
from rlox.learners import LearnerState, _native
from rlox.learners._native import MEANS, SOME

# What learners on torch say of minibatches, in their order, and by the names of those in Rust.
_CRITICS = ("actor_loss", "critic_loss")
_SAID = {"dqn": ("critic_loss",), "sac": (*_CRITICS, "ent_coef", "ent_coef_loss"), "td3": _CRITICS}


def as_on_torch(state: LearnerState, layout: Layout, algorithm: str, empty: Arrays) -> LearnerState:
    """A state of a learner in Rust as that of one on torch; of one on torch as it is.

    Args:
        state: Of either.
        layout: Of the observations.
        algorithm: "dqn", "sac" or "td3".
        empty: The state of its replay buffer when nothing is in it.
    """
    streams, counters = dict(state.streams), dict(state.counters)
    if not {"actions.0", "learning"} <= {*streams}:
        return state
    streams["actions"] = streams["actions.0"]
    own = [name for name in streams if name.startswith("actions.")]
    for name in (*own, "learning"):
        del streams[name]
    counters["owed"] = counters.pop("due", None)
    said = counters.pop("learned", None)
    said = said if isinstance(said, dict) else {}
    counters["last"] = [_plain(said.get(name)) for name in _SAID[algorithm]]
    replay = state.replay and replay_on_torch(state.replay, layout, empty)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)


def _plain(mean: Any) -> Any:
    """A mean that JSON has as a number or as a word; None for NaN."""
    with_words = {"nan": None, "inf": math.inf, "-inf": -math.inf}
    return with_words.get(mean) if isinstance(mean, str) else mean


def as_in_rust(state: LearnerState, layout: Layout, algorithm: str, num_envs: int) -> LearnerState:
    """A state of a learner on torch as that of one in Rust; of one in Rust as it is.

    Args:
        state: Of either.
        layout: Of the observations.
        algorithm: "dqn", "sac" or "td3".
        num_envs: How many environments.

    Raises:
        ValueError: It is damaged, or its buffer stores frames of stacks, each once.
    """
    streams, counters = dict(state.streams), dict(state.counters)
    if not {"actions", "minibatches"} <= {*streams}:
        return state
    actions = _rng.stream_from_state(streams.pop("actions")).bit_generator
    minibatches = _rng.stream_from_state(streams["minibatches"]).bit_generator
    # Far apart from each other, as different streams are.
    apart = {f"actions.{i}": actions.jumped(i) for i in range(num_envs)}  # type: ignore[attr-defined]  # PCG64 has it
    apart["learning"] = minibatches.jumped()  # type: ignore[attr-defined]  # too
    for name, bits in apart.items():
        streams[name] = _rng.stream_state(np.random.Generator(bits))
    counters["due"] = counters.pop("owed", None)
    last = counters.pop("last", None)
    pairs = zip(_SAID[algorithm], last if isinstance(last, list) else (), strict=False)
    told = {name: mean for name, mean in pairs if mean is not None}
    unknown = dict.fromkeys(SOME) | dict.fromkeys(MEANS, "nan")
    counters["learned"] = unknown | told if told else None
    replay = state.replay and replay_in_rust(state.replay, layout)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)


# The parts of a buffer's state that are observations.
_OBSERVATIONS = ("step.obs", "ahead.obs", "next.obs")


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
    counts: list[int] = _native.observed(layout).get("counts", [])
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
