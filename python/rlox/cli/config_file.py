"""YAML files of settings, read as data and nothing else.

Numbers are what YAML 1.2 calls numbers: 1e-3 is one, and 010 is 10; `on` and `no` are words. Tags,
aliases and keys that come twice are refused. JSON is YAML, so a run's `config.json` is such a file.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from rlox.cli.mistakes import UsageError, hint, missing
from rlox.files import read_small

LARGEST = 1 << 20  # bytes
DEEPEST = 50  # lists and mappings within each other
_SCALARS = (
    ("null", r"~|null|Null|NULL|", lambda word: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", lambda word: word == "true"),
    ("int", r"[-+]?[0-9](?:_?[0-9])*", int),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9](?:_?[0-9])*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        lambda word: float(re.sub(r"\.(?=[a-z])", "", word)),
    ),
)


def read_yaml(text: str, where: str) -> Any:
    """The content of a YAML document.

    Args:
        text: The document.
        where: Its name, for messages.

    Raises:
        ModuleNotFoundError: PyYAML is not installed.
        UsageError: It is no YAML, or has a tag, an alias or a key twice; the line is named.
    """
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise missing("yaml", error) from error
    try:
        _expect_data(yaml, text, where)
        return yaml.load(text, Loader=_loader(yaml, where))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UsageError(
            f"{where}{line}: expected YAML, got other ({problem}); correct it"
        ) from error


def read_scalar(word: str, where: str) -> Any:
    """What a word is in YAML: 9.81 a number, true a flag, [1, 2] a list."""
    return read_yaml(word, where)


def read_config(path: str, flag: str = "--config") -> dict[str, Any]:
    """The settings of a file, with _ for the - of flags.

    Args:
        path: The file.
        flag: What named it, for messages.

    Raises:
        OSError: It cannot be read.
        UsageError: It is no YAML of keys and values.
    """
    file = Path(path)
    if not path or not file.exists() or file.is_dir():
        near = [
            one.name for one in file.parent.glob("*") if one.suffix in (".yaml", ".yml", ".json")
        ]
        said = hint(file.name, sorted(near)) if near else "pass the path of a YAML file"
        raise UsageError(f"{flag}: expected a file, got {path!r}, which is not there; {said}")
    try:
        data = read_small(file, LARGEST)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: expected UTF-8, got other ({error}); save it as that") from error
    content = read_yaml(text, path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(
            f"{path}: expected keys and values, got a {type(content).__name__}; write key: value"
        )
    return plain_names(content, path)


def plain_names(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Keys and values with _ for the - of flags.

    Args:
        content: As they were written.
        where: The place, for messages.

    Raises:
        UsageError: Two keys are one then.

    >>> plain_names({"n-steps": 8, "gamma": 0.9}, "a.yaml")
    {'n_steps': 8, 'gamma': 0.9}
    """
    named: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name in named:
            other = next(one for one in content if one.replace("-", "_") == name)
            raise UsageError(
                f"{where}: expected {name!r} once, got it as {other!r} and as {key!r}; remove one"
            )
        named[name] = value
    return named


def _expect_data(yaml: Any, text: str, where: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        line = f"{where}, line {event.start_mark.line + 1}"
        if depth > DEEPEST:
            raise UsageError(f"{line}: expected at most {DEEPEST} levels, got more; flatten it")
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{line}: expected no alias, got *{event.anchor}; write it out")
        if getattr(event, "tag", None) is not None:
            raise UsageError(f"{line}: expected no tag, got {event.tag}; leave it out")


def _loader(yaml: Any, where: str) -> Any:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own way

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = self.construct_object(key_node, deep=True)
                line = f"{where}, line {key_node.start_mark.line + 1}"
                if not isinstance(key, str):
                    raise UsageError(f"{line}: expected a name as key, got {key!r}; quote it")
                if key in made:
                    raise UsageError(f"{line}: expected {key!r} once, got it twice; remove one")
                made[key] = self.construct_object(value_node, deep=True)
            return made

    for name, pattern, made in _SCALARS:
        tag = f"tag:yaml.org,2002:{name}"
        Loader.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z"), None)
        Loader.add_constructor(tag, lambda _, node, made=made: made(node.value.lower()))
    Loader.add_constructor(
        "tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node, deep=True)
    )
    return Loader
