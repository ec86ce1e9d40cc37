"""Small trainers of every algorithm for tests that save and load."""

import numpy as np
from gymnasium import spaces

from rlox import trainers

ACTION_SPACES = [
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-2, np.array([[1, 3]], np.float64), dtype=np.float64),
]
OFF = {"learning_starts": 20, "buffer_size": 60, "batch_size": 8, "num_envs": 2}
ON = {"n_steps": 16, "num_envs": 2}
SETTINGS = {
    "ppo": ("CartPole-v1", {**ON, "batch_size": 16}),
    "ppo, gSDE": ("Pendulum-v1", {**ON, "batch_size": 16, "use_sde": True, "normalize_obs": True}),
    "ppo, actors": ("CartPole-v1", {**ON, "batch_size": 16, "async_collect": True}),
    "a2c": ("Pendulum-v1", {**ON, "normalize_obs": True}),
    "impala": ("CartPole-v1", {**ON, "actors": "threads", "num_actors": 2}),
    "dqn": ("CartPole-v1", OFF),
    "sac": ("Pendulum-v1", {**OFF, "net_arch": (8,), "normalize_obs": True}),
    "td3": ("Pendulum-v1", {**OFF, "net_arch": (8,)}),
}


def train_small(name, backend, steps=100, **changes):
    """Return a trainer after `steps` steps; `changes` are added to the settings."""
    env, settings = SETTINGS[name]
    cls = getattr(trainers, f"{name.split(',')[0].upper()}Trainer")
    trainer = cls(env, 1, backend=backend, runs_dir=None, **settings, **changes)
    trainer.train(steps)
    return trainer
