"""An algorithm's settings as flags: each with its meaning, and its value where it is not given."""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from rlox.cli.mistakes import UsageError
from rlox.configs import setting_docs
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.presets import preset

_KINDS = {"gaussian": GaussianNoise, "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise}
_NOISE = "action_noise"


def settings_type(config_type: type[Any], algorithm: str, env: str | None) -> Any:
    """A TypedDict of a config's fields of which none need be given, with tyro's help for each.

    Args:
        config_type: One of `rlox.configs`.
        algorithm: Its name.
        env: Whose preset's values the help tells; None: the defaults.
    """
    about, types = setting_docs(config_type), get_type_hints(config_type)
    tuned = preset(algorithm, env) if env else {}
    flags: dict[str, Any] = {}
    for field in fields(config_type):
        source = "rl-zoo3" if field.name in tuned else "default"
        value = tuned.get(field.name, field.default)
        if field.name == _NOISE:
            flags |= _noise_flags(about[field.name], source, value)
        else:
            shown = f"({source}: {_word(value)})"
            flags[field.name] = _flag(types[field.name], about[field.name], shown)
    make: Any = TypedDict
    return make(f"{config_type.__name__}Flags", flags, total=False)


def _flag(kind: Any, meaning: str, shown: str, name: str | None = None) -> Any:
    import tyro

    return Annotated[kind, tyro.conf.arg(name=name, help=meaning, help_behavior_hint=shown)]


def flat(kind: Any) -> Any:
    """A group of flags whose names do not begin with the group's."""
    import tyro

    return Annotated[kind, tyro.conf.OmitArgPrefixes]


def _noise_flags(meaning: str, source: str, value: Any) -> dict[str, Any]:
    """The noise's kind and the numbers of all kinds, as `action_noise.sigma`."""
    name = "none" if value is None else value.kind
    kinds: Any = Literal[(*_KINDS, "none")]
    flags = {_NOISE: _flag(kinds, meaning, f"({source}: {name})")}
    own = {} if value is None else asdict(value)
    for kind in _KINDS.values():
        said = dict(re.findall(r"^\s+(\w+): (.+)$", kind.__doc__ or "", re.MULTILINE))
        for field in fields(kind):
            if field.init:
                shown = f"({source}: {own.get(field.name, field.default)})"
                flag = f"{_NOISE}.{field.name}"
                flags[flag] = _flag(float, said[field.name], shown, flag)
    return flags


def _word(value: Any) -> str:
    """A value as it is written after a flag."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "nothing"
    return str(value)


def with_noise(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with `action_noise` made of its flags.

    Args:
        given: What the flags said.
        before: What they change: settings of a file, or of a preset.

    Raises:
        UsageError: Numbers of a noise that is not there, or that has no such number.
        TypeError, ValueError: As the noise does.
    """
    numbers = {k.removeprefix(f"{_NOISE}."): x for k, x in given.items() if k.startswith(_NOISE)}
    settings = {k: x for k, x in given.items() if not k.startswith(_NOISE)}
    if not numbers:
        return settings
    base = before.get(_NOISE)
    known = dict(base) if isinstance(base, Mapping) else {} if base is None else asdict(base)
    kind = numbers.pop(_NOISE, known.get("kind", "none"))
    if kind not in _KINDS:
        if not numbers:
            return {**settings, _NOISE: None}
        raise UsageError(
            f"--action-noise: expected {' or '.join(_KINDS)} beside --action-noise."
            f"{min(numbers)}, got none; say which"
        )
    made = {} if kind != known.get("kind") else {k: x for k, x in known.items() if k != "kind"}
    has = {field.name for field in fields(_KINDS[kind]) if field.init}
    for name in numbers:
        if name not in has:
            raise UsageError(
                f"--action-noise.{name}: expected {' or '.join(sorted(has))} of {kind} noise, got "
                f"{name}; leave it out, or choose another --action-noise"
            )
    return {**settings, _NOISE: _KINDS[kind](**made | numbers)}
