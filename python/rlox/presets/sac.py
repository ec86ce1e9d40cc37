"""rl-zoo3's settings of SAC; what is not said is Stable-Baselines3's default, as in `SACConfig`."""

from typing import Any

_MUJOCO = {"learning_starts": 10_000}

SETTINGS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"learning_rate": 1e-3},
    "MountainCarContinuous-v0": {
        "learning_rate": 3e-4,
        "buffer_size": 50_000,
        "batch_size": 512,
        "ent_coef": 0.1,
        "train_freq": 32,
        "gradient_steps": 32,
        "gamma": 0.9999,
        "tau": 0.01,
        "learning_starts": 0,
        "use_sde": True,
        "log_std_init": -3.67,
        "net_arch": (64, 64),
    },
    "LunarLanderContinuous-v3": {
        "batch_size": 256,
        "learning_rate": 7.3e-4,
        "lr_schedule": "linear",
        "tau": 0.01,
        "learning_starts": 10_000,
        "net_arch": (400, 300),
    },
    "HalfCheetah-v4": _MUJOCO,
    "Hopper-v4": _MUJOCO,
    "Walker2d-v4": _MUJOCO,
    "Ant-v4": _MUJOCO,
    "Humanoid-v4": _MUJOCO,
}
