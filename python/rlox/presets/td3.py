"""rl-zoo3's settings of TD3; what is not said is Stable-Baselines3's default, as in `TD3Config`."""

from typing import Any

from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise

_MUJOCO = {
    "learning_starts": 10_000,
    "action_noise": GaussianNoise(0.1),
    "learning_rate": 1e-3,
    "batch_size": 256,
    "net_arch": (400, 300),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "gamma": 0.98,
        "buffer_size": 200_000,
        "learning_starts": 10_000,
        "action_noise": GaussianNoise(0.1),
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_rate": 1e-3,
        "net_arch": (400, 300),
    },
    "MountainCarContinuous-v0": {
        "action_noise": OrnsteinUhlenbeckNoise(0.5),
        "learning_rate": 1e-3,
        "batch_size": 256,
        "net_arch": (400, 300),
    },
    "HalfCheetah-v4": _MUJOCO,
    "Hopper-v4": _MUJOCO,
    "Walker2d-v4": _MUJOCO,
    "Ant-v4": _MUJOCO,
    "Humanoid-v4": _MUJOCO,
}
