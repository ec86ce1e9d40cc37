"""The algorithms in PyTorch: each is one file that reads from top to bottom.

Their settings need no PyTorch; it is imported with the first learner that is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rlox.configs import A2CConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig, TD3Config
from rlox.learners._backends import check_torch

if TYPE_CHECKING:
    from rlox.algorithms.a2c import A2C
    from rlox.algorithms.dqn import DQN
    from rlox.algorithms.impala import IMPALA
    from rlox.algorithms.ppo import PPO
    from rlox.algorithms.sac import SAC
    from rlox.algorithms.td3 import TD3

__all__ = [
    "A2C",
    "DQN",
    "IMPALA",
    "PPO",
    "SAC",
    "TD3",
    "A2CConfig",
    "DQNConfig",
    "IMPALAConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
]

_LEARNERS = ("A2C", "DQN", "IMPALA", "PPO", "SAC", "TD3")
_LAZY = (*_LEARNERS, *map(str.lower, _LEARNERS))


def __getattr__(name: str) -> Any:
    """A learner, or its module."""
    if name not in _LAZY:
        raise AttributeError(f"module 'rlox.algorithms' has no attribute {name!r}")
    check_torch(f"rlox.algorithms.{name} is written in it")
    module = importlib.import_module(f"rlox.algorithms.{name.lower()}")
    return module if name.islower() else getattr(module, name)
