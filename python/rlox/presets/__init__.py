"""rl-zoo3's tuned settings (its `hyperparams/*.yml`), by algorithm and environment."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from rlox._errors import ArgumentError
from rlox.configs import resolved_config
from rlox.keywords import hint
from rlox.presets import a2c, dqn, ppo, sac, td3
from rlox.settings import resolve

_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "a2c": a2c.SETTINGS,
    "dqn": dqn.SETTINGS,
    "ppo": ppo.SETTINGS,
    "sac": sac.SETTINGS,
    "td3": td3.SETTINGS,
}


def preset(algorithm: str, env_id: str) -> dict[str, Any]:
    """The settings in which rl-zoo3 differs from the defaults; empty where it has none.

    >>> preset("ppo", "CartPole-v1")["n_steps"]
    32
    >>> preset("ppo", "MyOwn-v0")
    {}
    """
    return dict(_SETTINGS.get(algorithm, {}).get(env_id, {}))


def config_for(
    config_type: type[Any],
    algorithm: str,
    env_id: str,
    count: int | None,
    given: Mapping[str, Any],
    without: Iterable[str] = (),
) -> tuple[Any, dict[str, str]]:
    """An algorithm's config, and where each setting comes from.

    Args:
        config_type: Its class.
        algorithm, env_id: What the preset is of.
        count: How many environments there are already; None: they are made by `num_envs`.
        given: What is asked for.
        without: Settings that a preset shall not decide, see `rlox.settings.resolve`.

    Raises:
        TypeError, ValueError: As the config does.
    """
    defaults = {field.name: field.default for field in fields(config_type)}
    resolved, sources = resolve(defaults, preset(algorithm, env_id), given, without=without)
    if "num_envs" not in given and count is not None:
        resolved["num_envs"], sources["num_envs"] = count, "env"
    return resolved_config(config_type, resolved, sources), sources


def names() -> dict[str, list[str]]:
    """The environments for which there are tuned settings, by algorithm.

    >>> names()["a2c"][0]
    'CartPole-v1'
    """
    return {algorithm: list(settings) for algorithm, settings in _SETTINGS.items()}


def show(algorithm: str, env_id: str) -> str:
    """Tuned settings as a YAML file that `rlox train --config` takes.

    Raises:
        ValueError: There are none.

    >>> print(show("a2c", "Acrobot-v1").rstrip())
    algorithm: a2c
    env: Acrobot-v1
    settings:
      normalize_obs: true
      normalize_reward: true
      num_envs: 16
      ent_coef: 0.0
    """
    for what, name, known in (
        ("algorithm", algorithm, _SETTINGS),
        ("env_id", env_id, _SETTINGS.get(algorithm, {})),
    ):
        if name not in known:
            of = f"a preset of {algorithm}" if what == "env_id" else "presets"
            raise ArgumentError(what, f"one that has {of}", repr(name), hint(str(name), known))
    settings = _SETTINGS[algorithm][env_id]
    head = f"algorithm: {algorithm}\nenv: {env_id}\nsettings:\n"
    return head + "".join(f"  {name}: {_plain(value)}\n" for name, value in settings.items())


def _plain(value: Any) -> str:
    """A value as JSON, which is YAML."""
    return json.dumps(asdict(value) if is_dataclass(value) else value)  # type: ignore[arg-type]  # noise
