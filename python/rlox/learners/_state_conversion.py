"""Conversion of off-policy learner states between the native and the torch backend.

Networks, optimizers, normalizers and environments have the same state on both backends. Random
streams differ: a native learner has one stream of actions per environment, and one of updates.
"""

import dataclasses
import math

import numpy as np

from rlox import _rng
from rlox._errors import ArgumentError
from rlox._layout import Layout
from rlox._registry import ALGORITHMS
from rlox._types import Array, Arrays
from rlox.learners import LearnerState, _native
from rlox.learners._native import MEANS, SOME


def to_torch_state(state: LearnerState, layout: Layout, algorithm: str, empty: Arrays) -> LearnerState:
    """Convert the state of a native learner for a torch learner; return a torch state unchanged.

    Args:
        state: State of a native or a torch learner.
        layout: Layout of the observations.
        algorithm: "dqn", "sac" or "td3".
        empty: State of the torch learner's empty replay buffer.
    """
    streams, counters = dict(state.streams), dict(state.counters)
    if not {"actions.0", "learning"} <= {*streams}:
        return state
    streams["actions"] = streams["actions.0"]
    action_streams = [name for name in streams if name.startswith("actions.")]
    for name in (*action_streams, "learning"):
        del streams[name]
    means = counters.pop("last_update", None)
    means = means if isinstance(means, dict) else {}
    counters["last"] = [_parse_mean(means.get(name)) for name in _loss_names(algorithm)]
    replay = state.replay and to_torch_replay(state.replay, layout, empty)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)


def _loss_names(algorithm: str) -> list[str]:
    """Return the names of an algorithm's update statistics, in the order of torch learners."""
    names = ALGORITHMS[algorithm].update_metrics
    return [name for name, metric in names.items() if metric.startswith("train/")]


def _parse_mean(mean: object) -> object:
    """Return a mean of a native state, stored as number or string; None for NaN."""
    non_finite = {"nan": None, "inf": math.inf, "-inf": -math.inf}
    return non_finite.get(mean) if isinstance(mean, str) else mean


def to_native_state(state: LearnerState, layout: Layout, algorithm: str, num_envs: int) -> LearnerState:
    """Convert the state of a torch learner for a native learner; return a native state unchanged.

    Args:
        state: State of a native or a torch learner.
        layout: Layout of the observations.
        algorithm: "dqn", "sac" or "td3".
        num_envs: Number of environments.

    Raises:
        ArgumentError: The state is damaged, or its replay buffer uses `frame_stack`.
    """
    streams, counters = dict(state.streams), dict(state.counters)
    if not {"actions", "minibatches"} <= {*streams}:
        return state
    actions = _rng.stream_from_state(streams.pop("actions")).bit_generator
    minibatches = _rng.stream_from_state(streams["minibatches"]).bit_generator
    # Streams after different numbers of jumps do not overlap.
    bit_generators = {f"actions.{i}": actions.jumped(i) for i in range(num_envs)}  # type: ignore[attr-defined]  # PCG64 has it
    bit_generators["learning"] = minibatches.jumped()  # type: ignore[attr-defined]  # too
    for name, bits in bit_generators.items():
        streams[name] = _rng.stream_state(np.random.Generator(bits))
    last = counters.pop("last", None)
    pairs = zip(_loss_names(algorithm), last if isinstance(last, list) else (), strict=False)
    means = {name: mean for name, mean in pairs if mean is not None}
    unknown = dict.fromkeys(SOME) | dict.fromkeys(MEANS, "nan")
    counters["last_update"] = unknown | means if means else None
    replay = state.replay and to_native_replay(state.replay, layout)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)


# Names of the arrays in a replay buffer's state that are observations.
_OBSERVATIONS = ("step.obs", "next_row.obs", "next.obs")


def to_torch_replay(arrays: "Arrays", layout: Layout, empty: "Arrays") -> "Arrays":
    """Convert the state of a native replay buffer for a torch learner.

    Args:
        arrays: Result of `NativeAgent.replay_state`.
        layout: Layout of the observations.
        empty: State of the torch learner's empty buffer, whose random stream is used.
    """
    observations = {name: _decode(x, layout) for name, x in arrays.items() if name in _OBSERVATIONS}
    return {**arrays, **observations, "stream": empty["stream"]}


def to_native_replay(arrays: "Arrays", layout: Layout) -> "Arrays":
    """Convert the state of a torch learner's replay buffer for a native learner.

    Raises:
        ArgumentError: The buffer uses `frame_stack`.
    """
    frames = np.ravel(arrays.get("frame_stack", 1)).tolist()
    if frames != [1]:
        raise ArgumentError(
            "replay",
            "a replay buffer without frame_stack on native networks",
            f"a buffer with frame_stack={frames[0]}",
            "save the checkpoint with replay=False, to start with an empty buffer",
        )
    observations = {name: _encode(x, layout) for name, x in arrays.items() if name in _OBSERVATIONS}
    return {name: x for name, x in {**arrays, **observations}.items() if name != "stream"}


def _counts(layout: Layout) -> list[int]:
    """Return the number of values of each integer in an observation; empty for real numbers."""
    counts: list[int] = _native.observation_spec(layout).get("counts", [])
    return counts


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))  # -1 fails for 0 rows


def _encode(rows: Array, layout: Layout) -> Array:
    """Convert rows of a layout to inputs (n, inputs) of native networks; integers are one-hot."""
    counts, flat = _counts(layout), _flat(rows)
    if not counts:
        return flat.astype(np.float32)
    if flat.shape[1] != len(counts):
        return rows  # the replay buffer rejects damaged arrays
    columns = zip(flat.T, counts, strict=True)
    parts = [column[:, None] == np.arange(count) for column, count in columns]
    return np.concatenate(parts, 1).astype(np.float32)


def _decode(rows: Array, layout: Layout) -> Array:
    """Convert inputs of native networks to rows of a layout, the inverse of `_encode`."""
    counts, flat = _counts(layout), _flat(rows)
    if flat.shape[1] != (sum(counts) or math.prod(layout.shape)):
        return rows  # the replay buffer rejects damaged arrays
    if counts:
        parts = np.split(flat, np.cumsum(counts)[:-1], axis=1)
        flat = np.stack([part.argmax(1) for part in parts], 1)
    return flat.reshape(len(rows), *layout.shape).astype(layout.dtype)
