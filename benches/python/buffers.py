"""Replay buffers of all libraries, behind the same three calls.

Peers whose arguments differ are called through a function of Python's; cpprb keeps next
observations beside observations, as it does unless told otherwise. TorchRL and cpprb sum several
steps when they are pushed, not when they are sampled as the others do.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

FLOATS = "28,224 as float32"
OBS: dict[int | str, tuple[tuple[int, ...], str]] = {
    4: ((4,), "float32"),
    17: ((17,), "float32"),
    28_224: ((4, 84, 84), "uint8"),
    FLOATS: ((4, 84, 84), "float32"),
}
ALPHA, BETA, GAMMA = 0.6, 0.4, 0.99
HOT = 10_000  # transitions that a buffer with a file has in memory


class Buffer:
    """A library's buffer behind three calls, each of which does its usual work."""

    def __init__(self, made: Any, push: Callable[..., Any], sample: Callable[..., Any]) -> None:
        self.made, self.push, self.sample = made, push, sample
        self.bytes = float("nan")
        # Takes observations, actions and rewards of steps that follow each other all at once.
        self.extend: Callable[[list[Any], list[Any], list[float]], Any] | None = None
        self.file = Path()  # where it has one


def ours(
    obs: int | str, capacity: int, n_step: int = 1, kind: str = "ReplayBuffer", **how: Any
) -> Buffer:
    """rlox, of this repository."""
    import rlox

    shape, dtype = OBS[obs]
    make = getattr(rlox, kind)
    made = make(capacity, shape, 1, obs_dtype=dtype, seed=0, **how)
    return Buffer(made, made.push, made.sample)


def published(obs: int | str, capacity: int, n_step: int = 1, kind: str = "ReplayBuffer") -> Buffer:
    """rlox 1.2.0, which knows float32 alone, in one axis."""
    import rlox

    made = getattr(rlox, kind)(capacity, math.prod(OBS[obs][0]), 1)
    seeds = iter(range(1 << 40))
    return Buffer(made, made.push, lambda count: made.sample(count, next(seeds)))


def sb3(obs: int | str, capacity: int, n_step: int = 1, envs: int = 1) -> Buffer:
    """Stable-Baselines3, whose samples are tensors."""
    from gymnasium.spaces import Box
    from stable_baselines3.common import buffers

    shape, dtype = OBS[obs]
    low, high = (0, 255) if dtype == "uint8" else (-10, 10)
    spaces = Box(low, high, shape, dtype), Box(-1, 1, (1,))
    how: dict[str, Any] = {"device": "cpu", "handle_timeout_termination": True, "n_envs": envs}
    if n_step > 1:
        made = buffers.NStepReplayBuffer(capacity, *spaces, n_steps=n_step, gamma=GAMMA, **how)
    else:
        made = buffers.ReplayBuffer(capacity, *spaces, **how)
    infos: list[dict[str, Any]] = [{}]

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        made.add(o, following, a, np.array([r]), np.array([terminated or truncated]), infos)

    buffer = Buffer(made, push, made.sample)
    arrays = [x for x in vars(made).values() if isinstance(x, np.ndarray)]
    buffer.bytes = sum(x.nbytes for x in arrays) / capacity
    return buffer


def torchrl(obs: int | str, capacity: int, n_step: int = 1, priorities: bool = False) -> Buffer:
    """TorchRL's tensor storage."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer, ReplayBuffer
    from torchrl.envs import MultiStepTransform

    how: dict[str, Any] = {"storage": LazyTensorStorage(capacity), "batch_size": 32}
    if n_step > 1:
        how["transform"] = MultiStepTransform(n_steps=n_step, gamma=GAMMA)
    if priorities:
        made = PrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, **how)
    else:
        made = ReplayBuffer(**how)

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

    def extend(observations: list[Any], actions: list[Any], rewards: list[float]) -> None:
        count = len(rewards)
        each = torch.from_numpy(np.stack(observations))
        last = torch.arange(count) == count - 1
        told = {
            "reward": torch.tensor(rewards),
            "terminated": torch.zeros(count, dtype=torch.bool),
            "truncated": last,
        }
        columns: dict[str, Any] = {
            "obs": each[:-1],
            "action": torch.from_numpy(np.stack(actions)),
        }
        if n_step > 1:  # as its environments have them
            rows = {name: x[:, None] for name, x in {**told, "done": last}.items()}
            columns["next"] = TensorDict({"obs": each[1:], **rows}, [count])
        else:
            columns |= {**told, "next_obs": each[1:]}
        made.extend(TensorDict(columns, [count]))

    buffer = Buffer(made, push, made.sample)
    buffer.extend = extend
    return buffer


def cpprb(obs: int | str, capacity: int, n_step: int = 1, priorities: bool = False) -> Buffer:
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
    how: dict[str, Any] = {"alpha": ALPHA} if priorities else {}
    if n_step > 1:
        columns["done"] = {}
        how["Nstep"] = {"size": n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
    make = library.PrioritizedReplayBuffer if priorities else library.ReplayBuffer
    made = make(capacity, columns, **how)

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        flags = {"terminated": terminated, "truncated": truncated}
        if n_step > 1:
            flags["done"] = terminated
        made.add(obs=o, act=a, rew=r, next_obs=following, **flags)
        if n_step > 1 and truncated:
            made.on_episode_end()

    return Buffer(made, push, made.sample)


def mapped(obs: int | str, capacity: int, n_step: int = 1) -> Buffer:
    """rlox, most of it in a file, which is there as long as the process."""
    import rlox

    shape, dtype = OBS[obs]
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "replay")
    made = rlox.MmapReplayBuffer(HOT, capacity, shape, 1, path, obs_dtype=dtype, seed=0)
    buffer = Buffer(made, made.push, made.sample)
    buffer.file = path
    finalize(buffer, folder.cleanup)
    return buffer


MAKERS = {
    "mapped": mapped,
    "ours": ours,
    "published": published,
    "sb3": sb3,
    "torchrl": torchrl,
    "cpprb": cpprb,
}
