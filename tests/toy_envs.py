"""Environments so small that what must be learned in them is known."""

import multiprocessing
import os
import signal
import time

import gymnasium as gym
import numpy as np


class Echo(gym.Env):
    """A random one-hot observation; the reward is 1 for naming its place. Ten steps, then cut."""

    def __init__(self, n=3, start=0):
        self.observation_space = gym.spaces.Box(0.0, 1.0, (n,))
        self.action_space = gym.spaces.Discrete(n, start=start)

    def _observe(self):
        self.place = int(self.np_random.integers(self.observation_space.shape[0]))
        return np.eye(self.observation_space.shape[0], dtype=np.float32)[self.place]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        reward = float(action == self.place + self.action_space.start)
        self.steps += 1
        return self._observe(), reward, False, self.steps == 10, {}


class Imitate(gym.Env):
    """A random number in [-1, 1]; the reward is minus the squared distance of the action."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def _observe(self):
        self.number = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.number

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = -float(((action - self.number) ** 2).sum())
        self.steps += 1
        return self._observe(), reward, False, self.steps == 10, {}


class Answer(gym.Env):
    """Random numbers in [-1, 1]; each action has one right answer, which depends on them.

    An integer component is right where it is the number's place among as many equal intervals as it
    has values; a Box component where it has that place between its bounds. Rewards are the share of
    right components, or minus the squared distance from the right ones, in half widths. Ten steps.
    """

    def __init__(self, action_space):
        self.action_space = action_space
        k = int(np.prod(action_space.shape or ()))
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (k,))

    def _observe(self):
        self.numbers = self.np_random.uniform(-1.0, 1.0, self.observation_space.shape)
        self.numbers = self.numbers.astype(np.float32)
        return self.numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        space, share = self.action_space, (self.numbers + 1) / 2
        said = np.asarray(action).ravel()
        if isinstance(space, gym.spaces.Box):
            low, high = space.low.ravel(), space.high.ravel()
            wrong = (said - low - share * (high - low)) / ((high - low) / 2)
            reward = -float((wrong**2).mean())
        else:
            counts = np.ravel(getattr(space, "nvec", getattr(space, "n", 2)))
            if isinstance(space, gym.spaces.MultiBinary):
                counts = np.full(said.shape, 2)
            right = np.minimum(share * counts, counts - 1).astype(int)
            right = right + np.ravel(getattr(space, "start", 0))
            reward = float((said == right).mean())
        self.steps += 1
        return self._observe(), reward, False, self.steps == 10, {}


class Count(gym.Env):
    """The observation is 100 times the number of steps; reward 1; cut (or ended) after `limit`."""

    def __init__(self, limit=10, terminate=False, scale=100.0):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = gym.spaces.Discrete(2)
        self.limit, self.terminate, self.scale = limit, terminate, scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == self.limit
        obs = np.full(1, self.scale * self.steps, np.float32)
        return obs, 1.0, over and self.terminate, over and not self.terminate, {}


# An id that has no native implementation.
gym.register("toy/Echo-v0", entry_point="toy_envs:Echo")


def cartpole():
    """Gymnasium's own, in Python."""
    return gym.make("CartPole-v1")


class Breaking(gym.Env):
    """Raises in its 20th step, or kills its process there."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, how="raise"):
        self.how, self.made = how, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.made += 1
        if self.made == 20:
            if self.how == "raise":
                raise ArithmeticError("the environment broke")
            if self.how == "sleep":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Slow(Echo):
    """Takes long to be made in another process."""

    def __init__(self):
        super().__init__()
        if multiprocessing.parent_process() is not None:
            time.sleep(1000)
