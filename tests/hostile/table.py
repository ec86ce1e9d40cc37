"""How each public callable is called right: what the hostile forms of its arguments start from."""

import dataclasses
import importlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hostile.arguments import Argument

# Which files have the calls of which group; each group is called in a process of its own.
GROUPS = {
    "kernels": ("hostile.advantages", "hostile.llm"),
    "objects": ("hostile.objects", "hostile.replay", "hostile.environments"),
    "training": ("hostile.training", "hostile.files"),
    "networks": ("hostile.networks",),
    "agents": ("hostile.agents",),
}


class Call(NamedTuple):
    """A right call; of a method, where there is a dot in the name."""

    name: str
    arguments: dict[str, Argument]
    raises: tuple[type[Exception], ...] = ()  # documented errors of other kinds
    at: int = 0  # how many steps the object has made before
    through: Callable[..., Any] | None = None  # what is called instead, and calls it
    shared: bool = False  # one object does for all calls, as none of them changes it


class Subject(NamedTuple):
    """An object whose methods are called."""

    make: Callable[[int], Any]  # after so many steps
    state: Callable[[Any], Any]  # what a refused call leaves as it is
    # Errors of calls that meet those of other threads.
    meets: tuple[type[Exception], ...] = ()
    forks: bool = True  # also while threads use it


KNOWN: dict[str, Subject] = {}


def call(
    name: str,
    /,
    *,
    raises: tuple[type[Exception], ...] = (),
    at: int = 0,
    through: Callable[..., Any] | None = None,
    shared: bool = False,
    **arguments: Argument,
) -> Call:
    return Call(name, arguments, raises, at, through, shared)


def calls(group: str) -> list[Call]:
    """The right calls of a group."""
    return [one for module in GROUPS[group] for one in importlib.import_module(module).CALLS]


def subjects(group: str) -> dict[str, Subject]:
    """How to make the objects of a group, by class; from now on answers are told by them, too."""
    for module in GROUPS[group]:
        KNOWN.update(getattr(importlib.import_module(module), "SUBJECTS", {}))
    return KNOWN


def plain(x: Any) -> Any:
    """An answer as what can be kept and compared: the numbers in it, not the objects."""
    match x:
        case None | bool() | int() | float() | str() | bytes() | type():
            return x
        case np.ndarray() if x.dtype == object:
            return ["objects", *map(plain, x.ravel())]
        case np.generic():
            return x.item()
        case np.ndarray() if x.size > 1_000_000:
            return x.shape
        case np.ndarray():
            return np.array(x)
        case np.random.Generator():
            return plain(x.bit_generator.state)
        case Mapping():
            return {key: plain(value) for key, value in x.items()}
        case list() | tuple() | set() | deque():
            return [plain(value) for value in x]
    if dataclasses.is_dataclass(x):
        return {f.name: plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    return described(x)


def described(x: Any) -> Any:
    """What an object of a class that has a subject holds, else only what it is."""
    name = type(x).__name__
    return [name, plain(KNOWN[name].state(x))] if name in KNOWN else name


def equal(a: Any, b: Any, exactly: bool = True) -> bool:
    """Whether two answers are the same; not exactly: but for dtypes and what they round."""
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
