"""What the training benchmarks share: the clock, the evaluation, the rows on CartPole-v1.

The clock runs from making the trainer to the end of training; imports and a short training before
are not counted. Each library runs with one and with two threads, and is judged by the better. Every
round is another seed. After it, outside the clock, 30 greedy episodes on Gymnasium's own
environment give the return.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from side_by_side import Benchmark, Row, Subject, swept

Predict = Callable[[Any], Any]
Train = Callable[[int, int], Predict]
Once = Callable[[int], dict[str, float]]

ENV = "CartPole-v1"


def greedy_return(predict: Predict, episodes: int, env_id: str = ENV) -> float:
    """Mean return of greedy episodes on Gymnasium's environment."""
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
    """Tells torch, where it is used; others read the environment."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def timed(train: Train, total: int, threads: int, episodes: int, env_id: str = ENV) -> Once:
    """A subject: trains once for each round, with the round's number as the seed."""
    use_threads(threads)
    train(1024, 12345)

    def once(turn: int) -> dict[str, float]:
        use_threads(threads)
        start, busy = time.perf_counter(), time.process_time()
        predict = train(total, turn)
        seconds, processor = time.perf_counter() - start, time.process_time() - busy
        return {
            "seconds": seconds,
            "processor": processor,
            "return": greedy_return(predict, episodes, env_id),
        }

    return once


def rlox(trainer_class: Any, threads: int) -> Train:
    """A trainer of ours on torch with the zoo's settings for CartPole-v1; no run folder."""

    def train(steps: int, seed: int) -> Predict:
        trainer = trainer_class(env=ENV, seed=seed, backend="torch", runs_dir=None)
        assert trainer.learner.threads  # chosen by itself; the sweep chooses otherwise
        trainer.learner.threads = threads
        trainer.train(total_timesteps=steps)
        return lambda obs: trainer.predict(obs)

    return train


def native(algorithm: str, env_id: str = ENV, **settings: Any) -> Train:
    """rlox's own networks, without PyTorch; the settings are the zoo's, or those given."""

    def train(steps: int, seed: int) -> Predict:
        learner = native_learner(algorithm, env_id, seed, **settings)
        while learner.timesteps < steps:
            learner.iterate(learner.timesteps / steps)
        return lambda obs: learner.predict(obs)

    return train


def native_learner(algorithm: str, env_id: str, seed: int, **settings: Any) -> Any:
    """A learner with rl-zoo3's settings, or others."""
    from rlox import algorithms, make_vec, native
    from rlox.presets import preset

    config_type = {"ppo": algorithms.PPOConfig, "a2c": algorithms.A2CConfig}[algorithm]
    learner_type = {"ppo": native.NativePPO, "a2c": native.NativeA2C}[algorithm]
    config = config_type(**(settings or preset(algorithm, env_id)))
    return learner_type(make_vec(env_id, config.num_envs), config, seed)


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
    """One row: the module's functions `native`, `rlox`, `sb3` and `published_rlox`."""

    def rows(quick: bool) -> list[Row]:
        libraries = (
            Subject(f"rlox {algorithm}Trainer, native", "native"),
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
