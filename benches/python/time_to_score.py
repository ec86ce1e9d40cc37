"""Time until an agent of CartPole-v1 in a new process reaches a score.

The clock starts with the Python process. It covers imports, training with rl-zoo3's settings of
PPO, and 30 greedy episodes after every 2,048 steps, until their mean return reaches the score.
These episodes run on the library's fastest environments with the dynamics of CartPole-v1, with new
seeds each time. "learning" is the time without imports and setup. "return" is the mean return of
other episodes on Gymnasium's environment.

The subjects run this file as a program with the library, the seed and the score as arguments.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ENV, BUDGET, EVERY, EPISODES = "CartPole-v1", 100_000, 2048, 30


def process_subject(library: str, score: float) -> Callable[[int], dict[str, float]]:
    """Return a subject that starts a process in each round, with the round's number as seed."""

    def once(turn: int) -> dict[str, float]:
        program = [sys.executable, "-W", "ignore", __file__, library, str(turn), str(score)]
        start = time.perf_counter()
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            line = process.stdout.readline()
            seconds = time.perf_counter() - start
            rest = process.stdout.readline()
        if process.returncode or not rest:
            raise RuntimeError(f"the process ended with {process.returncode}")
        return {"seconds": seconds, **json.loads(line), **json.loads(rest)}

    return once


class ScoreCheck:
    """Evaluation that detects when the score is reached."""

    def __init__(self, envs: Any, predict: Callable[[Any], Any], score: float) -> None:
        self.envs, self.predict, self.score = envs, predict, score
        self.last_evaluation = 0

    def is_reached(self, timesteps: int) -> bool:
        """Return whether the score is reached, if another evaluation is due."""
        if timesteps < self.last_evaluation + EVERY:
            return False
        self.last_evaluation = timesteps
        obs, _ = self.envs.reset(seed=timesteps)
        alive, returns = np.ones(EPISODES, np.bool_), np.zeros(EPISODES)
        while alive.any():
            obs, rewards, terminated, truncated, _ = self.envs.step(self.predict(obs))
            returns += rewards * alive
            alive &= ~(terminated | truncated)
        return bool(returns.mean() >= self.score)


def rlox(seed: int, score: float) -> tuple[Callable[[], int], Callable[[Any], Any]]:
    """Return a function that trains and returns the steps, and the policy."""
    from rlox import VecEnv
    from rlox.trainers import PPOTrainer

    trainer = PPOTrainer(env=ENV, seed=seed, backend="native", runs_dir=None)
    score_check = ScoreCheck(VecEnv(EPISODES, env_id=ENV), trainer.predict, score)

    def check(run: PPOTrainer, metrics: dict[str, float]) -> None:
        if score_check.is_reached(run.budget_used):
            run.stop()

    def train() -> int:
        return trainer.train(BUDGET, callbacks=[check])["timesteps"]

    return train, trainer.predict


def sb3(seed: int, score: float) -> tuple[Callable[[], int], Callable[[Any], Any]]:
    """Return what `rlox` returns, for Stable-Baselines3 and Gymnasium's NumPy environments."""
    import gymnasium as gym
    import torch
    from bench_ppo_cartpole import ENVS, ZOO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    from training import sb3_model

    torch.set_num_threads(1)
    model = sb3_model(PPO, ENVS, seed, **ZOO)

    def predict(obs: Any) -> Any:
        return model.predict(obs, deterministic=True)[0]

    envs = gym.make_vec(ENV, EPISODES, vectorization_mode="vector_entry_point")
    score_check = ScoreCheck(envs, predict, score)

    class StopAtScore(BaseCallback):
        def _on_step(self) -> bool:
            return not score_check.is_reached(model.num_timesteps)

    def train() -> int:
        return int(model.learn(BUDGET, StopAtScore()).num_timesteps)

    return train, predict


def main(library: str, seed: int, score: float) -> None:
    """Print a line when the score is reached, and a line with the return of other episodes."""
    train, predict = {"rlox": rlox, "sb3": sb3}[library](seed, score)
    start = time.perf_counter()
    steps = train()
    if steps >= BUDGET:  # the score was not reached
        sys.exit(f"{library}: expected {score} within {BUDGET} steps, got less")
    print(json.dumps({"learning": time.perf_counter() - start, "steps": steps}), flush=True)
    from training import greedy_return

    print(json.dumps({"return": greedy_return(predict, EPISODES)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
