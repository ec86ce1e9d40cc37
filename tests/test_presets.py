"""rl-zoo3's settings are settings of ours, and trainers use them."""

import pytest

from rlox.algorithms import A2CConfig, PPOConfig
from rlox.configs import DQNConfig, SACConfig, TD3Config, resolved_config
from rlox.presets import a2c, dqn, ppo, preset, sac, td3


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


# learning rate, linear; batch, buffer, steps before learning, gamma; train_freq, gradient_steps,
# target; share of the run that explores, final share of random actions, layers
DQN_ZOO = {
    "CartPole-v1": (2.3e-3, False, 64, 10**5, 1000, 0.99, 256, 128, 10, 0.16, 0.04, (256, 256)),
    "MountainCar-v0": (4e-3, False, 128, 10**4, 1000, 0.98, 16, 8, 600, 0.2, 0.07, (256, 256)),
    "Acrobot-v1": (6.3e-4, False, 128, 50_000, 0, 0.99, 4, -1, 250, 0.12, 0.1, (256, 256)),
    "LunarLander-v3": (6.3e-4, False, 128, 50_000, 0, 0.99, 4, -1, 250, 0.12, 0.1, (256, 256)),
}


@pytest.mark.parametrize("env_id", dqn.SETTINGS)
def test_settings_of_dqn_are_rl_zoo3s(env_id):
    c = DQNConfig(**preset("dqn", env_id))
    got = (c.learning_rate, c.lr_schedule == "linear", c.batch_size, c.buffer_size)
    got += (c.learning_starts, c.gamma, c.train_freq, c.gradient_steps, c.target_update_interval)
    got += (c.exploration_fraction, c.exploration_final_eps, c.net_arch)
    assert got == DQN_ZOO[env_id]
    rest = (c.num_envs, c.tau, c.exploration_initial_eps, c.max_grad_norm, c.double, c.dueling)
    assert rest == (1, 1.0, 1.0, 10.0, False, False)
    assert (c.normalize_obs, c.normalize_reward) == (False, False)


# learning rate, linear; batch, buffer, steps before learning, gamma, tau; train_freq,
# gradient_steps; entropy, gSDE's log_std (None: no gSDE), layers
_SAC_MUJOCO = (3e-4, False, 256, 10**6, 10_000, 0.99, 0.005, 1, 1, "auto", None, None)
SAC_ZOO = {
    "Pendulum-v1": (1e-3, False, 256, 10**6, 100, 0.99, 0.005, 1, 1, "auto", None, None),
    "MountainCarContinuous-v0": (
        *(3e-4, False, 512, 50_000, 0, 0.9999, 0.01, 32, 32, 0.1, -3.67, (64, 64)),
    ),
    "LunarLanderContinuous-v3": (
        *(7.3e-4, True, 256, 10**6, 10_000, 0.99, 0.01, 1, 1, "auto", None, (400, 300)),
    ),
    **dict.fromkeys(
        ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4", "Humanoid-v4"), _SAC_MUJOCO
    ),
}


@pytest.mark.parametrize("env_id", sac.SETTINGS)
def test_settings_of_sac_are_rl_zoo3s(env_id):
    c = SACConfig(**preset("sac", env_id))
    got = (c.learning_rate, c.lr_schedule == "linear", c.batch_size, c.buffer_size)
    got += (c.learning_starts, c.gamma, c.tau, c.train_freq, c.gradient_steps, c.ent_coef)
    got += (c.log_std_init if c.use_sde else None, c.net_arch)
    assert got == SAC_ZOO[env_id]
    assert (c.num_envs, c.target_update_interval, c.target_entropy) == (1, 1, "auto")


# learning rate; batch, buffer, steps before learning, gamma; noise, its standard deviation, layers
_TD3_MUJOCO = (1e-3, 256, 10**6, 10_000, 0.99, "GaussianNoise", 0.1, (400, 300))
TD3_ZOO = {
    "Pendulum-v1": (1e-3, 256, 200_000, 10_000, 0.98, "GaussianNoise", 0.1, (400, 300)),
    "MountainCarContinuous-v0": (
        *(1e-3, 256, 10**6, 100, 0.99, "OrnsteinUhlenbeckNoise", 0.5, (400, 300)),
    ),
    **dict.fromkeys(
        ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4", "Humanoid-v4"), _TD3_MUJOCO
    ),
}


@pytest.mark.parametrize("env_id", td3.SETTINGS)
def test_settings_of_td3_are_rl_zoo3s(env_id):
    c = TD3Config(**preset("td3", env_id))
    got = (c.learning_rate, c.batch_size, c.buffer_size, c.learning_starts, c.gamma)
    got += (type(c.action_noise).__name__, c.action_noise.sigma, c.net_arch)
    assert got == TD3_ZOO[env_id]
    rest = (c.train_freq, c.gradient_steps, c.tau, c.policy_delay)
    assert rest == (1, 1, 0.005, 2)
    assert (c.target_policy_noise, c.target_noise_clip) == (0.2, 0.5)


def test_a_preset_is_a_copy():
    preset("ppo", "CartPole-v1")["gamma"] = 0.0
    assert preset("ppo", "CartPole-v1")["gamma"] == 0.98


def test_what_rl_zoo3_does_not_have_is_empty():
    assert preset("ppo", "Other-v0") == {}
    assert preset("other", "CartPole-v1") == {}
