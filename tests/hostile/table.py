"""Public callables, found by introspection, and valid calls of each of them."""

import dataclasses
import importlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from hostile.arguments import Argument, optional, to_argument
from rlox.learners.base import BaseLearner

# Modules whose callables are called here. Other tests check the errors of other modules.
WITHOUT_TORCH = ("rlox", "rlox._rlox", "rlox.envs", "rlox.learners.native_on_policy", "rlox.learners.native_off_policy")
PUBLIC = (*WITHOUT_TORCH, "rlox.algorithms", "rlox.callbacks", "rlox.checkpoint")
PUBLIC += ("rlox.distributed", "rlox.evaluation", "rlox.interchange", "rlox.policies")
PUBLIC += ("rlox.trainers",)
# Patterns of callables that are not called here, by reason. A class includes its methods.
NOT_CALLED = {
    "exceptions": "*Error",
    "results, protocols, a base class and a second name": (
        "RolloutBatch Checkpoint EvaluationResult TrainResult ActorCritic RolloutEnv Predictor Trainer GoalReplayBuffer"
    ),
    "internal to learners: test_masks.py, test_plugins.py": "*.final_action_masks",
    "internal to callbacks and their checkpoints: tests/callbacks": (
        "EveryNSteps.start EveryNSteps.ready *.on_* *Callback.state *Callback.load_state "
        "ProgressBar.state ProgressBar.load_state"
    ),
    "internal to GymVecEnv: tests/envs/test_gymnasium.py": "check_normalizer check_step",
    "internal to actors: test_actors.py": (
        "NativeActors.start_python_actors NativeActors.publish_object NativeActors.close"
    ),
    "state of native learners: Trainer.save": "Native*.state Native*.load_state",
    "without arguments: test_rollout.py, test_state.py, test_mmap.py": (
        "GymVecEnv.action_masks GymVecEnv.get_state MmapReplayBuffer.close"
    ),
    "states of the same object: test_state.py, test_replay.py": ("GymVecEnv.set_state MmapReplayBuffer.load_state"),
    "rejects everything without masks: tests/envs/test_plugins.py": "VecEnv.action_masks",
    "takes a capsule: tests/envs/test_plugins.py": "register_env",
    "sets attributes of any name and kind: tests/envs/test_native.py": "NativeEnv.set_wrapper_attr",
    "takes a function and a path: tests/buffers/test_hindsight.py": "HindsightReplayBuffer.load",
    "state of a trainer, whose methods are called: tests/training": "Run",
    "needs another package: tests/callbacks/test_video.py, test_interchange.py": (
        "VideoRecordingCallback from_arrow from_minari to_arrow"
    ),
    "needs workers: tests/distributed/test_remote.py": "remote_actors remote_env run_worker",
    "takes seconds, or a checkpoint: test_many.py, test_inference.py": "train_many load",
}
# Methods of learners that trainers call. The other methods are steps of these methods.
OF_LEARNERS = ("iterate", "predict", "state", "load_state")


def is_called(name: str) -> bool:
    patterns = (pattern for names in NOT_CALLED.values() for pattern in names.split())
    return not any(fnmatchcase(name, pattern) for pattern in patterns)


