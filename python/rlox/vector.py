"""Vector environments: `VecEnv` (native), `ForeignVecEnv` (any other), and `make_vec`."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError, one_line, renamed
from rlox.contract import FIX, CheckedEnv, expect_interface, require_env
from rlox.foreign import ForeignVecEnv
from rlox.memory import check_memory
from rlox.recipes import EnvWrapper, Mode, Recipe
from rlox.registered import find_spec, make_registered, native_of
from rlox.resets import as_autoreset_mode, expect_mode
from rlox.rollout import RolloutBatch, RolloutEnv, collect_rollout
from rlox.settings import plain_seed, whole
from rlox.vec_env import VecEnv

__all__ = ["ForeignVecEnv", "RolloutBatch", "RolloutEnv", "VecEnv", "collect_rollout", "make_vec"]

_LEAST_BYTES = 100  # of each environment
T = TypeVar("T")
Single = gym.Env[Any, Any]
Factory = Callable[..., Single]


def make_vec(
    env: str | EnvSpec | VectorEnv[Any, Any, Any] | Single | Factory,
    num_envs: int | None = None,
    *,
    seed: int | None = None,
    vectorization_mode: Mode | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    autoreset_mode: AutoresetMode | str | None = None,
    **kwargs: Any,
) -> VecEnv | ForeignVecEnv:
    """Makes `num_envs` environments ready for rollouts.

    What an environment already made, or a spec, says of itself may be repeated, not contradicted.

    Args:
        env: An id, or an `EnvSpec` as `gymnasium.make_vec` takes it, an environment class or a
            function that makes one, a class of vector environments made by `num_envs=` and
            keywords, a vector environment in any autoreset mode, or a single environment.
        num_envs: How many, at least 1. None: as many as there are, or as a spec says, else 1.
        seed: For the first reset: environment i gets `seed + i`.
        vectorization_mode: "sync" steps Gymnasium's environments one by one, "async" each in a
            process of its own, "vector_entry_point" is what an id registers as such. None: native
            where an id has a native implementation and there are no wrappers, else "sync", or the
            vector entry point where an id has nothing else.
        wrappers: Functions, or classes, that take a single environment and give one; applied to
            each, the first one first.
        autoreset_mode: Of the environments made here. None: SAME_STEP, but for those that have
            their own: vector environments and their classes, specs, vector entry points.
        **kwargs: Passed to what makes the environments.

    Raises:
        ValueError: Unknown id (near ones are named) or mode, a wrong number, one that is not the
            environment's.
        MemoryError: So many environments do not fit into memory.
        TypeError: `env` is none of the above or not as Gymnasium's API has it, or keywords for an
            existing environment. Errors of `env` itself and of wrappers pass unchanged.

    >>> make_vec("CartPole-v1", 4, seed=0)
    VecEnv(rlox/CartPole-v1, num_envs=4)
    >>> make_vec(lambda: gym.make("CartPole-v1"), 2)  # Gymnasium's own
    <ForeignVecEnv, SyncVectorEnv(num_envs=2)>
    >>> make_vec("CartPole-v1", 2, wrappers=[gym.wrappers.FlattenObservation])
    <ForeignVecEnv, SyncVectorEnv(CartPole-v1, num_envs=2)>
    """
    mode = None if autoreset_mode is None else as_autoreset_mode(autoreset_mode)
    how, around = _mode_of(vectorization_mode), _wrappers_of(wrappers)
    return make_of(Recipe(env, how, around, mode, kwargs), num_envs, seed)


def make_of(recipe: Recipe, num_envs: int | None, seed: int | None) -> VecEnv | ForeignVecEnv:
    """Make environments as `make_vec` does; those that it makes itself have the recipe."""
    if num_envs is not None:
        num_envs = whole("num_envs", num_envs, 1, fix="say how many to make")
        # Gymnasium would make environments until the memory is full.
        check_memory("num_envs", num_envs, num_envs * _LEAST_BYTES)
    seed = None if seed is None else plain_seed(seed)
    env = recipe.env
    if isinstance(env, VectorEnv):
        options = {"vectorization_mode": recipe.vectorization_mode, "wrappers": recipe.wrappers}
        _refuse_keywords({name: x for name, x in (options | recipe.kwargs).items() if x})
        if num_envs not in (None, env.num_envs):
            expected = f"{env.num_envs}, as {env} has so many"
            raise ArgumentError("num_envs", expected, str(num_envs), "leave it out")
        expect_mode(env, recipe.autoreset_mode)
        return _ready(env, seed)
    if isinstance(env, gym.Env):
        _refuse_keywords(recipe.kwargs)
        fix = "pass its class or a function that makes it"
        if num_envs not in (None, 1):
            raise ArgumentError("num_envs", "1 for a single environment", str(num_envs), fix)
        if recipe.vectorization_mode == "async":
            expected = "no process for an environment already made"
            raise ArgumentError("vectorization_mode", expected, "'async'", fix)
        return _from_function(replace(recipe, env=lambda: env), 1, seed)
    if isinstance(env, str | EnvSpec):
        envs = _from_spec(recipe, num_envs, seed)
    elif isinstance(env, type) and issubclass(env, VectorEnv):
        envs = _from_vector_class(recipe, num_envs or 1, seed)
    elif callable(env):
        envs = _from_function(recipe, num_envs or 1, seed)
    else:
        raise ArgumentTypeError(
            "env",
            "an id, a gymnasium.Env, a vector environment or a function that makes one",
            type(env).__name__,
            FIX if hasattr(env, "step") else "see gymnasium.make",
        )
    vars(envs)["recipe"] = recipe
    return envs


def _mode_of(given: object) -> Mode | None:
    """What a name, or a member of Gymnasium's `VectorizeMode`, says."""
    name = getattr(given, "value", given)
    known = isinstance(name, str) and name in ("sync", "async", "vector_entry_point")
    if name is not None and not known:
        raise ArgumentError(
            "vectorization_mode",
            "'sync', 'async', 'vector_entry_point' or None",
            repr(given),
            "pass 'sync'",
        )
    return cast("Mode | None", name)


