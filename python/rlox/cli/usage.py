"""The words of a command line, as a command's arguments. Numbers that are none are told so."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rlox.cli.mistakes import UsageError, missing

try:
    import tyro
    from tyro import constructors
except ModuleNotFoundError as error:  # commands without words do without it
    _MISSING: ModuleNotFoundError | None = error
    POSITIONAL: Any = None
else:
    _MISSING = None
    POSITIONAL = tyro.conf.Positional
    """In `Annotated`: a word without a flag."""

T = TypeVar("T")


def named(metavar: str, *, hint: str | None = None) -> Any:
    """In `Annotated`: what the help calls an argument's value, and says behind its meaning."""
    return None if _MISSING else tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


def parse(arguments: Callable[..., T], command: str, words: Sequence[str]) -> T:
    """Makes a dataclass of the words after a command; its fields are the flags.

    Help and mistakes are written by tyro, which then ends the program.

    Args:
        arguments: The dataclass, whose fields' comments are their meanings.
        command: What stands before the words.
        words: The words.

    Raises:
        ModuleNotFoundError: tyro is not installed; without words, defaults do without it.
        SystemExit: 0 after help, 2 after a mistake.
    """
    if not words:
        try:
            return arguments()
        except TypeError:  # something is needed, which the parser names
            pass
    if _MISSING is not None:
        raise missing("tyro", _MISSING) from _MISSING
    if os.environ.get("NO_COLOR") or not sys.stderr.isatty():
        tyro._experimental_options["ansi_codes"] = False
    if {"-h", "--help"} & {*words}:
        words = ["--help"]  # else the help leaves out what stood before
    return tyro.cli(arguments, prog=f"rlox {command}", args=words, registry=_numbers())


def _numbers() -> Any:
    """How tyro reads numbers: with words of ours where it is none."""
    registry = constructors.ConstructorRegistry()

    def rule(kind: Any, read: Callable[[str], Any], metavar: str, is_one: Any) -> None:
        @registry.primitive_rule
        def _(about: constructors.PrimitiveTypeInfo) -> Any:
            if about.type != kind:
                return None
            return constructors.PrimitiveConstructorSpec(
                nargs=1,
                metavar=metavar,
                instance_from_str=lambda words: read(words[0]),
                is_instance=lambda instance: isinstance(instance, is_one),
                str_from_instance=lambda instance: [str(instance)],
            )

    for kind, read, name in ((int, whole_number, "INT"), (float, real_number, "FLOAT")):
        rule(kind, read, name, kind)
        rule(kind | None, _or_none(read), f"{{None}}|{name}", kind | None)
    return registry


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda word: None if word in ("None", "none", "null") else read(word)


def whole_number(word: str) -> int:
    """An integer as Python writes it, 100_000 for one.

    Raises:
        ValueError: It is none.

    >>> whole_number("100_000")
    100000
    >>> whole_number("1e5")
    Traceback (most recent call last):
    ValueError: expected an integer, got '1e5'; write 100000
    """
    try:
        return int(word)
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    whole = math.isfinite(number) and number.is_integer()
    fix = f"write {int(number)}" if whole else "write it in digits"
    raise ValueError(f"expected an integer, got {word!r}; {fix}")


def real_number(word: str) -> float:
    """A finite number.

    Raises:
        ValueError: It is none.
    """
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {word!r}; write one such as 3e-4")
    return number


def given(name: str, words: Sequence[str]) -> str | None:
    """The word after a flag, or behind its "="; None where the flag is not there.

    >>> given("total_timesteps", ["--seed", "1", "--total-timesteps=8"])
    '8'
    """
    flag = "--" + name.replace("_", "-")
    for word, after in zip(words, [*words[1:], ""], strict=False):
        said, equal, value = word.partition("=")
        if said.replace("_", "-") == flag:
            return value if equal else after
    return None


def dotted(name: str, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Takes `--name.KEY VALUE` and `--name.KEY=VALUE` out of the words.

    Raises:
        UsageError: A key or its value is missing.

    >>> dotted("env_kwargs", ["--env-kwargs.g", "9.8", "--seed", "1"])
    ({'g': '9.8'}, ['--seed', '1'])
    """
    flag = "--" + name.replace("_", "-")
    taken: dict[str, str] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        said, equal, value = word.partition("=")
        start, dot, key = said.partition(".")
        if start.replace("_", "-") != flag:
            rest.append(word)
            continue
        if not dot or not key:
            raise UsageError(
                f"{flag}: expected a name behind a dot, got {word!r}; {flag}.NAME VALUE"
            )
        taken[key] = value if equal else _next(left, said)
    return taken, rest


def _next(words: Iterator[str], flag: str) -> str:
    word = next(words, None)
    if word is None or word.startswith("--"):
        got = "none" if word is None else repr(word)
        raise UsageError(f"{flag}: expected a value, got {got}; write {flag} VALUE")
    return word
