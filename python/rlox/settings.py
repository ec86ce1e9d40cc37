"""Settings and other arguments: checked, and put together from what is known and asked for."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np

FIX = "change the setting"


def whole(name: str, value: Any, low: int, also: int | None = None, *, fix: str = FIX) -> int:
    """A whole number of at least `low`, or equal to `also`, as a plain int.

    Raises:
        TypeError: It is no number; True and False are none.
        ValueError: It is a fraction, not finite or too small.

    >>> whole("n_steps", np.int64(8), low=1), whole("total_timesteps", 1e5, low=1)
    (8, 100000)
    """
    expected = f"an integer of at least {low}"
    if also is not None:
        expected = f"{also} or {expected}"
    _expect_number(name, expected, value, fix)
    if isinstance(value, Integral) or float(value).is_integer():
        plain = int(value)
        if plain >= low or plain == also:
            return plain
    raise _wrong(name, expected, value, fix)


def number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, fix: str = FIX
) -> float:
    """A finite number in [low, high] as a plain float.

    Raises:
        TypeError: It is no number; True and False are none.
        ValueError: It is outside, NaN or infinite.

    >>> number("gamma", np.float32(0.5), 0, 1)
    0.5
    """
    expected = "a finite number"
    if high < math.inf:
        expected += f" in [{low}, {high}]"
    elif low > -math.inf:
        expected += f" of at least {low}"
    _expect_number(name, expected, value, fix)
    try:
        plain = float(value)
    except OverflowError:
        plain = math.inf
    if not math.isfinite(plain) or not low <= plain <= high:
        raise _wrong(name, expected, value, fix)
    return plain


def flag(name: str, value: Any, *, fix: str = FIX) -> bool:
    """True or False, as a plain bool.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise _wrong(name, "True or False", value, fix)
    return bool(value)


def text(name: str, value: Any, choices: Sequence[str] = ()) -> str:
    """A plain str, one of `choices` if there are any.

    Raises:
        TypeError: It is no str.
        ValueError: It is none of them.
    """
    names = " or ".join(map(repr, choices))
    if len(choices) > 2:
        names = "one of " + ", ".join(choices)
    if not isinstance(value, str):
        raise _wrong(name, names or "a str", value, FIX, TypeError)
    if choices and value not in choices:
        raise _wrong(name, names, value, FIX)
    return str(value)


def whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    """A sequence of integers of at least 1, as a tuple of plain ints.

    Raises:
        ValueError: It is something else.

    >>> whole_numbers("net_arch", np.array([64, 64]))
    (64, 64)
    """
    try:
        if not isinstance(value, str):
            return tuple(whole(name, x, 1) for x in value)
    except (TypeError, ValueError):
        pass
    raise _wrong(name, "a sequence of integers of at least 1", value, FIX)


def settle(config: object, check: Callable[..., Any], names: Iterable[str], *args: Any) -> None:
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


def flags_of(config: object) -> list[str]:
    """The names of the fields that are True or False by default."""
    about = fields(config)  # type: ignore[arg-type]  # configs are dataclasses
    return [field.name for field in about if isinstance(field.default, bool)]


def _expect_number(name: str, expected: str, value: Any, fix: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, expected, value, fix, TypeError)


def _wrong(
    name: str, expected: str, value: object, fix: str, error: type[Exception] = ValueError
) -> Exception:
    got = repr(value)
    got = got if len(got) <= 200 else f"{got[:200]}..."
    return error(f"{name}: expected {expected}, got {got}; {fix}")


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Names the first keyword that is not known, and near ones that are.

    Raises:
        TypeError: There is one.

    >>> refuse_unknown(["gama"], ["gamma", "n_steps"], what="PPOTrainer")
    Traceback (most recent call last):
    TypeError: PPOTrainer has no setting 'gama'; did you mean 'gamma'?
    """
    known = list(known)
    for name in given:
        if name not in known:
            near = [x for x in known if x.startswith(name) or _initials(x) == name]
            near = near or difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
            hint = hint or f"it has {', '.join(known)}"
            raise TypeError(f"{what} has no setting {name!r}; {hint}")


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


def chosen_seed(seed: int | None) -> int:
    """The seed, or for None one from the operating system, so that every run can be repeated.

    Raises:
        TypeError: It is no number.
        ValueError: It is no integer, or below 0.
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    try:
        return whole("seed", seed, 0)
    except (TypeError, ValueError) as error:
        expected, fix = "None or an integer of at least 0", "pass an integer, or None for any"
        raise _wrong("seed", expected, seed, fix, type(error)) from None


def json_keywords(name: str, value: Any, taken: Sequence[str] = ()) -> dict[str, Any]:
    """Keywords as JSON holds them: NumPy's numbers become plain ones, tuples become lists.

    Raises:
        TypeError: It is no dict with str keys, has one that is `taken`, or holds what JSON does
            not have, NaN for instance; the key is named.

    >>> json_keywords("env_kwargs", {"g": np.float32(0.5), "size": (8, 8)})
    {'g': 0.5, 'size': [8, 8]}
    """
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dict of keywords", value, "pass a dict or None", TypeError)
    for key in taken:
        if key in value:
            raise _wrong(name, f"no {key!r}", value, f"leave {key!r} to the trainer", TypeError)
    return {key: _json(f"{name}[{key!r}]", content) for key, content in _str_items(name, value)}


def _str_items(name: str, value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    for key in value:
        if not isinstance(key, str):
            raise _wrong(name, "keys that are str", key, "rename the key", TypeError)
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
    raise _wrong(name, expected, value, fix, TypeError)


def resolve(
    defaults: Mapping[str, Any],
    preset: Mapping[str, Any],
    given: Mapping[str, Any],
    without: Iterable[str] = (),
) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments before rl-zoo3's settings before defaults: the settings, and where each is from.

    `without` names settings of built-in policies, where a policy of one's own takes their place:
    the preset's are left out.

    Raises:
        TypeError: One of those is given.

    >>> resolve({"gamma": 0.99, "n_steps": 2048}, {"gamma": 0.9}, {"n_steps": 8})
    ({'gamma': 0.9, 'n_steps': 8}, {'gamma': 'rl-zoo3', 'n_steps': 'argument'})
    """
    for name in without:
        if name in given:
            raise TypeError(
                f"{name}: expected no settings of the built-in policy beside a policy of your own, "
                f"got {given[name]!r}; leave one of them out"
            )
    tuned = {name: value for name, value in preset.items() if name not in without}
    sources = dict.fromkeys(defaults, "default")
    sources |= dict.fromkeys(tuned, "rl-zoo3") | dict.fromkeys(given, "argument")
    return {**defaults, **tuned, **given}, sources
