"""Which algorithm, and which of its settings, a config file and the words before flags say."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rlox.cli.config_file import plain_names
from rlox.cli.mistakes import UsageError, hint
from rlox.cli.saved import trainer_of, trainers
from rlox.keywords import refuse_unknown
from rlox.settings import shown

KEYWORDS = "env_kwargs"
# What a run's `config.json` says beside what decides: read over, so that it is a config file.
_TOLD = ("sources", "spaces", "versions", "own_policy", "own_features")


def algorithm_of(
    file: Mapping[str, Any], words: list[str], command: str = "train"
) -> tuple[str | None, list[str]]:
    """The algorithm, None where only help is asked for, and the words after it."""
    name = file.get("algorithm")
    if words and not words[0].startswith("-"):
        name, words = words[0], words[1:]
    if name is None and {"-h", "--help"} & {*words}:
        return None, words
    if name not in trainers():
        near = (
            hint(str(name), trainers()) if name is not None else f"rlox {command} ppo CartPole-v1"
        )
        expected = f"an algorithm ({', '.join(trainers())})"
        raise UsageError(f"ALGORITHM: expected {expected}, got {name or 'none'}; {near}")
    return name, words


def settings_of(file: Mapping[str, Any], algorithm: str, besides: Sequence[str]) -> dict[str, Any]:
    """The settings in a file, at its top or under `settings`.

    Args:
        file: Its content.
        algorithm: Whose settings.
        besides: What else the file may say.

    Raises:
        UsageError: A key that there is not, or one in both places; a trainer that a file alone
            cannot make.
    """
    config_type = trainer_of(algorithm).config_type
    known = [field.name for field in fields(config_type)]
    others = ["algorithm", "settings", KEYWORDS, *besides]
    for name in ("own_policy", "own_features"):
        if file.get(name):
            raise UsageError(
                f"{name}: expected settings, got those of a run with a network of its own, which "
                "no file holds; train it in Python"
            )
    top = {name: value for name, value in file.items() if name not in (*others, *_TOLD)}
    inner = plain_names(mapping_of(file, "settings"), "--config, settings")
    try:
        refuse_unknown(top, [*known, *others], algorithm)
        refuse_unknown(inner, known, algorithm)
    except TypeError as error:
        raise UsageError(f"--config: {error}") from error
    for name in inner:
        if name in top:
            raise UsageError(
                f"--config: expected {name!r} once, got it at the top ({shown(top[name])}) and "
                f"under settings ({shown(inner[name])}); remove one"
            )
    return {**top, **inner}


def env_of(file: Mapping[str, Any]) -> Any:
    """The environment that a file names, for where the command line names none.

    Raises:
        UsageError: A module would have to be imported, which what a file says never does.
    """
    env = file.get("env")
    if isinstance(env, str) and ":" in env:
        raise UsageError(
            f"--config, env: expected an id alone, as files import nothing, got {shown(env)}; "
            f"pass {shown(env)} as ENV on the command line if you trust its module"
        )
    return env


def mapping_of(file: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a file says under a name, which are keys and values."""
    content = file.get(name)
    if content is not None and not isinstance(content, dict):
        raise UsageError(
            f"--config, {name}: expected keys and values, got {content!r}; write {name}: {{}}"
        )
    return dict(content or {})
