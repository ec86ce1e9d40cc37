"""Environments that say which of their actions are allowed."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Masked(gym.Env):
    """Base class: `_state` returns an observation and infos. Pays 1; truncated after `limit`."""

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
    """Six doors, two or three of them unlocked; a locked one cannot be opened."""

    observation_space = spaces.Box(0, 1, (6,))
    action_space = spaces.Discrete(6, start=10)

    def _state(self):
        self.open = np.zeros(6, bool)
        self.open[self.np_random.permutation(6)[: self.np_random.integers(2, 4)]] = True
        return self.open.astype(np.float32), {"action_mask": self.open.astype(np.int8)}

    def _check(self, action):
        assert self.open[action - 10], f"door {action} is locked"


class Reused(Doors):
    """Doors that return the same list as mask in each step, with other flags."""

    def __init__(self):
        self.mask = [False] * 6

    def _state(self):
        obs, _ = super()._state()
        self.mask[:] = self.open.tolist()
        return obs, {"action_mask": self.mask}


class Method(Doors):
    """Reports masks by a method, as environments of sb3-contrib do."""

    def _state(self):
        return super()._state()[0], {}

    def action_masks(self):
        return self.open


class Endless(Masked):
    """Pays -1 in every step. Action 1 is never allowed."""

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
    """Two locks; reports which keys fit as Gymnasium's `sample(mask=...)` takes it."""

    observation_space = spaces.Box(0, 1, (5,))
    action_space = spaces.MultiDiscrete([2, 3])

    def _state(self):
        self.open = (np.array([1, self.at % 2], np.int8), np.array([0, 1, self.at % 2], np.int8))
        return np.concatenate(self.open).astype(np.float32), {"action_mask": self.open}

    def _check(self, action):
        assert all(mask[i] for mask, i in zip(self.open, action, strict=True))


class Switches(Masked):
    """Four switches, of which some are stuck where they are; pays the switches that are on."""

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
