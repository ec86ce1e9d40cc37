"""Checks and conversions of arguments, and resolution of settings from their sources."""

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import numpy as np

from rlox._errors import ArgumentError, ArgumentTypeError, StructuredError


def check_int(name: str, value: object, low: int, extra_value: int | None = None, *, fix: str = "") -> int:
    """Return an integer of at least `low`, or equal to `extra_value`, as an int.

    Raises:
        ArgumentTypeError: `value` is not an integer. Floats and bools are not integers.
        ArgumentError: `value` is too small.

    >>> check_int("n_steps", np.int64(8), low=1)
    8
    >>> check_int("total_timesteps", 1e5, low=1)
    Traceback (most recent call last):
    rlox.ArgumentTypeError: total_timesteps: expected an integer of at least 1, got 100000.0; \
pass 100000
    """
    expected = f"an integer of at least {low}"
    if extra_value is not None:
        expected = f"{extra_value} or {expected}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        if isinstance(value, float | np.floating) and float(value).is_integer():
            fix = f"pass {int(value)}"
        raise _wrong(name, expected, value, fix or "pass an integer", ArgumentTypeError)
    plain = int(value)
    if plain < low and plain != extra_value:
        raise _wrong(name, expected, value, fix or f"pass {low} or more")
    return plain


def check_float(name: str, value: object, low: float = -math.inf, high: float = math.inf, *, fix: str = "") -> float:
    """Return a finite number in [low, high] as a float.

    Raises:
        ArgumentTypeError: `value` is not a real number. Bools are not numbers.
        ArgumentError: `value` is outside [low, high], NaN or infinite.

    >>> check_float("gamma", np.float32(0.5), 0, 1)
    0.5
    """
    expected = "a finite number"
    if high < math.inf:
        expected += f" in [{low}, {high}]"
    elif low > -math.inf:
        expected += f" of at least {low}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, expected, value, fix or "pass a number", ArgumentTypeError)
    try:
        plain = float(value)
    except OverflowError:
        plain = math.inf
    if not math.isfinite(plain) or not low <= plain <= high:
        default_fix = f"pass at least {low}" if plain < low else f"pass at most {high}"
        default_fix = default_fix if math.isfinite(plain) else "pass a finite number"
        raise _wrong(name, expected, value, fix or default_fix)
    return plain


def check_float_or_tuple(
    name: str, value: object, low: float = -math.inf, high: float = math.inf
) -> float | tuple[float, ...]:
    """Return a finite number in [low, high], or an array of such numbers as a flat tuple.

    Raises:
        ArgumentTypeError: An element is not a real number.
        ArgumentError: An element is outside [low, high], NaN or infinite, the array is empty, or
            its rows have different lengths.

    >>> check_float_or_tuple("sigma", np.array([[0.5], [1.0]]), 0, 1)
    (0.5, 1.0)
    """
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        return check_float(name, value, low, high)
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    if array.ndim == 0:
        return check_float(name, array.item(), low, high)
    if array.size == 0:
        raise _wrong(name, "a number or an array of numbers", value, "pass a number")
    return tuple(check_float(f"{name}[{i}]", x, low, high) for i, x in enumerate(array.ravel().tolist()))


def check_bool(name: str, value: object, *, fix: str = "pass True or False") -> bool:
    """Return a Python or NumPy bool as a bool.

    Raises:
        ArgumentTypeError: `value` is not a bool.
    """
    if not isinstance(value, bool | np.bool_):
        raise _wrong(name, "True or False", value, fix, ArgumentTypeError)
    return bool(value)


def check_str(name: str, value: object, choices: Sequence[str] = ()) -> str:
    """Return a str, which must be one of `choices` unless they are empty.

    Raises:
        ArgumentTypeError: `value` is not a str.
        ArgumentError: `value` is not one of `choices`.
    """
    names = " or ".join(map(repr, choices))
    if len(choices) > 2:
        names = "one of " + ", ".join(choices)
    if not isinstance(value, str):
        fix = f"pass {choices[0]!r}" if choices else "pass a str"
        raise _wrong(name, names or "a str", value, fix, ArgumentTypeError)
    if choices and value not in choices:
        raise _wrong(name, names, value, hint(value, choices, f"pass {choices[0]!r}"))
    return str(value)


