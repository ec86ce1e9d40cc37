"""Common parts of the training benchmarks: clock, evaluation, and rows on CartPole-v1.

The clock runs from the creation of the trainer to the end of training. Imports and a short first
training are excluded. Each library runs with one thread and with two, and the faster result is
used. Each round has another seed. "return" is the mean return of 30 greedy episodes on Gymnasium's
environment, after the clock has stopped. `side_by_side.py` defines rounds, rows and subjects.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from side_by_side import Benchmark, Row, Subject, swept

Predict = Callable[[Any], Any]
Train = Callable[[int, int], Predict]
Once = Callable[[int], dict[str, float]]

ENV, WARM_UP = "CartPole-v1", 1024


def greedy_return(predict: Predict, episodes: int, env_id: str = ENV) -> float:
    """Return the mean return of greedy episodes on Gymnasium's environment."""
    import gymnasium as gym

    env, total = gym.make(env_id), 0.0
    shape = env.action_space.shape
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            action = np.asarray(predict(obs)).reshape(shape)
            obs, reward, terminated, truncated, _ = env.step(action if shape else action.item())
            total += float(reward)
            over = terminated or truncated
    return total / episodes


def use_threads(threads: int) -> None:
    """Set the threads of torch if it is imported. Others read environment variables at their start."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def training_subject(
    train: Train, total: int, threads: int, episodes: int, env_id: str = ENV, warm_up: int = WARM_UP
) -> Once:
    """Return a subject that trains once per round, with the number of the round as the seed.

    A training of `warm_up` steps is not timed. If `episodes` is 0, no return is measured.
    """
    use_threads(threads)
    train(warm_up, 12345)

    def once(turn: int) -> dict[str, float]:
        use_threads(threads)
        start, processor_start = time.perf_counter(), time.process_time()
        predict = train(total, turn)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor_start
        numbers = {"seconds": seconds, "processor": processor}
        if episodes:
            numbers["return"] = greedy_return(predict, episodes, env_id)
        return numbers

    return once


def rlox(trainer_class: Any, backend: str, threads: int, env_id: str = ENV, **settings: Any) -> Train:
    """Return a train function of an rlox trainer, which writes no run folder, like other libraries."""

    def train(steps: int, seed: int) -> Predict:
        trainer = trainer_class(env=env_id, seed=seed, backend=backend, runs_dir=None, **settings)
        if backend == "torch":
            assert hasattr(trainer.learner, "threads")  # rlox chooses the threads, but the sweep overrides them
            trainer.learner.threads = threads
        trainer.train(total_timesteps=steps)
        return lambda obs: trainer.predict(obs)

    return train


def sb3(model_class: Any, num_envs: int, env_id: str = ENV, **settings: Any) -> Train:
    """Return a train function of Stable-Baselines3."""

    def train(steps: int, seed: int) -> Predict:
        model = sb3_model(model_class, num_envs, seed, env_id, **settings)
        model.learn(steps)
        return lambda obs: model.predict(obs, deterministic=True)[0]

    return train


def sb3_model(model_class: Any, num_envs: int, seed: int, env_id: str = ENV, **settings: Any) -> Any:
    """Return a model of Stable-Baselines3 with a Monitor, as rl-zoo3 runs it."""
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env(env_id, num_envs, seed=seed)
    return model_class("MlpPolicy", env, seed=seed, device="cpu", **settings)


def published_rlox(algorithm: str, config: dict[str, Any], env_id: str = ENV) -> Train:
    """Return a train function of rlox 1.2.0."""
    make: Any = importlib.import_module("rlox").Trainer  # rlox 1.2.0 has the same import name

    def train(steps: int, seed: int) -> Predict:
        trainer = make(algorithm, env_id, config=dict(config), seed=seed)
        trainer.train(steps)
        return lambda obs: trainer.predict(obs, deterministic=True)

    return train


def benchmark(module: str, algorithm: str) -> Benchmark:
    """Return a benchmark of one row with the module's `rlox`, `sb3` and `published_rlox`."""

    def rows(quick: bool) -> list[Row]:
        libraries = (
            *(
                Subject(f"rlox {algorithm}Trainer, {backend}", "rlox", options={"backend": backend})
                for backend in ("native", "torch")
            ),
            Subject(f"SB3 {algorithm}", "sb3", "sb3"),
            Subject(f"rlox 1.2.0 {algorithm}", "published_rlox", "rlox-1.2.0"),
        )
        subjects = [
            replace(variant, options={**variant.options, "threads": variant.threads})
            for library in libraries
            for variant in (swept(library)[:1] if quick else swept(library))
        ]
        total, episodes = (1024, 1) if quick else (50_000, 30)
        params = {"total": total, "episodes": episodes}
        return [Row(f"{algorithm} {ENV}, {total} steps", params, subjects, total)]

    columns = ("processor", "return")
    return Benchmark(module, f"{algorithm} training", rows, rounds=5, columns=columns)
