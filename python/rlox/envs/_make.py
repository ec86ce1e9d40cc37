"""`make_vec`, which creates vector environments for rollouts, and its stored arguments."""

import copy
import importlib
import inspect
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast, get_args

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError, one_line, rename_arguments
from rlox._rlox import env_ids
from rlox._system import check_memory
from rlox._validation import check_int, check_seed, check_str, hint, json_keywords
from rlox.envs._autoreset import as_autoreset_mode, check_autoreset_mode
from rlox.envs._checks import FIX, CheckedEnv, check_interface, require_env
from rlox.envs._ids import PLUGINS, native_ids
from rlox.envs.gymnasium import GymVecEnv
from rlox.envs.vec_env import VecEnv

Mode = Literal["sync", "async", "vector_entry_point"]
EnvWrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]
# Keywords of vector environments, which single environments do not take.
_VECTOR_KEYWORDS = ("num_envs", "vectorization_mode", "autoreset_mode", "vector_kwargs", "wrappers")


@dataclass(frozen=True)
class EnvFactory:
    """Checked arguments of `make_vec`, except the number of environments and the seed.

    A factory can create equal environments again, in this or another process.

    >>> from rlox import make_vec
    >>> factory = get_env_factory(make_vec("CartPole-v1", 2, vectorization_mode="sync"))
    >>> factory.make(3, seed=0).num_envs
    3
    """

    env: Any
    vectorization_mode: Mode | None = None
    wrappers: Sequence[EnvWrapper] = ()
    autoreset_mode: AutoresetMode | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, num_envs: int | None, seed: int | None) -> VecEnv | GymVecEnv:
        """Create environments; the first reset seeds environment i with `seed + i`."""
        if num_envs is not None:
            num_envs = check_int("num_envs", num_envs, 1, fix="pass the number of environments")
            # Gymnasium would create environments until the memory is full; each needs at least 100 bytes.
            check_memory("num_envs", num_envs, num_envs * 100)
        seed = None if seed is None else check_seed(seed)
        env = self.env
        if isinstance(env, VectorEnv):
            options = {"vectorization_mode": self.vectorization_mode, "wrappers": self.wrappers}
            _check_no_kwargs({name: x for name, x in (options | self.kwargs).items() if x})
            if num_envs not in (None, env.num_envs):
                expected = f"{env.num_envs}, the number of environments in {env}"
                raise ArgumentError("num_envs", expected, str(num_envs), "leave it out")
            check_autoreset_mode(env, self.autoreset_mode)
            return _to_rollout_env(env, seed)
        if isinstance(env, gym.Env):
            _check_no_kwargs(self.kwargs)
            fix = "pass its class or a function that returns a new environment"
            if num_envs not in (None, 1):
                raise ArgumentError("num_envs", "1 for a single environment", str(num_envs), fix)
            if self.vectorization_mode == "async":
                expected = "'sync' or None for an existing environment"
                raise ArgumentError("vectorization_mode", expected, "'async'", fix)
            return _from_function(replace(self, env=lambda: env), 1, seed)
        if isinstance(env, str | EnvSpec):
            envs = _from_spec(self, num_envs, seed)
        elif isinstance(env, type) and issubclass(env, VectorEnv):
            envs = _from_vector_class(self, num_envs or 1, seed)
        elif callable(env):
            envs = _from_function(self, num_envs or 1, seed)
        else:
            raise ArgumentTypeError(
                "env",
                "an id, an EnvSpec, an environment, or a class or function of environments",
                type(env).__name__,
                FIX if hasattr(env, "step") else "pass an id as to gymnasium.make",
            )
        vars(envs)["recipe"] = self
        return envs


def get_env_factory(env: object) -> EnvFactory | None:
    """Return the factory that created the environments, or None if it is unknown."""
    if type(env) is VecEnv:
        kwargs = dict(env._init_kwargs)
        mode = env.metadata["autoreset_mode"]
        return EnvFactory(kwargs.pop("env_id"), autoreset_mode=mode, kwargs=kwargs)
    # Vector wrappers forward attributes, so getattr would return the wrapped environments' factory.
    env_factory: EnvFactory | None = getattr(env, "__dict__", {}).get("recipe")
    return env_factory


