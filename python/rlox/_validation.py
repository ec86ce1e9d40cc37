"""Settings and other arguments: checked, and put together from what is known and asked for."""

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from rlox._errors import ArgumentError, ArgumentTypeError, StructuredError

ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")


def check_int(
    name: str, value: Any, low: int, extra_value: int | None = None, *, fix: str = ""
) -> int:
    """A whole number of at least `low`, or equal to `extra_value`, as a plain int.

    Raises:
        TypeError: It is no integer; floats, whole or not, True and False are none.
        ValueError: It is too small.

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


def check_float(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, fix: str = ""
) -> float:
    """A finite number in [low, high] as a plain float.

    Raises:
        TypeError: It is no number; True and False are none.
        ValueError: It is outside, NaN or infinite.

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
    name: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> float | tuple[float, ...]:
    """A finite number in [low, high], or an array of such as a tuple of them, row by row.

    Raises:
        TypeError: Something in it is no number.
        ValueError: One is outside, NaN or infinite; there is none.

    >>> check_float_or_tuple("sigma", np.array([[0.5], [1.0]]), 0, 1)
    (0.5, 1.0)
    """
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        return check_float(name, value, low, high)
    try:
        values = np.asarray(value).tolist()
    except ValueError as error:  # rows of different lengths
        raise _wrong(name, "a number, or an array of them", value, "pass one number") from error
    if not isinstance(values, list):
        return check_float(name, values, low, high)
    flat = np.ravel(np.array(values, object))
    if len(flat) == 0:
        raise _wrong(name, "a number, or an array of them", value, "pass one number")
    return tuple(check_float(f"{name}[{i}]", x, low, high) for i, x in enumerate(flat))


def check_bool(name: str, value: Any, *, fix: str = "pass True or False") -> bool:
    """True or False, as a plain bool.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise _wrong(name, "True or False", value, fix)
    return bool(value)


def check_str(name: str, value: Any, choices: Sequence[str] = ()) -> str:
    """A plain str, one of `choices` if there are any.

    Raises:
        TypeError: It is no str.
        ValueError: It is none of them.
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


def check_path(name: str, value: Any) -> Path | None:
    """A path, or None.

    Raises:
        TypeError: It is neither.
    """
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise _wrong(
            name, "a path or None", value, "pass a str or a pathlib.Path", ArgumentTypeError
        )
    return Path(value)


def check_int_tuple(name: str, value: Any) -> tuple[int, ...]:
    """A sequence of integers of at least 1, as a tuple of plain ints.

    Raises:
        ValueError: It is something else.

    >>> check_int_tuple("net_arch", np.array([64, 64]))
    (64, 64)
    """
    try:
        if not isinstance(value, str):
            return tuple(check_int(name, x, 1) for x in value)
    except (TypeError, ValueError):
        pass
    raise _wrong(name, "a sequence of integers of at least 1", value, "pass for example (64, 64)")


def check_fields(
    config: object, check: Callable[..., Any], names: Iterable[str], *args: Any
) -> None:
    """Replaces each of these fields of a frozen config by `check(name, value, *args)`.

    None stays where it is the field's default.

    Raises:
        TypeError, ValueError: As `check` does.
    """
    defaults = {field.name: field.default for field in fields(config)}  # type: ignore[arg-type]  # configs are dataclasses
    for name in names:
        value = getattr(config, name)
        if value is not None or defaults[name] is not None:
            object.__setattr__(config, name, check(name, value, *args))


def get_bool_fields(config: object) -> list[str]:
    """The names of the fields that are True or False by default."""
    config_fields = fields(config)  # type: ignore[arg-type]  # configs are dataclasses
    return [field.name for field in config_fields if isinstance(field.default, bool)]


def short_repr(value: object) -> str:
    """What came, for a message: its `repr`, cut short; its type where it has none.

    >>> short_repr(10**5000)
    "a <class 'int'>"
    """
    try:
        text = repr(value)
    except Exception:  # of the caller's objects, and integers of thousands of digits
        return f"a {type(value)}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _wrong(
    name: str, expected: str, value: object, fix: str, cls: type[StructuredError] = ArgumentError
) -> StructuredError:
    return cls(name, expected, short_repr(value), fix)


def check_seed(seed: Any, *, fix: str = "pass an integer, or None for any") -> int:
    """A seed as a plain int: of any size, as NumPy and Gymnasium take them.

    Raises:
        TypeError: It is no integer; floats, True and False are none.
        ValueError: It is below 0.

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
    """The seed, or for None one from the operating system, so that every run can be repeated.

    Raises:
        TypeError, ValueError: As `check_seed` does.
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return check_seed(seed)


