"""Arguments of `make_vec`, to make equal environments here or in another process."""

import copy
import dataclasses
import importlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError, one_line, rename_arguments
from rlox._rlox import env_ids
from rlox._system import check_memory
from rlox._validation import check_int, check_seed, hint
from rlox.envs._autoreset import as_autoreset_mode, check_autoreset_mode
from rlox.envs._checks import FIX, CheckedEnv, check_interface, require_env
from rlox.envs._ids import PLUGINS
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.gymnasium import GymVecEnv
from rlox.envs.vec_env import VecEnv

Mode = Literal["sync", "async", "vector_entry_point"]
EnvWrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


@dataclass(frozen=True)
class EnvFactory:
    """Checked arguments of `make_vec`, but for the number of environments and the seed.

    >>> from rlox import make_vec
    >>> recipe = get_env_factory(make_vec("CartPole-v1", 2, vectorization_mode="sync"))
    >>> recipe.make(3, seed=0).num_envs
    3
    """

    env: Any
    vectorization_mode: Mode | None = None
    wrappers: Sequence[EnvWrapper] = ()
    autoreset_mode: AutoresetMode | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, num_envs: int, seed: int | None) -> RolloutEnv:
        """Make a number of environments, the first of which is reset with `seed`."""

        env: RolloutEnv = make_from_factory(self, num_envs, seed)
        return env


def get_env_factory(env: Any) -> EnvFactory | None:
    """Return the arguments that environments were made with, or None if they are unknown."""
    if type(env) is VecEnv:
        kwargs = dict(env._init_kwargs)
        mode = env.metadata["autoreset_mode"]
        return EnvFactory(kwargs.pop("env_id"), autoreset_mode=mode, kwargs=kwargs)
    # Not getattr: vector wrappers forward attributes of the environments that they wrap.
    env_factory: EnvFactory | None = getattr(env, "__dict__", {}).get("recipe")
    return env_factory


class Native(NamedTuple):
    """A native environment: its id, and what a spec says of it besides."""

    name: str
    spec_kwargs: dict[str, Any]

    def arguments(self, kwargs: dict[str, Any], resets: AutoresetMode) -> dict[str, Any]:
        """The keywords of `VecEnv`."""
        # Specs of rlox's own environments say the id, too.
        overrides = {
            k: value for k, value in kwargs.items() if k != "env_id" or not self.spec_kwargs
        }
        return {"autoreset_mode": resets, **self.spec_kwargs, **overrides}


def find_native(env: str | EnvSpec) -> Native | None:
    """The native environment that an id names, or a spec of the environment of that id.

    A spec may say other keywords and another limit of steps; with other entry points or wrappers it
    is of another environment, as is an id that was registered anew.

    Raises:
        ModuleNotFoundError, ValueError: The id begins with a module that is not there.

    >>> find_native("rlox/CartPole-v1").name, find_native("Taxi-v3")
    ('CartPole-v1', None)
    """
    if isinstance(env, str):
        module, _, plain_id = env.rpartition(":")
        if module:
            _import(module, env)
        name = plain_id.removeprefix("rlox/")
        known = name in PLUGINS or (module in ("", "rlox") and name in env_ids())
        return Native(name, {}) if known and not _is_reregistered(env) else None
    name = env.id.removeprefix("rlox/")
    if env.id not in gym.registry or (name not in PLUGINS and name not in env_ids()):
        return None
    if _is_reregistered(env.id):
        return None
    same: dict[str, Any] = {"kwargs": {}, "max_episode_steps": None}
    plain, registered = (dataclasses.replace(spec, **same) for spec in (env, gym.registry[env.id]))
    if plain != registered:
        return None
    limit = -1 if env.max_episode_steps is None else env.max_episode_steps
    return Native(name, {"max_episode_steps": limit})


def _is_reregistered(env_id: str) -> bool:
    """Whether an id of Gymnasium's own was registered anew for another environment."""
    spec = gym.registry.get(env_id)
    prefixes = ("gymnasium.envs.", "rlox.envs.native:")
    return spec is not None and not str(spec.entry_point).startswith(prefixes)


