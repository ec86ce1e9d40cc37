"""What commands write: lines, aligned columns and JSON, without colours, for people and pipes."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TextIO


class ReaderGoneError(Exception):
    """Who reads what is written, as `head` does, has read enough."""


def say(text: str, *, to: TextIO | None = None) -> None:
    """Writes a line to stdout, or elsewhere; what the stream cannot write as its number."""
    stream = sys.stdout if to is None else to
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def say_json(content: Any) -> None:
    """Writes strict JSON to stdout: NaN and infinity, which JSON does not have, become null."""
    say(json.dumps(_strict(content), indent=2, allow_nan=False))


def _strict(content: Any) -> Any:
    if is_dataclass(content) and not isinstance(content, type):
        return _strict(asdict(content))
    match content:
        case float():
            return content if math.isfinite(content) else None
        case Mapping():
            return {str(key): _strict(value) for key, value in content.items()}
        case list() | tuple():
            return [_strict(value) for value in content]
    return content


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Rows of words, those of a column one under the other.

    >>> print(columns([("a", "1"), ("long", "2")]))
    a     1
    long  2
    """
    told = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*told, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in told)
    return "\n".join(line.rstrip() for line in lines)
