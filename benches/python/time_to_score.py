"""How long a new process takes until an agent of CartPole-v1 is seen to reach a score.

The clock runs from starting Python: imports, training with rl-zoo3's settings of PPO, and 30 greedy
episodes after every 2,048 steps, until their mean is the score. Those are on the library's own
fastest environments with CartPole-v1's dynamics, with other seeds each time. "learning" is the
part without imports and what is made once; the return is that of further episodes, on Gymnasium's
own environment.

The subjects run this file as a program, whose arguments are the library, the seed and the score.
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


def new_process(library: str, score: float) -> Callable[[int], dict[str, float]]:
    """A subject: a process in every round, whose seed is the round's number."""

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


class Judge:
    """Says when the score is reached."""

    def __init__(self, envs: Any, predict: Callable[[Any], Any], score: float) -> None:
        self.envs, self.predict, self.score = envs, predict, score
        self.judged = 0

    def reached(self, timesteps: int) -> bool:
        """Whether it is, if another evaluation is due."""
        if timesteps < self.judged + EVERY:
            return False
        self.judged = timesteps
        obs, _ = self.envs.reset(seed=timesteps)
        alive, returns = np.ones(EPISODES, np.bool_), np.zeros(EPISODES)
        while alive.any():
            obs, rewards, terminated, truncated, _ = self.envs.step(self.predict(obs))
            returns += rewards * alive
            alive &= ~(terminated | truncated)
        return bool(returns.mean() >= self.score)


def rlox(seed: int, score: float) -> tuple[Callable[[], int], Callable[[Any], Any]]:
    """What trains and returns the steps, and the policy."""
    from rlox import VecEnv
    from rlox.trainers import PPOTrainer

    trainer = PPOTrainer(env=ENV, seed=seed, backend="native", runs_dir=None)
    judge = Judge(VecEnv(EPISODES, env_id=ENV), trainer.predict, score)

    def check(trainer: PPOTrainer, metrics: dict[str, float]) -> None:
        if judge.reached(trainer.timesteps):
            trainer.stop()

    def train() -> int:
        return trainer.train(BUDGET, callbacks=[check])["timesteps"]

    return train, trainer.predict


def sb3(seed: int, score: float) -> tuple[Callable[[], int], Callable[[Any], Any]]:
    """The same for Stable-Baselines3; it is judged on Gymnasium's NumPy environments."""
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
    judge = Judge(envs, predict, score)

    class Check(BaseCallback):
        def _on_step(self) -> bool:
            return not judge.reached(model.num_timesteps)

    def train() -> int:
        return int(model.learn(BUDGET, Check()).num_timesteps)

    return train, predict


def main(library: str, seed: int, score: float) -> None:
    """Prints a line when the score is reached, and one with the return of further episodes."""
    train, predict = {"rlox": rlox, "sb3": sb3}[library](seed, score)
    began = time.perf_counter()
    steps = train()
    if steps >= BUDGET:  # a time that ends without the score is not the time to it
        sys.exit(f"{library}: expected {score} within {BUDGET} steps, got less")
    print(json.dumps({"learning": time.perf_counter() - began, "steps": steps}), flush=True)
    from training import greedy_return

    print(json.dumps({"return": greedy_return(predict, EPISODES)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
