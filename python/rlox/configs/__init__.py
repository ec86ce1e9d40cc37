"""Settings of the algorithms: the same on every backend, so that none is needed to make them."""

from typing import Any

from rlox.configs.off_policy import DQNConfig, SACConfig, TD3Config
from rlox.configs.on_policy import (
    ALPHA,
    BETAS,
    EPS,
    SHAPE_SETTINGS,
    A2CConfig,
    IMPALAConfig,
    PPOConfig,
)
from rlox.settings import ACTIVATIONS

__all__ = [
    "ACTIVATIONS",
    "ALPHA",
    "BETAS",
    "EPS",
    "SHAPE_SETTINGS",
    "A2CConfig",
    "DQNConfig",
    "IMPALAConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
    "resolved_config",
]


def resolved_config(
    config_type: type[Any], settings: dict[str, Any], sources: dict[str, str]
) -> Any:
    """The config of settings that `rlox.settings.resolve` gave.

    A preset's minibatch is made for the preset's iterations: smaller ones cut it short.

    Raises:
        TypeError, ValueError: As the config does.
    """
    if sources.get("batch_size") == "rl-zoo3" and config_type is PPOConfig:
        other = config_type(**settings | {"batch_size": None})
        size = min(settings["batch_size"], other.num_envs * other.n_steps)
        settings = settings | {"batch_size": size}
    return config_type(**settings)
