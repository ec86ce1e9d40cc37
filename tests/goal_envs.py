"""Goal environments with Gymnasium's API that are hardly learned without hindsight."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class BitFlip(gym.Env):
    """Bits are flipped one by one until they equal the goal's (the HER paper's example).

    The reward is 0 where they do and -1 elsewhere: with n bits, a random episode of n steps meets
    the goal about once in 2**n.
    """

    def __init__(self, n=10, ends_at_goal=False):
        bits = spaces.Box(0, 1, (n,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, bits))
        self.action_space = spaces.Discrete(n)
        self.n, self.ends_at_goal = n, ends_at_goal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.n)).astype(np.float32)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        self.steps += 1
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        terminated = self.ends_at_goal and reward == 0
        return obs, reward, terminated, self.steps >= self.n, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return np.where((achieved_goal == desired_goal).all(-1), 0.0, -1.0)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.ends_at_goal & (achieved_goal == desired_goal).all(-1)

    def _obs(self):
        bits = self.bits.copy()
        return {
            "observation": bits,
            "achieved_goal": bits.copy(),
            "desired_goal": self.goal.copy(),
        }


class PointMass(gym.Env):
    """A point in a cube is moved by continuous actions until it is near the goal.

    The reward is 0 within `near` of it and -1 elsewhere. In six dimensions hardly one in 20,000
    points is near enough.
    """

    def __init__(self, dims=6, length=20, near=0.3, stride=0.3):
        box = spaces.Box(-1, 1, (dims,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.action_space = box
        self.dims, self.length, self.near, self.stride = dims, length, near, stride

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, self.dims)).astype(np.float32)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        move = self.stride * np.clip(np.asarray(action, np.float32), -1, 1)
        self.at = np.clip(self.at + move, -1, 1).astype(np.float32)
        self.steps += 1
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, reward, False, self.steps >= self.length, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return np.where(distance <= self.near, 0.0, -1.0)

    def _obs(self):
        return {
            "observation": self.at.copy(),
            "achieved_goal": self.at.copy(),
            "desired_goal": self.goal.copy(),
        }


class AsRobotics(BitFlip):
    """Ends as Gymnasium-Robotics' environments say it: once for all goals, however many.

    Fetch and Hand never end ("never"); mazes end by the norm of all differences ("norm").
    """

    def __init__(self, n=4, ends="never"):
        super().__init__(n)
        self.ends = ends

    def compute_terminated(self, achieved_goal, desired_goal, info):
        if self.ends == "never":
            return False
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= 0.45)


class OneGoal(BitFlip):
    """Takes single goals in one of its methods, "compute_reward" or "compute_terminated"."""

    def __init__(self, method, n=4):
        super().__init__(n)
        self.method = method

    def compute_reward(self, achieved_goal, desired_goal, info):
        if self.method == "compute_reward":
            return 0.0 if np.array_equal(achieved_goal, desired_goal) else -1.0
        return super().compute_reward(achieved_goal, desired_goal, info)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        met = (achieved_goal == desired_goal).all(-1)
        return bool(met) if self.method == "compute_terminated" else np.zeros_like(met)