def find_native(env: str | EnvSpec) -> str | None:
    """Return the id of the native environment of an id or a spec, or None if there is none.

    A spec is native if it equals the registered spec except for the keywords and the step limit. An
    id that was registered again for another class is not native.

    Raises:
        ArgumentError: The module in the id is a relative name.
        ModuleNotFoundError: The module in the id does not exist.

    >>> find_native("rlox/CartPole-v1"), find_native("Taxi-v3")
    ('CartPole-v1', None)
    """
    if isinstance(env, str):
        module, _, plain_id = env.rpartition(":")
        if module:
            _import(module, env)
        name = plain_id.removeprefix("rlox/")
        is_native = name in PLUGINS or (module in ("", "rlox") and name in env_ids())
        return name if is_native and not _is_reregistered(env) else None
    name = env.id.removeprefix("rlox/")
    if env.id not in gym.registry or name not in native_ids() or _is_reregistered(env.id):
        return None
    plain, registered = (replace(spec, kwargs={}, max_episode_steps=None) for spec in (env, gym.registry[env.id]))
    return name if plain == registered else None


def _is_reregistered(env_id: str) -> bool:
    """Return whether an id is registered for a class outside of Gymnasium and rlox."""
    spec = gym.registry.get(env_id)
    prefixes = ("gymnasium.envs.", "rlox.envs.native:")
    return spec is not None and not str(spec.entry_point).startswith(prefixes)


# Id, spec or function that creates an environment.
EnvMaker = str | EnvSpec | Callable[..., gym.Env[Any, Any]]
EnvLike = EnvMaker | VectorEnv[Any, Any, Any] | gym.Env[Any, Any]


@dataclass(frozen=True)
class EnvSource:
    """Environment as passed to a trainer, and the keywords that create it.

    Attributes:
        env: Id, spec, class or function of environments, or existing environments.
        kwargs: Keywords as passed.
        json_kwargs: Keywords as JSON values, for the run folder and checkpoints.
        name: Name of the environment for titles and folders.
        id: Id from which equal environments can be created; None if there is none.
    """

    env: Any
    kwargs: dict[str, Any]
    json_kwargs: dict[str, Any]
    name: str
    id: str | None

    @property
    def is_existing(self) -> bool:
        """True if the environments were created by the caller, who also closes them."""
        return isinstance(self.env, VectorEnv | gym.Env)

    @property
    def maker(self) -> EnvMaker | None:
        """Id, spec or function that creates equal environments; None if there is none."""
        if self.id is not None:
            return self.id
        is_maker = isinstance(self.env, EnvSpec) or (callable(self.env) and not self.is_existing)
        return self.env if is_maker else None


def as_env_source(
    env: EnvLike | EnvSource, env_kwargs: dict[str, Any] | None = None, env_id: str | None = None
) -> EnvSource:
    """Return the source of an environment; `env_id` is the id of an existing environment.

    Raises:
        ArgumentTypeError: `env_kwargs` is not a dict of JSON values, or names `env`, `num_envs` or
            `seed`.
    """
    if isinstance(env, EnvSource):
        return env
    kwargs = {} if env_kwargs is None else env_kwargs
    json_kwargs = json_keywords("env_kwargs", kwargs, ("env", "num_envs", "seed"))
    name = get_env_name(env)
    env_id = name if isinstance(env, str) else env_id
    return EnvSource(env, dict(kwargs), json_kwargs, env_id or name, env_id)


def get_env_name(env: object) -> str:
    """Return the name of environments: their id, or the name of their class or function.

    >>> get_env_name("rlox/CartPole-v1"), get_env_name(gym.Env)
    ('CartPole-v1', 'Env')
    """
    named = env.id if isinstance(env, EnvSpec) else env
    if isinstance(named, str):
        # Without the module: loading a checkpoint must not import code that its manifest names.
        return named.removeprefix("rlox:").removeprefix("rlox/").rpartition(":")[2]
    return str(getattr(env, "__name__", type(env).__name__))


