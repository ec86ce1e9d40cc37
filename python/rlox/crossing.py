"""States of off-policy learners that go from networks in Rust to torch, and back.

Networks, optimisers, normalisers and environments have the same on both. Random streams are others:
in Rust each environment has one for its actions, and learning has its own.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from rlox import learner
from rlox.layouts import Layout
from rlox.learner import Arrays, LearnerState
from rlox.native_state import MEANS, SOME
from rlox.transitions import replay_in_rust, replay_on_torch

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
    actions = learner.stream_from_state(streams.pop("actions")).bit_generator
    minibatches = learner.stream_from_state(streams["minibatches"]).bit_generator
    # Far apart from each other, as different streams are.
    apart = {f"actions.{i}": actions.jumped(i) for i in range(num_envs)}  # type: ignore[attr-defined]  # PCG64 has it
    apart["learning"] = minibatches.jumped()  # type: ignore[attr-defined]  # too
    for name, bits in apart.items():
        streams[name] = learner.stream_state(np.random.Generator(bits))
    counters["due"] = counters.pop("owed", None)
    last = counters.pop("last", None)
    pairs = zip(_SAID[algorithm], last if isinstance(last, list) else (), strict=False)
    told = {name: mean for name, mean in pairs if mean is not None}
    unknown = dict.fromkeys(SOME) | dict.fromkeys(MEANS, "nan")
    counters["learned"] = unknown | told if told else None
    replay = state.replay and replay_in_rust(state.replay, layout)
    return dataclasses.replace(state, streams=streams, counters=counters, replay=replay)
