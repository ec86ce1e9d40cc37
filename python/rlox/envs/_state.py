"""State of Gymnasium environments for exact resume, and their worker processes."""

import importlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from rlox._errors import ClosedError, add_section
from rlox._serialize import TREE, from_arrays, to_arrays
from rlox._types import Arrays
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv


def terminate(env: VectorEnv[Any, Any, Any]) -> None:
    """Terminate the worker processes of environments, if there are any."""
    if isinstance(env, AsyncVectorEnv) and not env.closed:
        for process in env.processes:
            process.terminate()


def make_close_kwargs(env: VectorEnv[Any, Any, Any], forced: bool) -> dict[str, bool]:
    """Return the arguments for `close`; terminate workers if `forced`, or if one has died."""
    if not isinstance(env, AsyncVectorEnv) or env.closed:
        return {}
    if not forced and all(process.is_alive() for process in env.processes):
        return {}
    terminate(env)
    # Otherwise `close` would wait for the results of an interrupted call.
    env._state = AsyncState.DEFAULT
    return {"terminate": True}


def call_each(env: AsyncVectorEnv, name: str, arguments: list[Any]) -> list[Any]:
    """Call a method of all environments, each with its own argument; return the results."""
    for pipe, argument in zip(env.parent_pipes, arguments, strict=True):
        pipe.send(("_call", (name, (argument,), {})))
    env._state = AsyncState.WAITING_CALL
    return [*env.call_wait()]


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
# Arrays that the last MuJoCo step computed from positions one substep older than the state. They are
# saved because the reward of the next step reads some of them before MuJoCo recomputes them.
_COMPUTED = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "subtree_com", "cinert", "cdof", "crb"),
    *("cvel", "cdof_dot", "cacc", "cfrc_int", "cfrc_ext", "actuator_length", "actuator_velocity"),
    *("actuator_force", "qfrc_actuator", "qfrc_bias", "qfrc_passive", "qfrc_constraint"),
    *("qfrc_smooth", "qacc", "qacc_smooth", "sensordata", "energy", "subtree_linvel"),
    *("subtree_angmom", "ten_length", "ten_velocity"),
)


def get_state(env: Single) -> Arrays | str:
    """Return the state of an environment, or the reason why the state cannot be saved.

    >>> env = gym.make("CartPole-v1")
    >>> _ = env.reset(seed=0)
    >>> saved = get_state(env)
    >>> obs = env.step(1)[0]
    >>> set_state(env, saved)
    >>> bool((env.step(1)[0] == obs).all())
    True
    >>> get_state(gym.make("FrozenLake-v1"))
    'FrozenLakeEnv has no get_state() and set_state(state)'
    """
    for layer in _layers(env):
        if _attributes(layer) is None and not _is_mujoco(layer) and not _has_methods(layer):
            return f"{type(layer).__name__} has no get_state() and set_state(state)"
    stream = env.unwrapped.np_random
    if type(stream.bit_generator) is not np.random.PCG64:
        return f"np_random has a {type(stream.bit_generator).__name__}, not a PCG64"
    try:
        states = [_get_layer_state(layer) for layer in _layers(env)]
        return to_arrays({"stream": stream, "layers": states})
    except (ValueError, AttributeError) as error:
        return f"the state of {type(env.unwrapped).__name__} cannot be saved: {error}"


