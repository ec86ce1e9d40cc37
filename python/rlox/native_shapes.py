"""What native networks make of spaces and settings: inputs, outputs, and how much memory."""

import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np

from rlox.layouts import Layout
from rlox.memory import expect_granted

# The 20 that `MlpLayout` counts in Rust (a parameter, its gradient, what an optimiser keeps of it,
# a transposed copy), and a copy of it and of what the optimiser keeps, for a checkpoint.
_BYTES_PER_PARAMETER = 20 + 12
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


def observed(layout: Layout) -> dict[str, Any]:
    """How observations become the networks' inputs: numbers as they are, integers one-hot."""
    if layout.packed:
        raise ValueError(
            "observation space: expected Box, Discrete, MultiDiscrete or MultiBinary on native "
            f"networks, got {layout.space}; use backend='torch', or flatten it in a wrapper"
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
    outputs = int(np.sum(action.get("nvec", 0))) or action.get("n") or math.prod(action["shape"])
    sizes = [inputs, *shape["net_arch"], outputs + 1]
    parameters: int = 2 * sum((a + 1) * b for a, b in itertools.pairwise(sizes))
    kept = 2 * rows * sum(sizes)
    needed = parameters * _BYTES_PER_PARAMETER + kept * _BYTES_PER_NUMBER
    expect_granted("net_arch", shape["net_arch"], needed + _SPARE)
    return parameters


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
