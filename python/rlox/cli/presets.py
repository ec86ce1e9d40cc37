"""`rlox presets`: tuned settings, listed, and each shown as a file for `rlox train --config`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rlox.cli.mistakes import UsageError, hint
from rlox.cli.output import columns, say, say_json
from rlox.cli.usage import POSITIONAL, named, parse
from rlox.presets import names, preset, show


@dataclass
class Presets:
    """List rl-zoo3's tuned settings, which trainers take on their own, or show one of them.

    What is shown is a YAML file for rlox train --config.
    """

    algorithm: Annotated[str | None, POSITIONAL, named("ALGORITHM")] = None
    """List only its environments."""
    env: Annotated[str | None, POSITIONAL, named("ENV")] = None
    """Show the settings for this one."""
    json: bool = False  # print JSON


def run(words: Sequence[str]) -> int:
    """Lists or shows them."""
    asked = parse(Presets, "presets", words)
    known = names()
    if asked.algorithm is not None and asked.algorithm not in known:
        raise UsageError(
            f"ALGORITHM: expected one that has presets, got {asked.algorithm!r}; "
            f"{hint(asked.algorithm, known)}"
        )
    if asked.algorithm is None or asked.env is None:
        told = {x: ids for x, ids in known.items() if asked.algorithm in (None, x)}
        if asked.json:
            say_json(told)
        else:
            say(columns((algorithm, env) for algorithm, ids in told.items() for env in ids))
        return 0
    if asked.env not in known[asked.algorithm]:
        raise UsageError(
            f"ENV: expected one that has a preset of {asked.algorithm}, got {asked.env!r}; "
            f"{hint(asked.env, known[asked.algorithm])}"
        )
    if asked.json:
        say_json(preset(asked.algorithm, asked.env))
    else:
        say(show(asked.algorithm, asked.env).rstrip())
    return 0