def set_state(env: Single, arrays: Arrays) -> str | None:
    """Restore the state of an equal environment; return the reason if that fails, else None."""
    try:
        saved = from_arrays(arrays)
        if not isinstance(saved["stream"], np.random.Generator):
            return "np_random is not a generator"
        for layer, state in [*zip(_layers(env), saved["layers"], strict=True)][::-1]:
            _set_layer_state(layer, state)
        env.unwrapped.np_random = saved["stream"]
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def layers(env: Single) -> list[str]:
    """Return the class names of an environment and its wrappers, from the outermost.

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
    """Return the state attributes of a class of Gymnasium, or None if they are unknown."""
    module, name = type(layer).__module__, type(layer).__name__
    if module.startswith("gymnasium.wrappers."):
        return _WRAPPERS.get(name)
    return _ENVS.get(name) if module.startswith("gymnasium.envs.classic_control.") else None


def _is_mujoco(layer: Single) -> bool:
    # Subclasses outside of Gymnasium may have additional state.
    is_gymnasium_class = type(layer).__module__.startswith("gymnasium.envs.mujoco.")
    return is_gymnasium_class and type(getattr(layer, "data", None)).__name__ == "MjData"


def _has_methods(layer: Single) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state"))


def _get_layer_state(layer: Any) -> object:
    if (names := _attributes(layer)) is not None:
        values = {name: attrgetter(name)(layer) for name in names}
        return {n: list(x) if isinstance(x, deque) else x for n, x in values.items()}
    return _get_physics(layer) if _is_mujoco(layer) else layer.get_state()


def _set_layer_state(layer: Any, state: Any) -> None:
    if (names := _attributes(layer)) is not None:
        for name in names:
            _set_path(layer, name, state[name])
        for name in ("checked_reset", "checked_step", "checked_data_reuse"):
            if name in vars(layer):  # disables PassiveEnvChecker's comparisons with earlier calls
                setattr(layer, name, True)
    elif _is_mujoco(layer):
        _set_physics(layer, state)
    else:
        layer.set_state(state)


def _set_path(layer: Single, path: str, value: Any) -> None:
    parents, _, name = path.rpartition(".")
    owner = attrgetter(parents)(layer) if parents else layer
    old_value = getattr(owner, name, None)  # some attributes exist only after a reset
    if isinstance(old_value, deque):
        value = deque(value, old_value.maxlen)
    setattr(owner, name, value)


def _get_physics(env: Any) -> dict[str, Any]:
    mujoco = importlib.import_module("mujoco")
    state_type = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, state_type))
    mujoco.mj_getState(env.model, env.data, state, state_type)
    computed = {n: np.array(getattr(env.data, n)) for n in _COMPUTED if hasattr(env.data, n)}
    return {"state": state, "computed": computed}


def _set_physics(env: Any, saved: dict[str, Any]) -> None:
    mujoco = importlib.import_module("mujoco")
    state_type = mujoco.mjtState.mjSTATE_INTEGRATION
    state = saved["state"]
    if np.shape(state) != (mujoco.mj_stateSize(env.model, state_type),):
        raise ValueError("the state is of another model or another version of MuJoCo")
    mujoco.mj_setState(env.model, env.data, state, state_type)
    mujoco.mj_forward(env.model, env.data)
    # mj_forward changed the warm start of the solver, which is part of the state.
    mujoco.mj_setState(env.model, env.data, state, state_type)
    for name, array in saved["computed"].items():
        if name in _COMPUTED and getattr(env.data, name).shape == array.shape:
            getattr(env.data, name)[...] = array


def get_state_if_supported(env: RolloutEnv) -> Arrays:
    """Return the state of environments; empty if they are closed or do not support states."""
    with suppress(ClosedError):
        return dict(env.get_state()) if env.supports_state else {}
    return {}


def get_unrestorable_reason(env: RolloutEnv) -> str:
    """Return the reason why `get_state_if_supported` returned an empty dict."""
    if env.closed:
        return "the environments are closed"
    return env.unrestorable_reason or f"the state of a {type(env).__name__} cannot be saved"


def set_state_if_supported(env: RolloutEnv, arrays: Arrays) -> bool:
    """Restore the result of `get_state_if_supported`.

    Returns:
        True if the state was restored.

    Raises:
        ArgumentError: The arrays are damaged. The environments are not changed.
    """
    if not arrays or (TREE in arrays) == isinstance(env, VecEnv):
        return False
    try:
        return env.set_state(arrays) is not False
    except (TypeError, ValueError) as error:
        raise add_section(error, "environment") from error
