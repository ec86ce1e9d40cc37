"""`PPO`, `A2C`, `DQN`, `SAC` and `TD3` as Stable-Baselines3's users know them."""

from rlox import trainers
from rlox.sb3.model import Model


class PPO(Model):
    """Proximal policy optimization, `rlox.trainers.PPOTrainer`, by Stable-Baselines3's names.

    >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, clip_range=0.1, seed=1)
    >>> model.learn(100).num_timesteps
    128
    """

    algorithm = "ppo"
    trainer_type = trainers.PPOTrainer


class A2C(Model):
    """Advantage actor-critic, `rlox.trainers.A2CTrainer`, by Stable-Baselines3's names.

    >>> A2C("MlpPolicy", "CartPole-v1", seed=1).learn(100).num_timesteps
    100
    """

    algorithm = "a2c"
    trainer_type = trainers.A2CTrainer


class DQN(Model):
    """Deep Q-networks, `rlox.trainers.DQNTrainer`, by Stable-Baselines3's names.

    >>> DQN("MlpPolicy", "CartPole-v1", buffer_size=1_000, seed=1).learn(120).num_timesteps
    120
    """

    algorithm = "dqn"
    trainer_type = trainers.DQNTrainer


class SAC(Model):
    """Soft actor-critic, `rlox.trainers.SACTrainer`, by Stable-Baselines3's names.

    >>> SAC("MlpPolicy", "Pendulum-v1", buffer_size=1_000, seed=1).learn(110).num_timesteps
    110
    """

    algorithm = "sac"
    trainer_type = trainers.SACTrainer


class TD3(Model):
    """Twin delayed DDPG, `rlox.trainers.TD3Trainer`, by Stable-Baselines3's names.

    >>> TD3("MlpPolicy", "Pendulum-v1", buffer_size=1_000, seed=1).learn(110).num_timesteps
    110
    """

    algorithm = "td3"
    trainer_type = trainers.TD3Trainer
