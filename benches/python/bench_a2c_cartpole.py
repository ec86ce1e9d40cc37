"""A2C on CartPole-v1 with rl-zoo3's settings, 50,000 steps: wall clock, and what was learned.

`training.py` says what is measured. The zoo leaves all but the environments and the
entropy's weight to Stable-Baselines3; rlox 1.2.0 has the same defaults otherwise.
"""

from __future__ import annotations

import sys

from side_by_side import run

import training

ENVS, STEPS = 8, 5


def rlox(total: int, episodes: int, threads: int, backend: str) -> training.Once:
    """`A2CTrainer`."""
    from rlox.trainers import A2CTrainer

    train = training.rlox(A2CTrainer, backend, threads)
    return training.timed(train, total, threads, episodes)


def sb3(total: int, episodes: int, threads: int) -> training.Once:
    """Stable-Baselines3."""
    from stable_baselines3 import A2C

    train = training.sb3(A2C, ENVS, n_steps=STEPS, ent_coef=0.0)
    return training.timed(train, total, threads, episodes)


def published_rlox(total: int, episodes: int, threads: int) -> training.Once:
    """rlox 1.2.0."""
    config = {"n_envs": ENVS, "n_steps": STEPS, "ent_coef": 0.0}
    return training.timed(training.published_rlox("a2c", config), total, threads, episodes)


BENCHMARK = training.benchmark("bench_a2c_cartpole", "A2C")

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
