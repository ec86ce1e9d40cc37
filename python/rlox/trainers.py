"""Trainers: one line from an environment's id to a trained policy. One class for each algorithm."""

from rlox.algorithms import A2C, PPO, A2CConfig, PPOConfig
from rlox.results import TrainResult
from rlox.trainer import Trainer

__all__ = ["A2CTrainer", "PPOTrainer", "TrainResult", "Trainer"]


class PPOTrainer(Trainer):
    """Trains with proximal policy optimization, `rlox.algorithms.ppo`.

    Settings come from the arguments, else from rl-zoo3 for this environment's id, else they are
    Stable-Baselines3's defaults; `config` and `sources` tell.

    Args:
        env: An id, an environment class or a function that makes an environment, a vector
            environment in any autoreset mode.
        seed: Decides everything random, but for what a `policy` or `features_extractor` of your own
            draws from torch's global generator while other threads draw from it, too. None takes
            one from the operating system; `seed` tells.
        policy: A torch module as `rlox.policies.ActorCritic` describes, or a function from the
            observation space and the action space to one; None: the built-in MLP.
        env_kwargs: Passed to `rlox.make_vec` and what makes the environments; only what JSON can
            hold, as the run folder and checkpoints have it (there, tuples are lists).
        runs_dir: Where run folders are made; None: nothing is written.
        **settings: Fields of `rlox.algorithms.PPOConfig`.

    Raises:
        TypeError: An unknown setting (near ones are named), or an argument of another kind.
        ValueError: A setting out of range, spaces that PPO cannot do, an unknown id, a `runs_dir`
            in which no folder can be made.
        MemoryError: Environments, rollout or networks do not fit into memory.

    >>> trainer = PPOTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    algorithm = "ppo"
    learner_type = PPO
    config_type = PPOConfig


class A2CTrainer(Trainer):
    """Trains with advantage actor-critic, `rlox.algorithms.a2c`.

    Args:
        env, seed, policy, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.algorithms.A2CConfig`.

    Raises:
        TypeError, ValueError, MemoryError: As `PPOTrainer` does.

    >>> trainer = A2CTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    algorithm = "a2c"
    learner_type = A2C
    config_type = A2CConfig
