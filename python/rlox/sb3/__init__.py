"""Models with the interface of Stable-Baselines3 2, based on `rlox.trainers`.

`docs/sb3.md` lists the equal, different and unsupported features.

>>> from rlox.sb3.models import PPO
>>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=1).learn(128)
>>> action, state = model.predict([0.0, 0.0, 0.0, 0.0], deterministic=True)
>>> model.num_timesteps, state
(128, None)
"""

from rlox.sb3.evaluation import evaluate_policy
from rlox.sb3.kwargs import HINTS, NormalActionNoise, OrnsteinUhlenbeckActionNoise
from rlox.sb3.models import A2C, DQN, PPO, SAC, TD3, Model

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


def __getattr__(name: str) -> object:
    if name in HINTS:
        raise ImportError(f"rlox.sb3 has no {name!r}; {HINTS[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
