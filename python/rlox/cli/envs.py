"""`rlox envs`: the native environments, what they observe and what is done in them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rlox.cli.output import columns, say, say_json
from rlox.cli.usage import parse
from rlox.ids import native_ids
from rlox.presets import names
from rlox.vector import VecEnv


@dataclass
class Envs:
    """List the native environments. Trainers take every id that Gymnasium knows, too."""

    json: bool = False  # print them as JSON


def run(words: Sequence[str]) -> int:
    """Lists them."""
    asked = parse(Envs, "envs", words)
    about = [_about(env_id) for env_id in native_ids()]
    if asked.json:
        say_json(about)
        return 0
    head = ("id", "observations", "actions", "steps", "presets")
    rows = [
        (
            env["id"],
            env["observation_space"],
            env["action_space"],
            str(env["max_episode_steps"] or "no limit"),
            " ".join(env["presets"]) or "none",
        )
        for env in about
    ]
    say(columns([head, *rows]))
    return 0


def _about(env_id: str) -> dict[str, Any]:
    with closing(VecEnv(1, None, env_id)) as env:
        limit = None if env.spec is None else env.spec.max_episode_steps
        return {
            "id": env_id,
            "observation_space": _short(env.single_observation_space),
            "action_space": _short(env.single_action_space),
            "max_episode_steps": limit,
            "presets": [algorithm for algorithm, tuned in names().items() if env_id in tuned],
        }


def _short(space: gym.Space[Any]) -> str:
    """A space in a few words: of a Box its shape, and its bounds where all numbers share them."""
    if not isinstance(space, gym.spaces.Box):
        return str(space)
    low, high = space.low.min(), space.high.max()
    alike = (space.low == low).all() and (space.high == high).all()
    bounds = f", {low:g} to {high:g}" if alike else ""
    return f"Box{space.shape}{bounds}".replace(",)", ")")
