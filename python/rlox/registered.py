"""Environments that are registered under an id, or described by an `EnvSpec`."""

import copy
import dataclasses
import importlib
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from rlox._errors import ArgumentError
from rlox._rlox import env_ids
from rlox.ids import PLUGINS
from rlox.keywords import hint
from rlox.recipes import Recipe


class Native(NamedTuple):
    """A native environment: its id, and what a spec says of it besides."""

    name: str
    about: dict[str, Any]

    def arguments(self, kwargs: dict[str, Any], resets: AutoresetMode) -> dict[str, Any]:
        """The keywords of `VecEnv`."""
        # Specs of rlox's own environments say the id, too.
        given = {k: value for k, value in kwargs.items() if k != "env_id" or not self.about}
        return {"autoreset_mode": resets, **self.about, **given}


def native_of(env: str | EnvSpec) -> Native | None:
    """The native environment that an id names, or a spec of the environment of that id.

    A spec may say other keywords and another limit of steps; with other entry points or wrappers it
    is of another environment, as is an id that was registered anew.

    Raises:
        ModuleNotFoundError, ValueError: The id begins with a module that is not there.

    >>> native_of("rlox/CartPole-v1").name, native_of("Taxi-v3")
    ('CartPole-v1', None)
    """
    if isinstance(env, str):
        module, _, plain_id = env.rpartition(":")
        if module:
            _import(module, env)
        name = plain_id.removeprefix("rlox/")
        known = name in PLUGINS or (module in ("", "rlox") and name in env_ids())
        return Native(name, {}) if known and not _is_anothers(env) else None
    name = env.id.removeprefix("rlox/")
    if env.id not in gym.registry or (name not in PLUGINS and name not in env_ids()):
        return None
    if _is_anothers(env.id):
        return None
    same: dict[str, Any] = {"kwargs": {}, "max_episode_steps": None}
    plain, registered = (dataclasses.replace(spec, **same) for spec in (env, gym.registry[env.id]))
    if plain != registered:
        return None
    limit = -1 if env.max_episode_steps is None else env.max_episode_steps
    return Native(name, {"max_episode_steps": limit})


def _is_anothers(env_id: str) -> bool:
    """Whether an id of Gymnasium's own was registered anew for another environment."""
    spec = gym.registry.get(env_id)
    own = ("gymnasium.envs.", "rlox.envs:")
    return spec is not None and not str(spec.entry_point).startswith(own)


def name_of(env: object) -> str:
    """What environments are called: by the id that is given or that a spec has, else by a class.

    >>> name_of("rlox/CartPole-v1"), name_of(gym.spec("CartPole-v1")), name_of(gym.Env)
    ('CartPole-v1', 'CartPole-v1', 'Env')
    """
    named = env.id if isinstance(env, EnvSpec) else env
    if isinstance(named, str):
        # Without the module that registers it: a checkpoint shall not say what to import.
        return named.removeprefix("rlox:").removeprefix("rlox/").rpartition(":")[2]
    return str(getattr(env, "__name__", type(env).__name__))


def count_of(env: object) -> Any:
    """How many environments there are already, or a spec says; None where neither does."""
    if isinstance(env, EnvSpec):
        return env.kwargs.get("num_envs")
    return getattr(env, "num_envs", None) if isinstance(env, VectorEnv) else None


def _import(module: str, env_id: str) -> None:
    """Import the module that registers an id; errors of its own code pass unchanged."""
    expected = f"the id {env_id!r} to begin with a module that can be imported"
    if module.startswith("."):
        raise ArgumentError("env", expected, repr(module), "write its full name")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(
            f"env: expected {expected}, got {module!r} ({error}); install it, or correct its name",
            name=error.name,
        ) from error


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec that is registered under an id.

    >>> find_spec("CartPole-v1").max_episode_steps
    500
    """
    plain_id = env_id.rpartition(":")[2]
    try:
        return gym.spec(plain_id)
    except gym.error.Error as error:
        fix = hint(
            plain_id,
            [*env_ids(), *gym.registry],
            "gymnasium.registry lists all ids; import the module that registers it",
        )
        raise ArgumentError("env", "a known id", repr(plain_id), fix) from error


def make_registered(
    recipe: Recipe, num_envs: int, vector_kwargs: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    """Return what `gymnasium.make_vec` makes of a spec, which is the recipe's `env`."""
    spec: EnvSpec = recipe.env
    mode = recipe.vectorization_mode
    wrappers: Any = recipe.wrappers  # functions, too
    alone = mode == "vector_entry_point"
    lacks = (spec.vector_entry_point if alone else spec.entry_point) is None
    if lacks or (alone and (wrappers or vector_kwargs or spec.additional_wrappers)):
        got = "" if lacks else " with wrappers or vector_kwargs"
        fix = "pass None" if lacks else "pass sync, or wrap what is made"
        expected = f"one that {spec.id!r} has"
        raise ArgumentError("vectorization_mode", expected, f"{mode!r}{got}", fix)
    # Of the spec's own keywords, those of vector environments would go before what is passed.
    own = {"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"}
    plain = copy.deepcopy(spec)
    plain.kwargs = {name: value for name, value in plain.kwargs.items() if name not in own}
    # Of an id Gymnasium says when a newer version is there.
    known = gym.registry.get(spec.id) is spec
    try:
        return gym.make_vec(
            spec.id if known else plain, num_envs, mode, vector_kwargs, wrappers, **recipe.kwargs
        )
    except gym.error.DependencyNotInstalled:
        raise
    except gym.error.Error as error:
        raise ArgumentError(
            "env",
            f"{spec.id!r} to make environments",
            f"{type(error).__name__}: {error}",
            "look at its arguments",
        ) from error
