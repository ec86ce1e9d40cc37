"""Codecs of plain data, as JSON and as arrays, which need no pickle."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from rlox._errors import ArgumentError
from rlox._rng import damaged_state_error, stream_from_state, stream_state
from rlox._types import Arrays


def float_to_json(number: float) -> float | str:
    """Return a number, or "nan", "inf" or "-inf", which JSON lacks; `float` reads both."""
    return number if math.isfinite(number) else str(number)


def dumps(content: object, indent: int | None = None) -> str:
    """Return strict JSON of plain data and dataclasses; NaN and infinity become null.

    >>> dumps({"a": [1.5, float("nan")]})
    '{"a": [1.5, null]}'
    """
    return json.dumps(_to_strict(content), indent=indent, allow_nan=False)


def _to_strict(content: object) -> object:
    if is_dataclass(content) and not isinstance(content, type):
        content = asdict(content)
    match content:
        case float():
            return content if math.isfinite(content) else None
        case Mapping():
            return {str(key): _to_strict(value) for key, value in content.items()}
        case list() | tuple():
            return [_to_strict(value) for value in content]
    return content


def numbers_to_state(numbers: Iterable[float]) -> list[float | None]:
    """Convert numbers to JSON values, with None for NaN."""
    return [None if math.isnan(number) else number for number in numbers]


def numbers_from_state(counters: Mapping[str, Any], name: str, count: int) -> list[float]:
    """Return `count` floats of the entry `name` of `counters`, with NaN for None.

    Raises:
        ArgumentError: The entry is missing, has another length, or contains other values.
    """
    value = counters.get(name)
    flat = [math.nan if x is None else x for x in (value if isinstance(value, list) else [value])]
    if name not in counters or len(flat) != count or not all(type(x) is float for x in flat):
        raise damaged_state_error("counters", f"{count} numbers as {name}", value)
    return flat


# Name of the array that holds the JSON.
TREE = "tree"


def to_arrays(value: object) -> Arrays:
    """Encode plain data as arrays by name; the array `TREE` is JSON that refers to the others.

    Args:
        value: None, bool, int, float, str, NumPy number or array, PCG64 generator, or a list, tuple
            or dict (with str keys) of these.

    Raises:
        ArgumentError: The value contains an object of another type.

    >>> from_arrays(to_arrays({"x": (1, float("inf")), "y": np.float32(2)}))
    {'x': (1, inf), 'y': np.float32(2.0)}
    """
    arrays: Arrays = {}
    tree = json.dumps(_encode(value, "state", arrays), separators=(",", ":"))
    return {TREE: np.frombuffer(tree.encode(), np.uint8).copy(), **arrays}


def from_arrays(arrays: Arrays) -> Any:
    """Decode the result of `to_arrays`.

    Raises:
        ArgumentError: The arrays are damaged.
    """
    try:
        return _decode(json.loads(arrays[TREE].astype(np.uint8).tobytes()), arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        got = f"damaged data ({error})"
        expected = "the saved state of environments"
        raise ArgumentError("state", expected, got, "use another copy") from error


def _encode(value: Any, path: str, arrays: Arrays) -> object:
    """Return the JSON value of an object, and add its arrays to `arrays`."""
    cls = type(value)
    if value is None or cls in (bool, int, str) or (cls is float and math.isfinite(value)):
        return value
    if cls is float:
        return {"float": float_to_json(value)}
    if isinstance(value, np.ndarray | np.generic):
        array = np.array(value)
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            name = str(len(arrays))
            arrays[name] = array
            return {"array" if isinstance(value, np.ndarray) else "number": name}
    if cls is np.random.Generator and type(value.bit_generator) is np.random.PCG64:
        return {"stream": stream_state(value)}
    if cls in (list, tuple):
        return {cls.__name__: [_encode(x, f"{path}[{i}]", arrays) for i, x in enumerate(value)]}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {k: _encode(x, f"{path}[{k!r}]", arrays) for k, x in value.items()}}
    expected = "a dict, list, tuple, array, PCG64 generator, number, str or None"
    raise ArgumentError(path, expected, f"a {cls.__name__}", "return plain data from get_state()")


def _decode(tree: object, arrays: Arrays) -> object:
    """Return the object that `_encode` encoded."""
    if not isinstance(tree, dict):
        return tree
    ((tag, content),) = tree.items()
    match tag:
        case "float":
            return float(content)
        case "array":
            return np.array(arrays[content])
        case "number":
            return arrays[content][()]
        case "stream":
            return stream_from_state(content)
        case "list":
            return [_decode(x, arrays) for x in content]
        case "tuple":
            return tuple(_decode(x, arrays) for x in content)
    return {name: _decode(x, arrays) for name, x in content.items()}  # "dict"
