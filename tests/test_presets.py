"""rl-zoo3's settings are settings of ours, and trainers use them."""

import pytest

from rlox.algorithms import PPOConfig
from rlox.presets import ppo, preset


@pytest.mark.parametrize("env_id", ppo.SETTINGS)
def test_every_preset_is_a_config(env_id):
    config = PPOConfig(**preset("ppo", env_id))
    steps = config.num_envs * config.n_steps
    assert steps % config.batch_size == 0 or steps < config.batch_size


def test_cartpole_is_rl_zoo3s():
    config = PPOConfig(**preset("ppo", "CartPole-v1"))
    got = (config.num_envs, config.n_steps, config.batch_size, config.n_epochs)
    assert got == (8, 32, 256, 20)
    assert (config.gamma, config.gae_lambda, config.learning_rate) == (0.98, 0.8, 1e-3)
    assert (config.lr_schedule, config.clip_schedule, config.clip_coef) == ("linear", "linear", 0.2)


def test_a_preset_is_a_copy():
    preset("ppo", "CartPole-v1")["gamma"] = 0.0
    assert preset("ppo", "CartPole-v1")["gamma"] == 0.98


def test_what_rl_zoo3_does_not_have_is_empty():
    assert preset("ppo", "Other-v0") == {}
    assert preset("other", "CartPole-v1") == {}
