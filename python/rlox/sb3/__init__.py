"""Stable-Baselines3's names for rlox's trainers: a subset of its version 2, nothing of it inside.

`docs/sb3.md` has the table of what is the same, what is named otherwise and what is refused.

>>> from rlox.sb3 import PPO
>>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=1).learn(128)
>>> action, state = model.predict([0.0, 0.0, 0.0, 0.0], deterministic=True)
>>> model.num_timesteps, state
(128, None)
"""

from typing import Any

from rlox.sb3.elsewhere import INSTEAD
from rlox.sb3.evaluation import evaluate_policy
from rlox.sb3.model import Model
from rlox.sb3.models import A2C, DQN, PPO, SAC, TD3
from rlox.sb3.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

__all__ = [
    "A2C",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "Model",
    "NormalActionNoise",
    "OrnsteinUhlenbeckActionNoise",
    "evaluate_policy",
]


def __getattr__(name: str) -> Any:
    if name in INSTEAD:
        raise ImportError(f"rlox.sb3 has no {name!r}; {INSTEAD[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