def get_env_name(env: object) -> str:
    """What environments are called: by the id that is given or that a spec has, else by a class.

    >>> get_env_name("rlox/CartPole-v1"), get_env_name(gym.Env)
    ('CartPole-v1', 'Env')
    """
    named = env.id if isinstance(env, EnvSpec) else env
    if isinstance(named, str):
        # Without the module that registers it: a checkpoint shall not say what to import.
        return named.removeprefix("rlox:").removeprefix("rlox/").rpartition(":")[2]
    return str(getattr(env, "__name__", type(env).__name__))


def get_num_envs(env: object) -> Any:
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
    env_factory: EnvFactory, num_envs: int, vector_kwargs: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    """Return what `gymnasium.make_vec` makes of a spec, which is the recipe's `env`."""
    spec: EnvSpec = env_factory.env
    mode = env_factory.vectorization_mode
    wrappers: Any = env_factory.wrappers  # functions, too
    alone = mode == "vector_entry_point"
    lacks = (spec.vector_entry_point if alone else spec.entry_point) is None
    if lacks or (alone and (wrappers or vector_kwargs or spec.additional_wrappers)):
        got = "" if lacks else " with wrappers or vector_kwargs"
        fix = "pass None" if lacks else "pass sync, or wrap what is made"
        expected = f"one that {spec.id!r} has"
        raise ArgumentError("vectorization_mode", expected, f"{mode!r}{got}", fix)
    # Of the spec's own keywords, those of vector environments would go before what is passed.
    vector_keys = {"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"}
    plain = copy.deepcopy(spec)
    plain.kwargs = {name: value for name, value in plain.kwargs.items() if name not in vector_keys}
    # Of an id Gymnasium says when a newer version is there.
    known = gym.registry.get(spec.id) is spec
    try:
        return gym.make_vec(
            spec.id if known else plain,
            num_envs,
            mode,
            vector_kwargs,
            wrappers,
            **env_factory.kwargs,
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


__all__ = ["make_vec"]
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
) -> VecEnv | GymVecEnv:
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
    <GymVecEnv, SyncVectorEnv(num_envs=2)>
    >>> make_vec("CartPole-v1", 2, wrappers=[gym.wrappers.FlattenObservation])
    <GymVecEnv, SyncVectorEnv(CartPole-v1, num_envs=2)>
    """
    mode = None if autoreset_mode is None else as_autoreset_mode(autoreset_mode)
    checked_mode, checked_wrappers = (
        _check_vectorization_mode(vectorization_mode),
        _check_wrappers(wrappers),
    )
    return make_from_factory(
        EnvFactory(env, checked_mode, checked_wrappers, mode, kwargs), num_envs, seed
    )


def make_from_factory(
    env_factory: EnvFactory, num_envs: int | None, seed: int | None
) -> VecEnv | GymVecEnv:
    """Make environments as `make_vec` does; those that it makes itself have the recipe."""
    if num_envs is not None:
        num_envs = check_int("num_envs", num_envs, 1, fix="say how many to make")
        # Gymnasium would make environments until the memory is full.
        check_memory("num_envs", num_envs, num_envs * _LEAST_BYTES)
    seed = None if seed is None else check_seed(seed)
    env = env_factory.env
    if isinstance(env, VectorEnv):
        options = {
            "vectorization_mode": env_factory.vectorization_mode,
            "wrappers": env_factory.wrappers,
        }
        _check_no_kwargs({name: x for name, x in (options | env_factory.kwargs).items() if x})
        if num_envs not in (None, env.num_envs):
            expected = f"{env.num_envs}, as {env} has so many"
            raise ArgumentError("num_envs", expected, str(num_envs), "leave it out")
        check_autoreset_mode(env, env_factory.autoreset_mode)
        return _to_rollout_env(env, seed)
    if isinstance(env, gym.Env):
        _check_no_kwargs(env_factory.kwargs)
        fix = "pass its class or a function that makes it"
        if num_envs not in (None, 1):
            raise ArgumentError("num_envs", "1 for a single environment", str(num_envs), fix)
        if env_factory.vectorization_mode == "async":
            expected = "no process for an environment already made"
            raise ArgumentError("vectorization_mode", expected, "'async'", fix)
        return _from_function(replace(env_factory, env=lambda: env), 1, seed)
    if isinstance(env, str | EnvSpec):
        envs = _from_spec(env_factory, num_envs, seed)
    elif isinstance(env, type) and issubclass(env, VectorEnv):
        envs = _from_vector_class(env_factory, num_envs or 1, seed)
    elif callable(env):
        envs = _from_function(env_factory, num_envs or 1, seed)
    else:
        raise ArgumentTypeError(
            "env",
            "an id, a gymnasium.Env, a vector environment or a function that makes one",
            type(env).__name__,
            FIX if hasattr(env, "step") else "see gymnasium.make",
        )
    vars(envs)["recipe"] = env_factory
    return envs


def _check_vectorization_mode(value: object) -> Mode | None:
    """What a name, or a member of Gymnasium's `VectorizeMode`, says."""
    name = getattr(value, "value", value)
    known = isinstance(name, str) and name in ("sync", "async", "vector_entry_point")
    if name is not None and not known:
        raise ArgumentError(
            "vectorization_mode",
            "'sync', 'async', 'vector_entry_point' or None",
            repr(value),
            "pass 'sync'",
        )
    return cast("Mode | None", name)


