"""Trainers: one line from an environment's id to a trained policy. One class for each algorithm."""

from rlox.configs import A2CConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig, TD3Config
from rlox.results import TrainResult
from rlox.trainer import Trainer

__all__ = [
    "A2CTrainer",
    "DQNTrainer",
    "IMPALATrainer",
    "PPOTrainer",
    "SACTrainer",
    "TD3Trainer",
    "TrainResult",
    "Trainer",
]


class PPOTrainer(Trainer):
    """Trains with proximal policy optimization, `rlox.algorithms.ppo`.

    Settings come from the arguments, else from rl-zoo3 for this environment's id, else they are
    Stable-Baselines3's defaults; `config` and `sources` tell.

    Args:
        env: An id, an `EnvSpec`, an environment class or a function that makes an environment, a
            vector environment in any autoreset mode.
        seed: Decides everything random, but for what a `policy` or `features_extractor` of your own
            draws from torch's global generator while other threads draw from it, too. None takes
            one from the operating system; `seed` tells.
        backend: What computes: "native", the networks in Rust, needs nothing else; "torch" does all
            settings; "candle" and "burn" are for builds with them. "auto" takes "torch" for what
            only that one does (a `policy` or `features_extractor`, pictures, Dict and Tuple
            observations, another `device` than the CPU, `compile`, "elu", "rmsprop_tf",
            `full_std=False`, `net_arch=()` beside `use_sde`, `her`, `frame_stack`, `action_noise`
            with a mean or with several sigmas), else "native", whatever is installed;
            `learner.backend` tells.
        policy: A torch module as `rlox.policies.ActorCritic` describes, or a function from the
            observation space and the action space to one; None: the built-in MLP.
        env_kwargs: Passed to `rlox.make_vec` and what makes the environments; only what JSON can
            hold, as the run folder and checkpoints have it (there, tuples are lists).
        runs_dir: Where run folders are made; None: nothing is written.
        **settings: Fields of `rlox.configs.PPOConfig`.

    Raises:
        TypeError: An unknown setting (near ones are named), or an argument of another kind.
        ValueError: A setting out of range, spaces that PPO cannot do, an unknown id, a `runs_dir`
            in which no folder can be made; a backend that is none, is not in this build, or does
            not do what is asked for.
        ModuleNotFoundError: Torch is what is needed, and it is not installed.
        MemoryError: Environments, rollout or networks do not fit into memory.

    >>> trainer = PPOTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    algorithm = "ppo"
    config_type = PPOConfig
    learners = "rlox.algorithms:PPO", "rlox.native:NativePPO"


class A2CTrainer(Trainer):
    """Trains with advantage actor-critic, `rlox.algorithms.a2c`.

    Args:
        env, seed, backend, policy, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.configs.A2CConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = A2CTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    algorithm = "a2c"
    config_type = A2CConfig
    learners = "rlox.algorithms:A2C", "rlox.native:NativeA2C"


class IMPALATrainer(Trainer):
    """Trains with IMPALA, `rlox.algorithms.impala`; actors collect meanwhile, in threads.

    Args:
        env, seed, backend, policy, env_kwargs, runs_dir: As for `PPOTrainer`. Environments other
            than native ones, and a `policy` or `features_extractor` of your own, need
            `lockstep=True` and `max_lag=0`: actors and learner take turns then.
        **settings: Fields of `rlox.configs.IMPALAConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = IMPALATrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    algorithm = "impala"
    config_type = IMPALAConfig
    learners = "rlox.algorithms:IMPALA", "rlox.native:NativeIMPALA"


class DQNTrainer(Trainer):
    """Trains with deep Q-networks, `rlox.algorithms.dqn`.

    Args:
        env, seed, backend, env_kwargs, runs_dir: As for `PPOTrainer`.
        policy, features_extractor: As for `rlox.algorithms.DQN`.
        **settings: Fields of `rlox.configs.DQNConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = DQNTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    algorithm = "dqn"
    config_type = DQNConfig
    learners = "rlox.algorithms:DQN", "rlox.native_off_policy:NativeDQN"


class SACTrainer(Trainer):
    """Trains with soft actor-critic, `rlox.algorithms.sac`.

    Args:
        env, seed, backend, env_kwargs, runs_dir: As for `PPOTrainer`.
        policy, features_extractor: As for `rlox.algorithms.SAC`.
        **settings: Fields of `rlox.configs.SACConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = SACTrainer(env="Pendulum-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=110)["timesteps"]
    110
    """

    algorithm = "sac"
    config_type = SACConfig
    learners = "rlox.algorithms:SAC", "rlox.native_off_policy:NativeSAC"


class TD3Trainer(Trainer):
    """Trains with twin delayed DDPG, `rlox.algorithms.td3`.

    Args:
        env, seed, backend, env_kwargs, runs_dir: As for `PPOTrainer`.
        policy, features_extractor: As for `rlox.algorithms.TD3`.
        **settings: Fields of `rlox.configs.TD3Config`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = TD3Trainer(env="Pendulum-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=1_000)["timesteps"]
    1000
    """

    algorithm = "td3"
    config_type = TD3Config
    learners = "rlox.algorithms:TD3", "rlox.native_off_policy:NativeTD3"


TRAINERS: dict[str, type[Trainer]] = {
    kind.algorithm: kind
    for kind in (PPOTrainer, A2CTrainer, IMPALATrainer, DQNTrainer, SACTrainer, TD3Trainer)
}
"""By the name of the algorithm."""
