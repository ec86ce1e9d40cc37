"""Environments with action masks."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Masked(gym.Env):
    """Base class: `_state` returns obs and infos; the reward is 1; truncates after `limit`."""

    limit = 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._state()

    def step(self, action):
        self._check(action)
        self.at += 1
        obs, infos = self._state()
        return obs, self._reward(action), False, self.at == self.limit, infos

    def _reward(self, action):
        return 1.0


class Doors(Masked):
    """Environment with six doors; two or three doors are unlocked, the others raise."""

    observation_space = spaces.Box(0, 1, (6,))
    action_space = spaces.Discrete(6, start=10)

    def _state(self):
        self.open = np.zeros(6, bool)
        self.open[self.np_random.permutation(6)[: self.np_random.integers(2, 4)]] = True
        return self.open.astype(np.float32), {"action_mask": self.open.astype(np.int8)}

    def _check(self, action):
        assert self.open[action - 10], f"door {action} is locked"


class Reused(Doors):
    """`Doors` that overwrite and return the same mask list in each step."""

    def __init__(self):
        self.mask = [False] * 6

    def _state(self):
        obs, _ = super()._state()
        self.mask[:] = self.open.tolist()
        return obs, {"action_mask": self.mask}


class Method(Doors):
    """`Doors` with the method `action_masks`, as in sb3-contrib."""

    def _state(self):
        return super()._state()[0], {}

    def action_masks(self):
        return self.open


class Endless(Masked):
    """Environment with reward -1 in every step; action 1 is never allowed."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, limit):
        self.limit = limit

    def _state(self):
        return np.ones(1, np.float32), {"action_mask": np.array([1, 0], np.int8)}

    def _check(self, action):
        assert action == 0

    def _reward(self, action):
        return -1.0


class Locks(Masked):
    """Environment with a tuple of masks, as Gymnasium's `MultiDiscrete.sample` accepts."""

    observation_space = spaces.Box(0, 1, (5,))
    action_space = spaces.MultiDiscrete([2, 3])

    def _state(self):
        self.open = (np.array([1, self.at % 2], np.int8), np.array([0, 1, self.at % 2], np.int8))
        return np.concatenate(self.open).astype(np.float32), {"action_mask": self.open}

    def _check(self, action):
        assert all(mask[i] for mask, i in zip(self.open, action, strict=True))


class Switches(Masked):
    """Environment with four switches, some stuck; the reward is the share of switches set to 1."""

    observation_space = spaces.Box(0, 1, (8,))
    action_space = spaces.MultiBinary((2, 2))

    def _state(self):
        stuck, on = self.np_random.integers(2, size=(2, 4))
        self.open = np.stack([1 - stuck * on, 1 - stuck * (1 - on)], 1).astype(np.int8).ravel()
        return self.open.astype(np.float32), {"action_mask": self.open}

    def _check(self, action):
        assert self.open.reshape(4, 2)[np.arange(4), action.ravel()].all()

    def _reward(self, action):
        return float(action.mean())