def _wrappers_of(wrappers: Any) -> Sequence[EnvWrapper]:
    wrong = isinstance(wrappers, str) or not isinstance(wrappers, Sequence)
    if wrong or not all(callable(wrapper) for wrapper in wrappers):
        raise ArgumentTypeError(
            "wrappers",
            "a list of functions from an environment to an environment",
            repr(wrappers),
            "pass for example [gymnasium.wrappers.FlattenObservation]",
        )
    return wrappers  # type: ignore[no-any-return]  # checked


def _checked(wrapper: EnvWrapper) -> EnvWrapper:
    """Add a check that a wrapper returns an environment; name it in errors of Gymnasium."""
    name = getattr(wrapper, "__name__", None) or repr(wrapper)

    def wrap(env: Single) -> Single:
        try:
            wrapped: object = wrapper(env)
        except gym.error.Error as error:
            expected, fix = f"{name} to wrap {env}", "correct it, or leave it out"
            raise ArgumentError("wrappers", expected, one_line(error), fix) from error
        if not isinstance(wrapped, gym.Env):
            raise ArgumentTypeError(
                "wrappers",
                f"{name} to return a gymnasium.Env",
                f"a {type(wrapped).__name__}",
                "return the environment from it",
            )
        return wrapped

    wrap.__name__ = name
    return wrap


def _refuse_keywords(given: dict[str, Any]) -> None:
    if given:
        raise ArgumentTypeError(
            str(next(iter(given))),
            "no keywords for an environment already made",
            str(given),
            "pass them where it is made",
        )


def _ready(env: VectorEnv[Any, Any, Any], seed: int | None) -> VecEnv | ForeignVecEnv:
    if isinstance(env, VecEnv) and seed is not None:
        env.reset(seed=seed)
    if isinstance(env, VecEnv) or (isinstance(env, ForeignVecEnv) and seed is None):
        return env
    return ForeignVecEnv(env, seed)


def _made_ready(
    env: VectorEnv[Any, Any, Any], seed: int | None, resets: AutoresetMode | None
) -> VecEnv | ForeignVecEnv:
    """As `_ready`, for one made here: where it is refused, no process of it stays behind."""
    try:
        expect_mode(env, resets)
        return _ready(env, seed)
    except BaseException:
        env.close()
        raise


def _leave_interrupts(parent: int) -> EnvWrapper:
    """Return a wrapper that ignores Ctrl-C in worker processes, which the parent ends."""

    def wrapper(env: Single) -> Single:
        # Gymnasium makes one environment in the parent, too, to see its spaces.
        if os.getpid() != parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return env

    return wrapper


