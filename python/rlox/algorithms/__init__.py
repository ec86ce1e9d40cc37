"""The algorithms in PyTorch: each is one file that reads from top to bottom."""

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "rlox.algorithms and rlox.trainers need PyTorch; install it with: "
        "pip install 'rlox[torch]'",
        name="torch",
    ) from error

from rlox.algorithms.a2c import A2C, A2CConfig
from rlox.algorithms.ppo import PPO, PPOConfig

__all__ = ["A2C", "PPO", "A2CConfig", "PPOConfig"]