def check_path(name: str, value: object) -> Path | None:
    """Return a str or path as a Path, and None as None.

    Raises:
        ArgumentTypeError: `value` is not a str, a path or None.
    """
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise _wrong(name, "a path or None", value, "pass a str or a pathlib.Path", ArgumentTypeError)
    return Path(value)


def check_int_tuple(name: str, value: Any) -> tuple[int, ...]:
    """Return a sequence of integers of at least 1 as a tuple of ints.

    Raises:
        ArgumentTypeError: `value` is not a sequence of integers.
        ArgumentError: An integer is below 1.

    >>> check_int_tuple("net_arch", np.array([64, 64]))
    (64, 64)
    """
    error_type: type[StructuredError] = ArgumentTypeError
    try:
        if not isinstance(value, str):
            return tuple(check_int(name, x, 1) for x in value)
    except ValueError:
        error_type = ArgumentError
    except TypeError:
        pass
    raise _wrong(name, "a sequence of integers of at least 1", value, "pass a tuple such as (64, 64)", error_type)


@dataclass(frozen=True)
class Setting:
    """Field of a dataclass of settings, with its documentation and the values that it accepts.

    Attributes:
        name: Name of the field.
        type: Annotation of the field, which determines the check and, for a Literal, the choices.
        default: Default; None is accepted only if it is the default.
        doc: One-line documentation.
        low: Smallest number.
        high: Largest number, for floats.
        extra: Integer that is accepted although it is below `low`.
        convert: Function `(name, value)` that replaces the check by type, and returns the value.
    """

    name: str
    type: Any
    default: Any
    doc: str = ""
    low: Any = -1e30
    high: float = 1e30
    extra: int | None = None
    convert: Callable[[str, Any], Any] | None = None

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Types of the values except None."""
        is_union = get_origin(self.type) in (Union, UnionType)
        kinds = get_args(self.type) if is_union else (self.type,)
        return tuple(kind for kind in kinds if kind is not NoneType)

    @property
    def choices(self) -> tuple[str, ...]:
        """Accepted strings; empty if the type is not a Literal."""
        return get_args(self.kinds[0]) if get_origin(self.kinds[0]) is Literal else ()

    @property
    def bounds(self) -> str:
        """Accepted numbers as text; empty without bounds.

        >>> Setting("gamma", float, 0.99, low=0, high=1).bounds
        'in [0, 1]'
        >>> Setting("max_staleness", int | None, None, low=0).bounds
        'at least 0'
        """
        if self.low == -1e30 or self.convert is not None:
            return ""
        at_least = f"at least {self.low}"
        if float in self.kinds and self.high < 1e30:
            at_least = f"in [{self.low}, {self.high}]"
        return at_least if self.extra is None else f"{self.extra} or {at_least}"

    def check(self, value: Any) -> Any:
        """Return an accepted value, converted to a plain type.

        Raises:
            ArgumentTypeError: `value` has another type.
            ArgumentError: `value` is out of bounds, or not one of the choices.
        """
        name, kinds = self.name, self.kinds
        if value is None and self.default is None:
            return None
        if self.convert is not None:
            return self.convert(name, value)
        if bool in kinds:
            return check_bool(name, value)
        if int in kinds:
            return check_int(name, value, self.low, self.extra)
        if float in kinds:
            check = check_float_or_tuple if tuple[float, ...] in kinds else check_float
            return check(name, value, self.low, self.high)
        if str in kinds or self.choices:
            return check_str(name, value, self.choices)
        return check_int_tuple(name, value) if tuple[int, ...] in kinds else value


def setting(default: Any, doc: str, **metadata: Any) -> Any:
    """Return a dataclass field whose metadata are attributes of `Setting`."""
    return field(default=default, metadata={"doc": doc, **metadata})


def get_settings(settings_type: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name.

    A subclass that only changes a default inherits the metadata.
    """
    return _get_settings(settings_type)  # type: ignore[arg-type]  # mypy takes dataclasses as not hashable


@cache
def _get_settings(settings_type: type[Any]) -> Mapping[str, Setting]:
    metadata: dict[str, Mapping[str, Any]] = {}
    for base in reversed(settings_type.__mro__):
        for name, declared in vars(base).get("__dataclass_fields__", {}).items():
            metadata[name] = declared.metadata or metadata.get(name, {})
    types = get_type_hints(settings_type)
    return {
        item.name: Setting(item.name, types[item.name], item.default, **metadata[item.name])
        for item in fields(settings_type)
        if item.init
    }