def get_num_envs(env: object) -> int | None:
    """Return the number of environments of a vector environment or a spec, or None."""
    count: int | None = None
    if isinstance(env, EnvSpec):
        count = env.kwargs.get("num_envs")
    elif isinstance(env, VectorEnv):  # may lack the attribute, see `check_vector_interface`
        count = getattr(env, "num_envs", None)
    return count


def _import(module: str, env_id: str) -> None:
    """Import the module that registers an id. Errors that its own code raises are not changed."""
    expected = f"a module that can be imported before the colon of {env_id!r}"
    if module.startswith("."):
        raise ArgumentError("env", expected, repr(module), "write its full name")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(
            f"env: expected {expected}, got {module!r} ({error}); install it, or correct its name", name=error.name
        ) from error


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec that is registered under an id, after the import of the module in the id.

    >>> find_spec("CartPole-v1").max_episode_steps
    500
    """
    module, _, plain_id = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    try:
        return gym.spec(plain_id)
    except gym.error.Error as error:
        fix = hint(plain_id, [*env_ids(), *gym.registry], "import its module, or see gymnasium.registry for all ids")
        raise ArgumentError("env", "a registered id", repr(plain_id), fix) from error


@contextmanager
def _gymnasium_errors(call: str) -> Iterator[None]:
    """Convert the errors of a call of Gymnasium, except those of missing packages."""
    try:
        yield
    except gym.error.DependencyNotInstalled:
        raise
    except gym.error.Error as error:
        fix = "correct the arguments of the environment"
        raise ArgumentError("env", f"an environment from gymnasium.{call}", one_line(error), fix) from error


def check_env_maker(env: object) -> EnvMaker:
    """Return `env` if it is an id, an `EnvSpec` or a callable.

    Raises:
        ArgumentTypeError: `env` is something else.
    """
    if isinstance(env, str | EnvSpec) or callable(env):
        return cast("EnvMaker", env)
    expected = "an id, a spec or a function that returns an environment"
    raise ArgumentTypeError("env", expected, type(env).__name__, "pass an id, a spec or a function")


def make_single(env: EnvMaker, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Create a single environment.

    An id gives Gymnasium's own environment, or the native one if only this has the keywords.

    Args:
        env: Id, spec or function that creates an environment.
        kwargs: Keywords as for `make_vec`, of which `wrappers` are applied. Other keywords of
            vector environments are ignored, also those of a spec.

    Raises:
        ArgumentTypeError: `env` is something else, or a function returns something else.
        ArgumentError: The id is unknown, or Gymnasium cannot create the environment.
        ModuleNotFoundError: The module in the id does not exist.

    >>> make_single("Pendulum-v1", {"g": 1.0, "autoreset_mode": "NextStep"}).unwrapped.g
    1.0
    """
    maker = check_env_maker(env)
    if isinstance(maker, str | EnvSpec):
        spec = find_spec(maker) if isinstance(maker, str) else maker
        kwargs = {**copy.deepcopy(spec.kwargs), **kwargs}
        keywords = _drop_vector_keywords(kwargs)
        with _gymnasium_errors(f"make({spec.id!r})"):
            single = gym.make(_choose_spec(spec, keywords), **keywords)
    else:
        single = require_env(maker(**_drop_vector_keywords(kwargs)))
    for wrapper in _check_wrappers(kwargs.get("wrappers") or ()):
        single = _add_result_check(wrapper)(single)
    return single


def _choose_spec(spec: EnvSpec, keywords: Iterable[str]) -> EnvSpec:
    """Return a spec without keywords, of the native environment if Gymnasium's lacks one of `keywords`."""
    if (native := find_native(spec)) is not None:
        creator = load_env_creator(str(spec.entry_point))
        names = {*keywords} - {"max_episode_steps", "disable_env_checker"}  # which gymnasium.make takes
        if not all(supports_keyword(creator, name) for name in names):
            return replace(spec, entry_point="rlox.envs.native:NativeEnv", kwargs={"env_id": native})
    return replace(spec, kwargs={})


