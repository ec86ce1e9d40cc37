"""Custom environment in Python with Dict observations and action masks.

Run it with `python examples/python/custom_env.py`.

In each step, five random doors of nine are locked. The observation has a flag for each door (1 if
the door is open) and the distance of each door to the exit. The agent learns to choose the open
door that is nearest to the exit.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlox.trainers import PPOTrainer

DOORS = 9
Obs = dict[str, npt.NDArray[Any]]


class Corridor(gym.Env[Obs, np.int64]):
    """Corridor with eight steps per episode; the reward is 1 for the nearest open door, lower for other open doors."""

    def __init__(self) -> None:
        self.observation_space: gym.Space[Any] = spaces.Dict(
            {"open": spaces.MultiBinary(DOORS), "distance": spaces.Box(0.0, 1.0, (DOORS,), np.float32)}
        )
        self.action_space = spaces.Discrete(DOORS)

    def _observe(self) -> tuple[Obs, dict[str, Any]]:
        self.open = np.zeros(DOORS, np.int8)
        self.open[self.np_random.permutation(DOORS)[:4]] = 1
        self.distance = self.np_random.random(DOORS, np.float32)
        # The infos contain the action mask, with one flag per action.
        return {"open": self.open, "distance": self.distance}, {"action_mask": self.open}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.passed = 0
        return self._observe()

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Go through a door. The eighth step terminates the episode; there is no time limit."""
        if not self.open[action]:
            raise ValueError(f"action: expected an open door, got door {action}")
        best = self.distance[self.open == 1].min()
        reward = 1.0 - float(self.distance[action] - best)
        self.passed += 1
        return *self._observe()[:1], reward, self.passed == 8, False, {"action_mask": self.open}


def main() -> None:
    """Train PPO and evaluate 30 episodes."""
    with PPOTrainer(Corridor, seed=1, num_envs=8, n_steps=128, action_masks=True, runs_dir=None) as trainer:
        before = trainer.evaluate(30)["mean_reward"]
        trainer.train(total_timesteps=40_000)
        after = trainer.evaluate(30)["mean_reward"]
    print(f"mean return before {before:.2f}, after {after:.2f}, of at most 8")


if __name__ == "__main__":
    main()