def _from_function(recipe: Recipe, num_envs: int, seed: int | None) -> VecEnv | ForeignVecEnv:
    """Make environments of a function that makes a single one."""
    if recipe.vectorization_mode == "vector_entry_point":
        raise ArgumentError(
            "vectorization_mode",
            "'sync' or 'async' for a function that makes single environments",
            "'vector_entry_point'",
            "make that one and pass it",
        )
    wrappers = _all_wrappers(recipe)

    def one(index: int) -> Single:
        env = require_env(recipe.env(**recipe.kwargs))
        for wrapper in wrappers:
            env = wrapper(env)
        if isinstance(env, CheckedEnv):
            env.index = index
        else:
            expect_interface(env)
        return env

    vector_class = AsyncVectorEnv if recipe.vectorization_mode == "async" else SyncVectorEnv
    mode = recipe.autoreset_mode or AutoresetMode.SAME_STEP
    envs = vector_class([partial(one, i) for i in range(num_envs)], autoreset_mode=mode)
    return _made_ready(envs, seed, recipe.autoreset_mode)


def _all_wrappers(recipe: Recipe) -> list[EnvWrapper]:
    """Return the wrappers of single environments, those of worker processes included."""
    wrappers = [_checked(wrapper) for wrapper in recipe.wrappers]
    if recipe.vectorization_mode != "async":
        return wrappers
    return [_leave_interrupts(os.getpid()), *wrappers, CheckedEnv]


def _from_vector_class(recipe: Recipe, num_envs: int, seed: int | None) -> VecEnv | ForeignVecEnv:
    """Make vector environments of a class, as `gymnasium.make_vec` calls vector entry points."""
    mode, wrappers = recipe.vectorization_mode, recipe.wrappers
    expected = "for a class of vector environments"
    if mode not in (None, "vector_entry_point"):
        raise ArgumentError("vectorization_mode", f"None {expected}", repr(mode), "leave it out")
    if wrappers:
        raise ArgumentError("wrappers", f"none {expected}", repr(wrappers), "wrap what it makes")
    resets = recipe.autoreset_mode
    arguments: dict[str, Any] = {"num_envs": num_envs}
    if issubclass(recipe.env, VecEnv):
        arguments = {"n": num_envs} | ({} if resets is None else {"autoreset_mode": resets})
    return _made_ready(recipe.env(**arguments, **recipe.kwargs), seed, resets)


def _agreed(name: str, noted: T, given: T | None) -> T:
    """What a spec says, which what is passed may repeat."""
    if given is not None and given != noted:
        raise ArgumentError(
            name,
            f"{noted!r}, as the spec says",
            repr(given),
            "leave it out, or change the spec's kwargs",
        )
    return noted


def _from_spec(recipe: Recipe, count: int | None, seed: int | None) -> VecEnv | ForeignVecEnv:
    """What is registered under an id, or described as if it were."""
    env, resets = recipe.env, recipe.autoreset_mode
    vector_kwargs: dict[str, Any] = {}
    if isinstance(env, EnvSpec):
        # Gymnasium notes there what vector environments were made of.
        kwargs = {**env.kwargs, **recipe.kwargs}
        if (noted := kwargs.pop("num_envs", None)) is not None:
            noted = whole("num_envs", noted, 1, fix="correct the spec's kwargs")
            count = _agreed("num_envs", noted, count)
        how, wrappers = recipe.vectorization_mode, recipe.wrappers
        how = _agreed("vectorization_mode", _mode_of(kwargs.pop("vectorization_mode", how)), how)
        vector_kwargs = dict(kwargs.pop("vector_kwargs", {}))
        if "wrappers" in kwargs:
            wrappers = _wrappers_of(kwargs.pop("wrappers"))
            _agreed("wrappers", [*wrappers], [*recipe.wrappers] or None)
        recipe = replace(recipe, vectorization_mode=how, wrappers=wrappers, kwargs=kwargs)
    num_envs, how = count or 1, recipe.vectorization_mode
    native = native_of(env)
    if native is not None and not recipe.wrappers and not vector_kwargs:
        entry = isinstance(env, EnvSpec) and how == "vector_entry_point"
        if how is None or (entry and "env_id" in recipe.kwargs):
            arguments = native.arguments(recipe.kwargs, resets or AutoresetMode.SAME_STEP)
            with renamed({"n": "num_envs"}):
                vector = VecEnv(num_envs, seed, native.name, **arguments)
            expect_mode(vector, resets)
            return vector
    spec = env if isinstance(env, EnvSpec) else find_spec(env)
    if how is None:
        how = "vector_entry_point" if spec.entry_point is None else "sync"
    recipe = replace(recipe, env=spec, vectorization_mode=how)
    recipe = replace(recipe, wrappers=_all_wrappers(recipe))
    if how != "vector_entry_point":
        vector_kwargs = {"autoreset_mode": resets or AutoresetMode.SAME_STEP, **vector_kwargs}
    return _made_ready(make_registered(recipe, num_envs, vector_kwargs), seed, resets)