class Settings:
    """Base of frozen dataclasses whose fields are checked and converted as `setting` declares."""

    def __post_init__(self) -> None:
        for name, item in get_settings(type(self)).items():
            object.__setattr__(self, name, item.check(getattr(self, name)))


def short_repr(value: object) -> str:
    """Return the `repr` of a value, cut to 200 characters, or its type if `repr` fails.

    >>> short_repr(10**5000)
    "a <class 'int'>"
    """
    try:
        text = repr(value)
    except Exception:  # a faulty __repr__, or an integer of thousands of digits
        return f"a {type(value)}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _wrong(
    name: str, expected: str, value: object, fix: str, cls: type[StructuredError] = ArgumentError
) -> StructuredError:
    return cls(name, expected, short_repr(value), fix)


def check_seed(seed: object, *, fix: str = "pass an integer, or None for a random seed") -> int:
    """Return a seed as an int. As in NumPy and Gymnasium, any non-negative integer is a seed.

    Raises:
        ArgumentTypeError: `seed` is not an integer. Floats and bools are not integers.
        ArgumentError: `seed` is negative.

    >>> check_seed(np.int64(7)), check_seed(2**70) == 2**70
    (7, True)
    """
    expected = "None or an integer of at least 0"
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise _wrong("seed", expected, seed, fix, ArgumentTypeError)
    if seed < 0:
        raise _wrong("seed", expected, seed, fix)
    return int(seed)


def resolve_seed(seed: int | None) -> int:
    """Return the seed, or a random seed from the operating system for None.

    Raises:
        ArgumentTypeError: `seed` is neither an integer nor None.
        ArgumentError: `seed` is negative.
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return check_seed(seed)


def json_keywords(name: str, value: object, reserved: Sequence[str] = ()) -> dict[str, Any]:
    """Convert keywords to JSON values: NumPy scalars become Python ones, tuples become lists.

    Raises:
        ArgumentTypeError: `value` is not a dict with str keys, has a `reserved` key, or contains a
            value that JSON cannot represent, such as NaN. The error names the key.

    >>> json_keywords("env_kwargs", {"g": np.float32(0.5), "size": (8, 8)})
    {'g': 0.5, 'size': [8, 8]}
    """
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dict of keywords", value, "pass a dict or None", ArgumentTypeError)
    for key in reserved:
        if key in value:
            raise _wrong(name, f"no {key!r}", value, f"leave {key!r} to the trainer", ArgumentTypeError)
    keywords: dict[str, Any] = _json(name, value)
    return keywords


def _json(name: str, value: object) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    match plain:
        case Mapping():
            for key in plain:
                if not isinstance(key, str):
                    raise _wrong(name, "keys that are str", key, "rename the key", ArgumentTypeError)
            return {key: _json(f"{name}[{key!r}]", x) for key, x in plain.items()}
        case list() | tuple():
            return [_json(f"{name}[{i}]", x) for i, x in enumerate(plain)]
        case float() if math.isfinite(plain):
            return plain
        case None | bool() | int() | str():
            return plain
    expected = "a JSON value (str, finite number, bool, None, list, dict)"
    fix = "create the environment in a function, and pass the function as env"
    raise _wrong(name, expected, value, fix, ArgumentTypeError)


# By setting: the setting of a preset that it replaces.
_OVERRIDES = {"utd_ratio": "gradient_steps"}


def replaced_settings(arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the settings that other settings replace.

    >>> replaced_settings({"utd_ratio": 2.0, "tau": 0.01})
    {'gradient_steps'}
    """
    return {old for new, old in _OVERRIDES.items() if arguments.get(new) is not None}