def supports_keyword(function: Callable[..., object], name: str) -> bool:
    """Return whether a function takes a keyword argument, as far as the signature shows."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _drop_vector_keywords(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in _VECTOR_KEYWORDS}


def _make_registered(env_factory: EnvFactory, num_envs: int, vector_kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    """Create the vector environment of a factory whose `env` is a spec by `gymnasium.make_vec`."""
    spec: EnvSpec = env_factory.env
    mode = env_factory.vectorization_mode
    wrappers: Any = env_factory.wrappers  # Gymnasium declares only classes, but accepts functions
    uses_entry_point = mode == "vector_entry_point"
    is_missing = (spec.vector_entry_point if uses_entry_point else spec.entry_point) is None
    if is_missing or (uses_entry_point and (wrappers or vector_kwargs or spec.additional_wrappers)):
        got = "" if is_missing else " with wrappers or vector_kwargs"
        fix = "pass None" if is_missing else "pass 'sync', or wrap the vector environment"
        expected = f"a mode that {spec.id!r} supports"
        raise ArgumentError("vectorization_mode", expected, f"{mode!r}{got}", fix)
    # With an id instead of a spec, Gymnasium warns if a newer version is registered. The factory has
    # the keywords of another spec; those of vector environments would override the arguments below.
    named = spec.id if gym.registry.get(spec.id) is spec else replace(spec, kwargs={})
    with _gymnasium_errors(f"make_vec({spec.id!r})"):
        return gym.make_vec(named, num_envs, mode, vector_kwargs, wrappers, **env_factory.kwargs)


T = TypeVar("T")
Single = gym.Env[Any, Any]


def make_vec(
    env: EnvLike,
    num_envs: int | None = None,
    *,
    seed: int | None = None,
    vectorization_mode: Mode | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    autoreset_mode: AutoresetMode | str | None = None,
    **kwargs: Any,
) -> VecEnv | GymVecEnv:
    """Create a vector environment for rollouts.

    An existing environment or a spec defines some of these arguments. An argument may repeat such
    a value, but not contradict it.

    Args:
        env: An id or an `EnvSpec`, as for `gymnasium.make_vec`; an environment class, or a function
            that returns an environment; a class of vector environments, called with `num_envs` and
            `kwargs`; an existing environment; or a vector environment in any autoreset mode.
        num_envs: Number of environments, at least 1. Default: the number of the existing
            environment or the spec, else 1.
        seed: Seed of the first reset; environment i gets `seed + i`. Default: a random seed.
        vectorization_mode: "sync" steps Gymnasium environments one after another, and "async" steps
            each in its own process. "vector_entry_point" creates the registered vector
            environment. Default: the native implementation if the id has one and there are no
            wrappers, else "sync", or "vector_entry_point" if the id has no other
            entry point.
        wrappers: Functions or classes that take and return a single environment. They are applied
            to each environment, from the first to the last.
        autoreset_mode: Autoreset mode of environments that this function creates. Default:
            SAME_STEP, or the mode of the vector environment, its class, its entry point or the
            spec.
        **kwargs: Keyword arguments of the environment, its class or its function.

    Returns:
        `VecEnv` for native environments, else `GymVecEnv`. An `env` that already has one of these
        classes is returned itself, unless a seed is passed for a `GymVecEnv`.

    Raises:
        ArgumentError: The id or a mode is unknown, a number is out of range, or an argument
            contradicts the environment or the spec.
        ArgumentTypeError: `env` has none of the types above or does not follow Gymnasium's API, a
            wrapper is not valid, or keywords are passed with an existing environment.
        ModuleNotFoundError: The module before the colon of the id does not exist.
        OutOfMemoryError: The environments need more memory than is free.

    Errors that the code of the environment or of a wrapper raises are not changed.

    >>> make_vec("CartPole-v1", 4, seed=0)
    VecEnv(rlox/CartPole-v1, num_envs=4)
    >>> make_vec(lambda: gym.make("CartPole-v1"), 2)  # Gymnasium's own
    <GymVecEnv, SyncVectorEnv(num_envs=2)>
    >>> make_vec("CartPole-v1", 2, wrappers=[gym.wrappers.FlattenObservation])
    <GymVecEnv, SyncVectorEnv(CartPole-v1, num_envs=2)>
    """
    mode = None if autoreset_mode is None else as_autoreset_mode(autoreset_mode)
    checked_mode = _check_vectorization_mode(vectorization_mode)
    checked_wrappers = _check_wrappers(wrappers)
    return EnvFactory(env, checked_mode, checked_wrappers, mode, kwargs).make(num_envs, seed)


def _check_vectorization_mode(value: object) -> Mode | None:
    """Return the name of a vectorization mode; Gymnasium's `VectorizeMode` is accepted, too."""
    name = getattr(value, "value", value)
    return None if name is None else cast("Mode", check_str("vectorization_mode", name, get_args(Mode)))


