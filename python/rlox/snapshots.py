"""Snapshots of single environments and their wrappers.

The state of Gymnasium's classic control, MuJoCo and wrappers is listed here by attribute. Any other
environment or wrapper needs two methods:

    get_state() -> state          arrays, numbers, str, lists and dicts of them
    set_state(state) -> None

The generator `np_random` is part of every snapshot. Nothing is pickled.
"""

import importlib
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np

from rlox.learner import Arrays
from rlox.plain import from_arrays, to_arrays

Single = gym.Env[Any, Any]

# Attributes that hold the state of Gymnasium's classes; `a.b` is attribute b of attribute a.
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
# Results of the last MuJoCo step, from positions one substep older than the state: rewards use them
# before the next step computes them again.
_COMPUTED = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "subtree_com", "cinert", "cdof", "crb"),
    *("cvel", "cdof_dot", "cacc", "cfrc_int", "cfrc_ext", "actuator_length", "actuator_velocity"),
    *("actuator_force", "qfrc_actuator", "qfrc_bias", "qfrc_passive", "qfrc_constraint"),
    *("qfrc_smooth", "qacc", "qacc_smooth", "sensordata", "energy", "subtree_linvel"),
    *("subtree_angmom", "ten_length", "ten_velocity"),
)


def snapshot(env: Single) -> Arrays | str:
    """Return the state of an environment, or why there is no snapshot.

    >>> env = gym.make("CartPole-v1")
    >>> _ = env.reset(seed=0)
    >>> saved = snapshot(env)
    >>> obs = env.step(1)[0]
    >>> restore(env, saved)
    >>> bool((env.step(1)[0] == obs).all())
    True
    >>> snapshot(gym.make("FrozenLake-v1"))
    'FrozenLakeEnv has no get_state() and set_state(state)'
    """
    for layer in _layers(env):
        if _attributes(layer) is None and not _is_mujoco(layer) and not _has_methods(layer):
            return f"{type(layer).__name__} has no get_state() and set_state(state)"
    stream = env.unwrapped.np_random
    if type(stream.bit_generator) is not np.random.PCG64:
        return f"np_random has a {type(stream.bit_generator).__name__}, not a PCG64"
    try:
        states = [_get_state(layer) for layer in _layers(env)]
        return to_arrays({"stream": stream, "layers": states})
    except (ValueError, AttributeError) as error:
        return f"the state of {type(env.unwrapped).__name__} cannot be saved: {error}"


def restore(env: Single, arrays: Any) -> str | None:
    """Restore a snapshot of an equal environment; return why that failed, or None."""
    try:
        saved = from_arrays(arrays)
        if not isinstance(saved["stream"], np.random.Generator):
            return "np_random is not a generator"
        for layer, state in [*zip(_layers(env), saved["layers"], strict=True)][::-1]:
            _set_state(layer, state)
        env.unwrapped.np_random = saved["stream"]
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def layers(env: Single) -> list[str]:
    """Return the class names of an environment's wrappers, from the outermost, and its own.

    >>> layers(gym.make("CartPole-v1"))
    ['TimeLimit', 'OrderEnforcing', 'PassiveEnvChecker', 'CartPoleEnv']
    """
    return [type(layer).__name__ for layer in _layers(env)]


def _layers(env: Single) -> Iterator[Single]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _attributes(layer: Single) -> tuple[str, ...] | None:
    """Return the attributes that hold the state, for a class of Gymnasium."""
    module, name = type(layer).__module__, type(layer).__name__
    if module.startswith("gymnasium.wrappers."):
        return _WRAPPERS.get(name)
    return _ENVS.get(name) if module.startswith("gymnasium.envs.classic_control.") else None


def _is_mujoco(layer: Single) -> bool:
    # A subclass outside Gymnasium may have more state.
    own = type(layer).__module__.startswith("gymnasium.envs.mujoco.")
    return own and type(getattr(layer, "data", None)).__name__ == "MjData"


def _has_methods(layer: Single) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state"))


def _get_state(layer: Any) -> Any:
    if (names := _attributes(layer)) is not None:
        values = {name: attrgetter(name)(layer) for name in names}
        return {n: list(x) if isinstance(x, deque) else x for n, x in values.items()}
    return _get_physics(layer) if _is_mujoco(layer) else layer.get_state()


def _set_state(layer: Any, state: Any) -> None:
    if (names := _attributes(layer)) is not None:
        for name in names:
            _set_path(layer, name, state[name])
        for name in ("checked_reset", "checked_step", "checked_data_reuse"):
            if name in vars(layer):  # PassiveEnvChecker compares with earlier results
                setattr(layer, name, True)
    elif _is_mujoco(layer):
        _set_physics(layer, state)
    else:
        layer.set_state(state)


def _set_path(layer: Any, path: str, value: Any) -> None:
    parents, _, name = path.rpartition(".")
    owner = attrgetter(parents)(layer) if parents else layer
    before = getattr(owner, name, None)  # some attributes exist only after a reset
    if isinstance(before, deque):
        value = deque(value, before.maxlen)
    setattr(owner, name, value)


def _get_physics(env: Any) -> dict[str, Any]:
    mujoco: Any = importlib.import_module("mujoco")
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, state, kind)
    computed = {n: np.array(getattr(env.data, n)) for n in _COMPUTED if hasattr(env.data, n)}
    return {"state": state, "computed": computed}


def _set_physics(env: Any, held: dict[str, Any]) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = held["state"]
    if np.shape(state) != (mujoco.mj_stateSize(env.model, kind),):
        raise ValueError("the state of another model, or of another version of MuJoCo")
    mujoco.mj_setState(env.model, env.data, state, kind)
    mujoco.mj_forward(env.model, env.data)
    # mj_forward changes the warm start of the solver.
    mujoco.mj_setState(env.model, env.data, state, kind)
    for name, array in held["computed"].items():
        if name in _COMPUTED and getattr(env.data, name).shape == array.shape:
            getattr(env.data, name)[...] = array
