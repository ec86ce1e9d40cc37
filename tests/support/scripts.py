"""Environment with fixed episode lengths, and rollouts with known targets."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox import RolloutBuffer

GAMMA, LAMBDA = 0.5, 0.5


class Script(gym.Env):
    """Environment with fixed episode lengths and reward 1 that observes 10 * episode + step."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, lengths=(2,), terminate=False):
        self.lengths, self.terminate, self.episode = lengths, terminate, -1

    def _obs(self):
        return np.array([10 * self.episode + self.at], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.at += 1
        over = self.at == self.lengths[self.episode % len(self.lengths)]
        return self._obs(), 1.0, over and self.terminate, over and not self.terminate, {}


def value_of_obs(obs):
    """Return a different value for each observation."""
    return (np.asarray(obs)[:, 0] + 1).astype(np.float32)


def make_rollout(env, n_steps, normalizer=None, buffer=None, action=0):
    """Return a make_rollout rollout with a constant action and the values of `value_of_obs`."""
    n, shape = env.num_envs, env.single_observation_space.shape
    buffer = RolloutBuffer(n_steps, n, shape) if buffer is None else buffer
    env.begin_rollout(buffer, normalizer)
    for t in range(n_steps):
        values = value_of_obs(buffer.obs[t])
        env.step_rollout(buffer, t, np.full(n, action), np.zeros(n), values, normalizer)
    buffer.finish(value_of_obs(buffer.last_obs), GAMMA, LAMBDA, value_of_obs(buffer.final_obs))
    return buffer


def column(name, buffer, env=0):
    return getattr(buffer, name).reshape(buffer.n_steps, -1)[:, env].tolist()
