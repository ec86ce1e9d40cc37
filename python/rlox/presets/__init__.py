"""rl-zoo3's tuned settings (its `hyperparams/*.yml`), by algorithm and environment."""

from typing import Any

from rlox.presets import a2c, dqn, ppo, sac, td3

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
