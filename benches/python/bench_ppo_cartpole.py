"""PPO on CartPole-v1 with rl-zoo3's settings, 50,000 steps: wall clock, and what was learned.

The clock runs from making the trainer to the end of training, on PyTorch; imports and a short
training before are not counted. Each library runs with one and with two threads of torch, and is
judged by the better. Every round is another seed. After it, outside the clock, 30 greedy episodes
on Gymnasium's own CartPole-v1 give the return.

rlox 1.2.0 has no schedule for the clipping range: it stays at the zoo's first value.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from side_by_side import Benchmark, Row, Subject, run

Predict = Callable[[Any], Any]
Train = Callable[[int, int], Predict]

ENVS, STEPS, EPOCHS, BATCH = 8, 32, 20, 256
GAMMA, LAMBDA, RATE, CLIP = 0.98, 0.8, 1e-3, 0.2


def greedy_return(predict: Predict, episodes: int = 30) -> float:
    """Mean return of greedy episodes on Gymnasium's environment."""
    import gymnasium as gym

    env, total = gym.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(np.asarray(predict(obs)).item()))
            total += float(reward)
            over = terminated or truncated
    return total / episodes


def timed(
    train: Train, total: int, threads: int, episodes: int
) -> Callable[[int], dict[str, float]]:
    """A subject: trains once for each round, with the round's number as the seed."""
    import torch

    torch.set_num_threads(threads)
    train(4 * ENVS * STEPS, 12345)

    def once(turn: int) -> dict[str, float]:
        torch.set_num_threads(threads)
        start, busy = time.perf_counter(), time.process_time()
        predict = train(total, turn)
        seconds, processor = time.perf_counter() - start, time.process_time() - busy
        return {
            "seconds": seconds,
            "processor": processor,
            "return": greedy_return(predict, episodes),
        }

    return once


def rlox(total: int, episodes: int, threads: int) -> Callable[[int], dict[str, float]]:
    """`PPOTrainer`, whose settings for CartPole-v1 are the zoo's; no run folder, as the others."""
    from rlox.trainers import PPOTrainer

    def train(steps: int, seed: int) -> Predict:
        trainer = PPOTrainer(env="CartPole-v1", seed=seed, runs_dir=None)
        learner: Any = trainer.learner
        assert learner.threads  # chosen by itself; the sweep chooses otherwise
        learner.threads = threads
        trainer.train(total_timesteps=steps)
        return lambda obs: trainer.predict(obs)

    return timed(train, total, threads, episodes)


def sb3(total: int, episodes: int, threads: int) -> Callable[[int], dict[str, float]]:
    """Stable-Baselines3 as the zoo runs it."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    def train(steps: int, seed: int) -> Predict:
        model = PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", ENVS, seed=seed),
            learning_rate=lambda left: left * RATE,
            clip_range=lambda left: left * CLIP,
            n_steps=STEPS,
            batch_size=BATCH,
            n_epochs=EPOCHS,
            gamma=GAMMA,
            gae_lambda=LAMBDA,
            ent_coef=0.0,
            seed=seed,
            device="cpu",
        )
        model.learn(steps)
        return lambda obs: model.predict(obs, deterministic=True)[0]

    return timed(train, total, threads, episodes)


def published_rlox(total: int, episodes: int, threads: int) -> Callable[[int], dict[str, float]]:
    """rlox 1.2.0 with the zoo's settings, as far as it has them."""
    make: Any = importlib.import_module("rlox").Trainer  # another library than ours
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

    def train(steps: int, seed: int) -> Predict:
        trainer = make("ppo", "CartPole-v1", config=dict(config), seed=seed)
        trainer.train(steps)
        return lambda obs: trainer.predict(obs, deterministic=True)

    return timed(train, total, threads, episodes)


def rows(quick: bool) -> list[Row]:
    """One row."""
    libraries = (
        ("rlox PPOTrainer, torch", "rlox", "rlox"),
        ("SB3 PPO", "sb3", "sb3"),
        ("rlox 1.2.0 PPO", "published_rlox", "rlox-1.2.0"),
    )
    subjects = [
        Subject(name, function, peer, {"threads": threads}, threads)
        for name, function, peer in libraries
        for threads in ((1,) if quick else (1, 2))
    ]
    total, episodes = (1024, 1) if quick else (50_000, 30)
    params = {"total": total, "episodes": episodes}
    return [Row(f"PPO CartPole-v1, {total} steps", params, subjects, total)]


BENCHMARK = Benchmark(
    "bench_ppo_cartpole", "PPO training", rows, rounds=5, columns=("processor", "return")
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
