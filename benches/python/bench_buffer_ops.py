"""Replay buffers: pushes, samples, priorities, several steps.

Observations have 4 and 17 float32, or are stacks of four pictures of 84 x 84 in uint8 (28,224
bytes); actions are one number. Every subject gets the same arrays. What is pushed is one long
episode, so that a next observation is the observation of the next push; samples are drawn from full
buffers.

Peers whose arguments differ are called through a function of Python's; cpprb keeps next
observations beside observations, as it does unless told otherwise.

A row of samples has the median of single calls and their 99th percentile, "p99". "bytes" is what a
buffer says that a transition takes, or else what its arrays do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from side_by_side import Benchmark, Repeated, Row, Subject, run

PUSHES, CALLS, ENVS = 10_000, 300, 64
OBS = {4: ((4,), "float32"), 17: ((17,), "float32"), 28_224: ((4, 84, 84), "uint8")}
CAPACITY = {4: 100_000, 17: 1_000_000, 28_224: 10_000}
ALPHA, BETA = 0.6, 0.4


@lru_cache(1)
def steps(obs: int, count: int) -> tuple[list[Any], list[Any], list[float]]:
    """Observations, one more than there are actions and rewards."""
    shape, dtype = OBS[obs]
    rng = np.random.default_rng(0)
    if dtype == "uint8":
        frames = rng.integers(0, 256, (count + 4, *shape[1:]), np.uint8)
        observations = [np.ascontiguousarray(frames[i : i + 4]) for i in range(count + 1)]
    else:
        observations = list(rng.standard_normal((count + 1, *shape), np.float32))
    return (
        observations,
        list(rng.standard_normal((count, 1), np.float32)),
        rng.random(count).tolist(),
    )


class Buffer:
    """A library's buffer behind three calls, each of which does its usual work."""

    def __init__(self, made: Any, push: Callable[..., Any], sample: Callable[..., Any]) -> None:
        self.made, self.push, self.sample = made, push, sample
        self.bytes = float("nan")


def ours(
    obs: int, capacity: int, n_step: int = 1, kind: str = "ReplayBuffer", **how: Any
) -> Buffer:
    """rlox, of this repository."""
    import rlox

    shape, dtype = OBS[obs]
    make = getattr(rlox, kind)
    made = make(capacity, shape, 1, obs_dtype=dtype, seed=0, **how)
    return Buffer(made, made.push, made.sample)


def published(obs: int, capacity: int, n_step: int = 1, kind: str = "ReplayBuffer") -> Buffer:
    """rlox 1.2.0, which knows float32 alone, in one axis."""
    import rlox

    made = getattr(rlox, kind)(capacity, obs, 1)
    seeds = iter(range(1 << 40))
    return Buffer(made, made.push, lambda count: made.sample(count, next(seeds)))


def sb3(obs: int, capacity: int, n_step: int = 1, envs: int = 1) -> Buffer:
    """Stable-Baselines3, whose samples are tensors."""
    from gymnasium.spaces import Box
    from stable_baselines3.common import buffers

    shape, dtype = OBS[obs]
    low, high = (0, 255) if dtype == "uint8" else (-10, 10)
    spaces = Box(low, high, shape, dtype), Box(-1, 1, (1,))
    how: dict[str, Any] = {"device": "cpu", "handle_timeout_termination": True, "n_envs": envs}
    if n_step > 1:
        made = buffers.NStepReplayBuffer(capacity, *spaces, n_steps=n_step, gamma=0.99, **how)
    else:
        made = buffers.ReplayBuffer(capacity, *spaces, **how)
    infos: list[dict[str, Any]] = [{}]

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        made.add(o, following, a, np.array([r]), np.array([terminated or truncated]), infos)

    buffer = Buffer(made, push, made.sample)
    arrays = [x for x in vars(made).values() if isinstance(x, np.ndarray)]
    buffer.bytes = sum(x.nbytes for x in arrays) / capacity
    return buffer


