"""Split settings, seeds and states of a run into shares of the ranks, and merge the shares."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._rng import stream_from_state, stream_state
from rlox._types import Arrays
from rlox.configs import OffPolicyConfig
from rlox.learners import ConfigT, EpisodeStatistics, LearnerState

F64 = npt.NDArray[np.float64]
Moments = tuple[F64, F64, float]  # mean, population variance, count
# Spawn key for seeds of ranks. Learners use the smallest spawn keys, evaluations the largest.
_RANKS = 2**32 - 3
_STATISTICS = ("obs", "return")


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of a rank's learner: the run's seed for rank 0, else a derived seed.

    >>> rank_seed(7, 0), rank_seed(7, 1) == rank_seed(7, 1) != rank_seed(7, 2)
    (7, True)
    """
    if rank == 0:
        return seed
    state = np.random.SeedSequence(seed, spawn_key=(_RANKS, rank)).generate_state(4)
    return int.from_bytes(state.tobytes(), "little")


def shard_config(config: ConfigT, size: int, *, has_local_envs: bool, device: str | None) -> tuple[ConfigT, ConfigT]:
    """Return the settings of the whole run, and the settings of each rank.

    `num_envs`, `batch_size`, `buffer_size` and `learning_starts` are divided by the number of
    ranks. Updates per transition (`utd_ratio`) are multiplied by the number of ranks.

    Args:
        config: Settings of the run.
        size: Number of ranks.
        has_local_envs: True if `num_envs` counts the environments of this rank only.
        device: GPU that replaces the device "cuda"; None keeps the device.

    Raises:
        ArgumentError: A number is not a multiple of `size`, or `async_collect` is True.

    >>> from rlox.configs import PPOConfig
    >>> settings = PPOConfig(num_envs=4, n_steps=8, batch_size=16)
    >>> shard_config(settings, 2, has_local_envs=False, device=None)[1]
    PPOConfig(num_envs=2, n_steps=8, ..., batch_size=8, ...)
    """
    if device is not None and config.device.partition(":")[0] == "cuda":
        config = replace(config, device=device)
    if config.async_collect:
        raise ArgumentError("async_collect", "False for training in several processes", "True", "pass False")
    if has_local_envs:
        config = replace(config, num_envs=config.num_envs * size)
    changes: dict[str, Any] = {}
    for name in ("num_envs", "batch_size"):
        total = getattr(config, name)
        if total is not None and total % size:
            near = max(total - total % size, size)
            raise ArgumentError(
                name,
                f"a multiple of {size}, the number of processes",
                str(total),
                f"pass {near}, or change the number of processes",
            )
        changes |= {} if total is None else {name: total // size}
    if isinstance(config, OffPolicyConfig):
        changes["buffer_size"] = config.buffer_size // size
        changes["learning_starts"] = -(-config.learning_starts // size)
        ratio = config.utd_ratio if config.gradient_steps != -1 else 1.0
        if ratio is not None:
            changes |= {"utd_ratio": ratio * size, "gradient_steps": 1}
    return config, replace(config, **changes)


def merge_moments(first: Moments, *others: Moments) -> Moments:
    """Return the mean, population variance and count of joined data sets (Chan et al. 1979).

    >>> first, second = (np.array([1.0]), np.array([0.0]), 1), (np.array([4.0]), np.array([1.0]), 2)
    >>> merge_moments(first, second)
    (array([3.]), array([2.66666667]), 3)
    """
    mean, var, count = first
    for other_mean, other_var, other_count in others:
        total = count + other_count
        if other_count <= 0:
            continue
        delta = other_mean - mean
        squares = var * count + other_var * other_count
        squares = squares + delta**2 * (count * other_count / total)
        mean, var, count = mean + delta * (other_count / total), squares / total, total
    return mean, var, count


def moments_since(base: Moments, now: Moments) -> Moments:
    """Return the moments of the values added after `base`: the inverse of `merge_moments`."""
    mean, var, count = base
    now_mean, now_var, now_count = now
    new = now_count - count
    if new <= 0:
        return mean, var, 0.0
    new_mean = mean + (now_mean - mean) * (now_count / new)
    squares = now_var * now_count - var * count - (new_mean - mean) ** 2 * (count * new / now_count)
    return new_mean, np.maximum(squares / new, 0.0), new


def _moments(state: Mapping[str, npt.NDArray[Any]], name: str) -> Moments:
    return state[f"{name}_mean"], state[f"{name}_var"], float(state[f"{name}_count"][0])


def flatten_statistics(state: Arrays) -> F64:
    """Return the statistics of a normalizer state as one vector."""
    return np.concatenate([np.r_[_moments(state, name)] for name in _STATISTICS])


def merge_statistics(base: Arrays, rows: F64) -> Arrays:
    """Return the statistics of a normalizer that has processed the data of all ranks.

    Args:
        base: Normalizer state after the previous merge, equal on all ranks.
        rows: Current statistics of the ranks, shape (size, n), from `flatten_statistics`.
    """
    merged: dict[str, Any] = {}
    begin = 0
    for name in _STATISTICS:
        before = _moments(base, name)
        dim = len(before[0])
        parts = rows[:, begin : begin + 2 * dim + 1]
        begin += 2 * dim + 1
        news = [moments_since(before, (row[:dim], row[dim : 2 * dim], float(row[2 * dim]))) for row in parts]
        mean, var, count = merge_moments(before, *news)
        merged |= {f"{name}_mean": mean, f"{name}_var": var, f"{name}_count": np.array([count])}
    return merged


def merge_episodes(states: Sequence[Mapping[str, Any]]) -> EpisodeStatistics:
    """Merge episode statistics; the last 100 episodes are taken equally from all ranks if possible.

    >>> first, second = EpisodeStatistics(), EpisodeStatistics()
    >>> first.add(np.array([1.0, 2.0]), np.array([1, 2]))
    >>> second.add(np.array([3.0]), np.array([3]))
    >>> merged = merge_episodes([first.state(), second.state()])
    >>> merged.count, [*merged.returns]
    (3, [1.0, 2.0, 3.0])
    """
    newest = [[*zip(x["returns"], x["lengths"], strict=True)][::-1] for x in states]
    by_age = zip_longest(*newest)
    last = [episode for row in by_age for episode in row[::-1] if episode is not None][:100][::-1]
    merged = EpisodeStatistics(count=sum(x["count"] for x in states))
    merged.returns.extend(r for r, _ in last)
    merged.lengths.extend(n for _, n in last)
    return merged


def merge_states(ranks: list[LearnerState]) -> LearnerState:
    """Return the state of the run, with the states of all ranks in `ranks`.

    Networks, environments and replay buffer are those of rank 0. Counts, episodes, running returns
    and noise are merged, so that the checkpoint can also be used for inference in one process.
    """
    first = ranks[0]
    normalizer: Arrays = dict(first.normalizer)
    if normalizer:
        normalizer["returns"] = np.concatenate([x.normalizer["returns"] for x in ranks])
    counters = dict(first.counters)
    counters["timesteps"] = sum(x.counters["timesteps"] for x in ranks)
    counters["episodes"] = merge_episodes([x.counters["episodes"] for x in ranks]).state()
    if "noise" in counters:
        counters["noise"] = [value for x in ranks for value in x.counters["noise"]]
    unrestorable_reason = next(
        (f"rank {k}: {x.unrestorable_reason}" for k, x in enumerate(ranks) if x.unrestorable_reason), None
    )
    return replace(
        first, normalizer=normalizer, counters=counters, unrestorable_reason=unrestorable_reason, ranks=list(ranks)
    )


def degraded_state(local_state: LearnerState, size: int, reason: str) -> LearnerState:
    """Return the state of a run after other ranks failed, without environments or replay buffers."""
    first = replace(local_state, environment={}, replay=None, unrestorable_reason=reason)
    if local_state.normalizer:  # a resumed run starts new episodes, whose returns are 0
        zeros = np.zeros_like(local_state.normalizer["returns"])
        first = replace(first, normalizer={**local_state.normalizer, "returns": zeros})
    ranks = [first]
    for rank in range(1, size):
        streams = {}
        for name, state in local_state.streams.items():
            entropy = [*stream_from_state(state).integers(2**32, size=4), rank]
            streams[name] = stream_state(np.random.default_rng(entropy))
        ranks.append(replace(first, streams=streams))
    merged = merge_states(ranks)
    merged.counters["episodes"] = local_state.counters["episodes"]
    return merged


def shard_state(state: LearnerState, rank: int) -> LearnerState:
    """Return the state of one rank from a state of `merge_states`."""
    local_state = state.ranks[rank]
    normalizer = dict(state.normalizer)
    if normalizer:
        normalizer["returns"] = np.split(normalizer["returns"], len(state.ranks))[rank]
    return replace(
        state,
        normalizer=normalizer,
        environment=local_state.environment,
        replay=local_state.replay,
        counters=local_state.counters,
        streams=local_state.streams,
        ranks=[],
    )
