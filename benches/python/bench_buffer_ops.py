"""Replay buffers: pushes, samples, priorities and n-step samples.

Observations are 4 or 17 float32 numbers, or stacks of four images of 84 x 84: 28,224 numbers in
uint8, or in float32 for pushes only. Actions are one number. All subjects (`side_by_side.py`) get
the same arrays. The pushed steps are one long episode, so that a next observation is the
observation of the next push. Samples are drawn from full buffers. `buffers.py` creates the buffers.

Rows of samples have the median of single calls and their 99th percentile in us, "p99". "bytes" is
the number of bytes per transition. rlox reports the size of its buffer. For Stable-Baselines3 and
TorchRL, the size is that of their arrays. rlox 1.2.0 and cpprb do not expose their arrays, so
"bytes" is the size of a sampled transition with its next observation.

`MmapReplayBuffer` has no peer. It has all transitions in a file, which the system caches, and a
tenth of them in memory. Its "bytes" are those of the file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from side_by_side import Benchmark, Repeated, Row, Subject, run

from buffers import BETA, FLOATS, MAKERS, OBS, Buffer, cpprb, make_rlox, published, sb3, torchrl

PUSHES, CALLS, ENVS = 10_000, 300, 64
CAPACITY = {4: 100_000, 17: 1_000_000, 28_224: 10_000, FLOATS: 1_000}
STEPS = {4: PUSHES, 17: PUSHES, 28_224: 1_000, FLOATS: 500}  # steps that are pushed repeatedly


@lru_cache(1)
def steps(obs: int | str, count: int) -> tuple[list[Any], list[Any], list[float]]:
    """Return observations, actions and rewards, with one more observation than actions."""
    shape, dtype = OBS[obs]
    rng = np.random.default_rng(0)
    if dtype == "uint8":
        frames = rng.integers(0, 256, (count + 4, *shape[1:]), np.uint8)
        observations = [np.ascontiguousarray(frames[i : i + 4]) for i in range(count + 1)]
    else:
        observations = list(rng.standard_normal((count + 1, *shape), np.float32))
    return (observations, list(rng.standard_normal((count, 1), np.float32)), rng.random(count).tolist())


def steps_for(maker: str, obs: int | str, count: int) -> tuple[list[Any], list[Any], list[float]]:
    """Return `steps` in the form that a library accepts."""
    observations, actions, rewards = steps(obs, count)
    if maker == "published":  # rlox 1.2.0 supports only float32 vectors
        observations = [x.ravel().astype(np.float32, copy=False) for x in observations]
    return observations, actions, rewards


def full_buffer(obs: int | str, capacity: int, maker: str, **kwargs: Any) -> Buffer:
    """Return a full buffer."""
    buffer = MAKERS[maker](obs, capacity, **kwargs)
    count = min(capacity, STEPS[obs])
    observations, actions, rewards = steps_for(maker, obs, count)
    if buffer.extend is not None:
        for _ in range(0, capacity, count):
            buffer.extend(observations, actions, rewards)
    for i in range(0 if buffer.extend is not None else capacity):
        index = i % count
        following = observations[index + 1]
        buffer.push(observations[index], actions[index], rewards[index], False, index + 1 == count, following)
    if maker == "ours":
        buffer.bytes = buffer.instance.nbytes / capacity
    elif maker == "mapped":
        buffer.instance.flush()
        buffer.bytes = buffer.file.stat().st_size / capacity
    elif maker == "torchrl":
        buffer.bytes = buffer.instance.storage._storage.bytes() / capacity
    elif maker in ("published", "cpprb"):
        buffer.bytes = sum(np.asarray(x).nbytes for x in buffer.sample(1).values())
    return buffer


def push(obs: int | str, maker: str, **kwargs: Any) -> Repeated:
    """Time pushes of single transitions of one long episode."""
    count = STEPS[obs]
    buffer = MAKERS[maker](obs, CAPACITY[obs], **kwargs)
    observations, actions, rewards = steps_for(maker, obs, count)
    following = observations[1:]
    rows = list(zip(observations, actions, rewards, following, strict=False))
    names = {"push": buffer.push, "rows": rows}
    return Repeated("for o, a, r, n in rows: push(o, a, r, False, False, n)", names, count)


def push_batch(obs: int, maker: str) -> Repeated:
    """Time pushes of one row per environment, alternating between two states."""
    observations, actions, rewards = steps_for(maker, obs, ENVS)
    o, n, a = np.stack(observations[:-1]), np.stack(observations[1:]), np.stack(actions)
    r, no = np.array(rewards, np.float32), np.zeros(ENVS, bool)
    rest: tuple[Any, ...] = (a, r, no, no)
    # The buffer of images is small, because filling takes seconds. Pushes to a large buffer take the same time.
    capacity = (1_000 if obs == 28_224 else CAPACITY[obs]) // ENVS * ENVS
    if maker == "ours":
        call = make_rlox(obs, capacity, num_envs=ENVS).instance.push_batch
    elif maker == "published":
        call = published(obs, capacity).instance.push_batch
        o, n, no = o.ravel(), n.ravel(), no.astype(np.uint8)
        rest = (a.ravel(), r, no, no)
    elif maker == "sb3":
        call = sb3(obs, capacity, envs=ENVS).instance.add
        rest = (a, r, no, [{} for _ in range(ENVS)])
    elif maker == "torchrl":
        import torch
        from tensordict import TensorDict

        buffer = torchrl(obs, capacity).instance
        columns = ("obs", "next_obs", "action", "reward", "terminated", "truncated")

        def call(*arrays: Any) -> None:
            tensors = dict(zip(columns, map(torch.from_numpy, arrays), strict=True))
            buffer.extend(TensorDict(tensors, [ENVS]))

    else:
        add = cpprb(obs, capacity).instance.add

        def call(*arrays: Any) -> None:
            o, n, a, r, terminated, truncated = arrays
            flags = {"terminated": terminated, "truncated": truncated}
            add(obs=o, next_obs=n, act=a, rew=r, **flags)

    names = {"call": call, "there": (o, n, *rest), "back": (n, o, *rest)}
    return Repeated("for _ in range(50): call(*there); call(*back)", names, 100)


def latency(call: Callable[[], Any], more: dict[str, float]) -> Callable[[int], dict[str, float]]:
    """Return a subject that measures single calls: median in seconds, 99th percentile in us."""

    def once(turn: int) -> dict[str, float]:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        p50, p99 = np.quantile(times, [0.5, 0.99])
        return {"seconds": float(p50), "p99": float(p99) * 1e6, **more}

    return once


def sample(obs: int, batch: int, maker: str, **kwargs: Any) -> Callable[[int], dict[str, float]]:
    """Time samples of a batch from a full buffer."""
    buffer = full_buffer(obs, CAPACITY[obs], maker, **kwargs)
    call = buffer.instance.sample if maker == "torchrl" else buffer.sample
    return latency(lambda: call(batch), {"bytes": buffer.bytes})


def priorities(capacity: int, batch: int, maker: str) -> Callable[[int], dict[str, float]]:
    """Time samples of a batch by priority, each followed by an update of its priorities."""
    new = np.random.default_rng(0).random(batch).astype(np.float32) + 0.1
    if maker == "cpprb":
        buffer = full_buffer(4, capacity, "cpprb", priorities=True)

        def both() -> None:
            drawn = buffer.instance.sample(batch, beta=BETA)
            buffer.instance.update_priorities(drawn["indexes"], new)

        return latency(both, {})
    if maker == "torchrl":
        import torch

        tensors, sampler = (torch.from_numpy(new), full_buffer(4, capacity, maker, priorities=True).instance)

        def all_three() -> None:
            _, drawn = sampler.sample(batch, return_info=True)
            sampler.update_priority(drawn["index"], tensors)

        return latency(all_three, {})
    options = {"class_name": "PrioritizedReplayBuffer"}
    buffer = full_buffer(4, capacity, maker, **options)
    doubles = new.astype(np.float64)

    def ours_or_published() -> None:
        drawn = buffer.sample(batch)
        buffer.instance.update_priorities(drawn["indices"], new if maker == "ours" else doubles)

    return latency(ours_or_published, {})


PEERS = {
    "rlox": ("ours", {}),
    "rlox 1.2.0": ("published", {"peer": "rlox-1.2.0"}),
    "Stable-Baselines3": ("sb3", {"peer": "sb3"}),
    "TorchRL": ("torchrl", {"peer": "torchrl"}),
    "cpprb": ("cpprb", {"peer": "cpprb"}),
}


def subjects(function: str, obs: int | str, names: list[str], **kwargs: Any) -> list[Subject]:
    """Return the subjects of rlox, also with frames stored once, and of peers."""
    found = []
    for name in names:
        maker, peer_options = PEERS[name]
        work = "float32" if maker == "published" and obs == 28_224 else ""
        options = {"maker": maker, **kwargs}
        if kwargs.get("n_step", 1) > 1 and maker in ("torchrl", "cpprb"):
            work = "summed when pushed"
        found.append(Subject(name, function, options=options, work=work, **peer_options))
        if maker == "ours" and obs == 28_224 and function != "push_batch":  # whose rows share no frames
            options = {**options, "frame_stack": 4}
            found.append(Subject("rlox, frames stored once", function, options=options))
    return found


def mapped_rows() -> list[Row]:
    """Return rows of buffers with most transitions in a file, which no peer has."""
    found = []
    for name, function, params, amount in (
        ("push, obs 4, to a file", "push", {"obs": 4}, 1),
        ("sample 256, obs 4, nine tenths in a file", "sample", {"obs": 4, "batch": 256}, 256),
    ):
        row_subjects = [
            Subject("rlox, MmapReplayBuffer", function, options={"maker": "mapped"}),
            Subject("rlox, all in memory", function, options={"maker": "ours"}),
        ]
        found.append(Row(name, params, row_subjects, amount, "transitions"))
    return found


def rows(quick: bool) -> list[Row]:
    """Return the rows of pushes, samples and priorities."""
    all_peers = list(PEERS)
    sizes = [4] if quick else [4, 17, 28_224]
    found = [
        Row(f"push, obs {name}", {"obs": n}, subjects("push", n, all_peers), 1, "transitions")
        for name, n in [(f"{n:,}", n) for n in sizes] + ([] if quick else [(FLOATS, FLOATS)])
    ]
    found += [
        Row(f"push_batch of {ENVS}, obs {n:,}", {"obs": n}, subjects("push_batch", n, all_peers), ENVS, "transitions")
        for n in sizes
    ]
    for n in sizes:
        for batch in (32,) if quick else (32, 256, 1024):
            params = {"obs": n, "batch": batch}
            found.append(
                Row(f"sample {batch}, obs {n:,}", params, subjects("sample", n, all_peers), batch, "transitions")
            )
    found += mapped_rows()
    peers_with_n_steps = ["rlox", "Stable-Baselines3", "TorchRL", "cpprb"]
    found.append(
        Row(
            "sample 256 of 3 steps, obs 4",
            {"obs": 4, "batch": 256},
            subjects("sample", 4, peers_with_n_steps, n_step=3),
            256,
            "transitions",
        )
    )
    for capacity in (1_000,) if quick else (100_000, 1_000_000):
        names = ["rlox", "rlox 1.2.0", "TorchRL", "cpprb"]
        row_subjects = [
            Subject(name, "priorities", options={"maker": PEERS[name][0]}, **PEERS[name][1]) for name in names
        ]
        params = {"capacity": capacity, "batch": 256}
        found.append(Row(f"sample 256 of {capacity:,} by priority, update", params, row_subjects, 256, "transitions"))
    return found


BENCHMARK = Benchmark("bench_buffer_ops", "Replay buffers", rows, rounds=21, columns=("p99", "bytes"))

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
