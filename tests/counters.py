"""An environment that counts, and rollouts of it."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox import RolloutBuffer


class Counter(gym.Env):
    """Observes how many steps it made; remembers the actions; ends as told."""

    def __init__(
        self,
        action_space=None,
        shape=(1,),
        dtype=np.float32,
        terminate_at=0,
        truncate_at=0,
        nan_obs_at=None,
        huge_obs_at=None,
        reward=None,
    ):
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.observation_space = spaces.Box(0, 250, shape, dtype)
        self.terminate_at, self.truncate_at = terminate_at, truncate_at
        self.nan_obs_at, self.huge_obs_at, self.reward = nan_obs_at, huge_obs_at, reward
        self.actions = []

    def _obs(self):
        value = np.nan if self.at == self.nan_obs_at else self.at
        value = -1e300 if self.at == self.huge_obs_at else value
        return np.full(self.observation_space.shape, value, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self.at += 1
        reward = float(self.at) if self.reward is None else self.reward
        ends = (self.at == self.terminate_at, self.at == self.truncate_at)
        return self._obs(), reward, *ends, {}


def fill(env, n_steps, actions=None, normalizer=None, seed=None):
    space = env.single_action_space
    kind = "float32" if isinstance(space, spaces.Box) else "int64"
    n = env.num_envs
    shape = env.single_observation_space.shape
    buffer = RolloutBuffer(n_steps, n, shape, space.shape, action_dtype=kind)
    env.begin_rollout(buffer, normalizer, seed)
    zeros = np.zeros(n)
    for t in range(n_steps):
        row = np.zeros((n, *space.shape), kind) if actions is None else actions[t]
        env.step_rollout(buffer, t, row, zeros, zeros, normalizer)
    return buffer
