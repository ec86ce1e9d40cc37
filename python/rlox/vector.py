"""Vector environments: `VecEnv` (native), `ForeignVecEnv` (any other), and `make_vec`."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.contract import FIX, CopyFinalObs, require_env
from rlox.foreign import ForeignVecEnv
from rlox.memory import BYTES_PER_ENV, check_memory
from rlox.recipes import Recipe
from rlox.registered import find_spec, make_registered, native_of
from rlox.resets import as_autoreset_mode, expect_mode
from rlox.rollout import RolloutBatch, RolloutEnv, collect_rollout
from rlox.settings import plain_seed, whole
from rlox.vec_env import VecEnv

__all__ = ["ForeignVecEnv", "RolloutBatch", "RolloutEnv", "VecEnv", "collect_rollout", "make_vec"]

T = TypeVar("T")
Single = gym.Env[Any, Any]
Factory = Callable[..., Single]
EnvWrapper = Callable[[Single], Single]
Mode = Literal["sync", "async", "vector_entry_point"]


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
            environment already made.
            What a wrapper raises comes as one of these, names it and has its error as the cause.

    >>> make_vec("CartPole-v1", 4, seed=0)
    VecEnv(rlox/CartPole-v1, num_envs=4)
    >>> make_vec(lambda: gym.make("CartPole-v1"), 2)  # Gymnasium's own
    <ForeignVecEnv, SyncVectorEnv(num_envs=2)>
    >>> make_vec("CartPole-v1", 2, wrappers=[gym.wrappers.FlattenObservation])
    <ForeignVecEnv, SyncVectorEnv(CartPole-v1, num_envs=2)>
    """
    made = _make(env, num_envs, seed, vectorization_mode, wrappers, autoreset_mode, kwargs)
    if not isinstance(env, gym.Env | VectorEnv):
        arguments = {
            "vectorization_mode": vectorization_mode,
            "wrappers": wrappers,
            "autoreset_mode": autoreset_mode,
            **kwargs,
        }
        vars(made)["recipe"] = Recipe(env, arguments)
    return made


def _make(
    env: Any,
    num_envs: int | None,
    seed: int | None,
    vectorization_mode: Mode | None,
    wrappers: Sequence[EnvWrapper],
    autoreset_mode: AutoresetMode | str | None,
    kwargs: dict[str, Any],
) -> VecEnv | ForeignVecEnv:
    count = None
    if num_envs is not None:
        count = whole("num_envs", num_envs, 1, fix="say how many to make")
        check_memory("num_envs", count, count * BYTES_PER_ENV)
    if seed is not None:
        seed = plain_seed(seed)
    how = _mode_of(vectorization_mode)
    around = _wrappers_of(wrappers)
    resets = None if autoreset_mode is None else as_autoreset_mode(autoreset_mode)
    if isinstance(env, str | EnvSpec):
        return _from_spec(env, count, seed, how, around, resets, kwargs)
    if isinstance(env, VectorEnv):
        options = {"vectorization_mode": how, "wrappers": around} | kwargs
        _refuse_keywords({name: value for name, value in options.items() if value})
        if count not in (None, env.num_envs):
            raise ArgumentError(
                "num_envs",
                f"{env.num_envs}, as {env} has so many",
                str(count),
                "leave it out, or make as many",
            )
        expect_mode(env, resets)
        return _ready(env, seed)
    if isinstance(env, gym.Env):
        _refuse_keywords(kwargs)
        if count not in (None, 1) or how == "async":
            raise ArgumentError(
                "num_envs",
                "1 for a single environment, and no process of its own",
                f"{count or 1} and vectorization_mode={how!r}",
                "pass its class or a function that makes it",
            )
        return _from_function(lambda: env, 1, seed, how, around, resets, {})
    count = count or 1
    if isinstance(env, type) and issubclass(env, VectorEnv):
        return _from_vector_class(env, count, seed, how, around, resets, kwargs)
    if callable(env):
        return _from_function(env, count, seed, how, around, resets, kwargs)
    raise ArgumentTypeError(
        "env",
        "an id, a gymnasium.Env, a vector environment or a function that makes one",
        type(env).__name__,
        FIX if hasattr(env, "step") else "see gymnasium.make",
    )


def _mode_of(given: object) -> Mode | None:
    """What a name, or a member of Gymnasium's `VectorizeMode`, says."""
    name = getattr(given, "value", given)
    known = isinstance(name, str) and name in ("sync", "async", "vector_entry_point")
    if name is not None and not known:
        raise ArgumentError(
            "vectorization_mode",
            "'sync', 'async', 'vector_entry_point' or None",
            repr(given),
            "pass one of them",
        )
    return cast("Mode | None", name)


def _wrappers_of(given: Any) -> list[EnvWrapper]:
    wrong = isinstance(given, str) or not isinstance(given, Sequence)
    if wrong or not all(callable(wrapper) for wrapper in given):
        raise ArgumentTypeError(
            "wrappers",
            "a list of functions from an environment to an environment",
            repr(given),
            "pass for example [gymnasium.wrappers.FlattenObservation]",
        )
    return list(map(_checked, given))