def resolve(
    defaults: Mapping[str, Any], preset: Mapping[str, Any], arguments: Mapping[str, Any], exclude: Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return each setting and its source: an argument, else the preset, else the default.

    Args:
        defaults: Default of each setting.
        preset: Tuned settings of rl-zoo3.
        arguments: Settings that the caller passed.
        exclude: Settings of built-in policies that a custom policy does not use. The preset's
            values of these settings are ignored.

    Returns:
        Values by setting, and sources by setting: "argument", "rl-zoo3" or "default".

    Raises:
        ArgumentTypeError: An excluded setting is passed as an argument.

    >>> resolve({"gamma": 0.99, "n_steps": 2048}, {"gamma": 0.9}, {"n_steps": 8})
    ({'gamma': 0.9, 'n_steps': 8}, {'gamma': 'rl-zoo3', 'n_steps': 'argument'})
    """
    for name in exclude:
        if name in arguments:
            raise ArgumentTypeError(
                name,
                "no settings of the built-in policy together with a custom policy",
                repr(arguments[name]),
                "remove one of the two arguments",
            )
    excluded_names = {*exclude, *replaced_settings(arguments)}
    tuned = {name: value for name, value in preset.items() if name not in excluded_names}
    config_sources = dict.fromkeys(defaults, "default")
    config_sources |= dict.fromkeys(tuned, "rl-zoo3") | dict.fromkeys(arguments, "argument")
    return {**defaults, **tuned, **arguments}, config_sources


def hint(name: str, known: Iterable[str], default: str | None = None) -> str:
    """Return a hint with known names similar to `name`, else `default` or a list of all names.

    Case and version suffixes such as "-v1" are ignored.

    >>> hint("cartpole", ["Acrobot-v1", "CartPole-v1"]), hint("x", ["train", "eval"])
    ("did you mean 'CartPole-v1'?", 'choose from train, eval')
    """
    names = list(known)
    by_stem = {_stem(candidate): candidate for candidate in sorted(names)}
    if close := difflib.get_close_matches(_stem(name), by_stem):
        return f"did you mean {' or '.join(repr(by_stem[stem]) for stem in close)}?"
    return default or f"choose from {', '.join(names)}"


def _stem(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.lower())


def check_keywords(
    names: Iterable[str], known: Iterable[str], owner: str, hints: Mapping[str, str] | None = None
) -> None:
    """Check that all names of keyword arguments are known.

    Args:
        names: Names of the keywords that the caller passed.
        known: Names of the accepted keywords.
        owner: Name of the class or function that accepts the keywords.
        hints: Hints for names that callers often pass by mistake.

    Raises:
        ArgumentTypeError: A name is unknown; the hint suggests similar names.

    >>> check_keywords(["gama"], ["gamma", "n_steps"], owner="PPOTrainer")
    Traceback (most recent call last):
    rlox.ArgumentTypeError: gama: expected a setting of PPOTrainer, got an unknown name; did you \
mean 'gamma'?
    """
    known = list(known)
    for name in map(str, names):
        if name not in known:
            fix = (hints or {}).get(name) or hint(name, known)
            raise ArgumentTypeError(name, f"a setting of {owner}", "an unknown name", fix)


# By URL scheme in `actors`: prefix of the workers' addresses. "grpcs" means TLS.
SCHEMES = {"grpc": "http://", "grpcs": "https://"}
WAITS = ("connect_timeout", "keepalive_timeout", "reply_timeout", "recovery_timeout")
_DAY = 86_400.0


def worker_addresses(actors: str) -> tuple[list[str], dict[str, float]] | None:
    """Return the addresses and the timeouts in seconds of gRPC workers; None without workers.

    Raises:
        ArgumentError: An address has no host or no valid port, or a timeout is unknown, repeated,
            or outside (0, 86400].

    >>> worker_addresses("grpc://127.0.0.1:50051,worker:50051?reply_timeout=60")
    (['http://127.0.0.1:50051', 'http://worker:50051'], {'reply_timeout': 60.0})
    >>> worker_addresses("threads")
    """
    scheme, _, rest = actors.partition("://")
    workers, _, query = rest.partition("?")
    if scheme not in SCHEMES or not all(workers.split(",")) or "/" in workers:
        return None
    for worker in workers.split(","):
        host, _, port = worker.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 2**16:
            raise ArgumentError(
                "actors",
                f"workers as host:port, such as '{scheme}://host:50051,host:50052'",
                f"{worker!r} in {actors!r}",
                "pass the address that the worker prints when it starts",
            )
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
        waits = {name: float(text) for name, text in pairs}
        valid = {*waits} <= {*WAITS} and len(pairs) == len(waits)
        valid = valid and all(0 < seconds <= _DAY for seconds in waits.values())
    except ValueError:
        valid = False
    if not valid:
        raise ArgumentError(
            "actors",
            f"{', '.join(WAITS)} after '?', each in seconds, above 0 and at most one day",
            repr(actors),
            "write the timeouts as in '?reply_timeout=60&recovery_timeout=60'",
        )
    return [SCHEMES[scheme] + worker for worker in workers.split(",")], waits
