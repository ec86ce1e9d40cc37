"""Presets have the settings of rl-zoo3, and trainers accept them."""

import pytest

from rlox.algorithms import A2CConfig, PPOConfig
from rlox.configs import DQNConfig, SACConfig, TD3Config, make_config
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.presets import names, preset

CONFIGS = {"ppo": PPOConfig, "a2c": A2CConfig, "dqn": DQNConfig, "sac": SACConfig, "td3": TD3Config}
# Settings of all presets of an algorithm, unless the tables below have another value.
COMMON = {
    "ppo": {"clip_coef": 0.2, "vf_coef": 0.5, "max_grad_norm": 0.5, "ent_coef": 0}
    | {"use_sde": False, "sde_sample_freq": -1, "log_std_init": 0, "ortho_init": True}
    | {"lr_schedule": "constant", "clip_schedule": "constant"}
    | {"net_arch": None, "activation": "tanh"},
    "a2c": {"ent_coef": 0, "vf_coef": 0.5, "use_sde": False, "log_std_init": 0, "ortho_init": True}
    | {"optimizer": "rmsprop", "optimizer_eps": 1e-5, "max_grad_norm": 0.5}
    | {"learning_rate": 7e-4, "lr_schedule": "constant"},
    "dqn": {"num_envs": 1, "tau": 1.0, "exploration_initial_eps": 1.0, "max_grad_norm": 10.0}
    | {"double": False, "dueling": False, "normalize_obs": False, "normalize_reward": False}
    | {"lr_schedule": "constant", "net_arch": (256, 256)},
    "sac": {"num_envs": 1, "target_update_interval": 1, "target_entropy": "auto", "use_sde": False}
    | {"lr_schedule": "constant", "ent_coef": "auto", "net_arch": None},
    "td3": {"train_freq": 1, "gradient_steps": 1, "tau": 0.005, "policy_delay": 2}
    | {"target_policy_noise": 0.2, "target_noise_clip": 0.5, "net_arch": (400, 300)}
    | {"learning_rate": 1e-3, "batch_size": 256, "action_noise": GaussianNoise(0.1)},
}
COLUMNS = {
    "ppo": "normalize_obs num_envs n_steps batch_size n_epochs gamma gae_lambda learning_rate",
    "a2c": "normalize_obs num_envs n_steps gamma gae_lambda",
    "dqn": "learning_rate batch_size buffer_size learning_starts gamma train_freq gradient_steps "
    "target_update_interval exploration_fraction exploration_final_eps",
    "sac": "learning_rate batch_size buffer_size learning_starts gamma tau train_freq gradient_steps",
    "td3": "buffer_size learning_starts gamma",
}
MUJOCO = "HalfCheetah-v4 Hopper-v4 Walker2d-v4 Ant-v4 Humanoid-v4"
# Values of the columns.
ROWS = {
    "ppo CartPole-v1": (False, 8, 32, 256, 20, 0.98, 0.8, 1e-3),
    "ppo Pendulum-v1": (False, 4, 1024, 64, 10, 0.9, 0.95, 1e-3),
    "ppo Acrobot-v1": (True, 16, 256, 64, 4, 0.99, 0.94, 3e-4),
    "ppo MountainCar-v0": (True, 16, 16, 64, 4, 0.99, 0.98, 3e-4),
    # Minibatches of 256, but rollouts of 8 steps.
    "ppo MountainCarContinuous-v0": (True, 1, 8, 8, 10, 0.9999, 0.9, 7.77e-5),
    "ppo LunarLander-v3": (False, 16, 1024, 64, 4, 0.999, 0.98, 3e-4),
    "ppo LunarLanderContinuous-v3": (False, 16, 1024, 64, 4, 0.999, 0.98, 3e-4),
    "ppo HalfCheetah-v4": (True, 1, 512, 64, 20, 0.98, 0.92, 2.0633e-5),
    "ppo Hopper-v4": (True, 1, 512, 32, 5, 0.999, 0.99, 9.80828e-5),
    "ppo Walker2d-v4": (True, 1, 512, 32, 20, 0.99, 0.95, 5.05041e-5),
    "a2c CartPole-v1": (False, 8, 5, 0.99, 1),
    "a2c Acrobot-v1": (True, 16, 5, 0.99, 1),
    "a2c MountainCar-v0": (True, 16, 5, 0.99, 1),
    "a2c Pendulum-v1": (True, 8, 8, 0.9, 0.9),
    "a2c LunarLander-v3": (False, 8, 5, 0.995, 1),
    "dqn CartPole-v1": (2.3e-3, 64, 10**5, 1000, 0.99, 256, 128, 10, 0.16, 0.04),
    "dqn MountainCar-v0": (4e-3, 128, 10**4, 1000, 0.98, 16, 8, 600, 0.2, 0.07),
    "dqn Acrobot-v1": (6.3e-4, 128, 50_000, 0, 0.99, 4, -1, 250, 0.12, 0.1),
    "dqn LunarLander-v3": (6.3e-4, 128, 50_000, 0, 0.99, 4, -1, 250, 0.12, 0.1),
    "sac Pendulum-v1": (1e-3, 256, 10**6, 100, 0.99, 0.005, 1, 1),
    "sac MountainCarContinuous-v0": (3e-4, 512, 50_000, 0, 0.9999, 0.01, 32, 32),
    "sac LunarLanderContinuous-v3": (7.3e-4, 256, 10**6, 10_000, 0.99, 0.01, 1, 1),
    **{f"sac {env}": (3e-4, 256, 10**6, 10_000, 0.99, 0.005, 1, 1) for env in MUJOCO.split()},
    "td3 Pendulum-v1": (200_000, 10_000, 0.98),
    "td3 MountainCarContinuous-v0": (10**6, 100, 0.99),
    **{f"td3 {env}": (10**6, 10_000, 0.99) for env in MUJOCO.split()},
}
LINEAR = {"lr_schedule": "linear"}
WIDE = {"net_arch": (256, 256), "activation": "relu", "log_std_init": -2, "ortho_init": False}
# Settings that differ from the common settings.
OTHERS = {
    "ppo CartPole-v1": {**LINEAR, "clip_schedule": "linear"},
    "ppo Pendulum-v1": {"use_sde": True, "sde_sample_freq": 4},
    "ppo MountainCarContinuous-v0": {"clip_coef": 0.1, "ent_coef": 0.00429, "vf_coef": 0.19}
    | {"max_grad_norm": 5, "use_sde": True, "log_std_init": -3.29, "ortho_init": False},
    "ppo LunarLander-v3": {"ent_coef": 0.01},
    "ppo LunarLanderContinuous-v3": {"ent_coef": 0.01},
    "ppo HalfCheetah-v4": {"clip_coef": 0.1, "ent_coef": 0.000401762, "vf_coef": 0.58096}
    | {"max_grad_norm": 0.8, **WIDE},
    "ppo Hopper-v4": {"ent_coef": 0.00229519, "vf_coef": 0.835671, "max_grad_norm": 0.7, **WIDE},
    "ppo Walker2d-v4": {"clip_coef": 0.1, "ent_coef": 0.000585045, "vf_coef": 0.871923} | {"max_grad_norm": 1},
    "a2c Pendulum-v1": {**LINEAR, "vf_coef": 0.4, "use_sde": True} | {"log_std_init": -2, "ortho_init": False},
    "a2c LunarLander-v3": {**LINEAR, "learning_rate": 8.3e-4, "ent_coef": 1e-5},
    "sac MountainCarContinuous-v0": {"ent_coef": 0.1, "use_sde": True} | {"log_std_init": -3.67, "net_arch": (64, 64)},
    "sac LunarLanderContinuous-v3": {**LINEAR, "net_arch": (400, 300)},
    "td3 MountainCarContinuous-v0": {"action_noise": OrnsteinUhlenbeckNoise(0.5)},
}


