"""Settings of algorithms: checked, and put together from what is known and what is asked for."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

import numpy as np


def expect_whole(config: object, names: Iterable[str], low: int = 1) -> None:
    """Each of these fields is an integer of at least `low`.

    Raises:
        ValueError: One is not; it is named.
    """
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < low:
            _refuse(name, f"an integer of at least {low}", value)


def expect_between(
    config: object, names: Iterable[str], low: float, high: float = math.inf
) -> None:
    """Each of these fields is None, where that is its default, or a finite number in [low, high].

    Raises:
        ValueError: One is not; it is named.
    """
    defaults = {field.name: field.default for field in fields(config)}  # type: ignore[arg-type]  # configs are dataclasses
    for name in names:
        value = getattr(config, name)
        if value is None and defaults[name] is None:
            continue
        number = isinstance(value, int | float) and math.isfinite(value)
        if not number or not low <= value <= high:
            upper = f"[{low}, {high}]" if high < math.inf else f"at least {low}"
            _refuse(name, f"a finite number {'in' if high < math.inf else 'of'} {upper}", value)


def expect_one_of(config: object, names: Iterable[str], choices: Sequence[str]) -> None:
    """Each of these fields is one of the choices.

    Raises:
        ValueError: One is not; it is named.
    """
    for name in names:
        if getattr(config, name) not in choices:
            _refuse(name, " or ".join(map(repr, choices)), getattr(config, name))


def expect_flags(config: object) -> None:
    """Each field that is True or False by default is one of them.

    Raises:
        ValueError: One is not; it is named.
    """
    for field in fields(config):  # type: ignore[arg-type]  # configs are dataclasses
        value = getattr(config, field.name)
        if isinstance(field.default, bool) and not isinstance(value, bool):
            _refuse(field.name, "True or False", value)


def whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    """A sequence of integers of at least 1, as a tuple.

    Raises:
        ValueError: It is something else.

    >>> whole_numbers("net_arch", [64, 64])
    (64, 64)
    """
    if not isinstance(value, Sequence) or not all(isinstance(x, int) and x >= 1 for x in value):
        _refuse(name, "a sequence of integers of at least 1", value)
    return tuple(value)


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    raise ValueError(f"{name}: expected {expected}, got {value!r}; change the setting")


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
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
            hint = hint or f"it has {', '.join(known)}"
            raise TypeError(f"{what} has no setting {name!r}; {hint}")


def chosen_seed(seed: int | None) -> int:
    """The seed, or for None one from the operating system, so that every run can be repeated.

    Raises:
        ValueError: It is no integer, or below 0.
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if int(seed) != seed or seed < 0:
        _refuse("seed", "None or an integer of at least 0", seed)
    return int(seed)


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
