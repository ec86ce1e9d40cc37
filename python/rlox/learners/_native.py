"""Predictions of native learners, and the state of off-policy ones beside their networks."""

import dataclasses
import math
from collections.abc import Callable, Container
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import _rng, _spaces, _types, learners
from rlox._errors import ArgumentError, in_section
from rlox._layout import Layout, as_batch
from rlox._rlox import NativeAgent
from rlox._rng import state_for_native, to_numpy
from rlox.envs._masks import as_masks
from rlox.noise import alike

Standing = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], float, int, int, float]
Learned = dict[str, float | None]
# Streams that are kept in Rust: of learning, of minibatches, of each environment's actions.
_OWN = ("minibatches", "learning")
# Means of what was learned: of all algorithms, and of some.
MEANS = ("critic_loss", "mean_value", "grad_norm", "learning_rate")
SOME = ("actor_loss", "ent_coef", "ent_coef_loss")


def predict(native: Any, obs: Any, drawn: _rng.Stream | None, masks: Any) -> npt.NDArray[Any]:
    """Return greedy actions of a native learner, or samples with a seed from the stream `drawn`.

    A rejected call leaves the stream unchanged.
    """
    before: Any = None if drawn is None else drawn.bit_generator.state
    seed = None if drawn is None else int(drawn.integers(2**63))
    try:
        if native.plain and masks is None and not isinstance(obs, tuple):
            actions: npt.NDArray[Any] = native.policy.predict(obs, seed, None, native.normalizer)
            return actions if actions.ndim else actions[()]  # a number
        rows, single = as_batch(obs, native.layout, native.normalizer)
        space, n = native.spaces[1], len(rows)
        masks = None if masks is None else as_masks(masks, space, n)
        actions = native.policy.predict(rows, seed, masks)
    except Exception:
        if drawn is not None:
            drawn.bit_generator.state = before
        raise
    sent = _spaces.sent_actions(space, actions.reshape(n, *(space.shape or ())), n)
    return sent[0] if single else sent


def _names(num_envs: int) -> list[str]:
    return [*(f"actions.{i}" for i in range(num_envs)), *_OWN]


def with_standing(state: learners.LearnerState, agent: NativeAgent) -> learners.LearnerState:
    """A state with where the agent's streams and noise stand.

    Args:
        state: Of all else.
        agent: Of the learner.
    """
    words = agent.streams()
    own = {
        name: _rng.stream_state(to_numpy(row))
        for name, row in zip(_names(len(words) - len(_OWN)), words, strict=True)
    }
    noise, due, progress = agent.standing()
    own_counters = {"noise": noise.tolist(), "due": due, "progress": progress}
    counters = state.counters | own_counters | {"learned": _words(agent.learned())}
    return dataclasses.replace(state, streams=state.streams | own, counters=counters)


def without_standing(state: learners.LearnerState, names: Container[str]) -> learners.LearnerState:
    """A state with the streams of these names alone."""
    streams = {name: stream for name, stream in state.streams.items() if name in names}
    return dataclasses.replace(state, streams=streams)


def standing(state: learners.LearnerState, agent: NativeAgent, num_envs: int) -> Standing:
    """What `NativeAgent.set_standing` takes of a state that `with_standing` gave.

    Raises:
        ValueError: It is of another learner, or damaged.
    """
    names = _names(num_envs)
    own = {name: stream for name, stream in state.streams.items() if name in names}
    streams = _rng.streams_from_states(own, names)
    words = np.stack([state_for_native(streams[name]) for name in names])
    (timesteps, updates), _ = learners.counts_from_state(state.counters, ("timesteps", "updates"))
    kept, _, _ = agent.standing()
    try:
        noise = np.asarray(state.counters["noise"], np.float32)
        fits = noise.shape == kept.shape and bool(np.isfinite(noise).all())
        due, progress = float(state.counters["due"]), float(state.counters["progress"])
    except (KeyError, TypeError, ValueError, OverflowError):
        fits, due, progress = False, 0.0, 0.0
    if not (fits and 0 <= due <= agent.due_limit(timesteps) and 0 <= progress <= 1):
        raise ArgumentError(
            "counters",
            f"{kept.size} finite numbers of noise, what is due, and the progress",
            "others",
            "use what `state` gave",
        )
    return words, noise, due, timesteps, updates, progress


def _words(learned: Learned | None) -> dict[str, float | str | None] | None:
    """Means as JSON has them: those that are not finite are words."""
    if learned is None:
        return None
    return {n: x if x is None or math.isfinite(x) else str(x) for n, x in learned.items()}


def learned(state: learners.LearnerState) -> Learned | None:
    """What `NativeAgent.set_learned` takes of a state that `with_standing` gave.

    Raises:
        ValueError: It is damaged.
    """
    said = state.counters.get("learned")
    if said is None:
        return None
    try:
        means = {name: None if said[name] is None else float(said[name]) for name in MEANS + SOME}
        fits = None not in [means[name] for name in MEANS] and len(said) == len(means)
    except (KeyError, TypeError, ValueError, OverflowError):
        fits, means = False, {}
    if not fits:
        raise ArgumentError(
            "counters", "means of what was learned", str(said), "use what `state` gave"
        )
    return means


def expect_part(part: str, check: Callable[[Any], object], arrays: _types.Arrays) -> None:
    """Refuses what `check` refuses, with the name of the part.

    Raises:
        ValueError: It does.
    """
    try:
        check(arrays)
    except (TypeError, ValueError) as error:
        raise in_section(error, part) from error


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
