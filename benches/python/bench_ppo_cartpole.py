"""PPO on CartPole-v1 with rl-zoo3's settings: time and return of 50,000 steps, and time to a score.

The time to a score is the time until a new process has an agent with a mean return of 475.

`training.py` and `time_to_score.py` describe the measurements. rlox 1.2.0 has no schedule for the
clip range. Its clip range is the initial value of rl-zoo3's schedule.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import time_to_score
from side_by_side import Row, Subject, run

import training

ENVS, STEPS, EPOCHS, BATCH = 8, 32, 20, 256
GAMMA, LAMBDA, RATE, CLIP = 0.98, 0.8, 1e-3, 0.2
ZOO: dict[str, Any] = {  # settings of Stable-Baselines3
    "learning_rate": lambda remaining: remaining * RATE,
    "clip_range": lambda remaining: remaining * CLIP,
    "n_steps": STEPS,
    "batch_size": BATCH,
    "n_epochs": EPOCHS,
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "ent_coef": 0.0,
}


def rlox(total: int, episodes: int, threads: int, backend: str) -> training.Once:
    """Time `PPOTrainer`."""
    from rlox.trainers import PPOTrainer

    train = training.rlox(PPOTrainer, backend, threads)
    return training.training_subject(train, total, threads, episodes)


def sb3(total: int, episodes: int, threads: int) -> training.Once:
    """Time Stable-Baselines3."""
    from stable_baselines3 import PPO

    train = training.sb3(PPO, ENVS, **ZOO)
    return training.training_subject(train, total, threads, episodes)


def published_rlox(total: int, episodes: int, threads: int) -> training.Once:
    """Time rlox 1.2.0 with the settings of rl-zoo3 that it supports."""
    config = {
        "n_envs": ENVS,
        "n_steps": STEPS,
        "n_epochs": EPOCHS,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "anneal_lr": True,
        "clip_eps": CLIP,
        "clip_vloss": False,
        "ent_coef": 0.0,
        "gamma": GAMMA,
        "gae_lambda": LAMBDA,
    }
    return training.training_subject(training.published_rlox("ppo", config), total, threads, episodes)


def to_score(library: str, score: float) -> training.Once:
    """Time a new process until it reaches a score."""
    return time_to_score.process_subject(library, score)


def rows(quick: bool) -> list[Row]:
    """Return the rows of a run's time and of the time to a score."""
    subjects = [
        Subject("rlox PPOTrainer, native", "to_score", options={"library": "rlox"}),
        Subject("SB3 PPO", "to_score", "sb3", {"library": "sb3"}),
    ]
    score = 20 if quick else 475
    row = Row(f"PPO CartPole-v1, new process to {score}", {"score": score}, subjects, 1, "processes")
    return [*WALL_CLOCK.rows(quick), row]


WALL_CLOCK = training.benchmark("bench_ppo_cartpole", "PPO")
COLUMNS = (*WALL_CLOCK.columns, "learning", "steps")
BENCHMARK = replace(WALL_CLOCK, rows=rows, columns=COLUMNS)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