def _check_wrappers(wrappers: Any) -> Sequence[EnvWrapper]:
    wrong = isinstance(wrappers, str) or not isinstance(wrappers, Sequence)
    if wrong or not all(callable(wrapper) for wrapper in wrappers):
        raise ArgumentTypeError(
            "wrappers",
            "a list of functions from an environment to an environment",
            repr(wrappers),
            "pass for example [gymnasium.wrappers.FlattenObservation]",
        )
    return wrappers  # type: ignore[no-any-return]  # checked


def _add_result_check(wrapper: EnvWrapper) -> EnvWrapper:
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


def _check_no_kwargs(kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise ArgumentTypeError(
            str(next(iter(kwargs))),
            "no keywords for an environment already made",
            str(kwargs),
            "pass them where it is made",
        )


def _to_rollout_env(env: VectorEnv[Any, Any, Any], seed: int | None) -> VecEnv | GymVecEnv:
    if isinstance(env, VecEnv) and seed is not None:
        env.reset(seed=seed)
    if isinstance(env, VecEnv) or (isinstance(env, GymVecEnv) and seed is None):
        return env
    return GymVecEnv(env, seed)


def _to_rollout_env_or_close(
    env: VectorEnv[Any, Any, Any], seed: int | None, resets: AutoresetMode | None
) -> VecEnv | GymVecEnv:
    """Return `_to_rollout_env(env)`; if that raises, end the processes of `env`."""
    try:
        check_autoreset_mode(env, resets)
        return _to_rollout_env(env, seed)
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


def _from_function(env_factory: EnvFactory, num_envs: int, seed: int | None) -> VecEnv | GymVecEnv:
    """Make environments of a function that makes a single one."""
    if env_factory.vectorization_mode == "vector_entry_point":
        raise ArgumentError(
            "vectorization_mode",
            "'sync' or 'async' for a function that makes single environments",
            "'vector_entry_point'",
            "make that one and pass it",
        )
    wrappers = _all_wrappers(env_factory)

    def make_single(index: int) -> Single:
        env = require_env(env_factory.env(**env_factory.kwargs))
        for wrapper in wrappers:
            env = wrapper(env)
        if isinstance(env, CheckedEnv):
            env.index = index
        else:
            check_interface(env)
        return env

    vector_class = AsyncVectorEnv if env_factory.vectorization_mode == "async" else SyncVectorEnv
    mode = env_factory.autoreset_mode or AutoresetMode.SAME_STEP
    envs = vector_class([partial(make_single, i) for i in range(num_envs)], autoreset_mode=mode)
    return _to_rollout_env_or_close(envs, seed, env_factory.autoreset_mode)


def _all_wrappers(env_factory: EnvFactory) -> list[EnvWrapper]:
    """Return the wrappers of single environments, those of worker processes included."""
    wrappers = [_add_result_check(wrapper) for wrapper in env_factory.wrappers]
    if env_factory.vectorization_mode != "async":
        return wrappers
    return [_leave_interrupts(os.getpid()), *wrappers, CheckedEnv]


def _from_vector_class(
    env_factory: EnvFactory, num_envs: int, seed: int | None
) -> VecEnv | GymVecEnv:
    """Make vector environments of a class, as `gymnasium.make_vec` calls vector entry points."""
    mode, wrappers = env_factory.vectorization_mode, env_factory.wrappers
    expected = "for a class of vector environments"
    if mode not in (None, "vector_entry_point"):
        raise ArgumentError("vectorization_mode", f"None {expected}", repr(mode), "leave it out")
    if wrappers:
        raise ArgumentError("wrappers", f"none {expected}", repr(wrappers), "wrap what it makes")
    resets = env_factory.autoreset_mode
    arguments: dict[str, Any] = {"num_envs": num_envs}
    if issubclass(env_factory.env, VecEnv):
        arguments = {"n": num_envs} | ({} if resets is None else {"autoreset_mode": resets})
    return _to_rollout_env_or_close(
        env_factory.env(**arguments, **env_factory.kwargs), seed, resets
    )


def _check_spec_value(name: str, spec_value: T, value: T | None) -> T:
    """What a spec says, which what is passed may repeat."""
    if value is not None and value != spec_value:
        raise ArgumentError(
            name,
            f"{spec_value!r}, as the spec says",
            repr(value),
            "leave it out, or change the spec's kwargs",
        )
    return spec_value


def _from_spec(env_factory: EnvFactory, count: int | None, seed: int | None) -> VecEnv | GymVecEnv:
    """What is registered under an id, or described as if it were."""
    env, resets = env_factory.env, env_factory.autoreset_mode
    vector_kwargs: dict[str, Any] = {}
    if isinstance(env, EnvSpec):
        # Gymnasium notes there what vector environments were made of.
        kwargs = {**env.kwargs, **env_factory.kwargs}
        if (spec_num_envs := kwargs.pop("num_envs", None)) is not None:
            spec_num_envs = check_int("num_envs", spec_num_envs, 1, fix="correct the spec's kwargs")
            count = _check_spec_value("num_envs", spec_num_envs, count)
        mode, wrappers = env_factory.vectorization_mode, env_factory.wrappers
        mode = _check_spec_value(
            "vectorization_mode",
            _check_vectorization_mode(kwargs.pop("vectorization_mode", mode)),
            mode,
        )
        vector_kwargs = dict(kwargs.pop("vector_kwargs", {}))
        if "wrappers" in kwargs:
            wrappers = _check_wrappers(kwargs.pop("wrappers"))
            _check_spec_value("wrappers", [*wrappers], [*env_factory.wrappers] or None)
        env_factory = replace(
            env_factory, vectorization_mode=mode, wrappers=wrappers, kwargs=kwargs
        )
    num_envs, mode = count or 1, env_factory.vectorization_mode
    native = find_native(env)
    if native is not None and not env_factory.wrappers and not vector_kwargs:
        entry = isinstance(env, EnvSpec) and mode == "vector_entry_point"
        if mode is None or (entry and "env_id" in env_factory.kwargs):
            arguments = native.arguments(env_factory.kwargs, resets or AutoresetMode.SAME_STEP)
            with rename_arguments({"n": "num_envs"}):
                vector = VecEnv(num_envs, seed, native.name, **arguments)
            check_autoreset_mode(vector, resets)
            return vector
    spec = env if isinstance(env, EnvSpec) else find_spec(env)
    if mode is None:
        mode = "vector_entry_point" if spec.entry_point is None else "sync"
    env_factory = replace(env_factory, env=spec, vectorization_mode=mode)
    env_factory = replace(env_factory, wrappers=_all_wrappers(env_factory))
    if mode != "vector_entry_point":
        vector_kwargs = {"autoreset_mode": resets or AutoresetMode.SAME_STEP, **vector_kwargs}
    return _to_rollout_env_or_close(
        make_registered(env_factory, num_envs, vector_kwargs), seed, resets
    )
