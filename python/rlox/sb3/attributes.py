"""What models of Stable-Baselines3 have as attributes, and how it is done here."""

from typing import Any

from rlox.sb3.keywords import DEFAULTS, RENAMED

_CONFIG = "model.trainer.config has the settings that came of it"
_NETWORKS = "model.trainer.learner.state().networks has arrays by name"
_LOGGER = "pass a function of (trainer, metrics) as callback to learn(), or tensorboard_log="
_ABSENT = {
    "train": "learn() steps and learns; model.trainer.learner.iterate() is one iteration",
    "collect_rollouts": "learn() collects them; see rlox.collect_rollout",
    "get_parameters": _NETWORKS,
    "set_parameters": "load(path) takes a checkpoint; see rlox.sb3.convert for their files",
    "set_random_seed": "pass seed= to the constructor",
    "policy": "on-policy models on native networks have model.trainer.learner.to_torch()",
    "policy_kwargs": _CONFIG,
    "policy_class": _CONFIG,
    "actor": _NETWORKS,
    "critic": _NETWORKS,
    "q_net": _NETWORKS,
    "replay_buffer": "save(path) has the replay buffer in it, of which len(model.trainer.learner."
    "replay) transitions are filled",
    "rollout_buffer": "rollouts are rlox's own, in Rust; see rlox.collect_rollout",
    "save_replay_buffer": "save(path) has the replay buffer in it",
    "load_replay_buffer": "load(path) has the replay buffer in it",
    "get_vec_normalize_env": "rlox.trainers have normalize_obs and normalize_reward",
    "ep_info_buffer": "model.trainer.learner.episodes has count, returns and lengths",
    "ep_success_buffer": "success is not counted; wrap the environment to count it",
    "lr_schedule": "model.trainer.config has learning_rate and lr_schedule",
    "logger": _LOGGER,
    "set_logger": _LOGGER,
}


def instead_of(kind: str, name: str) -> str:
    """The message for an attribute that models do not have.

    >>> instead_of("PPO", "policy_class")
    "PPO has no 'policy_class' in rlox.sb3; model.trainer.config has the settings that came of it"
    """
    if name in _ABSENT:
        return f"{kind} has no {name!r} in rlox.sb3; {_ABSENT[name]}"
    return f"{kind!r} object has no attribute {name!r}"


def setting(algorithm: str, config: Any, name: str) -> Any:
    """A setting by the keyword of Stable-Baselines3's for it.

    Raises:
        AttributeError: It is no such keyword, or not a setting by itself.

    >>> from rlox.configs import PPOConfig
    >>> setting("ppo", PPOConfig(clip_coef=0.1), "clip_range")
    0.1
    """
    if name not in DEFAULTS[algorithm]:
        raise AttributeError(name)
    return getattr(config, RENAMED.get(name, name))
