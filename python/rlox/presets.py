"""Tuned settings of rl-zoo3 by algorithm and environment, where they differ from the defaults."""

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError
from rlox._validation import hint, resolve
from rlox.configs import make_config

__all__ = ["names", "preset", "show"]

# Settings by algorithm and environment id. Noise is stored as in checkpoints.
_TUNED: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "presets.json").read_text(encoding="utf-8")
)


def preset(algorithm: str, env_id: str) -> dict[str, Any]:
    """Return the tuned settings of rl-zoo3 that differ from the defaults; {} without a preset.

    >>> preset("ppo", "CartPole-v1")["n_steps"]
    32
    >>> preset("ppo", "MyOwn-v0")
    {}
    """
    return deepcopy(_TUNED.get(algorithm, {}).get(env_id, {}))


def resolve_config(
    config_type: type[Any],
    algorithm: str,
    env_id: str,
    count: int | None,
    arguments: Mapping[str, Any],
    exclude: Iterable[str] = (),
) -> tuple[Any, dict[str, str]]:
    """Return the config of an algorithm from arguments, preset and defaults, and the sources.

    Args:
        config_type: Class of the config.
        algorithm: Algorithm of the preset.
        env_id: Environment of the preset.
        count: Number of environments that exist already, which sets `num_envs`; None if the
            environments will be created.
        arguments: Settings that the caller passed.
        exclude: Settings for which the preset is ignored, see `rlox._validation.resolve`.

    Returns:
        The config, and the source of each setting: "argument", "rl-zoo3", "default" or "env".

    Raises:
        ArgumentTypeError: A setting has a wrong type, is unknown, or is excluded.
        ArgumentError: A setting has a value that is not accepted.
    """
    defaults = {field.name: field.default for field in fields(config_type)}
    resolved, config_sources = resolve(defaults, preset(algorithm, env_id), arguments, exclude=exclude)
    if "num_envs" not in arguments and count is not None:
        resolved["num_envs"], config_sources["num_envs"] = count, "env"
    return make_config(config_type, resolved, config_sources), config_sources


def names() -> dict[str, list[str]]:
    """Return the ids of environments with tuned settings, by algorithm.

    >>> names()["a2c"][0]
    'CartPole-v1'
    """
    return {algorithm: list(settings) for algorithm, settings in _TUNED.items()}


def show(algorithm: str, env_id: str) -> str:
    """Return tuned settings as the text of a YAML file for `rlox train --config`.

    Raises:
        ArgumentError: There is no preset for the algorithm and environment.

    >>> print(show("a2c", "Acrobot-v1").rstrip())
    algorithm: a2c
    env: Acrobot-v1
    settings:
      normalize_obs: true
      normalize_reward: true
      num_envs: 16
      ent_coef: 0.0
    """
    if algorithm not in _TUNED:
        raise ArgumentError("algorithm", "an algorithm with presets", repr(algorithm), hint(str(algorithm), _TUNED))
    known = _TUNED[algorithm]
    if env_id not in known:
        expected = f"an environment with a preset of {algorithm}"
        raise ArgumentError("env_id", expected, repr(env_id), hint(str(env_id), known))
    settings = known[env_id]
    head = f"algorithm: {algorithm}\nenv: {env_id}\nsettings:\n"
    return head + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in settings.items())
