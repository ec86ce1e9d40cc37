"""Plain data as arrays: numbers, lists, dicts and arrays, to files and back, without any code."""

import json
import math
from collections import deque
from typing import Any

import numpy as np

from rlox.learner import Arrays, stream_from_state, stream_state

# The name of the array that is JSON.
TREE = "tree"


def to_arrays(value: Any) -> Arrays:
    """Plain data as arrays by name, of which `TREE` is JSON that says how the others lie.

    Args:
        value: None, bool, int, float, str, NumPy's numbers, arrays of them and PCG64 generators;
            and lists, tuples, deques and dicts, with keys that are str, of these.

    Raises:
        ValueError: Something else is in it; the message says what and where.

    >>> from_arrays(to_arrays({"x": (1, float("inf")), "y": np.float32(2)}))
    {'x': (1, inf), 'y': np.float32(2.0)}
    """
    arrays: Arrays = {}
    tree = json.dumps(_told(value, "state", arrays), separators=(",", ":"))
    return {TREE: np.frombuffer(tree.encode(), np.uint8).copy(), **arrays}


def from_arrays(arrays: Arrays) -> Any:
    """What `to_arrays` was given.

    Raises:
        ValueError: It is something else, or damaged.
    """
    try:
        return _heard(json.loads(arrays[TREE].astype(np.uint8).tobytes()), arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"expected what was saved of environments, got other ({error}); use what `state` gave"
        ) from error


def _told(value: Any, place: str, arrays: Arrays) -> Any:
    """A value as JSON, its arrays beside it."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray | np.generic):
        array = np.array(value)
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            name = str(len(arrays))
            arrays[name] = array
            return {"array" if isinstance(value, np.ndarray) else "number": name}
    if kind is np.random.Generator and type(value.bit_generator) is np.random.PCG64:
        return {"stream": stream_state(value)}
    if kind in (list, tuple, deque):
        told = [_told(x, f"{place}[{i}]", arrays) for i, x in enumerate(value)]
        return {kind.__name__: told}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {k: _told(x, f"{place}[{k!r}]", arrays) for k, x in value.items()}}
    raise ValueError(f"{place} is a {kind.__name__}")


def _heard(told: Any, arrays: Arrays) -> Any:
    """A value of which `_told` gave JSON and arrays."""
    if not isinstance(told, dict):
        return told
    ((kind, held),) = told.items()
    match kind:
        case "float":
            return float(held)
        case "array":
            return np.array(arrays[held])
        case "number":
            return arrays[held][()]
        case "stream":
            return stream_from_state(held)
        case "list" | "tuple" | "deque":
            made = [_heard(x, arrays) for x in held]
            return {"list": list, "tuple": tuple, "deque": deque}[kind](made)
        case "dict":
            return {name: _heard(x, arrays) for name, x in held.items()}
    raise ValueError(f"the unknown kind {kind!r}")