def torchrl(obs: int, capacity: int, n_step: int = 1) -> Buffer:
    """TorchRL's tensor storage."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    made = ReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=32)

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        columns = {
            "obs": torch.from_numpy(o),
            "action": torch.from_numpy(a),
            "reward": torch.tensor(r),
            "terminated": torch.tensor(terminated),
            "truncated": torch.tensor(truncated),
            "next_obs": torch.from_numpy(following),
        }
        made.add(TensorDict(columns, []))

    return Buffer(made, push, made.sample)


def cpprb(obs: int, capacity: int, n_step: int = 1, priorities: bool = False) -> Buffer:
    """cpprb."""
    import cpprb as library

    shape, dtype = OBS[obs]
    columns = {
        "obs": {"shape": shape, "dtype": np.dtype(dtype)},
        "next_obs": {"shape": shape, "dtype": np.dtype(dtype)},
        "act": {"shape": 1},
        "rew": {},
        "terminated": {"dtype": np.dtype("bool")},
        "truncated": {"dtype": np.dtype("bool")},
    }
    make = library.PrioritizedReplayBuffer if priorities else library.ReplayBuffer
    made = make(capacity, columns, **({"alpha": ALPHA} if priorities else {}))

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        flags = {"terminated": terminated, "truncated": truncated}
        made.add(obs=o, act=a, rew=r, next_obs=following, **flags)

    return Buffer(made, push, made.sample)


MAKERS = {"ours": ours, "published": published, "sb3": sb3, "torchrl": torchrl, "cpprb": cpprb}


def made(obs: int, capacity: int, maker: str, **how: Any) -> Buffer:
    """A full buffer."""
    buffer = MAKERS[maker](obs, capacity, **how)
    count = min(capacity, PUSHES if obs < 28_224 else 1_000)
    observations, actions, rewards = steps(obs, count)
    if maker == "published" and obs == 28_224:
        observations = [x.ravel().astype(np.float32) for x in observations]
    for i in range(capacity):
        at = i % count
        following = observations[at + 1]
        buffer.push(observations[at], actions[at], rewards[at], False, at + 1 == count, following)
    if maker == "ours":
        buffer.bytes = buffer.made.nbytes / capacity
    return buffer


def push(obs: int, maker: str, **how: Any) -> Repeated:
    """Single transitions of one long episode."""
    count = PUSHES if obs < 28_224 else 1_000
    buffer = MAKERS[maker](obs, CAPACITY[obs], **how)
    observations, actions, rewards = steps(obs, count)
    if maker == "published" and obs == 28_224:
        observations = [x.ravel().astype(np.float32) for x in observations]
    following = observations[1:]
    rows = list(zip(observations, actions, rewards, following, strict=False))
    names = {"push": buffer.push, "rows": rows}
    return Repeated("for o, a, r, n in rows: push(o, a, r, False, False, n)", names, count)


def push_batch(obs: int, maker: str) -> Repeated:
    """A row for each of several environments at once, which go to and fro between two states."""
    observations, actions, rewards = steps(obs, ENVS)
    o, n, a = np.stack(observations[:-1]), np.stack(observations[1:]), np.stack(actions)
    r, no = np.array(rewards, np.float32), np.zeros(ENVS, bool)
    rest: tuple[Any, ...] = (a, r, no, no)
    capacity = CAPACITY[obs] // ENVS * ENVS
    if maker == "ours":
        call = ours(obs, capacity, num_envs=ENVS).made.push_batch
    elif maker == "published":
        call = published(obs, capacity).made.push_batch
        o, n, no = o.ravel(), n.ravel(), no.astype(np.uint8)
        rest = (a.ravel(), r, no, no)
    elif maker == "sb3":
        call = sb3(obs, capacity, envs=ENVS).made.add
        rest = (a, r, no, [{} for _ in range(ENVS)])
    elif maker == "torchrl":
        import torch
        from tensordict import TensorDict

        buffer = torchrl(obs, capacity).made
        columns = ("obs", "next_obs", "action", "reward", "terminated", "truncated")

        def call(*given: Any) -> None:
            tensors = dict(zip(columns, map(torch.from_numpy, given), strict=True))
            buffer.extend(TensorDict(tensors, [ENVS]))

    else:
        add = cpprb(obs, capacity).made.add

        def call(*given: Any) -> None:
            o, n, a, r, terminated, truncated = given
            flags = {"terminated": terminated, "truncated": truncated}
            add(obs=o, next_obs=n, act=a, rew=r, **flags)

    names = {"call": call, "there": (o, n, *rest), "back": (n, o, *rest)}
    return Repeated("for _ in range(50): call(*there); call(*back)", names, 100)


def latency(call: Callable[[], Any], more: dict[str, float]) -> Callable[[int], dict[str, float]]:
    """Seconds of the median call, and of the 99th percentile."""

    def once(turn: int) -> dict[str, float]:
        taken = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        p50, p99 = np.quantile(taken, [0.5, 0.99])
        return {"seconds": float(p50), "p99": float(p99) * 1e6, **more}

    return once


def sample(obs: int, batch: int, maker: str, **how: Any) -> Callable[[int], dict[str, float]]:
    """A batch from a full buffer."""
    buffer = made(obs, CAPACITY[obs], maker, **how)
    call = buffer.made.sample if maker == "torchrl" else buffer.sample
    return latency(lambda: call(batch), {"bytes": buffer.bytes})


def priorities(capacity: int, batch: int, maker: str) -> Callable[[int], dict[str, float]]:
    """A batch by priority, and new priorities for it."""
    new = np.random.default_rng(0).random(batch).astype(np.float32) + 0.1
    if maker == "cpprb":
        buffer = made(4, capacity, "cpprb", priorities=True)

        def both() -> None:
            drawn = buffer.made.sample(batch, beta=BETA)
            buffer.made.update_priorities(drawn["indexes"], new)

        return latency(both, {})
    kind = {"kind": "PrioritizedReplayBuffer"}
    buffer = made(4, capacity, maker, **kind)
    doubles = new.astype(np.float64)

    def ours_or_published() -> None:
        drawn = buffer.sample(batch)
        buffer.made.update_priorities(drawn["indices"], new if maker == "ours" else doubles)

    return latency(ours_or_published, {})


PEERS = {
    "rlox": ("ours", {}),
    "rlox 1.2.0": ("published", {"peer": "rlox-1.2.0"}),
    "Stable-Baselines3": ("sb3", {"peer": "sb3"}),
    "TorchRL": ("torchrl", {"peer": "torchrl"}),
    "cpprb": ("cpprb", {"peer": "cpprb"}),
}


def subjects(function: str, obs: int, names: list[str], **how: Any) -> list[Subject]:
    """Ours, also with frames stored once, and peers."""
    found = []
    for name in names:
        maker, where = PEERS[name]
        work = "float32" if maker == "published" and obs == 28_224 else ""
        options = {"maker": maker, **how}
        found.append(Subject(name, function, options=options, work=work, **where))
        if maker == "ours" and obs == 28_224:
            options = {**options, "frame_stack": 4}
            found.append(Subject("rlox, frames stored once", function, options=options))
    return found


def rows(quick: bool) -> list[Row]:
    """Pushes, samples, priorities."""
    everybody = list(PEERS)
    sizes = [4] if quick else list(OBS)
    found = [
        Row(f"push, obs {n:,}", {"obs": n}, subjects("push", n, everybody), 1, "transitions")
        for n in sizes
    ]
    found += [
        Row(
            f"push_batch of {ENVS}, obs {n:,}",
            {"obs": n},
            subjects("push_batch", n, everybody),
            ENVS,
            "transitions",
        )
        for n in sizes
        if n < 28_224
    ]
    for n in sizes:
        for batch in (32,) if quick else (32, 256, 1024):
            params = {"obs": n, "batch": batch}
            found.append(
                Row(
                    f"sample {batch}, obs {n:,}",
                    params,
                    subjects("sample", n, everybody),
                    batch,
                    "transitions",
                )
            )
    several = ["rlox", "Stable-Baselines3"]
    found.append(
        Row(
            "sample 256 of 3 steps, obs 4",
            {"obs": 4, "batch": 256},
            subjects("sample", 4, several, n_step=3),
            256,
            "transitions",
        )
    )
    for capacity in (1_000,) if quick else (100_000, 1_000_000):
        names = ["rlox", "rlox 1.2.0", "cpprb"]
        listed = [
            Subject(name, "priorities", options={"maker": PEERS[name][0]}, **PEERS[name][1])
            for name in names
        ]
        params = {"capacity": capacity, "batch": 256}
        found.append(
            Row(
                f"sample 256 of {capacity:,} by priority, update",
                params,
                listed,
                256,
                "transitions",
            )
        )
    return found


BENCHMARK = Benchmark(
    "bench_buffer_ops", "Replay buffers", rows, rounds=21, columns=("p99", "bytes")
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
