"""Algorithms in PyTorch: one module and one learner class per algorithm, and their settings.

The settings classes, such as `PPOConfig`, do not need PyTorch. The first access to a learner class
or its module imports PyTorch.
"""

import importlib
from typing import TYPE_CHECKING

from rlox._registry import ALGORITHMS
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


def __getattr__(name: str) -> object:
    """Import a learner class, such as `PPO`, or its module, such as `ppo`."""
    if name.lower() not in ALGORITHMS or name not in (name.lower(), name.upper()):
        raise AttributeError(f"module 'rlox.algorithms' has no attribute {name!r}")
    check_torch(f"rlox.algorithms.{name}")
    module, _, learner = ALGORITHMS[name.lower()].torch_learner.partition(":")
    loaded = importlib.import_module(module)
    return loaded if name.islower() else getattr(loaded, learner)
