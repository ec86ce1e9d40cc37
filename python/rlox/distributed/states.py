"""States of a run of several processes: what each has of its own, and what all have as one."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import safetensors.numpy

from rlox.distributed.merging import episodes_merged
from rlox.learner import (
    Arrays,
    EpisodeStatistics,
    LearnerState,
    stream_from_state,
    stream_state,
)

# What is each rank's own, of the arrays.
_OWN = ("normalizer", "environment", "replay")


def packed(state: LearnerState) -> bytes:
    """What a rank has of its own, as bytes for rank 0."""
    told = {
        "counters": state.counters,
        "streams": state.streams,
        "inexact": state.inexact,
        "no_replay": state.replay is None,
    }
    head = json.dumps(told).encode()
    arrays = {
        f"{member}/{name}": np.array(x, order="C")
        for member in _OWN
        for name, x in (getattr(state, member) or {}).items()
    }
    return len(head).to_bytes(8, "little") + head + safetensors.numpy.save(arrays)


def unpacked(data: bytes) -> LearnerState:
    """What `packed` gave; parameters are left out, as all have the same."""
    size = int.from_bytes(data[:8], "little")
    told = json.loads(data[8 : 8 + size])
    members: dict[str, Any] = {member: {} for member in _OWN}
    for name, x in safetensors.numpy.load(data[8 + size :]).items():
        member, _, rest = name.partition("/")
        members[member][rest] = x
    if told.pop("no_replay"):
        members["replay"] = None
    return LearnerState(networks={}, optimizer={}, **members, **told)


def whole_state(ranks: list[LearnerState]) -> LearnerState:
    """The state of the run, of which `ranks` has what each rank has of its own.

    The first one's has the parameters. Counts, running returns and noise are those of all, so that
    the policy can be loaded as any other's; environments and replay are rank 0's.
    """
    first = ranks[0]
    normalizer: Arrays = dict(first.normalizer)
    if normalizer:
        normalizer["returns"] = np.concatenate([x.normalizer["returns"] for x in ranks])
    counters = dict(first.counters)
    counters["timesteps"] = sum(x.counters["timesteps"] for x in ranks)
    counters["episodes"] = episodes_of(ranks).state()
    if "noise" in counters:
        counters["noise"] = [number for x in ranks for number in x.counters["noise"]]
    inexact = next((f"rank {k}: {x.inexact}" for k, x in enumerate(ranks) if x.inexact), None)
    return replace(
        first, normalizer=normalizer, counters=counters, inexact=inexact, ranks=list(ranks)
    )


def left_state(own: LearnerState, size: int, why: str) -> LearnerState:
    """The state of a run of which only rank 0 is left: all but environments and replay.

    Args:
        own: Rank 0's.
        size: How many there were.
        why: What happened.
    """
    alone = replace(own, environment={}, replay=None, inexact=why)
    if own.normalizer:  # episodes begin anew
        zeros = np.zeros_like(own.normalizer["returns"])
        alone = replace(alone, normalizer={**own.normalizer, "returns": zeros})
    ranks = [alone]
    for rank in range(1, size):
        streams = {}
        for name, state in own.streams.items():
            entropy = [*stream_from_state(state).integers(2**32, size=4), rank]
            streams[name] = stream_state(np.random.default_rng(entropy))
        ranks.append(replace(alone, streams=streams))
    whole = whole_state(ranks)
    whole.counters["episodes"] = own.counters["episodes"]
    return whole


def own_state(whole: LearnerState, rank: int) -> LearnerState:
    """What a rank goes on with, of what `whole_state` gave."""
    own, normalizer = whole.ranks[rank], dict(whole.normalizer)
    if normalizer:
        each = np.split(normalizer["returns"], len(whole.ranks))
        normalizer["returns"] = each[rank]
    return replace(
        whole,
        normalizer=normalizer,
        environment=own.environment,
        replay=own.replay,
        counters=own.counters,
        streams=own.streams,
        ranks=[],
    )


def episodes_of(ranks: list[LearnerState]) -> EpisodeStatistics:
    """The episodes of all."""
    each = [EpisodeStatistics() for _ in ranks]
    for episodes, state in zip(each, ranks, strict=True):
        episodes.load_state(state.counters["episodes"])
    return episodes_merged(each)