def _check_wrappers(wrappers: object) -> Sequence[EnvWrapper]:
    is_list = isinstance(wrappers, Sequence) and not isinstance(wrappers, str)
    if not is_list or not all(callable(wrapper) for wrapper in cast("Sequence[object]", wrappers)):
        raise ArgumentTypeError(
            "wrappers",
            "a list of functions that take and return an environment",
            repr(wrappers),
            "pass for example [gymnasium.wrappers.FlattenObservation]",
        )
    return cast("Sequence[EnvWrapper]", wrappers)


def _add_result_check(wrapper: EnvWrapper) -> EnvWrapper:
    """Return the wrapper with a check of its result. Gymnasium's errors get the wrapper's name."""
    name = getattr(wrapper, "__name__", None) or repr(wrapper)

    def wrap(env: Single) -> Single:
        try:
            wrapped: object = wrapper(env)
        except gym.error.Error as error:
            expected = f"an environment from {name}({env})"
            fix = "correct or remove the wrapper"
            raise ArgumentError("wrappers", expected, one_line(error), fix) from error
        if not isinstance(wrapped, gym.Env):
            raise ArgumentTypeError(
                "wrappers", f"a gymnasium.Env from {name}", type(wrapped).__name__, "return the wrapped environment"
            )
        return wrapped

    wrap.__name__ = name
    return wrap


