"""Replay buffers of all libraries with the same methods: `push`, `sample` and `extend`.

Libraries with other arguments are called through a Python function. cpprb stores next observations
separately, which is its default. TorchRL and cpprb sum n-step rewards when transitions are pushed.
The other libraries sum them when transitions are sampled.
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
HOT = 10_000  # transitions in memory of a buffer with a file


class Buffer:
    """Replay buffer of a library, with the methods that the benchmark measures."""

    def __init__(self, instance: Any, push: Callable[..., Any], sample: Callable[..., Any]) -> None:
        self.instance, self.push, self.sample = instance, push, sample
        self.bytes = float("nan")
        # Accepts observations, actions and rewards of consecutive steps in one call.
        self.extend: Callable[[list[Any], list[Any], list[float]], Any] | None = None
        self.file = Path()  # path of the file, if any


def make_rlox(
    obs: int | str, capacity: int, n_step: int = 1, class_name: str = "ReplayBuffer", **kwargs: Any
) -> Buffer:
    """Return a buffer of the rlox in this process."""
    import rlox

    shape, dtype = OBS[obs]
    make = getattr(rlox, class_name)
    instance = make(capacity, shape, 1, obs_dtype=dtype, seed=0, **kwargs)
    return Buffer(instance, instance.push, instance.sample)


def published(obs: int | str, capacity: int, n_step: int = 1, class_name: str = "ReplayBuffer") -> Buffer:
    """Return a buffer of rlox 1.2.0, which supports only float32 vectors."""
    import rlox

    instance = getattr(rlox, class_name)(capacity, math.prod(OBS[obs][0]), 1)
    seeds = iter(range(1 << 40))
    return Buffer(instance, instance.push, lambda count: instance.sample(count, next(seeds)))


def sb3(obs: int | str, capacity: int, n_step: int = 1, envs: int = 1) -> Buffer:
    """Return a buffer of Stable-Baselines3, whose samples are tensors."""
    from gymnasium.spaces import Box
    from stable_baselines3.common import buffers

    shape, dtype = OBS[obs]
    low, high = (0, 255) if dtype == "uint8" else (-10, 10)
    spaces = Box(low, high, shape, dtype), Box(-1, 1, (1,))
    kwargs: dict[str, Any] = {"device": "cpu", "handle_timeout_termination": True, "n_envs": envs}
    if n_step > 1:
        instance = buffers.NStepReplayBuffer(capacity, *spaces, n_steps=n_step, gamma=GAMMA, **kwargs)
    else:
        instance = buffers.ReplayBuffer(capacity, *spaces, **kwargs)
    infos: list[dict[str, Any]] = [{}]

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        instance.add(o, following, a, np.array([r]), np.array([terminated or truncated]), infos)

    buffer = Buffer(instance, push, instance.sample)
    arrays = [x for x in vars(instance).values() if isinstance(x, np.ndarray)]
    buffer.bytes = sum(x.nbytes for x in arrays) / capacity
    return buffer


def torchrl(obs: int | str, capacity: int, n_step: int = 1, priorities: bool = False) -> Buffer:
    """Return a buffer with TorchRL's tensor storage."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer, ReplayBuffer
    from torchrl.envs import MultiStepTransform

    kwargs: dict[str, Any] = {"storage": LazyTensorStorage(capacity), "batch_size": 32}
    if n_step > 1:
        kwargs["transform"] = MultiStepTransform(n_steps=n_step, gamma=GAMMA)
    instance = PrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, **kwargs) if priorities else ReplayBuffer(**kwargs)

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        columns = {
            "obs": torch.from_numpy(o),
            "action": torch.from_numpy(a),
            "reward": torch.tensor(r),
            "terminated": torch.tensor(terminated),
            "truncated": torch.tensor(truncated),
            "next_obs": torch.from_numpy(following),
        }
        instance.add(TensorDict(columns, []))

    def extend(observations: list[Any], actions: list[Any], rewards: list[float]) -> None:
        count = len(rewards)
        each = torch.from_numpy(np.stack(observations))
        last = torch.arange(count) == count - 1
        fields = {
            "reward": torch.tensor(rewards),
            "terminated": torch.zeros(count, dtype=torch.bool),
            "truncated": last,
        }
        columns: dict[str, Any] = {"obs": each[:-1], "action": torch.from_numpy(np.stack(actions))}
        if n_step > 1:  # the layout of TorchRL's environments
            rows = {name: x[:, None] for name, x in {**fields, "done": last}.items()}
            columns["next"] = TensorDict({"obs": each[1:], **rows}, [count])
        else:
            columns |= {**fields, "next_obs": each[1:]}
        instance.extend(TensorDict(columns, [count]))

    buffer = Buffer(instance, push, instance.sample)
    buffer.extend = extend
    return buffer


def cpprb(obs: int | str, capacity: int, n_step: int = 1, priorities: bool = False) -> Buffer:
    """Return a buffer of cpprb."""
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
    kwargs: dict[str, Any] = {"alpha": ALPHA} if priorities else {}
    if n_step > 1:
        columns["done"] = {}
        kwargs["Nstep"] = {"size": n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
    make = library.PrioritizedReplayBuffer if priorities else library.ReplayBuffer
    instance = make(capacity, columns, **kwargs)

    def push(o: Any, a: Any, r: float, terminated: bool, truncated: bool, following: Any) -> None:
        flags = {"terminated": terminated, "truncated": truncated}
        if n_step > 1:
            flags["done"] = terminated
        instance.add(obs=o, act=a, rew=r, next_obs=following, **flags)
        if n_step > 1 and truncated:
            instance.on_episode_end()

    return Buffer(instance, push, instance.sample)


def mapped(obs: int | str, capacity: int, n_step: int = 1) -> Buffer:
    """Return an rlox buffer with most transitions in a file that is deleted with the buffer."""
    import rlox

    shape, dtype = OBS[obs]
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "replay")
    instance = rlox.MmapReplayBuffer(HOT, capacity, shape, 1, path, obs_dtype=dtype, seed=0)
    buffer = Buffer(instance, instance.push, instance.sample)
    buffer.file = path
    finalize(buffer, folder.cleanup)
    return buffer


MAKERS = {"mapped": mapped, "ours": make_rlox, "published": published, "sb3": sb3, "torchrl": torchrl, "cpprb": cpprb}