def _checked(wrapper: EnvWrapper) -> EnvWrapper:
    """Add a check that a wrapper returns an environment."""
    name = getattr(wrapper, "__name__", None) or repr(wrapper)

    def wrap(env: Single) -> Single:
        wrapped: object = wrapper(env)
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
    """A wrapper that changes nothing but that worker processes ignore Ctrl-C.

    A terminal sends it to all processes. It is for the one that drives the workers, and ends them.
    """

    def wrapper(env: Single) -> Single:
        # Gymnasium makes one environment in the parent, too, to see its spaces.
        if os.getpid() != parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return env

    return wrapper


def _from_function(
    make: Factory,
    num_envs: int,
    seed: int | None,
    how: Mode | None,
    wrappers: list[EnvWrapper],
    resets: AutoresetMode | None,
    kwargs: dict[str, Any],
) -> VecEnv | ForeignVecEnv:
    """Make environments of a function that makes a single one."""
    if how == "vector_entry_point":
        raise ArgumentError(
            "vectorization_mode",
            "'sync' or 'async' for a function that makes single environments",
            "'vector_entry_point'",
            "make that one and pass it",
        )
    if how == "async":
        wrappers = [_leave_interrupts(os.getpid()), *wrappers, CopyFinalObs]

    def one() -> Single:
        env = require_env(make(**kwargs))
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    vector_class = AsyncVectorEnv if how == "async" else SyncVectorEnv
    mode = resets or AutoresetMode.SAME_STEP
    return _made_ready(vector_class([one] * num_envs, autoreset_mode=mode), seed, resets)


def _from_vector_class(
    vector_class: Callable[..., VectorEnv[Any, Any, Any]],
    num_envs: int,
    seed: int | None,
    how: Mode | None,
    wrappers: list[EnvWrapper],
    resets: AutoresetMode | None,
    kwargs: dict[str, Any],
) -> VecEnv | ForeignVecEnv:
    """Make vector environments of a class, as `gymnasium.make_vec` calls vector entry points."""
    if how not in (None, "vector_entry_point") or wrappers:
        raise ArgumentError(
            "vectorization_mode",
            "None, and no wrappers, for a class of vector environments",
            f"{how!r} and {len(wrappers)} wrappers",
            "wrap what it makes",
        )
    arguments: dict[str, Any] = {"num_envs": num_envs}
    if issubclass(cast("type", vector_class), VecEnv):
        arguments = {"n": num_envs} | ({} if resets is None else {"autoreset_mode": resets})
    return _made_ready(vector_class(**arguments, **kwargs), seed, resets)


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


def _from_spec(
    env: str | EnvSpec,
    count: int | None,
    seed: int | None,
    how: Mode | None,
    wrappers: list[EnvWrapper],
    resets: AutoresetMode | None,
    kwargs: dict[str, Any],
) -> VecEnv | ForeignVecEnv:
    """What is registered under an id, or described as if it were."""
    vector_kwargs: dict[str, Any] = {}
    if isinstance(env, EnvSpec):
        # Gymnasium notes there what vector environments were made of.
        kwargs = {**env.kwargs, **kwargs}
        if (noted := kwargs.pop("num_envs", None)) is not None:
            noted = whole("num_envs", noted, 1, fix="correct the spec's kwargs")
            count = _agreed("num_envs", noted, count)
        how = _agreed("vectorization_mode", _mode_of(kwargs.pop("vectorization_mode", how)), how)
        vector_kwargs = dict(kwargs.pop("vector_kwargs", {}))
        if "wrappers" in kwargs:
            _agreed("wrappers", kwargs["wrappers"], wrappers or None)
            wrappers = _wrappers_of(kwargs.pop("wrappers"))
    num_envs = count or 1
    native = native_of(env)
    if native is not None and not wrappers and not vector_kwargs:
        entry = isinstance(env, EnvSpec) and how == "vector_entry_point" and "env_id" in kwargs
        if how is None or entry:
            arguments = native.arguments(kwargs, resets or AutoresetMode.SAME_STEP)
            vector = VecEnv(num_envs, seed, native.name, **arguments)
            expect_mode(vector, resets)
            return vector
    spec = env if isinstance(env, EnvSpec) else find_spec(env)
    if how is None:
        how = "vector_entry_point" if spec.entry_point is None else "sync"
    if how == "async":
        wrappers = [_leave_interrupts(os.getpid()), *wrappers, CopyFinalObs]
    if how != "vector_entry_point":
        vector_kwargs = {"autoreset_mode": resets or AutoresetMode.SAME_STEP, **vector_kwargs}
    made = make_registered(spec, num_envs, how, vector_kwargs, wrappers, kwargs)
    return _made_ready(made, seed, resets)
