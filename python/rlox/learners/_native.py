"""Functions of native learners: settings, and state besides the networks."""

import dataclasses
from collections.abc import Callable, Container
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import _rng, _types, learners
from rlox._errors import ArgumentError, add_section
from rlox._layout import Layout
from rlox._registry import NET_ARCH
from rlox._rlox import NativeAgent
from rlox._rng import state_for_native, to_numpy
from rlox._serialize import float_to_json
from rlox.configs import OffPolicyConfig, OnPolicyConfig, SACConfig
from rlox.noise import as_scalar_noise

ProgressState = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], float, int, int, float]
LastUpdate = dict[str, float | None]
# Streams of a native agent besides the streams of each environment's actions.
_LEARNING_STREAMS = ("minibatches", "learning")
# Names of the statistics of the last update: in all algorithms, and in some algorithms only.
MEANS = ("critic_loss", "mean_value", "grad_norm", "learning_rate")
SOME = ("actor_loss", "ent_coef", "ent_coef_loss")


def _names(num_envs: int) -> list[str]:
    return [*(f"actions.{i}" for i in range(num_envs)), *_LEARNING_STREAMS]


def add_progress_state(state: learners.LearnerState, agent: NativeAgent) -> learners.LearnerState:
    """Return a state with the streams, noise and counters of a native agent added.

    Args:
        state: State of the learner without the agent.
        agent: Agent of the learner.
    """
    rng_states = agent.streams()
    streams = {
        name: _rng.stream_state(to_numpy(row))
        for name, row in zip(_names(len(rng_states) - len(_LEARNING_STREAMS)), rng_states, strict=True)
    }
    noise, pending_updates, progress = agent.progress_state()
    progress_counters = {"noise": noise.tolist(), "pending_updates": pending_updates, "progress": progress}
    means = agent.last_update()
    last_update: dict[str, float | str | None] | None = None
    if means is not None:
        last_update = {name: None if x is None else float_to_json(x) for name, x in means.items()}
    counters = state.counters | progress_counters | {"last_update": last_update}
    return dataclasses.replace(state, streams=state.streams | streams, counters=counters)


def select_streams(state: learners.LearnerState, names: Container[str]) -> learners.LearnerState:
    """Return a state with only the named streams."""
    streams = {name: stream for name, stream in state.streams.items() if name in names}
    return dataclasses.replace(state, streams=streams)


def read_progress_state(state: learners.LearnerState, agent: NativeAgent, num_envs: int) -> ProgressState:
    """Return the arguments of `NativeAgent.load_progress_state` for a result of `add_progress_state`.

    Raises:
        ArgumentError: The state is damaged or of another learner.
    """
    names = _names(num_envs)
    streams = _rng.streams_from_states(select_streams(state, names).streams, names)
    rng_states = np.stack([state_for_native(streams[name]) for name in names])
    (timesteps, updates), _ = learners.counts_from_state(state.counters, ("timesteps", "updates"))
    current_noise, _, _ = agent.progress_state()
    try:
        noise = np.asarray(state.counters["noise"], np.float32)
        fits = noise.shape == current_noise.shape and bool(np.isfinite(noise).all())
        pending_updates, progress = float(state.counters["pending_updates"]), float(state.counters["progress"])
    except (KeyError, TypeError, ValueError, OverflowError):
        fits, pending_updates, progress = False, 0.0, 0.0
    if not (fits and 0 <= pending_updates <= agent.pending_limit(timesteps) and 0 <= progress <= 1):
        raise ArgumentError(
            "counters",
            f"{current_noise.size} finite noise values, the pending updates and the progress",
            "other values",
            "pass the result of state()",
        )
    return rng_states, noise, pending_updates, timesteps, updates, progress


