"""What native networks make of spaces and settings: inputs, outputs, and how much memory."""

import dataclasses
import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np

from rlox._errors import ArgumentError
from rlox.layouts import Layout
from rlox.memory import expect_granted
from rlox.noise import alike

# A parameter, its gradient and what an optimiser keeps of it, in rows that are padded to 16, and a
# transposed copy; and a copy of it and of what the optimiser keeps, for a checkpoint.
_BYTES_PADDED, _BYTES_TRANSPOSED, _BYTES_COPIED = 16, 4, 12
_LANES = 16
# What loading a state needs beside them: two copies of all, and one that names are looked up in.
_BYTES_PER_COPY = 48
# For all that is small.
_SPARE = 1 << 20
# A number that a layer gives, and its gradient.
_BYTES_PER_NUMBER = 8


def shape(config: Any) -> dict[str, Any]:
    """The settings that shape the networks."""
    names = ("activation", "ortho_init", "shared_trunk", "use_sde", "log_std_init")
    net_arch = (64, 64) if config.net_arch is None else config.net_arch
    return {"net_arch": net_arch, **{name: getattr(config, name) for name in names}}


def off_policy_settings(config: Any, hidden: tuple[int, ...]) -> dict[str, Any]:
    """The settings as the networks' library takes them; `hidden` are the usual hidden layers.

    >>> from rlox.configs import SACConfig
    >>> given = off_policy_settings(SACConfig(ent_coef="auto_0.1"), (256, 256))
    >>> given["ent_coef_auto"], given["ent_coef"], given["net_arch"]
    (True, 0.1, (256, 256))
    """
    given = dataclasses.asdict(config)
    if (noise := getattr(config, "action_noise", None)) is not None:
        given["action_noise"] = dataclasses.asdict(alike(noise) or noise)
    given["net_arch"] = hidden if config.net_arch is None else config.net_arch
    # Of episodes, Python counts the steps.
    given["train_freq"] = config.train_freq if isinstance(config.train_freq, int) else 1
    given["gradient_steps"] = None if config.gradient_steps == -1 else config.gradient_steps
    if "sde_sample_freq" in given:
        given["sde_sample_freq"] = max(config.sde_sample_freq, 0)
    if "ent_coef" in given:
        learned = isinstance(config.ent_coef, str)
        begin = config.ent_coef.partition("_")[2] or 1.0 if learned else config.ent_coef
        auto = config.target_entropy == "auto"
        target = None if auto else config.target_entropy
        given |= {"ent_coef_auto": learned, "ent_coef": float(begin), "target_entropy": target}
    return given


def observed(layout: Layout) -> dict[str, Any]:
    """How observations become the networks' inputs: numbers as they are, integers one-hot."""
    if layout.packed:
        raise ArgumentError(
            "observation space",
            "Box, Discrete, MultiDiscrete or MultiBinary on native networks",
            str(layout.space),
            "use backend='torch', or flatten it in a wrapper",
        )
    match layout.space:
        case gym.spaces.Discrete():
            return {"kind": "one_hot", "shape": (), "counts": [int(layout.space.n)]}
        case gym.spaces.MultiDiscrete():
            counts = layout.space.nvec.ravel().tolist()
            return {"kind": "one_hot", "shape": layout.shape, "counts": counts}
    return {"kind": "numbers", "shape": layout.shape}


def expect_room(
    observed: dict[str, Any], action: dict[str, Any], shape: dict[str, Any], rows: int
) -> int:
    """Refuses networks that do not fit into memory, with what they keep of so many rows.

    Returns:
        How many parameters they have.
    """
    inputs = sum(observed.get("counts", ())) or math.prod(observed["shape"])
    # NumPy's sum would wrap around.
    counts: list[int] = np.asarray(action.get("nvec", ())).tolist()
    outputs = sum(counts) or action.get("n") or math.prod(action["shape"])
    sizes = [inputs, *shape["net_arch"], outputs + 1]
    return expect_room_of([sizes, sizes], shape["net_arch"], rows)


def expect_room_of(networks: list[list[int]], net_arch: tuple[int, ...], rows: int) -> int:
    """`expect_room` for networks of these sizes, layer by layer."""
    parameters = needed = 0
    for sizes in networks:
        layers = list(itertools.pairwise(sizes))
        count = sum((a + 1) * b for a, b in layers)
        padded = sum((a + 1) * _lines(b) for a, b in layers)
        transposed = sum(b * _lines(a) for a, b in layers)
        needed += padded * _BYTES_PADDED + transposed * _BYTES_TRANSPOSED + count * _BYTES_COPIED
        needed += rows * sum(map(_lines, sizes)) * _BYTES_PER_NUMBER
        parameters += count
    expect_granted("net_arch", net_arch, needed + _SPARE)
    return parameters


def _lines(width: int) -> int:
    """The numbers that a row of so many takes up."""
    return -(-width // _LANES) * _LANES


def expect_copies(parameters: int) -> None:
    """Refuses copies of parameters and optimiser that do not fit into memory.

    The networks' own library ends the process where small parts of it are refused.
    """
    expect_granted("state", f"{parameters:,} parameters", parameters * _BYTES_PER_COPY + _SPARE)


def sends_itself(space: gym.Space[Any]) -> bool:
    """Whether what the policy says is in the space's own dtype and shape already."""
    match space:
        case gym.spaces.Discrete():
            return space.start == 0 and space.dtype == np.int64
        case gym.spaces.Box():
            return space.dtype == np.float32
    return False
