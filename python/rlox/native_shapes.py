"""Translate spaces and settings for the native networks."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np

from rlox._errors import ArgumentError
from rlox.layouts import Layout
from rlox.noise import alike


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


def sends_itself(space: gym.Space[Any]) -> bool:
    """Whether what the policy says is in the space's own dtype and shape already."""
    match space:
        case gym.spaces.Discrete():
            return space.start == 0 and space.dtype == np.int64
        case gym.spaces.Box():
            return space.dtype == np.float32
    return False
