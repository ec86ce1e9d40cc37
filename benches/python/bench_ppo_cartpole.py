"""PPO on CartPole-v1 with rl-zoo3's settings, 50,000 steps: wall clock, and what was learned.

`cartpole_training.py` says what is measured. rlox 1.2.0 has no schedule for the clipping range: it
stays at the zoo's first value.
"""

from __future__ import annotations

import sys

import cartpole_training as training
from side_by_side import run

ENVS, STEPS, EPOCHS, BATCH = 8, 32, 20, 256
GAMMA, LAMBDA, RATE, CLIP = 0.98, 0.8, 1e-3, 0.2


def native(total: int, episodes: int, threads: int) -> training.Once:
    """rlox's own networks."""
    return training.timed(training.native("ppo"), total, threads, episodes)


def rlox(total: int, episodes: int, threads: int) -> training.Once:
    """`PPOTrainer` on PyTorch."""
    from rlox.trainers import PPOTrainer

    return training.timed(training.rlox(PPOTrainer, threads), total, threads, episodes)


def sb3(total: int, episodes: int, threads: int) -> training.Once:
    """Stable-Baselines3."""
    from stable_baselines3 import PPO

    train = training.sb3(
        PPO,
        ENVS,
        learning_rate=lambda left: left * RATE,
        clip_range=lambda left: left * CLIP,
        n_steps=STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        ent_coef=0.0,
    )
    return training.timed(train, total, threads, episodes)


def published_rlox(total: int, episodes: int, threads: int) -> training.Once:
    """rlox 1.2.0 with the zoo's settings, as far as it has them."""
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
    return training.timed(training.published_rlox("ppo", config), total, threads, episodes)


BENCHMARK = training.benchmark("bench_ppo_cartpole", "PPO")

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
