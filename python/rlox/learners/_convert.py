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
from rlox._registry import ALGORITHMS
from rlox._types import Array, Arrays
from rlox.learners import LearnerState, _native
from rlox.learners._native import MEANS, SOME


def to_torch_state(
    state: LearnerState, layout: Layout, algorithm: str, empty: Arrays
) -> LearnerState:
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
    action_streams = [name for name in streams if name.startswith("actions.")]
    for name in (*action_streams, "learning"):
        del streams[name]
    counters["owed"] = counters.pop("due", None)
    means = counters.pop("learned", None)
    means = means if isinstance(means, dict) else {}
    counters["last"] = [_parse_mean(means.get(name)) for name in _loss_names(algorithm)]
    replay = state.replay and to_torch_replay(state.replay, layout, empty)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)


def _loss_names(algorithm: str) -> list[str]:
    """Return the names of an algorithm's update statistics, in the order of torch learners."""
    names = ALGORITHMS[algorithm].update_metrics
    return [name for name, metric in names.items() if metric.startswith("train/")]


def _parse_mean(mean: Any) -> Any:
    """A mean that JSON has as a number or as a word; None for NaN."""
    non_finite = {"nan": None, "inf": math.inf, "-inf": -math.inf}
    return non_finite.get(mean) if isinstance(mean, str) else mean


def to_native_state(
    state: LearnerState, layout: Layout, algorithm: str, num_envs: int
) -> LearnerState:
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
    bit_generators = {f"actions.{i}": actions.jumped(i) for i in range(num_envs)}  # type: ignore[attr-defined]  # PCG64 has it
    bit_generators["learning"] = minibatches.jumped()  # type: ignore[attr-defined]  # too
    for name, bits in bit_generators.items():
        streams[name] = _rng.stream_state(np.random.Generator(bits))
    counters["due"] = counters.pop("owed", None)
    last = counters.pop("last", None)
    pairs = zip(_loss_names(algorithm), last if isinstance(last, list) else (), strict=False)
    means = {name: mean for name, mean in pairs if mean is not None}
    unknown = dict.fromkeys(SOME) | dict.fromkeys(MEANS, "nan")
    counters["learned"] = unknown | means if means else None
    replay = state.replay and to_native_replay(state.replay, layout)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)


# The parts of a buffer's state that are observations.
_OBSERVATIONS = ("step.obs", "ahead.obs", "next.obs")


def to_torch_replay(arrays: "Arrays", layout: Layout, empty: "Arrays") -> "Arrays":
    """The state of a replay buffer in Rust, as that of one on torch.

    Args:
        arrays: What `NativeAgent.replay_state` gave.
        layout: Of the observations.
        empty: The state of the buffer that takes it, which has a random stream.
    """
    observations = {name: _decode(x, layout) for name, x in arrays.items() if name in _OBSERVATIONS}
    return {**arrays, **observations, "stream": empty["stream"]}


def to_native_replay(arrays: "Arrays", layout: Layout) -> "Arrays":
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
    observations = {name: _encode(x, layout) for name, x in arrays.items() if name in _OBSERVATIONS}
    return {name: x for name, x in {**arrays, **observations}.items() if name != "stream"}


def _counts(layout: Layout) -> list[int]:
    """How many values each integer of an observation has; nothing for numbers."""
    counts: list[int] = _native.observation_spec(layout).get("counts", [])
    return counts


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))  # -1 is unknown of no rows


def _encode(rows: Array, layout: Layout) -> Array:
    """Rows of a layout as networks in Rust take them: numbers, integers one-hot; (n, inputs)."""
    counts, flat = _counts(layout), _flat(rows)
    if not counts:
        return flat.astype(np.float32)
    if flat.shape[1] != len(counts):
        return rows  # what is damaged is refused by who takes it
    columns = zip(flat.T, counts, strict=True)
    parts = [column[:, None] == np.arange(count) for column, count in columns]
    return np.concatenate(parts, 1).astype(np.float32)


def _decode(rows: Array, layout: Layout) -> Array:
    """What `_encode` was given."""
    counts, flat = _counts(layout), _flat(rows)
    if flat.shape[1] != (sum(counts) or math.prod(layout.shape)):
        return rows  # see there
    if counts:
        parts = np.split(flat, np.cumsum(counts)[:-1], axis=1)
        flat = np.stack([part.argmax(1) for part in parts], 1)
    return flat.reshape(len(rows), *layout.shape).astype(layout.dtype)
