"""Returns of rlox and Stable-Baselines3 after equally many steps, over ten seeds.

Both have rl-zoo3's settings and one thread. `training.py` describes the measurement of a return.
"return" is the interquartile mean over the seeds (Agarwal et al. 2021, "Deep Reinforcement Learning
at the Edge of the Statistical Precipice") with the 95% interval of its bootstrap distribution. The
return of rlox is no worse if it is not below the lower end of Stable-Baselines3's interval. The
times are those of full runs. This benchmark takes hours, so `run_all.py` omits it. `--only` selects
rows.
"""

from __future__ import annotations

import sys
from typing import Any

import bench_a2c_cartpole
import bench_off_policy
import bench_ppo_cartpole
from side_by_side import Benchmark, Row, Subject, run

import training

CELLS = (
    ("DQN", "CartPole-v1", 50_000),
    ("DQN", "MountainCar-v0", 120_000),
    ("DQN", "Acrobot-v1", 100_000),
    ("SAC", "Pendulum-v1", 20_000),
    ("SAC", "MountainCarContinuous-v0", 50_000),
    ("TD3", "Pendulum-v1", 20_000),
    ("PPO", "CartPole-v1", 100_000),
    ("A2C", "CartPole-v1", 500_000),
)
# rl-zoo3's settings for Stable-Baselines3. Other modules have the settings for Pendulum-v1 and CartPole-v1.
ZOO: dict[tuple[str, str], dict[str, Any]] = {
    ("DQN", "MountainCar-v0"): {
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
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    ("DQN", "Acrobot-v1"): {
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
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    ("SAC", "MountainCarContinuous-v0"): {
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
        "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
    },
}


def rlox(algorithm: str, env_id: str, total: int, episodes: int, backend: str) -> training.Once:
    """Time a trainer of rlox with the preset of the environment."""
    from rlox import trainers

    train = training.rlox(getattr(trainers, f"{algorithm}Trainer"), backend, 1, env_id)
    return training.training_subject(train, total, 1, episodes, env_id)


def sb3(algorithm: str, env_id: str, total: int, episodes: int) -> training.Once:
    """Time Stable-Baselines3 with rl-zoo3's settings."""
    on_policy = {"PPO": bench_ppo_cartpole.sb3, "A2C": bench_a2c_cartpole.sb3}
    if algorithm in on_policy:
        return on_policy[algorithm](total, episodes, 1)
    settings = ZOO.get((algorithm, env_id))
    return bench_off_policy.sb3(algorithm, env_id, total, episodes, 1, settings)


def rows(quick: bool) -> list[Row]:
    """Return a row for each algorithm and environment."""
    found = []
    for algorithm, env_id, full_total in CELLS[:1] if quick else CELLS:
        total, episodes = (200, 1) if quick else (full_total, 30)
        subjects = [
            Subject(f"rlox {algorithm}, {backend}", "rlox", options={"backend": backend})
            for backend in ("native", "torch")
        ]
        subjects.append(Subject(f"SB3 {algorithm}", "sb3", "sb3"))
        params = {"algorithm": algorithm, "env_id": env_id, "total": total, "episodes": episodes}
        found.append(Row(f"{algorithm} {env_id}, {total} steps", params, subjects, total))
    return found


BENCHMARK = Benchmark("learning", "Learning", rows, rounds=10, columns=("return",))

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
