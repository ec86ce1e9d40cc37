"""Predictions of native learners, and the state of off-policy ones beside their networks."""

import dataclasses
import math
from collections.abc import Callable, Container
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox import learner, spaces
from rlox._errors import ArgumentError, in_section
from rlox._rlox import NativeAgent
from rlox.masks import as_masks
from rlox.observations import as_batch
from rlox.streams import state_for_native, to_numpy

Standing = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], float, int, int, float]
Learned = dict[str, float | None]
# Streams that are kept in Rust: of learning, of minibatches, of each environment's actions.
_OWN = ("minibatches", "learning")
# Means of what was learned: of all algorithms, and of some.
MEANS = ("critic_loss", "mean_value", "grad_norm", "learning_rate")
SOME = ("actor_loss", "ent_coef", "ent_coef_loss")


def predict(native: Any, obs: Any, drawn: learner.Stream | None, masks: Any) -> npt.NDArray[Any]:
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
    sent = spaces.sent_actions(space, actions.reshape(n, *(space.shape or ())), n)
    return sent[0] if single else sent


def _names(num_envs: int) -> list[str]:
    return [*(f"actions.{i}" for i in range(num_envs)), *_OWN]


def with_standing(state: learner.LearnerState, agent: NativeAgent) -> learner.LearnerState:
    """A state with where the agent's streams and noise stand.

    Args:
        state: Of all else.
        agent: Of the learner.
    """
    words = agent.streams()
    own = {
        name: learner.stream_state(to_numpy(row))
        for name, row in zip(_names(len(words) - len(_OWN)), words, strict=True)
    }
    noise, due, progress = agent.standing()
    own_counters = {"noise": noise.tolist(), "due": due, "progress": progress}
    counters = state.counters | own_counters | {"learned": _words(agent.learned())}
    return dataclasses.replace(state, streams=state.streams | own, counters=counters)


def without_standing(state: learner.LearnerState, names: Container[str]) -> learner.LearnerState:
    """A state with the streams of these names alone."""
    streams = {name: stream for name, stream in state.streams.items() if name in names}
    return dataclasses.replace(state, streams=streams)


def standing(state: learner.LearnerState, agent: NativeAgent, num_envs: int) -> Standing:
    """What `NativeAgent.set_standing` takes of a state that `with_standing` gave.

    Raises:
        ValueError: It is of another learner, or damaged.
    """
    names = _names(num_envs)
    own = {name: stream for name, stream in state.streams.items() if name in names}
    streams = learner.streams_from_states(own, names)
    words = np.stack([state_for_native(streams[name]) for name in names])
    (timesteps, updates), _ = learner.counts_from_state(state.counters, ("timesteps", "updates"))
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


def learned(state: learner.LearnerState) -> Learned | None:
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


def expect_part(part: str, check: Callable[[Any], object], arrays: learner.Arrays) -> None:
    """Refuses what `check` refuses, with the name of the part.

    Raises:
        ValueError: It does.
    """
    try:
        check(arrays)
    except (TypeError, ValueError) as error:
        raise in_section(error, part) from error
