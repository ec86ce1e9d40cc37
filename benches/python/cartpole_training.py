"""What the training benchmarks on CartPole-v1 share: the clock, the evaluation, the rows.

The clock runs from making the trainer to the end of training, on PyTorch; imports and a short
training before are not counted. Each library runs with one and with two threads, and is judged by
the better. Every round is another seed. After it, outside the clock, 30 greedy episodes on
Gymnasium's own CartPole-v1 give the return.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from side_by_side import Benchmark, Row, Subject, swept

Predict = Callable[[Any], Any]
Train = Callable[[int, int], Predict]
Once = Callable[[int], dict[str, float]]

ENV = "CartPole-v1"


def greedy_return(predict: Predict, episodes: int) -> float:
    """Mean return of greedy episodes on Gymnasium's environment."""
    import gymnasium as gym

    env, total = gym.make(ENV), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(np.asarray(predict(obs)).item()))
            total += float(reward)
            over = terminated or truncated
    return total / episodes


def timed(train: Train, total: int, threads: int, episodes: int) -> Once:
    """A subject: trains once for each round, with the round's number as the seed."""
    import torch

    torch.set_num_threads(threads)
    train(1024, 12345)

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


def rlox(trainer_class: Any, threads: int) -> Train:
    """A trainer of ours on torch, with the zoo's settings; no run folder, as others have none."""

    def train(steps: int, seed: int) -> Predict:
        trainer = trainer_class(env=ENV, seed=seed, backend="torch", runs_dir=None)
        assert trainer.learner.threads  # chosen by itself; the sweep chooses otherwise
        trainer.learner.threads = threads
        trainer.train(total_timesteps=steps)
        return lambda obs: trainer.predict(obs)

    return train


def sb3(model_class: Any, num_envs: int, **settings: Any) -> Train:
    """Stable-Baselines3, with its Monitor, as the zoo runs it."""
    from stable_baselines3.common.env_util import make_vec_env

    def train(steps: int, seed: int) -> Predict:
        env = make_vec_env(ENV, num_envs, seed=seed)
        model = model_class("MlpPolicy", env, seed=seed, device="cpu", **settings)
        model.learn(steps)
        return lambda obs: model.predict(obs, deterministic=True)[0]

    return train


def published_rlox(algorithm: str, config: dict[str, Any]) -> Train:
    """rlox 1.2.0."""
    make: Any = importlib.import_module("rlox").Trainer  # another library than ours

    def train(steps: int, seed: int) -> Predict:
        trainer = make(algorithm, ENV, config=dict(config), seed=seed)
        trainer.train(steps)
        return lambda obs: trainer.predict(obs, deterministic=True)

    return train


def benchmark(module: str, algorithm: str) -> Benchmark:
    """One row: the module's functions `rlox`, `sb3` and `published_rlox`."""

    def rows(quick: bool) -> list[Row]:
        libraries = (
            Subject(f"rlox {algorithm}Trainer, torch", "rlox"),
            Subject(f"SB3 {algorithm}", "sb3", "sb3"),
            Subject(f"rlox 1.2.0 {algorithm}", "published_rlox", "rlox-1.2.0"),
        )
        subjects = [
            Subject(one.name, one.function, one.peer, {"threads": one.threads}, one.threads)
            for library in libraries
            for one in (swept(library)[:1] if quick else swept(library))
        ]
        total, episodes = (1024, 1) if quick else (50_000, 30)
        params = {"total": total, "episodes": episodes}
        return [Row(f"{algorithm} {ENV}, {total} steps", params, subjects, total)]

    columns = ("processor", "return")
    return Benchmark(module, f"{algorithm} training", rows, rounds=5, columns=columns)
