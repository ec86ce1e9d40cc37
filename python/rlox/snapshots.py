"""Snapshots of single environments: what they and their wrappers remember, taken and put back.

What is known of Gymnasium's classic control, MuJoCo and wrappers stands here, attribute by
attribute. Any other environment or wrapper says it itself, by two methods:

    get_state() -> state          arrays, numbers, str, lists and dicts of them
    set_state(state) -> None      goes back to it

The environment's own generator, `np_random`, is kept beside it. Nothing is pickled.
"""

import importlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rlox.learner import Arrays
from rlox.plain import from_arrays, to_arrays

Single = gym.Env[Any, Any]
Held = dict[str, Any]

# Attributes, by class, of environments and wrappers of Gymnasium's; `a.b` is an attribute's own.
_ENVS: dict[str, tuple[str, ...]] = {
    "AcrobotEnv": ("state",),
    "CartPoleEnv": ("state", "steps_beyond_terminated"),
    "Continuous_MountainCarEnv": ("state",),
    "MountainCarEnv": ("state",),
    "PendulumEnv": ("state", "last_u"),
}
_MEANS = ("mean", "var", "count")
_WRAPPERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("ClipAction", "RescaleAction", "ClipReward", "PassiveEnvChecker", "DtypeObservation"),
            *("FilterObservation", "FlattenObservation", "GrayscaleObservation"),
            *("RescaleObservation", "ReshapeObservation", "ResizeObservation", "RepeatAction"),
        ),
        (),
    ),
    "Autoreset": ("autoreset",),
    "DelayObservation": ("observation_queue",),
    "FrameStackObservation": ("obs_queue",),
    "NormalizeObservation": tuple(f"obs_rms.{name}" for name in _MEANS),
    "NormalizeReward": ("discounted_reward", *(f"return_rms.{name}" for name in _MEANS)),
    "OrderEnforcing": ("_has_reset",),
    "RecordEpisodeStatistics": (
        *("episode_count", "episode_returns", "episode_lengths"),
        *("return_queue", "length_queue", "time_queue"),
    ),
    "StickyAction": ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    "TimeAwareObservation": ("timesteps",),
    "TimeLimit": ("_elapsed_steps",),
}
# What MuJoCo computed in the last step, of positions that are a part of a step older than the
# state: rewards are made of them before the next step computes them anew.
_COMPUTED = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "subtree_com", "cinert", "cdof", "crb"),
    *("cvel", "cdof_dot", "cacc", "cfrc_int", "cfrc_ext", "actuator_length", "actuator_velocity"),
    *("actuator_force", "qfrc_actuator", "qfrc_bias", "qfrc_passive", "qfrc_constraint"),
    *("qfrc_smooth", "qacc", "qacc_smooth", "sensordata", "energy", "subtree_linvel"),
    *("subtree_angmom", "ten_length", "ten_velocity"),
)


def layers(env: Single) -> Iterator[Single]:
    """An environment's wrappers, from the outermost, and itself."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def kinds(env: Single) -> list[str]:
    """The classes of an environment's layers: snapshots are for environments of the same.

    >>> kinds(gym.make("CartPole-v1"))
    ['TimeLimit', 'OrderEnforcing', 'PassiveEnvChecker', 'CartPoleEnv']
    """
    return [type(layer).__name__ for layer in layers(env)]


def unknown(env: Single) -> str | None:
    """The layer of which no snapshot can be taken, and why; None where there is none.

    >>> unknown(gym.make("CartPole-v1")), unknown(gym.make("FrozenLake-v1"))
    (None, 'FrozenLakeEnv has no get_state() and set_state(state)')
    """
    for layer in layers(env):
        if _attributes(layer) is None and not _tells(layer) and not _simulated(layer):
            return f"{type(layer).__name__} has no get_state() and set_state(state)"
    stream = env.unwrapped.np_random.bit_generator
    if type(stream) is not np.random.PCG64:
        return f"its np_random is a {type(stream).__name__}, no PCG64"
    return None


def snapshot(env: Single) -> Arrays:
    """What an environment remembers; `unknown` says whether it can tell.

    Raises:
        ValueError: It is no plain data, as `rlox.plain.to_arrays` takes it.

    >>> env = gym.make("CartPole-v1")
    >>> _ = env.reset(seed=0)
    >>> taken = snapshot(env)
    >>> after = env.step(1)[0]
    >>> restore(env, taken)
    >>> bool((env.step(1)[0] == after).all())
    True
    """
    held = [_taken(layer) for layer in layers(env)]
    return to_arrays({"stream": env.unwrapped.np_random, "layers": held})


def restore(env: Single, taken: Arrays) -> None:
    """Puts an environment of the same `kinds` back to where `snapshot` found it.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: The snapshot is another's, or damaged.
    """
    held, every = from_arrays(taken), [*layers(env)]
    for layer, own in [*zip(every, held["layers"], strict=True)][::-1]:
        _put(layer, own)
    if not isinstance(held["stream"], np.random.Generator):
        raise TypeError("np_random: expected a generator")
    env.unwrapped.np_random = held["stream"]


def _attributes(layer: Single) -> tuple[str, ...] | None:
    """The attributes that hold what one of Gymnasium's classes remembers."""
    module, name = type(layer).__module__, type(layer).__name__
    if module.startswith("gymnasium.wrappers."):
        return _WRAPPERS.get(name)
    return _ENVS.get(name) if module.startswith("gymnasium.envs.classic_control.") else None


