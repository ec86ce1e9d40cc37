"""A2C on CartPole-v1 with rl-zoo3's settings: time and return of 50,000 steps.

`training.py` describes the measurement. rl-zoo3 sets only the number of environments and the
entropy coefficient. The other settings have the defaults of Stable-Baselines3, which are also those
of rlox 1.2.0.
"""

from __future__ import annotations

import sys

from side_by_side import run

import training

ENVS, STEPS = 8, 5


def rlox(total: int, episodes: int, threads: int, backend: str) -> training.Once:
    """Time `A2CTrainer`."""
    from rlox.trainers import A2CTrainer

    train = training.rlox(A2CTrainer, backend, threads)
    return training.training_subject(train, total, threads, episodes)


def sb3(total: int, episodes: int, threads: int) -> training.Once:
    """Time Stable-Baselines3."""
    from stable_baselines3 import A2C

    train = training.sb3(A2C, ENVS, n_steps=STEPS, ent_coef=0.0)
    return training.training_subject(train, total, threads, episodes)


def published_rlox(total: int, episodes: int, threads: int) -> training.Once:
    """Time rlox 1.2.0."""
    config = {"n_envs": ENVS, "n_steps": STEPS, "ent_coef": 0.0}
    return training.training_subject(training.published_rlox("a2c", config), total, threads, episodes)


BENCHMARK = training.benchmark("bench_a2c_cartpole", "A2C")

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
