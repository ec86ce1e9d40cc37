"""rl-zoo3's settings are settings of ours, and trainers use them."""

import pytest

from rlox.algorithms import A2CConfig, PPOConfig
from rlox.configs import resolved_config
from rlox.presets import a2c, ppo, preset


def ppo_config(env_id):
    tuned = preset("ppo", env_id)
    return resolved_config(PPOConfig, tuned, dict.fromkeys(tuned, "rl-zoo3"))


@pytest.mark.parametrize("env_id", ppo.SETTINGS)
def test_every_preset_is_a_config(env_id):
    config = ppo_config(env_id)
    assert config.num_envs * config.n_steps % config.batch_size == 0


def test_cartpole_is_rl_zoo3s():
    config = PPOConfig(**preset("ppo", "CartPole-v1"))
    got = (config.num_envs, config.n_steps, config.batch_size, config.n_epochs)
    assert got == (8, 32, 256, 20)
    assert (config.gamma, config.gae_lambda, config.learning_rate) == (0.98, 0.8, 1e-3)
    assert (config.lr_schedule, config.clip_schedule, config.clip_coef) == ("linear", "linear", 0.2)


# normalised; envs, steps, batch, epochs; gamma, lambda; learning rate, clip, entropy, value, norm;
# steps between gSDE's matrices (None: no gSDE), log_std, orthogonal
ZOO = {
    "CartPole-v1": (False, 8, 32, 256, 20, 0.98, 0.8, 1e-3, 0.2, 0, 0.5, 0.5, None, 0, True),
    "Pendulum-v1": (False, 4, 1024, 64, 10, 0.9, 0.95, 1e-3, 0.2, 0, 0.5, 0.5, 4, 0, True),
    "Acrobot-v1": (True, 16, 256, 64, 4, 0.99, 0.94, 3e-4, 0.2, 0, 0.5, 0.5, None, 0, True),
    "MountainCar-v0": (True, 16, 16, 64, 4, 0.99, 0.98, 3e-4, 0.2, 0, 0.5, 0.5, None, 0, True),
    "MountainCarContinuous-v0": (
        # Minibatches of 256, of which there are 8 steps.
        *(True, 1, 8, 8, 10, 0.9999, 0.9, 7.77e-5, 0.1, 0.00429, 0.19, 5, -1, -3.29, False),
    ),
    "LunarLander-v3": (
        *(False, 16, 1024, 64, 4, 0.999, 0.98, 3e-4, 0.2, 0.01, 0.5, 0.5, None, 0, True),
    ),
    "LunarLanderContinuous-v3": (
        *(False, 16, 1024, 64, 4, 0.999, 0.98, 3e-4, 0.2, 0.01, 0.5, 0.5, None, 0, True),
    ),
    "HalfCheetah-v4": (
        *(True, 1, 512, 64, 20, 0.98, 0.92, 2.0633e-5, 0.1, 0.000401762, 0.58096, 0.8, None),
        *(-2, False),
    ),
    "Hopper-v4": (
        *(True, 1, 512, 32, 5, 0.999, 0.99, 9.80828e-5, 0.2, 0.00229519, 0.835671, 0.7, None),
        *(-2, False),
    ),
    "Walker2d-v4": (
        *(True, 1, 512, 32, 20, 0.99, 0.95, 5.05041e-5, 0.1, 0.000585045, 0.871923, 1, None),
        *(0, True),
    ),
}


@pytest.mark.parametrize("env_id", ppo.SETTINGS)
def test_settings_are_rl_zoo3s(env_id):
    c = ppo_config(env_id)
    assert c.normalize_obs == c.normalize_reward
    got = (c.normalize_obs, c.num_envs, c.n_steps, c.batch_size, c.n_epochs, c.gamma, c.gae_lambda)
    got += (c.learning_rate, c.clip_coef, c.ent_coef, c.vf_coef, c.max_grad_norm)
    got += (c.sde_sample_freq if c.use_sde else None, c.log_std_init, c.ortho_init)
    assert got == ZOO[env_id]
    linear = env_id == "CartPole-v1"
    assert (c.lr_schedule == "linear", c.clip_schedule == "linear") == (linear, linear)
    wide = env_id in ("HalfCheetah-v4", "Hopper-v4")
    layers = ((256, 256), "relu") if wide else ((64, 64), "tanh")
    assert (c.net_arch or (64, 64), c.activation) == layers


# normalised; envs, steps; gamma, lambda; learning rate, linear; entropy, value; gSDE, std, ortho
A2C_ZOO = {
    "CartPole-v1": (False, 8, 5, 0.99, 1, 7e-4, False, 0, 0.5, False, 0, True),
    "Acrobot-v1": (True, 16, 5, 0.99, 1, 7e-4, False, 0, 0.5, False, 0, True),
    "MountainCar-v0": (True, 16, 5, 0.99, 1, 7e-4, False, 0, 0.5, False, 0, True),
    "Pendulum-v1": (True, 8, 8, 0.9, 0.9, 7e-4, True, 0, 0.4, True, -2, False),
    "LunarLander-v3": (False, 8, 5, 0.995, 1, 8.3e-4, True, 1e-5, 0.5, False, 0, True),
}


@pytest.mark.parametrize("env_id", a2c.SETTINGS)
def test_settings_of_a2c_are_rl_zoo3s(env_id):
    c = A2CConfig(**preset("a2c", env_id))
    assert c.normalize_obs == c.normalize_reward
    got = (c.normalize_obs, c.num_envs, c.n_steps, c.gamma, c.gae_lambda, c.learning_rate)
    got += (c.lr_schedule == "linear", c.ent_coef, c.vf_coef, c.use_sde, c.log_std_init)
    assert (*got, c.ortho_init) == A2C_ZOO[env_id]
    assert (c.optimizer, c.optimizer_eps, c.max_grad_norm) == ("rmsprop", 1e-5, 0.5)


def test_a_preset_is_a_copy():
    preset("ppo", "CartPole-v1")["gamma"] = 0.0
    assert preset("ppo", "CartPole-v1")["gamma"] == 0.98


def test_what_rl_zoo3_does_not_have_is_empty():
    assert preset("ppo", "Other-v0") == {}
    assert preset("other", "CartPole-v1") == {}