def _simulated(layer: Single) -> bool:
    """Whether it is one of Gymnasium's MuJoCo environments: a subclass may remember more."""
    ours = type(layer).__module__.startswith("gymnasium.envs.mujoco.")
    return ours and type(getattr(layer, "data", None)).__name__ == "MjData"


def _tells(layer: Single) -> bool:
    """Whether a class has both methods. Of another's `set_state` alone nothing is known."""
    return all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state"))


def _taken(layer: Single) -> Any:
    any_layer: Any = layer
    if (names := _attributes(layer)) is not None:
        return {name: _held(layer, name) for name in names}
    return _physics(any_layer) if _simulated(layer) else any_layer.get_state()


def _put(layer: Single, held: Any) -> None:
    any_layer: Any = layer
    if (names := _attributes(layer)) is not None:
        if {*held} != {*names}:
            raise KeyError(", ".join({*held} ^ {*names}))
        for name in names:
            _set(layer, name, held[name])
        for name in ("checked_reset", "checked_step", "checked_data_reuse"):
            if name in vars(layer):  # PassiveEnvChecker compares with what it saw before
                setattr(layer, name, True)
    elif _simulated(layer):
        _set_physics(any_layer, held)
    else:
        any_layer.set_state(held)


def _held(layer: Any, name: str) -> Any:
    for part in name.split("."):
        layer = getattr(layer, part)
    return layer


def _set(layer: Any, name: str, value: Any) -> None:
    *way, last = name.split(".")
    for part in way:
        layer = getattr(layer, part)
    there = getattr(layer, last, None)  # some are there only after a reset
    if isinstance(there, deque):  # which knows how long it may become
        there.clear()
        there.extend(value)
    else:
        setattr(layer, last, value)


def _mujoco() -> Any:
    """The library, which is there where its environments are."""
    return importlib.import_module("mujoco")


def _physics(env: Any) -> Held:
    """The state of a simulation, and what it has computed."""
    mujoco = _mujoco()
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, state, kind)
    computed = {n: np.array(getattr(env.data, n)) for n in _COMPUTED if hasattr(env.data, n)}
    return {"state": state, "computed": computed}


def _set_physics(env: Any, held: Held) -> None:
    mujoco = _mujoco()
    kind, state = mujoco.mjtState.mjSTATE_INTEGRATION, held["state"]
    if np.shape(state) != (mujoco.mj_stateSize(env.model, kind),):
        raise ValueError("the state of another model, or of another version of MuJoCo")
    mujoco.mj_setState(env.model, env.data, state, kind)
    mujoco.mj_forward(env.model, env.data)
    # Computing has moved what the solver begins with.
    mujoco.mj_setState(env.model, env.data, state, kind)
    for name, array in held["computed"].items():
        if name in _COMPUTED and getattr(env.data, name).shape == array.shape:
            getattr(env.data, name)[...] = array
