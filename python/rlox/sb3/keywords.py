"""The keywords of Stable-Baselines3's algorithms: their order, their defaults, and other names."""

from typing import Any

_ON_POLICY_END: dict[str, Any] = {
    "stats_window_size": 100,
    "tensorboard_log": None,
    "policy_kwargs": None,
    "verbose": 0,
    "seed": None,
    "device": "auto",
    "_init_setup_model": True,
}
_BUFFER = {"replay_buffer_class": None, "replay_buffer_kwargs": None}
_ROLLOUT = {"rollout_buffer_class": None, "rollout_buffer_kwargs": None}
_REPLAY: dict[str, Any] = {**_BUFFER, "optimize_memory_usage": False, "n_steps": 1}


def _replay(learning_rate: float, batch_size: int, tau: float, train_freq: int) -> dict[str, Any]:
    """What the algorithms with a replay buffer begin with."""
    return {
        "learning_rate": learning_rate,
        "buffer_size": 1_000_000,
        "learning_starts": 100,
        "batch_size": batch_size,
        "tau": tau,
        "gamma": 0.99,
        "train_freq": train_freq,
        "gradient_steps": 1,
    }


# By algorithm, in the order in which they may be passed without their names, behind policy and env.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {
        "learning_rate": 3e-4,
        "n_steps": 2048,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "clip_range_vf": None,
        "normalize_advantage": True,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "use_sde": False,
        "sde_sample_freq": -1,
        **_ROLLOUT,
        "target_kl": None,
        **_ON_POLICY_END,
    },
    "a2c": {
        "learning_rate": 7e-4,
        "n_steps": 5,
        "gamma": 0.99,
        "gae_lambda": 1.0,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "rms_prop_eps": 1e-5,
        "use_rms_prop": True,
        "use_sde": False,
        "sde_sample_freq": -1,
        **_ROLLOUT,
        "normalize_advantage": False,
        **_ON_POLICY_END,
    },
    "dqn": {
        **_replay(learning_rate=1e-4, batch_size=32, tau=1.0, train_freq=4),
        **_REPLAY,
        "target_update_interval": 10_000,
        "exploration_fraction": 0.1,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.05,
        "max_grad_norm": 10,
        **_ON_POLICY_END,
    },
    "sac": {
        **_replay(learning_rate=3e-4, batch_size=256, tau=0.005, train_freq=1),
        "action_noise": None,
        **_REPLAY,
        "ent_coef": "auto",
        "target_update_interval": 1,
        "target_entropy": "auto",
        "use_sde": False,
        "sde_sample_freq": -1,
        "use_sde_at_warmup": False,
        **_ON_POLICY_END,
    },
    "td3": {
        **_replay(learning_rate=1e-3, batch_size=256, tau=0.005, train_freq=1),
        "action_noise": None,
        **_REPLAY,
        "policy_delay": 2,
        "target_policy_noise": 0.2,
        "target_noise_clip": 0.5,
        **_ON_POLICY_END,
    },
}

# Keywords that are taken only with the values at which they ask for nothing, and why.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "rollout_buffer_class": ((None,), "rollouts are rlox's own, in Rust; leave it out"),
    "rollout_buffer_kwargs": ((None, {}), "rollouts are rlox's own, in Rust; leave it out"),
    "replay_buffer_class": (
        (None,),
        "replay buffers are rlox's own; her= and prioritized= are settings of rlox.trainers",
    ),
    "replay_buffer_kwargs": ((None, {}), "replay buffers are rlox's own, in Rust; leave it out"),
    "optimize_memory_usage": ((False,), "rlox's buffer has no such mode; lower buffer_size"),
    "stats_window_size": ((100,), "rollout/ep_rew_mean is that of the last 100 episodes here"),
    "_init_setup_model": ((True,), "models are made whole; leave it out"),
}

# Ours for theirs, where the name alone is another one.
RENAMED = {
    "rms_prop_eps": "optimizer_eps",
    "clip_range": "clip_coef",
    "clip_range_vf": "clip_coef_vf",
    "n_envs": "num_envs",
}

# Of other algorithms, of older versions, or said elsewhere: what to do about them.
ELSEWHERE = {
    "n_envs": "pass as many environments: rlox.make_vec(id, num_envs)",
    "num_envs": "pass as many environments: rlox.make_vec(id, num_envs)",
    "net_arch": "pass policy_kwargs=dict(net_arch=...)",
    "activation_fn": "pass policy_kwargs=dict(activation_fn=...)",
    "ortho_init": "pass policy_kwargs=dict(ortho_init=...)",
    "log_std_init": "pass policy_kwargs=dict(log_std_init=...)",
    "clip_coef": "it is clip_range here, as in Stable-Baselines3",
    "lr_schedule": "pass a function of the remaining progress as learning_rate",
    "normalize_obs": "rlox.trainers have this setting; Stable-Baselines3 has a wrapper for it",
    "normalize_reward": "rlox.trainers have this setting; Stable-Baselines3 has a wrapper for it",
    "runs_dir": "rlox.trainers write run folders, models of rlox.sb3 write nothing but save(path)",
    "create_eval_env": "pass an rlox.callbacks.Callback to learn, or call evaluate_policy",
    "total_timesteps": "total_timesteps belongs to learn(), not to the constructor",
    "callback": "callback belongs to learn(), not to the constructor",
    "progress_bar": "progress_bar belongs to learn(), not to the constructor",
    "prioritized_replay": "rlox.trainers.DQNTrainer has prioritized=True",
    "double_q": "rlox.trainers.DQNTrainer has double=True",
    "remove_time_limit_termination": "time limits are always told from terminations; leave it out",
}