@pytest.mark.parametrize(
    ("algorithm", "env"), [(algorithm, env) for algorithm in names() for env in names()[algorithm]]
)
def test_presets_equal_the_settings_of_rl_zoo3(algorithm, env):
    key = f"{algorithm} {env}"
    columns = dict(zip(COLUMNS[algorithm].split(), ROWS[key], strict=True))
    expected = {**COMMON[algorithm], **columns, **OTHERS.get(key, {})}
    tuned = preset(algorithm, env)
    config = make_config(CONFIGS[algorithm], tuned, dict.fromkeys(tuned, "rl-zoo3"))
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.normalize_obs == config.normalize_reward
    if algorithm == "ppo":
        assert config.num_envs * config.n_steps % config.batch_size == 0


def test_preset_is_a_copy():
    preset("ppo", "CartPole-v1")["gamma"] = 0.0
    preset("dqn", "CartPole-v1")["net_arch"].append(7)
    assert preset("ppo", "CartPole-v1")["gamma"] == 0.98
    assert preset("dqn", "CartPole-v1")["net_arch"] == [256, 256]


def test_unknown_presets_are_empty():
    assert preset("ppo", "Other-v0") == preset("other", "CartPole-v1") == {}


def test_the_batch_size_of_a_preset_is_at_most_a_rollout_of_an_actor():
    settings = {**preset("ppo", "CartPole-v1"), "async_collect": True, "num_actors": 8}
    config = make_config(PPOConfig, settings, {"batch_size": "rl-zoo3"})
    assert config.batch_size == config.rollout_steps == config.num_envs // 8 * config.n_steps
