"""Tuned settings of rl-zoo3 by algorithm and environment, where they differ from the defaults."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pkgutil import resolve_name
from typing import Any

from rlox._errors import ArgumentError
from rlox._registry import ALGORITHMS
from rlox._validation import hint, resolve
from rlox.configs import make_config
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise

_PPO_NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
_PPO_LUNAR_LANDER = {
    "num_envs": 16,
    "n_steps": 1024,
    "batch_size": 64,
    "n_epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
_PPO_MUJOCO = {
    **_PPO_NORMALIZED,
    "num_envs": 1,
    "n_steps": 512,
    "log_std_init": -2.0,
    "ortho_init": False,
    "net_arch": (256, 256),
    "activation": "relu",
}
PPO_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "clip_coef": 0.2,
        "clip_schedule": "linear",
    },
    "Pendulum-v1": {
        "num_envs": 4,
        "n_steps": 1024,
        "n_epochs": 10,
        "gamma": 0.9,
        "gae_lambda": 0.95,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_coef": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "Acrobot-v1": {
        **_PPO_NORMALIZED,
        "num_envs": 16,
        "n_steps": 256,
        "n_epochs": 4,
        "gamma": 0.99,
        "gae_lambda": 0.94,
        "ent_coef": 0.0,
    },
    "MountainCar-v0": {
        **_PPO_NORMALIZED,
        "num_envs": 16,
        "n_steps": 16,
        "n_epochs": 4,
        "gamma": 0.99,
        "gae_lambda": 0.98,
        "ent_coef": 0.0,
    },
    "MountainCarContinuous-v0": {
        **_PPO_NORMALIZED,
        "num_envs": 1,
        "n_steps": 8,
        "batch_size": 256,
        "n_epochs": 10,
        "gamma": 0.9999,
        "gae_lambda": 0.9,
        "learning_rate": 7.77e-5,
        "ent_coef": 0.00429,
        "clip_coef": 0.1,
        "max_grad_norm": 5.0,
        "vf_coef": 0.19,
        "use_sde": True,
        "log_std_init": -3.29,
        "ortho_init": False,
    },
    "LunarLander-v3": _PPO_LUNAR_LANDER,
    "LunarLanderContinuous-v3": _PPO_LUNAR_LANDER,
    "HalfCheetah-v4": {
        **_PPO_MUJOCO,
        "batch_size": 64,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.92,
        "learning_rate": 2.0633e-5,
        "ent_coef": 0.000401762,
        "clip_coef": 0.1,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
    },
    "Hopper-v4": {
        **_PPO_MUJOCO,
        "batch_size": 32,
        "n_epochs": 5,
        "gamma": 0.999,
        "gae_lambda": 0.99,
        "learning_rate": 9.80828e-5,
        "ent_coef": 0.00229519,
        "clip_coef": 0.2,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
    },
    "Walker2d-v4": {
        "num_envs": 1,
        **_PPO_NORMALIZED,
        "n_steps": 512,
        "batch_size": 32,
        "n_epochs": 20,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "learning_rate": 5.05041e-5,
        "ent_coef": 0.000585045,
        "clip_coef": 0.1,
        "max_grad_norm": 1.0,
        "vf_coef": 0.871923,
    },
}
_A2C_NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
A2C_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"num_envs": 8, "ent_coef": 0.0},
    "Acrobot-v1": {**_A2C_NORMALIZED, "num_envs": 16, "ent_coef": 0.0},
    "MountainCar-v0": {**_A2C_NORMALIZED, "num_envs": 16, "ent_coef": 0.0},
    "Pendulum-v1": {
        **_A2C_NORMALIZED,
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
_DQN_LUNAR_LANDER = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "net_arch": (256, 256),
}
DQN_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "net_arch": (256, 256),
    },
    "MountainCar-v0": {
        "learning_rate": 4e-3,
        "batch_size": 128,
        "buffer_size": 10_000,
        "learning_starts": 1_000,
        "gamma": 0.98,
        "target_update_interval": 600,
        "train_freq": 16,
        "gradient_steps": 8,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07,
        "net_arch": (256, 256),
    },
    "Acrobot-v1": _DQN_LUNAR_LANDER,
    "LunarLander-v3": _DQN_LUNAR_LANDER,
}
_SAC_MUJOCO = {"learning_starts": 10_000}
SAC_SETTINGS: dict[str, dict[str, Any]] = {
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
    "HalfCheetah-v4": _SAC_MUJOCO,
    "Hopper-v4": _SAC_MUJOCO,
    "Walker2d-v4": _SAC_MUJOCO,
    "Ant-v4": _SAC_MUJOCO,
    "Humanoid-v4": _SAC_MUJOCO,
}
_TD3_MUJOCO = {
    "learning_starts": 10_000,
    "action_noise": GaussianNoise(0.1),
    "learning_rate": 1e-3,
    "batch_size": 256,
    "net_arch": (400, 300),
}
TD3_SETTINGS: dict[str, dict[str, Any]] = {
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
    "HalfCheetah-v4": _TD3_MUJOCO,
    "Hopper-v4": _TD3_MUJOCO,
    "Walker2d-v4": _TD3_MUJOCO,
    "Ant-v4": _TD3_MUJOCO,
    "Humanoid-v4": _TD3_MUJOCO,
}


def _tuned(algorithm: str) -> dict[str, dict[str, Any]]:
    """Return the tuned settings of an algorithm by environment id."""
    spec = ALGORITHMS.get(algorithm)
    return {} if spec is None or spec.presets is None else resolve_name(spec.presets)


def preset(algorithm: str, env_id: str) -> dict[str, Any]:
    """Return the tuned settings of rl-zoo3 that differ from the defaults; {} without a preset.

    >>> preset("ppo", "CartPole-v1")["n_steps"]
    32
    >>> preset("ppo", "MyOwn-v0")
    {}
    """
    return dict(_tuned(algorithm).get(env_id, {}))


def resolve_config(
    config_type: type[Any],
    algorithm: str,
    env_id: str,
    count: int | None,
    arguments: Mapping[str, Any],
    exclude: Iterable[str] = (),
) -> tuple[Any, dict[str, str]]:
    """Return the config of an algorithm from arguments, preset and defaults, and the sources.

    Args:
        config_type: Class of the config.
        algorithm: Algorithm of the preset.
        env_id: Environment of the preset.
        count: Number of environments that exist already, which sets `num_envs`; None if the
            environments will be created.
        arguments: Settings that the caller passed.
        exclude: Settings that the preset does not set, see `rlox._validation.resolve`.

    Returns:
        The config, and the source of each setting: "argument", "rl-zoo3", "default" or "env".

    Raises:
        ArgumentTypeError: A setting has a wrong type, is unknown, or is excluded.
        ArgumentError: A setting has a value that is not accepted.
    """
    defaults = {field.name: field.default for field in fields(config_type)}
    resolved, config_sources = resolve(
        defaults, preset(algorithm, env_id), arguments, exclude=exclude
    )
    if "num_envs" not in arguments and count is not None:
        resolved["num_envs"], config_sources["num_envs"] = count, "env"
    return make_config(config_type, resolved, config_sources), config_sources


def names() -> dict[str, list[str]]:
    """Return the ids of environments with tuned settings, by algorithm.

    >>> names()["a2c"][0]
    'CartPole-v1'
    """
    return {name: list(_tuned(name)) for name, spec in ALGORITHMS.items() if spec.presets}


def show(algorithm: str, env_id: str) -> str:
    """Return tuned settings as the text of a YAML file for `rlox train --config`.

    Raises:
        ArgumentError: There is no preset for the algorithm and environment.

    >>> print(show("a2c", "Acrobot-v1").rstrip())
    algorithm: a2c
    env: Acrobot-v1
    settings:
      normalize_obs: true
      normalize_reward: true
      num_envs: 16
      ent_coef: 0.0
    """
    for what, name, known in (
        ("algorithm", algorithm, names()),
        ("env_id", env_id, _tuned(algorithm)),
    ):
        if name not in known:
            description = "an algorithm with presets"
            if what == "env_id":
                description = f"an environment with a preset of {algorithm}"
            raise ArgumentError(what, description, repr(name), hint(str(name), known))
    settings = _tuned(algorithm)[env_id]
    head = f"algorithm: {algorithm}\nenv: {env_id}\nsettings:\n"
    return head + "".join(f"  {name}: {_plain(value)}\n" for name, value in settings.items())


def _plain(value: object) -> str:
    """Return a value as JSON, which is also valid YAML."""
    return json.dumps(asdict(value) if is_dataclass(value) else value)  # type: ignore[arg-type]  # noise