def _check_no_kwargs(kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise ArgumentTypeError(
            str(next(iter(kwargs))),
            "no keyword arguments for an existing environment",
            str(kwargs),
            "pass keyword arguments to the constructor of the environment",
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
    """Check the mode, and return `_to_rollout_env(env)`; close `env` if that raises."""
    try:
        check_autoreset_mode(env, resets)
        return _to_rollout_env(env, seed)
    except BaseException:
        env.close()
        raise


def _leave_interrupts(parent: int) -> EnvWrapper:
    """Return a wrapper that ignores Ctrl-C in worker processes; the parent terminates workers."""

    def wrapper(env: Single) -> Single:
        # Gymnasium also creates an environment in the parent process to read its spaces.
        if os.getpid() != parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return env

    return wrapper


def _from_function(env_factory: EnvFactory, num_envs: int, seed: int | None) -> VecEnv | GymVecEnv:
    """Create environments with a function or class of single environments."""
    if env_factory.vectorization_mode == "vector_entry_point":
        raise ArgumentError(
            "vectorization_mode",
            "'sync' or 'async' for a function of single environments",
            "'vector_entry_point'",
            "create the vector environment, and pass it as env",
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
    """Return the wrappers of single environments, including the ones for worker processes."""
    wrappers = [_add_result_check(wrapper) for wrapper in env_factory.wrappers]
    if env_factory.vectorization_mode != "async":
        return wrappers
    return [_leave_interrupts(os.getpid()), *wrappers, CheckedEnv]


def _from_vector_class(env_factory: EnvFactory, num_envs: int, seed: int | None) -> VecEnv | GymVecEnv:
    """Call a vector environment class as `gymnasium.make_vec` calls vector entry points."""
    mode = env_factory.vectorization_mode
    resets = env_factory.autoreset_mode
    expected = "for a class of vector environments"
    if mode not in (None, "vector_entry_point"):
        raise ArgumentError("vectorization_mode", f"None {expected}", repr(mode), "leave it out")
    if env_factory.wrappers:
        got = repr(env_factory.wrappers)
        raise ArgumentError("wrappers", f"no wrappers {expected}", got, "wrap the vector environment")
    arguments: dict[str, Any] = {"num_envs": num_envs}
    if issubclass(env_factory.env, VecEnv):
        arguments = {"n": num_envs} | ({} if resets is None else {"autoreset_mode": resets})
    return _to_rollout_env_or_close(env_factory.env(**arguments, **env_factory.kwargs), seed, resets)


def _check_spec_value(name: str, spec_value: T, value: T | None) -> T:
    """Return a value of a spec after a check that an argument does not contradict the value."""
    if value is not None and value != spec_value:
        raise ArgumentError(
            name, f"{spec_value!r}, the value in the spec", repr(value), "leave it out, or change the spec's kwargs"
        )
    return spec_value


def _from_spec(env_factory: EnvFactory, count: int | None, seed: int | None) -> VecEnv | GymVecEnv:
    """Create the environments of an id or a spec."""
    env = env_factory.env
    resets = env_factory.autoreset_mode
    vector_kwargs: dict[str, Any] = {}
    if isinstance(env, EnvSpec):
        # Gymnasium stores the arguments of vector environments in the keywords of their specs.
        kwargs = {**env.kwargs, **env_factory.kwargs}
        if (spec_num_envs := kwargs.pop("num_envs", None)) is not None:
            spec_num_envs = check_int("num_envs", spec_num_envs, 1, fix="correct the spec's kwargs")
            count = _check_spec_value("num_envs", spec_num_envs, count)
        mode = env_factory.vectorization_mode
        wrappers = env_factory.wrappers
        if "vectorization_mode" in kwargs:
            spec_mode = _check_vectorization_mode(kwargs.pop("vectorization_mode"))
            mode = _check_spec_value("vectorization_mode", spec_mode, mode)
        vector_kwargs = dict(kwargs.pop("vector_kwargs", {}))
        if "wrappers" in kwargs:
            wrappers = _check_wrappers(kwargs.pop("wrappers"))
            _check_spec_value("wrappers", [*wrappers], [*env_factory.wrappers] or None)
        env_factory = replace(env_factory, vectorization_mode=mode, wrappers=wrappers, kwargs=kwargs)
    num_envs = count or 1
    mode = env_factory.vectorization_mode
    native = find_native(env)
    if native is not None and not env_factory.wrappers and not vector_kwargs:
        is_vector_spec = isinstance(env, EnvSpec) and mode == "vector_entry_point"
        if mode is None or (is_vector_spec and "env_id" in env_factory.kwargs):
            arguments: dict[str, Any] = {"autoreset_mode": resets or AutoresetMode.SAME_STEP, **env_factory.kwargs}
            if isinstance(env, EnvSpec):
                limit = -1 if env.max_episode_steps is None else env.max_episode_steps
                arguments = {"max_episode_steps": limit, **arguments}
                arguments.pop("env_id", None)  # the specs that rlox registers have this keyword
            with rename_arguments({"n": "num_envs"}):
                vector = VecEnv(num_envs, seed, native, **arguments)
            check_autoreset_mode(vector, resets)
            return vector
    spec = env if isinstance(env, EnvSpec) else find_spec(env)
    if mode is None:
        mode = "vector_entry_point" if spec.entry_point is None else "sync"
    env_factory = replace(env_factory, env=spec, vectorization_mode=mode)
    env_factory = replace(env_factory, wrappers=_all_wrappers(env_factory))
    if mode != "vector_entry_point":
        vector_kwargs = {"autoreset_mode": resets or AutoresetMode.SAME_STEP, **vector_kwargs}
    return _to_rollout_env_or_close(_make_registered(env_factory, num_envs, vector_kwargs), seed, resets)
