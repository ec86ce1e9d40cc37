"""Replay buffers: pushes, samples, priorities, several steps.

Observations have 4 and 17 float32, or are stacks of four pictures of 84 x 84, 28,224 numbers in
uint8 or, pushed alone, in float32; actions are one number. Every subject gets the same arrays. What
is pushed is one long episode, so that a next observation is the observation of the next push;
samples are drawn from full buffers. `buffers.py` makes them.

A row of samples has the median of single calls and their 99th percentile, "p99". "bytes" is what a
transition takes: ours says it itself, of Stable-Baselines3 and TorchRL it is that of their arrays,
and of rlox 1.2.0 and cpprb, which keep theirs to themselves, that of a transition as it is sampled,
next observation included.

`MmapReplayBuffer`, which no peer has, is pushed to and sampled from with a tenth of its transitions
in memory, and all of them in a file that the system holds in its own; "bytes" are the file's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from side_by_side import Benchmark, Repeated, Row, Subject, run

from buffers import BETA, FLOATS, MAKERS, OBS, Buffer, cpprb, ours, published, sb3, torchrl

PUSHES, CALLS, ENVS = 10_000, 300, 64
CAPACITY = {4: 100_000, 17: 1_000_000, 28_224: 10_000, FLOATS: 1_000}
STEPS = {4: PUSHES, 17: PUSHES, 28_224: 1_000, FLOATS: 500}  # that are pushed again and again


@lru_cache(1)
def steps(obs: int | str, count: int) -> tuple[list[Any], list[Any], list[float]]:
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


def given_to(maker: str, obs: int | str, count: int) -> tuple[list[Any], list[Any], list[float]]:
    """`steps`, as a library takes them."""
    observations, actions, rewards = steps(obs, count)
    if maker == "published":  # which knows vectors of float32 alone
        observations = [x.ravel().astype(np.float32, copy=False) for x in observations]
    return observations, actions, rewards


def made(obs: int | str, capacity: int, maker: str, **how: Any) -> Buffer:
    """A full buffer."""
    buffer = MAKERS[maker](obs, capacity, **how)
    count = min(capacity, STEPS[obs])
    observations, actions, rewards = given_to(maker, obs, count)
    if buffer.extend is not None:
        for _ in range(0, capacity, count):
            buffer.extend(observations, actions, rewards)
    for i in range(0 if buffer.extend is not None else capacity):
        at = i % count
        following = observations[at + 1]
        buffer.push(observations[at], actions[at], rewards[at], False, at + 1 == count, following)
    if maker == "ours":
        buffer.bytes = buffer.made.nbytes / capacity
    elif maker == "mapped":
        buffer.made.flush()
        buffer.bytes = buffer.file.stat().st_size / capacity
    elif maker == "torchrl":
        buffer.bytes = buffer.made.storage._storage.bytes() / capacity
    elif maker in ("published", "cpprb"):
        buffer.bytes = sum(np.asarray(x).nbytes for x in buffer.sample(1).values())
    return buffer


def push(obs: int | str, maker: str, **how: Any) -> Repeated:
    """Single transitions of one long episode."""
    count = STEPS[obs]
    buffer = MAKERS[maker](obs, CAPACITY[obs], **how)
    observations, actions, rewards = given_to(maker, obs, count)
    following = observations[1:]
    rows = list(zip(observations, actions, rewards, following, strict=False))
    names = {"push": buffer.push, "rows": rows}
    return Repeated("for o, a, r, n in rows: push(o, a, r, False, False, n)", names, count)


def push_batch(obs: int, maker: str) -> Repeated:
    """A row for each of several environments at once, which go to and fro between two states."""
    observations, actions, rewards = given_to(maker, obs, ENVS)
    o, n, a = np.stack(observations[:-1]), np.stack(observations[1:]), np.stack(actions)
    r, no = np.array(rewards, np.float32), np.zeros(ENVS, bool)
    rest: tuple[Any, ...] = (a, r, no, no)
    # Pictures take seconds to fill more with, and pushing takes the same.
    capacity = (1_000 if obs == 28_224 else CAPACITY[obs]) // ENVS * ENVS
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
    if maker == "torchrl":
        import torch

        tensors, made_there = torch.from_numpy(new), made(4, capacity, maker, priorities=True).made

        def all_three() -> None:
            _, drawn = made_there.sample(batch, return_info=True)
            made_there.update_priority(drawn["index"], tensors)

        return latency(all_three, {})
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


def subjects(function: str, obs: int | str, names: list[str], **how: Any) -> list[Subject]:
    """Ours, also with frames stored once, and peers."""
    found = []
    for name in names:
        maker, where = PEERS[name]
        work = "float32" if maker == "published" and obs == 28_224 else ""
        options = {"maker": maker, **how}
        if how.get("n_step", 1) > 1 and maker in ("torchrl", "cpprb"):
            work = "summed when pushed"
        found.append(Subject(name, function, options=options, work=work, **where))
        if maker == "ours" and obs == 28_224 and function != "push_batch":  # to and fro
            options = {**options, "frame_stack": 4}
            found.append(Subject("rlox, frames stored once", function, options=options))
    return found


def filed() -> list[Row]:
    """Buffers of which most lies in a file, which no peer has."""
    found = []
    for name, function, params, amount in (
        ("push, obs 4, to a file", "push", {"obs": 4}, 1),
        ("sample 256, obs 4, nine tenths in a file", "sample", {"obs": 4, "batch": 256}, 256),
    ):
        listed = [
            Subject("rlox, MmapReplayBuffer", function, options={"maker": "mapped"}),
            Subject("rlox, all in memory", function, options={"maker": "ours"}),
        ]
        found.append(Row(name, params, listed, amount, "transitions"))
    return found


def rows(quick: bool) -> list[Row]:
    """Pushes, samples, priorities."""
    everybody = list(PEERS)
    sizes = [4] if quick else [4, 17, 28_224]
    found = [
        Row(f"push, obs {name}", {"obs": n}, subjects("push", n, everybody), 1, "transitions")
        for name, n in [(f"{n:,}", n) for n in sizes] + ([] if quick else [(FLOATS, FLOATS)])
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
    found += filed()
    several = ["rlox", "Stable-Baselines3", "TorchRL", "cpprb"]
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
        names = ["rlox", "rlox 1.2.0", "TorchRL", "cpprb"]
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