def read_last_update(state: learners.LearnerState) -> LastUpdate | None:
    """Return the argument of `NativeAgent.load_last_update` for a result of `add_progress_state`.

    Raises:
        ArgumentError: The state is damaged.
    """
    last_update = state.counters.get("last_update")
    if last_update is None:
        return None
    try:
        means = {name: None if last_update[name] is None else float(last_update[name]) for name in MEANS + SOME}
        fits = None not in [means[name] for name in MEANS] and len(last_update) == len(means)
    except (KeyError, TypeError, ValueError, OverflowError):
        fits, means = False, {}
    if not fits:
        raise ArgumentError("counters", "means of the last update", str(last_update), "pass the result of state()")
    return means


def check_part(part: str, check: Callable[[Any], object], arrays: _types.Arrays) -> None:
    """Call `check` with the arrays, and add the name of the part to its errors.

    Raises:
        ArgumentError: `check` rejects the arrays.
    """
    try:
        check(arrays)
    except (TypeError, ValueError) as error:
        raise add_section(error, part) from error


def shape(config: OnPolicyConfig) -> dict[str, Any]:
    """Return the settings that determine the networks."""
    names = ("activation", "ortho_init", "shared_trunk", "use_sde", "log_std_init")
    net_arch = NET_ARCH if config.net_arch is None else config.net_arch
    return {"net_arch": net_arch, **{name: getattr(config, name) for name in names}}


def off_policy_settings(config: OffPolicyConfig, hidden: tuple[int, ...]) -> dict[str, Any]:
    """Return the settings in the form of `NativeAgent`; `hidden` are the default hidden layers.

    >>> from rlox.configs import SACConfig
    >>> settings = off_policy_settings(SACConfig(ent_coef="auto_0.1"), (256, 256))
    >>> settings["ent_coef_auto"], settings["ent_coef"], settings["net_arch"]
    (True, 0.1, (256, 256))
    """
    settings = dataclasses.asdict(config)
    if (noise := config.action_noise) is not None:
        settings["action_noise"] = dataclasses.asdict(as_scalar_noise(noise) or noise)
    settings["net_arch"] = hidden if config.net_arch is None else config.net_arch
    # If `train_freq` is a number of episodes, Python counts them.
    settings["train_freq"] = config.train_freq if isinstance(config.train_freq, int) else 1
    settings["gradient_steps"] = None if config.gradient_steps == -1 else config.gradient_steps
    if "sde_sample_freq" in settings:
        settings["sde_sample_freq"] = max(config.sde_sample_freq, 0)
    if isinstance(config, SACConfig):
        ent_coef = config.ent_coef
        learns_ent_coef = isinstance(ent_coef, str)
        begin = ent_coef.partition("_")[2] or 1.0 if isinstance(ent_coef, str) else ent_coef
        target = None if config.target_entropy == "auto" else config.target_entropy
        settings |= {"ent_coef_auto": learns_ent_coef, "ent_coef": float(begin), "target_entropy": target}
    return settings


def observation_spec(layout: Layout) -> dict[str, Any]:
    """Return the form of observations for native networks, which encode integers as one-hot.

    Raises:
        ArgumentError: The space is a Dict or a Tuple.
    """
    if layout.packed:
        raise ArgumentError(
            "observation space",
            "Box, Discrete, MultiDiscrete or MultiBinary on native networks",
            str(layout.space),
            "pass backend='torch', or flatten the observations in a wrapper",
        )
    match layout.space:
        case gym.spaces.Discrete():
            return {"kind": "one_hot", "shape": (), "counts": [int(layout.space.n)]}
        case gym.spaces.MultiDiscrete():
            counts = layout.space.nvec.ravel().tolist()
            return {"kind": "one_hot", "shape": layout.shape, "counts": counts}
    return {"kind": "numbers", "shape": layout.shape}


def has_native_actions(space: gym.Space[Any]) -> bool:
    """Return whether native actions are valid in the space without conversion."""
    match space:
        case gym.spaces.Discrete():
            return space.start == 0 and space.dtype == np.int64
        case gym.spaces.Box():
            return space.dtype == np.float32
    return False
