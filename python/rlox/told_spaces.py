"""Spaces from the lines in which `rlox.spaces.describe` tells them; nothing of them is executed."""

import ast
import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox._errors import ArgumentError

_TOKEN = re.compile(r"\s*([\w.:+-]+|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[()\[\],=:])")
_MOST = 2**31  # numbers of one space


def space_of(line: str) -> gym.Space[Any]:
    """The space that a line tells.

    Bounds that are told by their checksum alone become those of the dtype: observations are taken
    by shape and dtype.

    Raises:
        ValueError: It is no such line.

    >>> space_of("Tuple(Discrete(n=3, start=5, dtype=int64), MultiBinary(shape=(2,), dtype=int8))")
    Tuple(Discrete(3, start=5), MultiBinary(2))
    """
    words = _words(line)
    try:
        space = _space(words)
        if words:
            raise ValueError(f"{words[-1]!r} after the end")
        return space
    except (IndexError, KeyError, TypeError, AssertionError, SyntaxError, ValueError) as error:
        raise ArgumentError(
            "spaces",
            "a line that tells a space",
            f"{line!r:.200} ({error})",
            "use a checkpoint that rlox wrote",
        ) from error


def bounds_unknown(line: str) -> bool:
    """Whether a line tells bounds of real numbers by their checksum alone."""
    return "=sha256:" in line


def _words(line: str) -> list[str]:
    """The words of a line, the last one first."""
    found, end = [], 0
    while (match := _TOKEN.match(line, end)) is not None:
        found.append(match[1])
        end = match.end()
    return found[::-1] if not line[end:].strip() else ["?"]


def _expect(words: list[str], word: str) -> None:
    if (got := words.pop()) != word:
        raise ValueError(f"{got!r} where {word!r} was expected")


def _space(words: list[str]) -> gym.Space[Any]:
    kind = words.pop()
    _expect(words, "(")
    if kind == "Dict":
        parts: dict[str, gym.Space[Any]] = {}
        while words[-1] != ")":
            name = ast.literal_eval(words.pop())
            _expect(words, ":")
            parts[name] = _space(words)
            _comma(words)
        words.pop()
        return spaces.Dict(parts)
    if kind == "Tuple":
        every = []
        while words[-1] != ")":
            every.append(_space(words))
            _comma(words)
        words.pop()
        return spaces.Tuple(every)
    told: dict[str, Any] = {}
    while words[-1] != ")":
        name = words.pop()
        _expect(words, "=")
        told[name] = _value(words)
        _comma(words)
    words.pop()
    return _made(kind, told)


def _comma(words: list[str]) -> None:
    if words[-1] == ",":
        words.pop()
    elif words[-1] != ")":
        raise ValueError(f"{words[-1]!r} where ',' was expected")


def _value(words: list[str]) -> Any:
    """A number, a list of values, or a word."""
    word = words.pop()
    if word not in "([":
        return _number(word)
    close, every = ")]"["([".index(word)], []
    while words[-1] != close:
        every.append(_value(words))
        if words[-1] == ",":
            words.pop()
    words.pop()
    return every


def _number(word: str) -> Any:
    if re.fullmatch(r"[+-]?\d+", word):
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


def _made(kind: str, told: dict[str, Any]) -> gym.Space[Any]:
    dtype = np.dtype(told["dtype"])
    if kind == "Discrete":
        return spaces.Discrete(told["n"], start=told["start"], dtype=dtype.type)
    shape = tuple(told["shape"])
    if math.prod(shape) > _MOST:
        raise ValueError(f"shape {shape}")
    if kind == "MultiBinary":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "MultiDiscrete":
        nvec, start = (np.broadcast_to(told[name], shape) for name in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if kind != "Box":
        raise ValueError(f"a {kind}")
    widest: Any = (-np.inf, np.inf)
    if dtype.kind != "f":
        widest = (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    sides: list[Any] = [
        np.broadcast_to(end if isinstance(told[name], str) else told[name], shape).astype(dtype)
        for name, end in zip(("low", "high"), widest, strict=True)
    ]
    kind_of: Any = dtype.type
    return spaces.Box(*sides, dtype=kind_of)
