"""rl-zoo3's settings of A2C; what is not said is Stable-Baselines3's default, as in `A2CConfig`."""

from typing import Any

_NORMALIZED = {"normalize_obs": True, "normalize_reward": True}

SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"num_envs": 8, "ent_coef": 0.0},
    "Acrobot-v1": {**_NORMALIZED, "num_envs": 16, "ent_coef": 0.0},
    "MountainCar-v0": {**_NORMALIZED, "num_envs": 16, "ent_coef": 0.0},
    "Pendulum-v1": {
        **_NORMALIZED,
        "num_envs": 8,
        "n_steps": 8,
        "gamma": 0.9,
        "gae_lambda": 0.9,
        "learning_rate": 7e-4,
        "lr_schedule": "linear",
        "ent_coef": 0.0,
        "vf_coef": 0.4,
        "max_grad_norm": 0.5,
        "use_sde": True,
        "log_std_init": -2.0,
        "ortho_init": False,
    },
    "LunarLander-v3": {
        "num_envs": 8,
        "n_steps": 5,
        "gamma": 0.995,
        "learning_rate": 8.3e-4,
        "lr_schedule": "linear",
        "ent_coef": 1e-5,
    },
}