def json_keywords(name: str, value: Any, reserved: Sequence[str] = ()) -> dict[str, Any]:
    """Keywords as JSON holds them: NumPy's numbers become plain ones, tuples become lists.

    Raises:
        TypeError: It is no dict with str keys, has one that is `reserved`, or holds what JSON does
            not have, NaN for instance; the key is named.

    >>> json_keywords("env_kwargs", {"g": np.float32(0.5), "size": (8, 8)})
    {'g': 0.5, 'size': [8, 8]}
    """
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dict of keywords", value, "pass a dict or None", ArgumentTypeError)
    for key in reserved:
        if key in value:
            raise _wrong(
                name, f"no {key!r}", value, f"leave {key!r} to the trainer", ArgumentTypeError
            )
    return {key: _json(f"{name}[{key!r}]", content) for key, content in _str_items(name, value)}


def _str_items(name: str, value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    for key in value:
        if not isinstance(key, str):
            raise _wrong(name, "keys that are str", key, "rename the key", ArgumentTypeError)
    return list(value.items())


def _json(name: str, value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    match plain:
        case Mapping():
            return {key: _json(f"{name}[{key!r}]", x) for key, x in _str_items(name, plain)}
        case list() | tuple():
            return [_json(f"{name}[{i}]", x) for i, x in enumerate(plain)]
        case float() if math.isfinite(plain):
            return plain
        case None | bool() | int() | str():
            return plain
    expected = "what JSON can hold (str, finite numbers, bools, None, lists, dicts)"
    fix = "make the environments in a function of your own and pass that as env"
    raise _wrong(name, expected, value, fix, ArgumentTypeError)


# A setting, and the one it is given in place of.
_OVERRIDES = {"utd_ratio": "gradient_steps"}


def resolve(
    defaults: Mapping[str, Any],
    preset: Mapping[str, Any],
    arguments: Mapping[str, Any],
    exclude: Iterable[str] = (),
) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments before rl-zoo3's settings before defaults: the settings, and where each is from.

    `exclude` names settings of built-in policies, where a policy of one's own takes their place:
    the preset's are left out. So is what an argument stands in place of.

    Raises:
        TypeError: One of those is given.

    >>> resolve({"gamma": 0.99, "n_steps": 2048}, {"gamma": 0.9}, {"n_steps": 8})
    ({'gamma': 0.9, 'n_steps': 8}, {'gamma': 'rl-zoo3', 'n_steps': 'argument'})
    """
    for name in exclude:
        if name in arguments:
            raise ArgumentTypeError(
                name,
                "no settings of the built-in policy beside a policy of your own",
                repr(arguments[name]),
                "leave one of them out",
            )
    replaced = {old for new, old in _OVERRIDES.items() if arguments.get(new) is not None}
    excluded_names = {*exclude, *replaced}
    tuned = {name: value for name, value in preset.items() if name not in excluded_names}
    config_sources = dict.fromkeys(defaults, "default")
    config_sources |= dict.fromkeys(tuned, "rl-zoo3") | dict.fromkeys(arguments, "argument")
    return {**defaults, **tuned, **arguments}, config_sources


def hint(name: str, known: Iterable[str], default: str | None = None) -> str:
    """Return the known names that are close to a misspelled one, else `default` or all of them.

    Case and version suffixes such as "-v1" do not count.

    >>> hint("cartpole", ["Acrobot-v1", "CartPole-v1"]), hint("x", ["train", "eval"])
    ("did you mean 'CartPole-v1'?", 'there are train, eval')
    """
    names = list(known)
    by_stem = {_stem(candidate): candidate for candidate in sorted(names)}
    if close := difflib.get_close_matches(_stem(name), by_stem):
        return f"did you mean {' or '.join(repr(by_stem[stem]) for stem in close)}?"
    return default or f"there are {', '.join(names)}"


def _stem(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.lower())


def check_keywords(
    names: Iterable[str], known: Iterable[str], owner: str, hints: Mapping[str, str] | None = None
) -> None:
    """Check that all names of keyword arguments are known.

    Args:
        names: The keywords passed.
        known: The keywords that exist.
        owner: The class or function that takes them.
        hints: Fixes for names that are often passed by mistake.

    Raises:
        TypeError: A name is unknown; close ones are suggested.

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


# Scheme of the setting, and prefix of each address: without TLS, and with TLS.
SCHEMES = {"grpc": "http://", "grpcs": "https://"}
WAITS = ("connect_timeout", "keepalive_timeout", "reply_timeout", "recovery_timeout")
_DAY = 86_400.0


def worker_addresses(actors: str) -> tuple[list[str], dict[str, float]] | None:
    """Return addresses and timeouts in seconds; None if `actors` names no workers.

    Raises:
        ValueError: An address without host or port, or a timeout that cannot be set.

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
                "a worker prints its address when it starts",
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
            f"seconds for {', '.join(WAITS)} after '?', more than 0 and at most a day, such as "
            "'?reply_timeout=60&recovery_timeout=60'",
            repr(actors),
            "write the seconds as a number after '='",
        )
    return [SCHEMES[scheme] + worker for worker in workers.split(",")], waits