def exported_callables(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the callables in `__all__` of a module, or the callables that the module defines."""
    names = getattr(module, "__all__", None)
    for name in sorted(names or vars(module)):
        thing = getattr(module, name)
        if name.startswith("_") or not callable(thing):
            continue
        home = str(getattr(thing, "__module__", ""))
        if home == module.__name__ or (names and home.partition(".")[0] in ("rlox", "builtins")):
            yield name, thing


def attributes(cls: type) -> dict[str, Any]:
    """Return the public attributes of a class that rlox defines."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] in ("rlox", "builtins") and base is not object:
            found |= vars(base)
    if hasattr(cls, "close"):
        found["close"] = cls.close
    return {name: thing for name, thing in found.items() if not name.startswith("_")}


def methods(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class as attributes of the class."""
    found = {}
    for name, thing in attributes(cls).items():
        if issubclass(cls, BaseLearner) and name not in OF_LEARNERS:
            continue
        if isinstance(thing, classmethod | staticmethod):
            found[name] = getattr(cls, name)
        elif callable(thing) and not isinstance(thing, type):
            found[name] = thing
    return found


def properties(cls: type) -> list[str]:
    """Return the names of read-only attributes."""
    return [
        name
        for name, thing in attributes(cls).items()
        if inspect.isgetsetdescriptor(thing) or (isinstance(thing, property) and not thing.fset)
    ]


@cache
def public_objects(torch: bool = True) -> dict[str, Any]:
    """Return functions and classes by name.

    Without `torch`, omit modules that import torch, because this import takes seconds.
    """
    found: dict[str, Any] = {}
    for module in PUBLIC if torch else WITHOUT_TORCH:
        for name, thing in exported_callables(importlib.import_module(module)):
            assert found.setdefault(name, thing) is thing, f"two objects are called {name}"
    return found


def classes(torch: bool = True) -> dict[str, type]:
    """Return the classes that are called here, by name."""
    return {n: x for n, x in public_objects(torch).items() if inspect.isclass(x) and is_called(n)}


@cache
def callables(torch: bool = True) -> dict[str, Callable[..., Any]]:
    """Return functions, classes and methods by name: `compute_gae`, `VecEnv`, `VecEnv.step`."""
    found = public_objects(torch)
    for name, cls in classes(torch).items():
        found |= {f"{name}.{method}": function for method, function in methods(cls).items()}
    return found


def base_method(function: Callable[..., Any]) -> Any:
    """Return the function of a class method, which subclasses share."""
    return getattr(function, "__func__", function)


def parameters(function: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Return the defaults of named parameters, and whether other keywords are accepted."""
    found = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {x.name: x.default for x in found if x.kind not in variable and x.name != "self"}
    return named, any(x.kind is inspect.Parameter.VAR_KEYWORD for x in found)


# Module of each group of calls. Each group is called in a separate process.
GROUPS = {
    "kernels": "hostile.kernels",
    "objects": "hostile.objects",
    "training": "hostile.training",
    "networks": "hostile.networks",
}


class Call(NamedTuple):
    """Valid call of a function, a class, or a method, whose name contains a dot."""

    name: str
    arguments: dict[str, Argument]
    raises: tuple[type[Exception], ...] = ()  # documented errors of other types
    at: int = 0  # number of steps of the object before the call
    through: Callable[..., Any] | None = None  # the function that makes the call
    shared: bool = False  # the call does not change the object, which all calls share


class Subject(NamedTuple):
    """Object whose methods are called."""

    make: Callable[[int], Any]  # argument: number of steps before the call
    state: Callable[[Any], Any]  # state that a rejected call does not change
    meets: tuple[type[Exception], ...] = ()  # errors during calls of other threads


KNOWN: dict[str, Subject] = {}


def call(name: str, /, *, raises=(), at=0, through=None, shared=False, **arguments) -> Call:
    """Return a valid call. The values determine the kinds of the arguments."""
    converted = {parameter: to_argument(value) for parameter, value in arguments.items()}
    return Call(name, converted, raises, at, through, shared)


@cache
def calls(group: str) -> list[Call]:
    """Return the valid calls of a group.

    An argument whose default is None accepts None. Parameters with another default that no call
    passes are added to the first call of the function.
    """
    functions = callables(torch=group == "training")
    found: list[Call] = importlib.import_module(GROUPS[group]).CALLS
    passed: dict[str, set[str]] = {}
    for each in found:
        passed.setdefault(each.name, set()).update(each.arguments)
    for each in found:
        for parameter, default in parameters(functions[each.name])[0].items():
            if default is None and parameter in each.arguments:
                each.arguments[parameter] = optional(each.arguments[parameter])
            elif isinstance(default, bool | int | float | str) and parameter not in passed[each.name]:
                passed[each.name].add(parameter)
                value = 0.5 if isinstance(default, float) else default
                each.arguments[parameter] = to_argument(value)
    return found


def subjects(group: str) -> dict[str, Subject]:
    """Return the objects of a group by class and let `plain` describe their states."""
    KNOWN.update(getattr(importlib.import_module(GROUPS[group]), "SUBJECTS", {}))
    return KNOWN


def plain(x: Any) -> Any:
    """Return a result as values that can be copied and compared."""
    match x:
        case None | bool() | int() | float() | str() | bytes() | type():
            return x
        case np.ndarray() if x.dtype == object:
            return ["objects", *map(plain, x.ravel())]
        case np.generic():
            return x.item()
        case np.ndarray():
            return np.array(x) if x.size <= 1_000_000 else x.shape
        case np.random.Generator():
            return plain(x.bit_generator.state)
        case Mapping():
            return {key: plain(value) for key, value in x.items()}
        case list() | tuple() | set() | deque():
            return [plain(value) for value in x]
    if dataclasses.is_dataclass(x):
        return {f.name: plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    name = type(x).__name__
    return [name, plain(KNOWN[name].state(x))] if name in KNOWN else name


def equal(a: Any, b: Any, exactly: bool = True) -> bool:
    """Return whether two results are equal, up to dtypes and rounding unless `exactly`."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or (exactly and a.dtype != b.dtype):
            return False
        if a.dtype.kind in "fc" and a.dtype != b.dtype:
            return np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k], exactly) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y, exactly) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        near = np.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) and not exactly
        return a == b or (a != a and b != b) or bool(near)
    return type(a) is type(b) and bool(a == b)
